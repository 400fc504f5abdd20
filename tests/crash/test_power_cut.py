"""The power cut at every point of a history, and what is there when the store is opened again after the boot.

Under `always` all that was acknowledged is there, under the other modes a prefix that holds all that was synced. Linked
batches are there whole or not at all, and those that were acknowledged are there. Offsets that came back are noticed.
"""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq import files, objects
from jjq.errors import DataLoss
from jjq.repair import repair
from tests.crash.checks import State, contents, open_alone, rows_of
from tests.crash.faults import Operation
from tests.crash.powercut import Chance, Event, KeepAll, Recorder, Some, Zeros, after_power_cut, make
from tests.crash.scenarios import SCHEMA, SYNC_MODES
from tests.stores import assert_whole, roll

Step = tuple[str, Callable[[jjq.Store], object]]


def _link(batch: int, topics: str) -> Callable[[jjq.Store], object]:
    def act(store: jjq.Store) -> object:
        with store.stage() as stage:
            for name in topics:
                rows = range(10 * batch, 10 * batch + 6)
                table = pa.table(
                    {"value": [b"linked %d" % i for i in rows]} if name == "t"
                    else {"n": pa.array(rows, pa.int64()), "s": [f"linked {i}" for i in rows]}
                )  # fmt: skip
                keys = pa.array([b"%d" % i for i in rows], pa.binary())
                stage.write(name, table, keys=keys)
            return store.commit(stage.finish(), writer_id="stream", batch_id=batch, query_id="q")

    return act


def _sync(store: jjq.Store) -> None:
    for topic in store.topics():
        for partition in range(topic.partitions):
            store.logs[topic.id, partition].sync()


def _pop(store: jjq.Store) -> list[jjq.Record]:
    with store.subscriber("reader") as subscriber:
        return [subscriber.pop()]


def _poll(store: jjq.Store) -> list[jjq.Record]:
    with store.subscriber("reader") as subscriber:
        records = subscriber.poll(4)
        subscriber.commit()
        return records


def history(sync: str) -> list[Step]:
    settings = {"sync": sync, "sync_interval_ms": 3_600_000, "segment_rows": 5}
    plain = lambda store: store.topic("t")  # noqa: E731
    return [
        ("create t", lambda store: store.create_topic("t", partitions=2, **settings)),
        ("create s", lambda store: store.create_topic("s", partitions=1, schema=SCHEMA, **settings)),
        ("push", lambda store: plain(store).push(b"first", partition=0)),
        ("subscribe", lambda store: store.create_subscriber("t", "reader", start="earliest")),
        ("pop", _pop),
        ("push", lambda store: plain(store).push(b"second" * 200, key=b"k", partition=0)),
        ("push_many", lambda store: plain(store).push_many([b"%d" % i * 90 for i in range(3)], partition=0)),
        ("push that rolls", lambda store: plain(store).push(b"rolls", partition=0)),
        ("push_table", lambda store: store.topic("s").push_table(pa.table({"n": [1, 2, 3]}))),
        ("sync", _sync),
        ("push", lambda store: plain(store).push(b"other partition", partition=1)),
        ("link", _link(1, "t")),
        ("push after a link", lambda store: plain(store).push(b"after", partition=0)),
        ("poll", _poll),
        ("push", lambda store: plain(store).push(b"after, too", partition=0)),
        ("pop", _pop),
        ("link to both", _link(2, "ts")),
        ("push rows", lambda store: store.topic("s").push({"n": 5, "s": "row"})),
        ("alter", lambda store: store.alter_topic("s", add_columns=pa.schema([("x", pa.int64())]))),
        ("push wider rows", lambda store: store.topic("s").push_many([{"n": 6, "x": 1}, {"x": 2}])),
        ("create u", lambda store: store.create_topic("u", retention=timedelta(days=1), **settings)),
        ("push to u", lambda store: store.topic("u").push(b"short-lived")),
        ("empty", lambda store: store.topic("t").empty()),
        ("push after emptying", lambda store: plain(store).push(b"emptied", partition=0)),
        ("compact", lambda store: store.maintain(grace_us=0)),
        ("poll", _poll),
        ("push after compacting", lambda store: plain(store).push(b"compacted", partition=1)),
        ("grow", lambda store: store.alter_topic("t", partitions=4)),
        ("push to a new partition", lambda store: plain(store).push(b"new partition", partition=3)),
        ("delete u", lambda store: store.delete_topic("u")),
        ("create u again", lambda store: store.create_topic("u", **settings)),
        ("push to the new u", lambda store: store.topic("u").push(b"new")),
    ]


