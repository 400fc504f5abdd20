"""Reading topics with Spark beside what its Python API can do at best, and beside its own Parquet."""

from __future__ import annotations

import pyarrow as pa

from jjq.log.sealed import SEALED_BATCH_BYTES
from tests.bench.run import Run, rate
from tests.bench.spark_session import files, memory, memory_stream, place, read_rate, session
from tests.bench.table import Row, at_least

ROUNDS = 5
LIMIT = "the same rows from memory"


def whole(run: Run) -> list[Row]:
    rows = []
    with place(run) as here:
        for size, full, shown in ((100, 4_000_000, "100 B"), (1024, 1_000_000, "1 KB")):
            count = run.amount(full, 2000)
            topic = here.topic(f"whole{size}", count, size)
            directory = here.store.path / "topics" / here.store.topic(topic).id
            figures = run.interleave(
                {
                    "batch": lambda n=count, t=topic: read_rate(n, here.read(t)),
                    "batch limit": lambda n=count, s=size: read_rate(n, memory(n, valueBytes=s)),
                    "stream": lambda n=count, t=topic: rate(n, lambda: here.run_stream(here.read_stream(t))),
                    "stream limit": lambda n=count, s=size: rate(
                        n, lambda: here.run_stream(memory_stream(n, valueBytes=s))
                    ),
                    "large": lambda n=count, s=size: read_rate(
                        n, memory(n, valueBytes=s, batchBytes=SEALED_BATCH_BYTES)
                    ),
                    "files": lambda n=count, d=directory: read_rate(n, files(d)),
                },
                ROUNDS,
            )
            for kind in ("batch", "stream"):
                what = f"Spark {kind} read, {shown}, sealed segments"
                rows.append(Row(what, LIMIT, "/s", figures[kind], figures[f"{kind} limit"], at_least(0.9)))
            what = f"the same from memory in batches as large as ours, {shown}"
            rows.append(Row(what, LIMIT, "/s", figures["large"], figures["batch limit"]))
            what = f"the same files, mapped and summed up, {shown}"
            rows.append(Row(what, LIMIT, "/s", figures["files"], figures["batch limit"]))
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
        pieces = run.amount(32, 2)  # fewer, and Spark's beginning and end are half of what two columns take
        for i in range(pieces):
            topic.push_table(part, writer_id="wide", batch_id=i)
        total = pieces * count
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


BENCHMARKS = {
    "spark-read": whole,
    "spark-singles": singles,
    "spark-columns": columns,
    "spark-parquet": parquet,
}
