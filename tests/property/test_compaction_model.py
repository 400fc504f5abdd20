"""Compaction, merging and retention against a plain list: no record is lost, moved or changed, and seeks by time are
those of a linear scan, whatever the order of things."""

import tempfile
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import jjq
from jjq.clock import now_us
from jjq.maintenance import Maintenance
from tests.stores import assert_whole, roll

EPOCH = 1_000_000_000_000_000
DAY_US = 86_400_000_000
VALUES = st.lists(st.one_of(st.none(), st.binary(max_size=40), st.just(b"long" * 300)), min_size=1, max_size=30)


class CompactionMachine(RuleBasedStateMachine):
    """One partition with producers' times in any order; `rows` has (timestamp, value) by offset, from offset 0."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(prefix="jjq-model-")
        self.store: jjq.Store | None = None
        self.rows: list[tuple[int, bytes | None]] = []
        self.start = 0
        self.batch = 0

    def teardown(self) -> None:
        if self.store is not None:
            self.store.maintain(grace_us=0)
            self.same()
            assert not assert_whole(self.store).unknown
            self.store.close()
        self.directory.cleanup()

    @initialize(
        compression=st.sampled_from([None, "lz4", "zstd"]), segment_bytes=st.sampled_from([4096, 10_000, 1 << 20])
    )
    def create(self, compression: str | None, segment_bytes: int) -> None:
        self.store = jjq.open(Path(self.directory.name) / "store")
        self.store.create_topic(
            "t", sync="none", timestamps="producer", compression=compression, segment_bytes=segment_bytes
        )

    @property
    def topic(self) -> jjq.Topic:
        assert self.store is not None
        return self.store.topic("t")

    @rule(values=VALUES, times=st.lists(st.integers(0, 1000), min_size=30, max_size=30), each=st.booleans())
    def push(self, values: list[bytes | None], times: list[int], each: bool) -> None:
        stamps = [EPOCH + ts for ts in times[: len(values)]]
        if each:
            for value, ts in zip(values, stamps, strict=True):
                self.topic.push(value, timestamp=ts)
        else:
            self.topic.push_many(values, timestamps=stamps)
        self.rows += zip(stamps, values, strict=True)

    @rule(count=st.integers(1, 5), ts=st.integers(0, 1000))
    def link(self, count: int, ts: int) -> None:
        assert self.store is not None
        with self.store.stage() as stage:
            stage.write(
                "t", pa.table({"value": [b"linked"] * count}), timestamps=pa.array([EPOCH + ts] * count, pa.int64())
            )
            self.store.commit(stage.finish(), "w", self.batch)
        self.batch += 1
        self.rows += [(EPOCH + ts, b"linked")] * count

    @rule()
    def roll(self) -> None:
        assert self.store is not None
        roll(self.store, "t")

    @rule(grace=st.sampled_from([None, 0]))
    def maintain(self, grace: int | None) -> None:
        assert self.store is not None
        assert self.store.maintain(grace_us=grace).errors == []

    @rule(count=st.integers(8, 20))
    def link_many(self, count: int) -> None:
        for number in range(count):
            self.link(1, number)

    @precondition(lambda self: self.rows)
    @rule(kept=st.integers(1, 20_000))
    def expire_by_bytes(self, kept: int) -> None:
        assert self.store is not None
        self.store.alter_topic("t", retention_bytes=kept)
        self.store.maintain(grace_us=0)
        self.store.alter_topic("t", retention_bytes=None)
        self.start_moved()

    @rule()
    def expire_by_time(self) -> None:
        assert self.store is not None
        self.store.alter_topic("t", retention=timedelta(days=1))
        with Maintenance(self.store, now=now_us() + 3 * DAY_US, grace_us=0) as work:
            work.run()
        assert work.report.errors == []
        self.store.alter_topic("t", retention=None)
        self.start_moved()
        assert self.start == len(self.rows)

    def start_moved(self) -> None:
        """Retention decides how far; it takes whole segments, the first ones."""
        bounds = self.topic.offsets()[0]
        assert self.start <= bounds.start <= bounds.end == len(self.rows)
        self.start = bounds.start

    @rule()
    def empty(self) -> None:
        self.topic.empty()
        self.start = len(self.rows)

    @rule(segment_bytes=st.sampled_from([4096, 10_000, 1 << 20]), compression=st.sampled_from([None, "lz4"]))
    def alter(self, segment_bytes: int, compression: str | None) -> None:
        assert self.store is not None
        self.store.alter_topic("t", segment_bytes=segment_bytes, compression=compression)

    @rule()
    def reopen(self) -> None:
        assert self.store is not None
        self.store.close()
        self.store = jjq.open(self.store.path)

    @invariant()
    def same(self) -> None:
        if self.store is None:
            return
        bounds = self.topic.offsets()[0]
        assert (bounds.start, bounds.end) == (self.start, len(self.rows))
        table = self.topic.read(metadata=["_offset", "_timestamp"]).read_all()
        stamps = table["_timestamp"].cast(pa.int64()).to_pylist()
        assert table["_offset"].to_pylist() == list(range(self.start, len(self.rows)))
        assert list(zip(stamps, table["value"].to_pylist(), strict=True)) == self.rows[self.start :]

    @rule(ts=st.integers(-1, 1001))
    def seek(self, ts: int) -> None:
        found = (offset for offset in range(self.start, len(self.rows)) if self.rows[offset][0] >= EPOCH + ts)
        assert self.topic.offset_for_timestamp(EPOCH + ts) == {0: next(found, None)}


TestCompactionModel = CompactionMachine.TestCase
TestCompactionModel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