# Steps after which all that came before them, in every partition they touch, has to survive any cut.
DURABLE = {"sync": "ts", "link": "t", "link to both": "ts", "alter": "s", "empty": "t", "grow": "t"}


@dataclass
class Recorded:
    """A history as it was recorded: what a store held after each step, and what of it was durable whatever the mode."""

    events: list[Event]
    first: int
    steps: list[Step]
    states: list[State] = field(default_factory=list)
    lineages: list[dict[tuple[str, int], int]] = field(default_factory=list)
    floors: list[dict[tuple[str, int], int]] = field(default_factory=list)
    given: list[dict[int, int]] = field(default_factory=list)  # of `t`, by partition up to where, to its subscriber

    def around(self, done: int) -> tuple[State, State]:
        """What was there after so many steps, and after the next."""
        return self.states[done], self.states[min(done + 1, len(self.steps))]

    def done_before(self, cut: int) -> int:
        return sum(event.kind == "mark" for event in self.events[:cut])


def record(root: Path, sync: str) -> Recorded:
    steps = history(sync)
    with Recorder(root) as disk:
        recorded = Recorded(disk.events, disk.first, steps)
        with open_alone(root / "deep" / "store") as store:
            recorded.states.append(contents(store))
            recorded.floors.append({})
            recorded.lineages.append({})
            recorded.given.append({})
            for name, act in steps:
                result = act(store)
                disk.mark(name)
                records = result if isinstance(result, list) and name in ("pop", "poll") else []
                recorded.given.append(recorded.given[-1] | {each.partition: each.offset + 1 for each in records})
                note(recorded, store, name, sync)
            disk.on = False
    return recorded


def note(recorded: Recorded, store: jjq.Store, name: str, sync: str) -> None:
    state = contents(store)
    ends = {
        (topic, partition): start + len(rows)
        for topic, each in state.items() if topic != "writers" for partition, (start, rows) in each["rows"].items()
    }  # fmt: skip
    kept = {place: end for place, end in recorded.floors[-1].items() if place in ends}
    now = {place: end for place, end in ends.items() if sync == "always" or place[0] in DURABLE.get(name, "")}
    recorded.states.append(state)
    recorded.floors.append(kept | now)
    topics = {topic.name: topic for topic in store.topics()}
    recorded.lineages.append({place: topics[place[0]].offsets()[place[1]].lineage for place in ends})


