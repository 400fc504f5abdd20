"""A stream from many topics into one, while records are pushed, topics and partitions come and go, retention takes records,
and the query is restarted with other limits and with its last batch again: what it has written is the log, once."""

import random
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import jjq
from pyspark_jjq.testing import Topics, topics
from tests.stores import assert_whole

NAMES = ("t0", "t1", "t2", "t3")


class Stress:
    """Values name their place, `topic id:partition:offset`, so that each is unique and where it belongs can be checked."""

    def __init__(self, given: Topics, seed: int) -> None:
        self.given, self.store, self.random = given, given.store, random.Random(seed)
        self.pushed: set[bytes] = set()
        self.lost: set[bytes] = set()  # taken before the query had read it
        self.ends: dict[tuple[str, int], int] = {}
        self.alive: dict[str, jjq.Topic] = {}
        self.create("t0")
        self.push()

    # --- what happens to the topics

    def create(self, name: str | None = None) -> None:
        name = name or self.random.choice(NAMES)
        if name not in self.alive:
            self.alive[name] = self.store.create_topic(
                name, partitions=self.random.randint(1, 3), segment_rows=20, sync="none"
            )

    def grow(self) -> None:
        name = self.random.choice(sorted(self.alive))
        self.alive[name] = self.store.alter_topic(name, partitions=self.alive[name].partitions + 1)

    def push(self, generator: random.Random | None = None) -> None:
        chance = generator or self.random
        topic = self.alive[chance.choice(sorted(self.alive))]
        partition = chance.randrange(topic.partitions)
        end = self.ends.get((topic.id, partition), 0)
        values = [b"%s:%d:%d" % (topic.id.encode(), partition, end + i) for i in range(chance.randint(1, 30))]
        topic.push_many(values, partition=partition)
        self.ends[topic.id, partition] = end + len(values)
        self.pushed.update(values)

    def expire(self) -> None:
        """Retention, or emptying: both leave the offsets alone and take what may not have been read."""
        name = self.random.choice(sorted(self.alive))
        if self.random.random() < 0.3:
            self.alive[name].empty()
        else:  # for a moment only: whoever has the store open would go on with it, unseen by this account
            self.store.alter_topic(name, retention_segments=1)
            while self.store.maintain(grace_us=0).busy:  # who is at it may have seen what is for a moment only
                pass
            self.store.alter_topic(name, retention_segments=None)
        self.account()

    def delete(self) -> None:
        if len(self.alive) > 1:
            name = self.random.choice(sorted(self.alive))
            self.store.delete_topic(name)
            del self.alive[name]
            self.account()

    def account(self) -> None:
        held = {
            b"%s:%d:%d" % (topic.id.encode(), each.partition, offset)
            for topic in self.alive.values()
            for each in topic.offsets()
            for offset in range(each.start, each.end)
        }
        self.lost |= self.pushed - held - set(self.written())

    # --- the query

    def written(self) -> list[bytes]:
        names = {topic.name for topic in self.store.topics()}
        return self.store.topic("out").read().read_all().column("value").to_pylist() if "out" in names else []

    def run(self, *, pushing: int) -> None:
        """One run over what is there, while another thread pushes."""
        limits = {"maxOffsetsPerTrigger": self.random.randint(20, 200)} if self.random.random() < 0.5 else {}
        frame = self.given.spark.readStream.format("jjq").options(
            subscribePattern="t.*", startingOffsets="earliest", failOnDataLoss=False, **limits
        )
        generator = random.Random(self.random.random())

        def push() -> None:
            for _ in range(pushing):
                self.push(generator)

        pusher = threading.Thread(target=push)
        pusher.start()
        try:
            self.given.run(frame.load(self.given.path).select("value"), into="out")
        finally:
            pusher.join()

    def round(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            self.random.choices((self.push, self.create, self.grow, self.expire, self.delete), (6, 2, 1, 3, 1))[0]()
        self.run(pushing=self.random.randint(0, 5))
        if self.random.random() < 0.3:
            self.given.repeat_last_batch("out")

    def settle(self) -> None:
        """Everything that is left, and then the account."""
        self.run(pushing=0)
        found = self.written()
        assert len(found) == len(set(found)), "something was written twice"
        assert set(found) == self.pushed - self.lost
        assert_whole(self.store)


def stress(spark: SparkSession, path: Path, seed: int, rounds: int) -> None:
    with topics(spark, path) as given:
        run = Stress(given, seed)
        for _ in range(rounds):
            run.round()
        run.settle()
        assert len(run.pushed) > 10 * rounds  # it had something to do


@pytest.mark.timeout(600)
def test_the_output_of_a_harassed_query_is_the_log(spark: SparkSession, tmp_path: Path) -> None:
    stress(spark, tmp_path, seed=7, rounds=8)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_the_output_of_a_query_that_is_harassed_for_long_is_the_log(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    stress(spark, tmp_path, seed, rounds=100)
