"""The log against plain lists: whatever is done to it in whatever order, by two processes' worth of handles, it holds
what was pushed, in order, once, and finds times as a linear scan does."""

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import jjq
from jjq.errors import DataLoss, StagedFileMissing, TopicDeleted
from jjq.log import active
from jjq.model import StagedFile
from jjq.preparing import partition_of
from tests.property.log_model import METADATA, US, Mark, Model, Part, Row, active_file, cut_power, read, rows_of, tear
from tests.stores import assert_whole, roll

SYNC = st.sampled_from(["always", "interval", "none"])
NAMES = st.sampled_from(["plain", "timed", "rows"])
WHICH = st.integers(0, 1)
PART = st.integers(0, 3)
VALUES = st.lists(st.sampled_from([None, b"", b"a", b"bb" * 40, b"c" * 700]), min_size=1, max_size=7)
KEYS = st.sampled_from([None, b"", b"k", b"other"])
STAMPS = st.lists(st.integers(0, 40), min_size=7, max_size=7)
SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


class Log(RuleBasedStateMachine):
    """Topics: `plain` (broker time, two partitions), `timed` (producer time), `rows` (a schema, producer time); they grow."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="jjq-log-"))
        self.path = self.root / "store"
        self.boots = itertools.count()
        self.boot_id = mock.patch("jjq.store.boot_id", return_value="boot")
        self.boot_id.start()
        self.ahead = mock.patch.object(active, "AHEAD_LEAST", 8)
        self.ahead.start()
        self.stores: list[jjq.Store] = []
        self.handles: dict[tuple[str, int], jjq.Topic] = {}
        self.dead: list[jjq.Topic] = []
        self.models: dict[str, Model] = {}
        self.slices: list[tuple[str, int, list[Any], list[tuple[Any, ...]]]] = []
        self.staged: list[tuple[str, str, int, list[StagedFile], list[Row]]] = []
        self.batches: list[tuple[int, dict[str, Any]]] = []
        self.numbers = itertools.count()

    # --- the life of the store ---------------------------------------------------------------------------------------

    @initialize(sync=st.tuples(SYNC, SYNC, SYNC), rows=st.integers(1, 5), ahead=st.sampled_from([0, 8]))
    def make(self, sync: tuple[str, str, str], rows: int, ahead: int) -> None:
        active.AHEAD_LEAST = ahead  # with 0 every push that syncs may lay out zeros
        self.settings = {
            name: {"sync": each, "sync_interval_ms": 3_600_000, "segment_rows": rows}
            for name, each in zip(("plain", "timed", "rows"), sync, strict=True)
        }
        self.open()
        for name in self.settings:
            self.create(name)

    def open(self) -> None:
        self.stores = [jjq.open(self.path, maintenance=False) for _ in range(2)]
        self.renew()

    def renew(self) -> None:
        names = [topic.name for topic in self.stores[0].topics()]
        self.handles = {(n, i): store.topic(n) for n in names for i, store in enumerate(self.stores)}

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def create(self, name: str) -> None:
        columns, producer = (SCHEMA.names if name == "rows" else None), name != "plain"
        partitions = 1 if name == "timed" else 2
        self.stores[0].create_topic(
            name, partitions=partitions, schema=SCHEMA if columns else None,
            timestamps="producer" if producer else "broker", **self.settings[name],
        )  # fmt: skip
        self.models[name] = Model(name, columns and list(columns), producer, [Part() for _ in range(partitions)])
        for i, store in enumerate(self.stores):
            self.handles[name, i] = store.topic(name)

    def part(self, name: str, partition: int) -> tuple[Part, int]:
        parts = self.models[name].parts
        return parts[partition % len(parts)], partition % len(parts)

    def values(self, name: str, values: list[bytes | None], topic: jjq.Topic) -> list[Any]:
        """As the topic takes them; a handle that is older than a column does not know it."""
        if name != "rows":
            return values
        assert topic.schema is not None
        return [
            dict.fromkeys(topic.schema.names[2:], next(self.numbers)) | {"n": None if v is None else len(v), "s": "x"}
            for v in values
        ]

    def times(self, name: str, stamps: list[int], count: int) -> list[int] | None:
        return [US + each for each in stamps[:count]] if self.models[name].producer else None

    # --- writing -----------------------------------------------------------------------------------------------------

    @rule(name=NAMES, which=WHICH, partition=PART, values=VALUES, key=KEYS, stamps=STAMPS)
    def push(
        self, name: str, which: int, partition: int, values: list[bytes | None], key: bytes | None, stamps: list[int]
    ) -> None:
        part, at = self.part(name, partition)
        topic = self.handles[name, which]
        (value,), times = self.values(name, values[:1], topic), self.times(name, stamps, 1)
        position = topic.push(value, key=key, partition=at, timestamp=times and times[0])
        assert (position.partition, position.offset) == (at, part.end)
        part.rows.append(Row(value, key, times and times[0]))

    @rule(name=NAMES, which=WHICH, values=VALUES, key=KEYS, stamps=STAMPS)
    def push_anywhere(
        self, name: str, which: int, values: list[bytes | None], key: bytes | None, stamps: list[int]
    ) -> None:
        """A key chooses among the partitions that there are, whatever the handle knows."""
        topic, parts = self.handles[name, which], self.models[name].parts
        (value,), times = self.values(name, values[:1], topic), self.times(name, stamps, 1)
        position = topic.push(value, key=key, timestamp=times and times[0])
        assert key is None or position.partition == partition_of(key, len(parts))
        assert position.offset == parts[position.partition].end
        parts[position.partition].rows.append(Row(value, key, times and times[0]))

    @rule(name=NAMES, which=WHICH, partition=PART, values=VALUES, key=KEYS, stamps=STAMPS, table=st.booleans())
    def push_several(
        self, name: str, which: int, partition: int, values: list[bytes | None], key: bytes | None, stamps: list[int],
        table: bool,
    ) -> None:  # fmt: skip
        part, at = self.part(name, partition)
        topic = self.handles[name, which]
        rows, times = self.values(name, values, topic), self.times(name, stamps, len(values))
        if table and times is None:
            key = None
            positions = topic.push_table(self.table(topic, rows), partition=at)
        else:
            positions = topic.push_many(rows, keys=[key] * len(rows), timestamps=times, partition=at)
        assert [each.offset for each in positions] == list(range(part.end, part.end + len(rows)))
        part.rows += [Row(v, key, t) for v, t in zip(rows, times or [None] * len(rows), strict=True)]

    @staticmethod
    def table(topic: jjq.Topic, rows: list[Any]) -> pa.Table:
        if topic.schema is None:
            return pa.table({"value": pa.array(rows, pa.binary())})
        return pa.Table.from_pylist(rows, schema=topic.schema)

    @rule(name=NAMES, which=WHICH, partition=PART, values=VALUES, stamps=STAMPS)
    def stage(self, name: str, which: int, partition: int, values: list[bytes | None], stamps: list[int]) -> None:
        _, at = self.part(name, partition)
        topic = self.handles[name, which]
        rows, times = self.values(name, values, topic), self.times(name, stamps, len(values))
        with self.stores[which].stage() as stage:
            given = None if times is None else pa.array(times, pa.int64())
            stage.write(topic, self.table(topic, rows), partition=at, timestamps=given)
            files = stage.finish()
        stamped = [Row(v, None, t) for v, t in zip(rows, times or [None] * len(rows), strict=True)]
        self.staged.append((name, topic.id, at, files, stamped))

    @precondition(lambda self: self.staged)
    @rule(which=WHICH, count=st.integers(1, 3), once=st.booleans())
    def commit(self, which: int, count: int, once: bool) -> None:
        """Files staged by either store, some time ago, perhaps under an older schema, in several topics at once."""
        taken, self.staged = self.staged[:count], self.staged[count:]
        alive = all(self.handles[name, 0].id == topic_id for name, topic_id, *_ in taken)
        files = [file for *_, each, _ in taken for file in each]
        writer = {"writer_id": "w", "batch_id": len(self.batches)} if once else {}
        if not alive:
            with pytest.raises((TopicDeleted, StagedFileMissing)):
                self.stores[which].commit(files, **writer)
            return
        result = self.stores[which].commit(files, **writer)
        assert not result.duplicate
        starts = {(n, p): span[0] for n, each in result.positions.items() for p, span in each.items()}
        for (name, partition), start in starts.items():
            assert start == self.models[name].parts[partition].end
        for name, _, at, _, rows in taken:
            self.models[name].parts[at].rows += rows
        if once:
            self.batches.append((writer["batch_id"], dict(result.positions)))

    @precondition(lambda self: self.batches and self.staged)
    @rule(which=WHICH, number=st.integers(0, 1000))
    def commit_again(self, which: int, number: int) -> None:
        batch, positions = self.batches[number % len(self.batches)]
        _, _, _, files, _ = self.staged.pop()
        result = self.stores[which].commit(files, writer_id="w", batch_id=batch, rows_may_differ=True)
        assert result.duplicate
        assert dict(result.positions) == positions

    # --- changing what is there --------------------------------------------------------------------------------------

    @rule(name=NAMES, which=WHICH, partition=PART)
    def roll(self, name: str, which: int, partition: int) -> None:
        roll(self.stores[which], name, self.part(name, partition)[1])

    @rule(which=WHICH, at_once=st.booleans())
    def compact(self, which: int, at_once: bool) -> None:
        report = self.stores[which].maintain(grace_us=0 if at_once else None)
        assert not report.errors

    @rule(name=NAMES, which=WHICH, size=st.sampled_from([1, 2000, 5000]))
    def retain(self, name: str, which: int, size: int) -> None:
        store = self.stores[which]
        store.alter_topic(name, retention_bytes=size)
        assert not store.maintain(grace_us=0).errors
        store.alter_topic(name, retention_bytes=None)
        for part, bounds in zip(self.models[name].parts, self.handles[name, which].offsets(), strict=True):
            assert part.start <= bounds.start <= bounds.end == part.end
            part.forget(bounds.start)

    @rule(name=NAMES, which=WHICH)
    def empty(self, name: str, which: int) -> None:
        self.handles[name, which].empty()
        for part in self.models[name].parts:
            part.forget(part.end)

    @rule(which=WHICH)
    def add_column(self, which: int) -> None:
        columns = self.models["rows"].columns
        assert columns is not None
        columns.append(f"c{len(columns)}")
        self.stores[which].alter_topic("rows", add_columns=pa.schema([(columns[-1], pa.int64())]))

    @rule(name=NAMES, which=WHICH, sync=SYNC)
    def alter(self, name: str, which: int, sync: str) -> None:
        """The other store's handle still has the old setting."""
        self.settings[name]["sync"] = sync
        self.stores[which].alter_topic(name, sync=sync)

    @rule(name=NAMES, which=WHICH, more=st.integers(0, 2))
    def grow(self, name: str, which: int, more: int) -> None:
        """What the handles of both stores know of it, they learn when they need it."""
        parts = self.models[name].parts
        more = min(more, 4 - len(parts))
        assert self.stores[which].alter_topic(name, partitions=len(parts) + more).partitions == len(parts) + more
        parts += [Part() for _ in range(more)]

    @rule(name=NAMES, which=WHICH)
    def delete_and_make_again(self, name: str, which: int) -> None:
        self.stores[which].delete_topic(name)
        self.dead += [self.handles[name, i] for i in range(2)]
        self.slices = [each for each in self.slices if each[0] != name]
        self.create(name)

    @precondition(lambda self: self.dead)
    @rule()
    def push_to_a_deleted_topic(self) -> None:
        topic = self.dead.pop()
        with pytest.raises(TopicDeleted):
            topic.push({"n": 1} if topic.schema else b"lost", partition=0)

    @rule()
    def renew_handles(self) -> None:
        self.renew()

    # --- crashing ----------------------------------------------------------------------------------------------------

    @rule(which=WHICH)
    def reopen(self, which: int) -> None:
        self.stores[which].close()
        self.stores[which] = jjq.open(self.path, maintenance=False)
        self.renew()
        self.dead.clear()

    @rule(name=NAMES, partition=PART, how=st.sampled_from(["a message", "half a message", "zeros", "half an entry"]))
    def die_while_appending(self, name: str, partition: int, how: str) -> None:
        path = active_file(self.handles[name, 0], self.part(name, partition)[1])
        if path is not None:
            tear(path, how)

    @rule(chance=st.one_of(st.just(1.0), st.floats(0, 1)))
    def power_cut(self, chance: float) -> None:
        """A new boot; with a chance below 1 not all that was not synced is there."""
        # Nobody closes a store before the power goes, and closing syncs: so it goes on with a copy from before that.
        number = next(self.boots)
        before, self.path = self.path, self.root / f"store {number}"
        shutil.copytree(before, self.path)
        floors: dict[tuple[str, int], int] = {}
        for name, model in self.models.items():
            for at, part in enumerate(model.parts):
                path = active_file(self.handles[name, 0], at)
                floors[name, at] = part.end
                if path is not None and chance < 1:
                    floors[name, at] = cut_power(self.path / path.relative_to(before), chance)
        self.close()
        shutil.rmtree(before)
        self.boot_id.stop()
        self.boot_id = mock.patch("jjq.store.boot_id", return_value=f"boot {number}")
        self.boot_id.start()
        self.open()
        self.slices.clear()
        self.dead.clear()
        for name, model in self.models.items():
            for part, bounds in zip(model.parts, self.handles[name, 1].offsets(), strict=True):
                assert floors[name, bounds.partition] <= bounds.end <= part.end
                assert bounds.start == part.start
                part.lose(bounds.end)

    # --- reading -----------------------------------------------------------------------------------------------------

    @rule(name=NAMES, which=WHICH, partition=PART, low=st.floats(0, 1), high=st.floats(0, 1))
    def read(self, name: str, which: int, partition: int, low: float, high: float) -> None:
        part, at = self.part(name, partition)
        start, end = sorted(part.start + int(each * len(part.rows)) for each in (low, high))
        model, topic = self.models[name], self.handles[name, which]
        columns = None if topic.schema is None else topic.schema.names
        expected = model.expected(part, columns)[start - part.start : end - part.start]
        assert read(topic, model, at, start, end) == expected
        slices = topic.plan(at, start, end)
        if slices:
            self.slices.append((name, at, slices, expected))

    @precondition(lambda self: self.slices)
    @rule(which=WHICH)
    def read_what_was_planned_long_ago(self, which: int) -> None:
        """As a task does that is tried again: the same rows, or it is said that they are gone."""
        name, at, slices, expected = self.slices.pop(0)
        model, part = self.models[name], self.models[name].parts[at]
        columns = None if model.columns is None else model.columns[: len(expected[0][3])]
        gone = part.start > slices[0].start
        try:
            batches = list(self.stores[which].read_slices(slices, columns, metadata=METADATA))
        except DataLoss:
            assert gone
        else:
            assert rows_of(pa.Table.from_batches(batches), model, columns) == expected

    @rule(name=NAMES, which=WHICH, partition=PART)
    def remember(self, name: str, which: int, partition: int) -> None:
        part, at = self.part(name, partition)
        bounds = self.handles[name, which].offsets()[at]
        part.marks.append(Mark(bounds.end, bounds.lineage))

    @rule(name=NAMES, which=WHICH, partition=PART)
    def go_on_from_what_was_remembered(self, name: str, which: int, partition: int) -> None:
        part, at = self.part(name, partition)
        topic = self.handles[name, which]
        for mark in part.marks:
            if mark.end > part.end or not part.start < mark.end:
                continue
            if mark.lost:
                with pytest.raises(DataLoss):
                    topic.plan(at, part.start, mark.end, mark.lineage)
            else:
                topic.plan(at, part.start, mark.end, mark.lineage)

    @rule(name=NAMES, which=WHICH, stamp=st.integers(-1, 42))
    def seek(self, name: str, which: int, stamp: int) -> None:
        model = self.models[name]
        found = self.handles[name, which].offset_for_timestamp(US + stamp)
        for number, part in enumerate(model.parts):
            if model.producer:
                # A staged row without a time got the broker's.
                hits = (o for o, row in enumerate(part.rows, part.start) if (row.stamp or 0) >= US + stamp)
                assert found[number] == next(hits, None)
            else:
                assert found[number] == (part.start if part.rows else None)

    @invariant()
    def ends_are_the_same_for_all(self) -> None:
        for (name, _), topic in self.handles.items():
            expected = [(part.start, part.end) for part in self.models[name].parts]
            assert [(each.start, each.end) for each in topic.offsets()] == expected

    def teardown(self) -> None:
        try:
            if self.models:
                for (name, _), topic in self.handles.items():
                    model = self.models[name]
                    columns = None if topic.schema is None else topic.schema.names
                    for number, part in enumerate(model.parts):
                        assert read(topic, model, number, part.start, part.end) == model.expected(part, columns)
                assert_whole(self.stores[0])
        finally:
            self.close()
            self.boot_id.stop()
            self.ahead.stop()
            shutil.rmtree(self.root)


TestLog = Log.TestCase
TestLog.settings = settings(
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    # Without the phase that explains a failure: for it every line is traced, which costs ten times as much.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