def boot(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("jjq.store.boot_id", lambda: name)


def check(recorded: Recorded, done: int, path: Path, *, whole: bool) -> None:
    """What is there when the store is opened again; `done` steps had returned."""
    had, will = recorded.around(done)
    with open_alone(path) as store:
        state = contents(store)
        check_rows(recorded, done, state)
        if whole:
            assert_whole(store)
        for place, lineage in recorded.lineages[done].items():
            check_noticed(store, place, lineage, had, will, state)
        for name in state.get("t", {}).get("subscribers", {}):
            check_cursor(store, name, recorded.given[min(done + 1, len(recorded.steps))], state, whole=whole)


def check_rows(recorded: Recorded, done: int, state: State) -> None:
    had, will = recorded.around(done)
    assert state["writers"] in (had["writers"], will["writers"])
    assert state.keys() in (had.keys(), will.keys())
    # Where the step under way is a commit, its writer says whether all of it is there, or none.
    either = [had, will] if had["writers"] == will["writers"] else [had if state["writers"] == had["writers"] else will]
    for name in state.keys() - {"writers"}:
        places = [each[name] for each in either if name in each]
        assert state[name]["columns"] in [each["columns"] for each in places]
        for partition, found in state[name]["rows"].items():
            allowed = [each["rows"][partition] for each in places if partition in each["rows"]]
            floor = recorded.floors[done].get((name, partition), 0)
            assert is_right(found, allowed, floor), (name, partition, found, allowed, floor)


def is_right(found: tuple[int, list[Any]], allowed: list[tuple[int, list[Any]]], floor: int) -> bool:
    """Whether rows are one of those allowed, or such a one without what comes behind `floor`."""
    start, rows = found
    return any(
        start == each_start and start + len(rows) >= min(floor, start + len(each)) and rows == each[: len(rows)]
        for each_start, each in allowed
    )


def check_noticed(
    store: jjq.Store, place: tuple[str, int], lineage: int, had: State, will: State, state: State
) -> None:
    """Whoever had read to the end that was there learns that it moved back, also when it has been reached again."""
    name, partition = place
    if name not in state or (name == "u" and had.keys() != will.keys()):
        return
    start, rows = had[name]["rows"][partition]
    end = start + len(rows)
    now_start, now_rows = state[name]["rows"][partition]
    now_end = now_start + len(now_rows)
    topic = store.topic(name)
    filler = b"filler" if topic.schema is None else {"n": -1}
    topic.push_many([filler] * (1 + max(0, end - now_end)), partition=partition)
    if now_start > start:  # emptied meanwhile
        return
    if now_end < end:
        with pytest.raises(DataLoss):
            topic.plan(partition, start, end, lineage=lineage)
    else:
        topic.plan(partition, start, end, lineage=lineage)
    topic.plan(partition, start, min(end, now_end), lineage=lineage)


def check_cursor(store: jjq.Store, name: str, given: dict[int, int], state: State, *, whole: bool) -> None:
    """A subscriber of `t` may get again what it was given, and is told where that is gone; nothing is skipped. `state` is from before
    more was pushed everywhere."""
    cursor, behind = state["t"]["subscribers"][name], set()
    for partition, offset in cursor.items():
        start, rows = state["t"]["rows"][partition]
        assert offset <= max(given.get(partition, 0), start)
        if offset > start + len(rows):
            behind.add(partition)
    if not (whole or behind):
        return
    found, gone = set(), set()
    with store.subscriber(name) as subscriber:
        while True:
            try:
                records = subscriber.poll()
            except DataLoss as loss:
                gone.add(loss.partition)
                subscriber.seek({loss.partition: "latest"})
                continue
            if not records:
                break
            found |= {(record.partition, record.offset) for record in records}
        ends = {each.partition: each.end for each in subscriber.topic.offsets()}
    assert gone == behind
    assert {place for place in found if place[0] not in gone} == {
        (partition, each)
        for partition, offset in cursor.items() if partition not in gone
        for each in range(offset, ends[partition])
    }  # fmt: skip


def chances(cut: int, some: int) -> list[Chance]:
    return [Chance(), KeepAll(), Zeros(), *(Some(1000 * cut + seed) for seed in range(some))]


def cut_everywhere(
    place: Path, sync: str, monkeypatch: pytest.MonkeyPatch, *, some: int = 1, verify_each: int = 5,
    steps: int | None = None, first: int = 0, every: int = 1,
) -> None:  # fmt: skip
    """With each chance, or with one of `every` so many at a cut, and at the next cut with the next ones."""
    root = place / "recorded"
    root.mkdir()
    recorded = record(root, sync)
    seen: set[tuple[int, frozenset[tuple[str, bytes | None]]]] = set()
    for cut in range(recorded.first, len(recorded.events) + 1):
        if steps is not None and recorded.done_before(cut) > steps:
            break
        done = recorded.done_before(cut)
        for chance in chances(cut, some)[(cut + first) % every :: every]:
            tree = after_power_cut(recorded.events[:cut], chance)
            # Where all is synced, every chance leaves the same.
            if (done, what := frozenset(tree.items())) in seen:
                continue
            seen.add((done, what))
            make(tree, place / "after")
            boot(monkeypatch, f"boot {len(seen)}")
            check(recorded, done, place / "after" / "deep" / "store", whole=len(seen) % verify_each == 0)
            shutil.rmtree(place / "after")
    assert steps is not None or len(seen) > len(recorded.events)
    assert len(seen) > 20


@pytest.mark.slow
@pytest.mark.parametrize("sync", SYNC_MODES)
def test_what_is_there_after_a_power_cut_at_any_point(sync: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The modes beside `always` sync at the same places but for two or three, and promise the same: at each cut each has half
    # of the chances, the other one the other half.
    cut_everywhere(place, sync, monkeypatch, first=SYNC_MODES.index(sync), every=1 if sync == "always" else 2)


def test_what_is_there_after_many_power_cuts_while_a_store_is_founded(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_everywhere(place, "always", monkeypatch, some=30, verify_each=1, steps=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sync", SYNC_MODES)
def test_what_is_there_after_many_power_cuts_at_any_point(
    sync: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_everywhere(place, sync, monkeypatch, some=20, verify_each=1)


@pytest.mark.parametrize("sync", SYNC_MODES)
def test_a_second_power_cut_during_recovery_changes_nothing(
    sync: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "recorded").mkdir()
    recorded = record(place / "recorded", sync)
    cuts = 0
    for cut in range(recorded.first + 40, len(recorded.events), 23):
        done = recorded.done_before(cut)
        make(after_power_cut(recorded.events[:cut], Some(cut)), place / "after")
        boot(monkeypatch, f"boot {cut}")
        with Recorder(place / "after") as disk, open_alone(place / "after" / "deep" / "store") as store:
            check_rows(recorded, done, contents(store))
            disk.on = False
        for again in range(disk.first, len(disk.events) + 1, 3):
            for chance in (Chance(), Some(again)):
                make(after_power_cut(disk.events[:again], chance), place / "again")
                boot(monkeypatch, f"boot {cut} {again}")
                check(recorded, done, place / "again" / "deep" / "store", whole=False)
                shutil.rmtree(place / "again")
                cuts += 1
        shutil.rmtree(place / "after")
    assert cuts > 50


@pytest.mark.parametrize("sync", SYNC_MODES)
def test_a_store_that_cannot_be_written_reads_the_same_after_a_power_cut(
    sync: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lock, no recovery: the messages themselves say what is there."""
    (place / "recorded").mkdir()
    recorded = record(place / "recorded", sync)
    for cut in range(recorded.first + 40, len(recorded.events), 7):
        done = recorded.done_before(cut)
        make(after_power_cut(recorded.events[:cut], Some(cut)), place / "after")
        path = place / "after" / "deep" / "store"
        boot(monkeypatch, f"boot {cut}")
        if path.joinpath("catalog.db").exists():
            with jjq.open(path, read_only=True) as reader:
                state = contents(reader)
                check_rows(recorded, done, state)
                with open_alone(path) as store:
                    assert contents(store) == state
                    for topic in store.topics():
                        topic.push(b"more" if topic.schema is None else {"n": 0}, partition=0)
                    # Another process has recovered the store and writes: the reader goes on with it.
                    assert contents(reader) == contents(store)
        shutil.rmtree(place / "after")


@pytest.mark.parametrize("other_keeps_it", [False, True])
def test_an_object_is_on_disk_with_its_name_when_its_push_returns(
    other_keeps_it: bool, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "recorded").mkdir()
    with Recorder(place / "recorded") as disk, open_alone(place / "recorded" / "store") as store:
        topic = store.create_topic("t")
        if other_keeps_it:  # another process has given it its name, and not come to the directories yet
            path = objects.object_path(store, hashlib.sha256(b"big").hexdigest())
            files.make_dirs(path.parent)
            fd = files.create(path)
            files.pwrite(fd, b"big", 0)
            files.datasync(fd)
            files.close(fd)
        topic.push_file(b"big")
        done = len(disk.events)
        disk.on = False
    make(after_power_cut(disk.events[:done], Chance()), place / "after")
    boot(monkeypatch, "another boot")
    with open_alone(place / "after" / "store") as store:
        (record,) = store.topic("t").records(store.topic("t").plan(0, 0, 1))
        with store.open_object(record) as stream:
            assert stream.read() == b"big"


def test_a_commit_is_found_again_from_the_files_though_a_power_cut_takes_the_catalog_too(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest is on disk with its name before the transaction is."""
    (place / "recorded").mkdir()
    with Recorder(place / "recorded") as disk, open_alone(place / "recorded" / "store") as store:
        store.create_topic("t", partitions=2).push(b"before", partition=0)
        store.create_topic("s", schema=SCHEMA)
        before, first = contents(store), len(disk.events)
        _link(1, "ts")(store)
        after, end = contents(store), len(disk.events)
        disk.on = False
    (committed,) = (cut for cut in range(first, end) if disk.events[cut].kind == "catalog")
    for cut in (committed - 1, committed + 1, end):
        for chance in (Chance(), KeepAll()):
            tree = after_power_cut(disk.events[:cut], chance)
            del tree["/store/catalog.db"]
            make(tree, place / "after")
            boot(monkeypatch, f"boot {cut}")
            assert repair(place / "after" / "store").rebuilt is not None
            with open_alone(place / "after" / "store") as store:
                assert contents(store) in ([after] if cut > committed else [before, after]), (cut, chance)
            shutil.rmtree(place / "after")


class Killed(BaseException):
    """In the place of the process's end, so that what it did before stays recorded."""


class KilledInClosing(Recorder):
    """Kills who has closed a file before what it wrote in the index of it is on disk."""

    armed = False

    def step(self, operation: Operation) -> None:
        if self.armed and (operation.kind, operation.path.suffix) == ("sync", ".index"):
            self.armed = False
            raise Killed


@pytest.mark.parametrize("act", [lambda store: store.topic("t").push(b"next"), _link(1, "t")], ids=["push", "commit"])
def test_a_file_whose_closer_died_is_on_disk_before_a_row_names_it(
    act: Callable[[jjq.Store], object], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place / "recorded" / "store"
    path.parent.mkdir()
    with KilledInClosing(path.parent) as disk:
        with open_alone(path) as store:
            topic = store.create_topic("t", sync="none")
            topic.push_many([b"a", b"b"])
            topic.push(b"c")
            before, data = rows_of(topic, 0)[1], Path(topic.segments()[0].path)
            disk.armed = True
            with pytest.raises(Killed):
                roll(store, "t")
            died = len(disk.events)
        with open_alone(path) as other:
            act(other)
        disk.on = False
    (named,) = (at for at in range(died, len(disk.events)) if disk.events[at].kind == "catalog")
    synced = {event.inode for event in disk.events[died:named] if event.kind == "sync"}
    assert synced >= {disk.number_of(data), disk.number_of(data.with_suffix(".index"))}
    make(after_power_cut(disk.events[: named + 1], Chance()), place / "after")
    boot(monkeypatch, "another boot")
    with open_alone(place / "after" / "store") as store:
        assert rows_of(store.topic("t"), 0)[1][: len(before)] == before
        assert_whole(store)
