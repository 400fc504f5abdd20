"""What the driver does for each micro-batch, called as Spark calls it: of many topics, and of many segments."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Mapping

from pyspark.sql.streaming.datasource import ReadMaxRows

import jjq
from pyspark_jjq import DefaultSource
from pyspark_jjq.stores import open_store
from tests.bench.run import Run
from tests.bench.spark_session import Place, place
from tests.bench.table import Row, at_most

TIMES = 20


class Planning:
    """A stream's driver over what the options choose, of which `topic` has something new in each micro-batch."""

    def __init__(self, here: Place, topic: jjq.Topic, options: Mapping[str, str]) -> None:
        self.topic = topic
        source = DefaultSource({"path": str(here.store.path), "maxOffsetsPerTrigger": "40", **options})
        self.reader = source.streamReader(source.schema())
        self.at = self.reader.initialOffset()

    def median(self) -> float:
        """Seconds of one micro-batch's planning, of twenty."""
        taken = []
        for _ in range(TIMES):
            self.topic.push(b"x" * 100, partition=0)
            began = time.perf_counter()
            end = self.reader.latestOffset(self.at, ReadMaxRows(40))
            assert self.reader.partitions(self.at, end)
            taken.append(time.perf_counter() - began)
            self.at = json.loads(json.dumps(end))
        return statistics.median(taken)


def by_segments(here: Place, name: str, segments: int) -> Planning:
    """A topic of so many one-row segments in 40 partitions."""
    topic = here.store.create_topic(name, partitions=40, segment_rows=1, sync="none")
    for i in range(segments):
        topic.push(b"x" * 100, partition=i % 40)
    return Planning(here, topic, {"topic": name})


def by_topics(here: Place, name: str, topics: int) -> Planning:
    """So many topics, chosen by a pattern."""
    made = [here.store.create_topic(f"{name}-{i}", sync="none") for i in range(topics)]
    for topic in made:
        topic.push(b"x" * 100)
    return Planning(here, made[0], {"subscribePattern": f"{name}-.*"})


def planning(run: Run) -> list[Row]:
    segments, few = run.amount(10_000, 80), 40
    topics = run.amount(1000, 20)
    # The connector's own store, which is opened once a process, would maintain the directory while it is removed.
    with place(run) as here, contextlib.closing(open_store(str(here.store.path))):
        sides = {"many": by_segments(here, "many", segments), "few": by_segments(here, "few", few)}
        by_count = run.interleave({name: side.median for name, side in sides.items()})
        sides = {"many": by_topics(here, "all", topics), "one": by_topics(here, "single", 1)}
        by_name = run.interleave({name: side.median for name, side in sides.items()})
    what = "latestOffset + partitions"
    return [
        Row(f"{what}, {segments:,} segments in 40 partitions", f"{few} segments", "s", by_count["many"], by_count["few"],
            at_most(2)),
        Row(f"{what}, {topics:,} topics by pattern", "one topic", "s", by_name["many"], by_name["one"]),
    ]  # fmt: skip
