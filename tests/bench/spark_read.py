"""Reading topics with Spark beside what its Python API can do at best, and beside its own Parquet."""

from __future__ import annotations

import json
import statistics
import time

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadMaxRows

import jjq
from pyspark_jjq import DefaultSource
from tests.bench.run import Run, rate
from tests.bench.spark_session import Place, memory, memory_stream, place, read_rate, session
from tests.bench.table import Row, at_least, at_most

ROUNDS = 5
LIMIT = "the same rows from memory"


def whole(run: Run) -> list[Row]:
    rows = []
    with place(run) as here:
        for size, full, shown in ((100, 4_000_000, "100 B"), (1024, 1_000_000, "1 KB")):
            count = run.amount(full, 2000)
            topic = here.topic(f"whole{size}", count, size)
            figures = run.interleave(
                {
                    "batch": lambda n=count, t=topic: read_rate(n, here.read(t)),
                    "batch limit": lambda n=count, s=size: read_rate(n, memory(n, valueBytes=s)),
                    "stream": lambda n=count, t=topic: rate(n, lambda: here.run_stream(here.read_stream(t))),
                    "stream limit": lambda n=count, s=size: rate(
                        n, lambda: here.run_stream(memory_stream(n, valueBytes=s))
                    ),
                },
                ROUNDS,
            )
            for kind in ("batch", "stream"):
                what = f"Spark {kind} read, {shown}, sealed segments"
                rows.append(Row(what, LIMIT, "/s", figures[kind], figures[f"{kind} limit"], at_least(0.9)))
    return rows


def singles(run: Run) -> list[Row]:
    rows = []
    with place(run) as here:
        for size, full, shown, bound in ((100, 500_000, "100 B", 0.25), (1024, 300_000, "1 KB", 0.4)):
            count = run.amount(full, 500)
            topic = here.store.create_topic(f"single{size}", sync="none")
            for i in range(count):
                topic.push(i.to_bytes(8, "big") + bytes(size - 8))
            figures = run.interleave(
                {
                    "ours": lambda n=count, t=topic.name: read_rate(n, here.read(t)),
                    "limit": lambda n=count, s=size: read_rate(n, memory(n, valueBytes=s)),
                },
                ROUNDS,
            )
            what = f"Spark batch read, {shown}, pushed one by one"
            rows.append(Row(what, LIMIT, "/s", figures["ours"], figures["limit"], at_least(bound)))
    return rows


def columns(run: Run) -> list[Row]:
    names = [f"c{i}" for i in range(20)]
    count = run.amount(250_000, 500)
    with place(run) as here:
        topic = here.store.create_topic("wide", schema=pa.schema([(name, pa.int64()) for name in names]))
        part = pa.table({name: pa.array(range(count), pa.int64()) for name in names})
        for i in range(8):
            topic.push_table(part, writer_id="wide", batch_id=i)
        total = 8 * count
        figures = run.interleave(
            {
                "two": lambda: read_rate(total, here.read("wide", columns="c3,c17")),
                "all": lambda: read_rate(total, here.read("wide")),
                "two, memory": lambda: read_rate(total, memory(total, columns=2)),
                "all, memory": lambda: read_rate(total, memory(total, columns=20)),
            },
            ROUNDS,
        )
    return [
        Row("Spark batch read, 2 of 20 columns", "all 20", "/s", figures["two"], figures["all"], at_least(3)),
        Row("2 columns from memory", "20 columns from memory", "/s", figures["two, memory"], figures["all, memory"]),
    ]


def parquet(run: Run) -> list[Row]:
    rows = []
    with place(run) as here:
        for size, full, shown in ((100, 4_000_000, "100 B"), (1024, 1_000_000, "1 KB")):
            count = run.amount(full, 2000)
            topic, files = here.topic(f"table{size}", count, size), str(here.directory / f"parquet{size}")
            here.read(topic).write.option("compression", "uncompressed").parquet(files)
            figures = run.interleave(
                {
                    "ours": lambda n=count, t=topic: read_rate(n, here.read(t)),
                    "parquet": lambda n=count, f=files: read_rate(n, session().read.parquet(f)),
                    "limit": lambda n=count, s=size: read_rate(n, memory(n, valueBytes=s)),
                },
                ROUNDS,
            )
            what, peer = f"Spark batch read, {shown}", "uncompressed Parquet, warm"
            rows.append(Row(what, peer, "/s", figures["ours"], figures["parquet"], at_least(0.6)))
            rows.append(Row(f"{LIMIT}, {shown}", peer, "/s", figures["limit"], figures["parquet"]))
    return rows


def planning(run: Run) -> list[Row]:
    """What the driver does for each micro-batch, called as Spark calls it."""
    many, few = run.amount(10_000, 80), 40
    taken: dict[str, list[float]] = {}
    with place(run) as here:
        sides = {name: Planning(here, name, count) for name, count in (("many", many), ("few", few))}
        taken = run.interleave({name: side.median for name, side in sides.items()})
    return [
        Row(
            f"latestOffset + partitions, {many:,} segments in 40 partitions", f"{few} segments", "s",
            taken["many"], taken["few"], at_most(2),
        )
    ]  # fmt: skip


class Planning:
    """A stream's driver over a topic of so many one-row segments in 40 partitions."""

    def __init__(self, here: Place, name: str, segments: int) -> None:
        self.topic: jjq.Topic = here.store.create_topic(name, partitions=40, segment_rows=1, sync="none")
        for i in range(segments):
            self.topic.push(b"x" * 100, partition=i % 40)
        source = DefaultSource({"path": str(here.store.path), "topic": name, "maxOffsetsPerTrigger": "40"})
        self.reader = source.streamReader(source.schema())
        self.at = self.reader.initialOffset()

    def median(self) -> float:
        """Seconds of one micro-batch's planning, of twenty."""
        taken = []
        for _ in range(20):
            self.topic.push(b"x" * 100, partition=0)
            began = time.perf_counter()
            end = self.reader.latestOffset(self.at, ReadMaxRows(40))
            assert self.reader.partitions(self.at, end)
            taken.append(time.perf_counter() - began)
            self.at = json.loads(json.dumps(end))
        return statistics.median(taken)


BENCHMARKS = {
    "spark-read": whole,
    "spark-singles": singles,
    "spark-columns": columns,
    "spark-parquet": parquet,
    "spark-planning": planning,
}
