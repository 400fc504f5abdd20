"""Writing topics with Spark beside a sink that drops everything, and a micro-batch beside one that does nothing."""

from __future__ import annotations

import statistics

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from tests.bench.run import Run, rate
from tests.bench.spark_session import memory_stream, place
from tests.bench.table import Row, at_least, at_most

ROUNDS = 5


def sink(run: Run) -> list[Row]:
    rows = []
    with place(run) as here:
        for size, full, shown in ((100, 2_000_000, "100 B"), (1024, 500_000, "1 KB")):
            count = run.amount(full, 2000)
            topic = here.store.create_topic(f"sink{size}")

            def incoming(n: int = count, s: int = size) -> DataFrame:
                return memory_stream(n, valueBytes=s).select("value")

            options = {"topic": topic.name, "path": str(here.store.path)}
            figures = run.interleave(
                {
                    "ours": lambda n=count, o=options, i=incoming: rate(n, lambda: here.run_stream(i(), "jjq", **o)),
                    "limit": lambda n=count, i=incoming: rate(n, lambda: here.run_stream(i(), "null_limit")),
                },
                ROUNDS,
            )
            what = f"Spark stream write, exactly once, {shown}"
            rows.append(Row(what, "a sink that drops all", "/s", figures["ours"], figures["limit"], at_least(0.7)))
            topic.empty()
    return rows


def micro_batch(run: Run) -> list[Row]:
    batches = run.amount(40, 15)
    with place(run) as here:
        here.topic("trickle", batches * 10, 100)
        options = {"topic": "trickled", "path": str(here.store.path)}
        figures = run.interleave(
            {
                "ours": lambda: median_duration(
                    here.run_stream(
                        here.read_stream("trickle", maxOffsetsPerTrigger=10).select("value"), "jjq", **options
                    )
                ),
                "null": lambda: median_duration(
                    here.run_stream(
                        memory_stream(batches * 10, valueBytes=100, perTrigger=10, tasks=1).select("value"),
                        "null_limit",
                    )
                ),
            },
            ROUNDS,
        )
    what = "micro-batch of 10 rows, our source and sink"
    return [Row(what, "null source and sink", "s", figures["ours"], figures["null"], at_most(1.3))]


def median_duration(query: StreamingQuery) -> float:
    """Seconds a micro-batch took, without the first ten, in which everything gets warm."""
    taken = [p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress if p["numInputRows"]]
    return statistics.median(taken[10:])


BENCHMARKS = {"spark-sink": sink, "spark-micro-batch": micro_batch}
