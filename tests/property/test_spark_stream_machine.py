"""A stream over topics that come, go, grow and are emptied, with restarts and replays at any point, against what was pushed:
each record that was there to be read is read once, in order, and no other is."""

import contextlib
import tempfile
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import jjq
from pyspark_jjq import DefaultSource
from pyspark_jjq.stream import StreamReader
from tests.readers import ALL, close_stores, rows, through_json

NAMES = ("t0", "t1", "t2")
names = st.sampled_from(NAMES)
limits = st.fixed_dictionaries(
    {},
    optional={
        "maxOffsetsPerTrigger": st.integers(1, 30),
        "maxBytesPerTrigger": st.integers(1, 5000),
        "subscriber": st.just("q"),
        "minPartitions": st.integers(1, 4),
    },
)


class StreamMachine(RuleBasedStateMachine):
    """`committed` is what Spark's checkpoint says is done; `planned` a micro-batch that it says was begun and not done."""

    def __init__(self) -> None:
        super().__init__()
        self.resources = contextlib.ExitStack()
        self.path = self.resources.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        self.store = self.resources.enter_context(jjq.open(self.path, maintenance=False))
        self.resources.callback(close_stores)
        self.alive: dict[str, jjq.Topic] = {}
        self.pushed: dict[tuple[str, int], int] = {}  # by topic id and partition: the end
        self.start: dict[tuple[str, int], int] = {}  # where it is read from at least
        self.read: dict[tuple[str, int], list[int]] = {}
        self.planned: tuple[dict[str, Any], dict[str, Any]] | None = None
        self.most: int | None = None  # rows that it may have
        self.options: dict[str, Any] = {}

    @initialize(options=limits, starting=st.sampled_from(["earliest", "latest"]))
    def begin(self, options: dict[str, Any], starting: str) -> None:
        self.restart(options, starting)
        self.committed = through_json(self.reader.initialOffset())

    def teardown(self) -> None:
        try:
            if hasattr(self, "committed"):
                self.finish()
        finally:
            self.resources.close()

    # --- topics ------------------------------------------------------------------------------------------------------

    @rule(name=names, partitions=st.integers(1, 3), rolls=st.booleans())
    def create(self, name: str, partitions: int, rolls: bool) -> None:
        if name not in self.alive:
            rows_a_segment = 7 if rolls else None
            topic = self.store.create_topic(name, partitions=partitions, sync="none", segment_rows=rows_a_segment)
            self.alive[name] = topic
            for p in range(partitions):
                self.pushed[topic.id, p] = self.start[topic.id, p] = 0

    @rule(name=names, partition=st.integers(0, 2), count=st.integers(1, 25), singly=st.booleans())
    def push(self, name: str, partition: int, count: int, singly: bool) -> None:
        topic = self.alive.get(name)
        if topic is None or partition >= topic.partitions:
            return
        end = self.pushed[topic.id, partition]
        values = [f"{topic.id}:{partition}:{end + i}".encode() for i in range(count)]
        if singly:
            for value in values:
                topic.push(value, partition=partition)
        else:
            topic.push_many(values, partition=partition)
        self.pushed[topic.id, partition] = end + count

    @rule(name=names)
    def empty(self, name: str) -> None:
        topic = self.alive.get(name)
        if topic is not None:
            topic.empty()
            for p in range(topic.partitions):
                self.start[topic.id, p] = self.pushed[topic.id, p]

    @rule(name=names)
    def delete(self, name: str) -> None:
        if name in self.alive:
            del self.alive[name]
            self.store.delete_topic(name)

    @rule()
    def maintain(self) -> None:
        self.store.maintain(grace_us=0)

    # --- the query ---------------------------------------------------------------------------------------------------

    @rule(options=limits)
    def restart(self, options: dict[str, Any], starting: str = "earliest") -> None:
        """With other options: the checkpoint says where it goes on."""
        self.options = {"path": self.path, "subscribePattern": "t.", "startingOffsets": starting, **options}
        source = DefaultSource({name: str(value) for name, value in self.options.items()} | {"failOnDataLoss": "false"})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, StreamReader)
        self.reader = reader

    @precondition(lambda self: self.planned is None)
    @rule()
    def plan(self) -> None:
        end = through_json(self.reader.latestOffset(self.committed, self.reader.getDefaultReadLimit()))
        if end != self.committed:
            self.planned = (self.committed, end)
            self.most = self.options.get("maxOffsetsPerTrigger")

    @precondition(lambda self: self.planned is not None)
    @rule()
    def read_in_vain(self) -> None:
        """The tasks read, and the query dies before it has committed."""
        assert self.planned is not None
        rows(self.reader, self.reader.partitions(*self.planned))

    @precondition(lambda self: self.planned is not None)
    @rule()
    def run(self) -> None:
        assert self.planned is not None
        found = rows(self.reader, self.reader.partitions(*self.planned))
        assert self.most is None or len(found) <= self.most
        for row in found:
            topic_id, partition, offset = row["value"].decode().split(":")
            assert (row["partition"], row["offset"]) == (int(partition), int(offset))
            self.read.setdefault((topic_id, int(partition)), []).append(row["offset"])
        self.committed, self.planned = self.planned[1], None

    def finish(self) -> None:
        """Everything that is left, and then the account."""
        for _ in range(2000):
            if self.planned is None:
                self.plan()
            if self.planned is None:
                break
            self.run()
        assert self.planned is None, "it does not end"
        for name, topic in self.alive.items():
            if "subscriber" in self.options:
                assert sum(each.records for each in self.store.subscriber(f"q:{name}").lag()) == 0
            for p in range(topic.partitions):
                key = (topic.id, p)
                got = self.read.get(key, [])
                assert set(range(self.start[key], self.pushed[key])) <= set(got), (name, p)
        for key, got in self.read.items():
            assert got == sorted(set(got)), key
            assert not got or got[-1] < self.pushed[key], key
        assert self.reader.latestOffset(self.committed, ALL) == self.committed


TestStream = StreamMachine.TestCase
TestStream.settings = settings(stateful_step_count=40, max_examples=40)
