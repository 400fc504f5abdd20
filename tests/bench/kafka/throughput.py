"""Rows a second: out of a topic without a schema, out of one with, and into one."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import jjq
from tests.bench.kafka.broker import CONSUMER, PRODUCER, Kafka
from tests.bench.run import Run
from tests.bench.spark_session import memory, memory_stream, place, read_rate
from tests.bench.table import Row, at_least

ROUNDS = 4
PARTITIONS = 2  # as many as there are cores
PEERS = ("kafka", "tuned", "memory")
CONNECTOR = "Kafka, Spark's connector"


def fill(topic: jjq.Topic, rows: int, value_bytes: int) -> None:
    """So many rows of that size in sealed files, the same number in each partition."""
    for p in range(PARTITIONS):
        values = [i.to_bytes(8, "big") + bytes(value_bytes - 8) for i in range(p, rows, PARTITIONS)]
        table = pa.table({"value": pa.array(values, pa.binary())})
        topic.push_table(table, partition=p, writer_id=f"{topic.name}-{p}", batch_id=0)


def stream_rate(query: StreamingQuery) -> float:
    """Rows a second of a query's micro-batches, without its start: a stream is started once, and then runs."""
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    spent: float = sum(each["durationMs"]["triggerExecution"] for each in progress) / 1000
    return sum(each["numInputRows"] for each in progress) / spent


def source(run: Run, kafka: Kafka) -> list[Row]:
    rows = []
    with place(run) as here:
        for size, full, shown in ((100, 2_000_000, "100 B"), (1024, 500_000, "1 KB")):
            count, name = run.amount(full, 2000), f"source{size}"
            fill(here.store.create_topic(name, partitions=PARTITIONS), count, size)
            kafka.fill(here.read(name).select("value", "partition"), name, PARTITIONS)
            assert kafka.read(name).count() == count
            figures = run.interleave(
                {
                    "batch": lambda n=count, t=name: read_rate(n, here.read(t)),
                    "batch, kafka": lambda n=count, t=name: read_rate(n, kafka.read(t)),
                    "batch, tuned": lambda n=count, t=name: read_rate(n, kafka.read(t, **CONSUMER)),
                    "batch, memory": lambda n=count, s=size: read_rate(n, memory(n, valueBytes=s)),
                    "stream": lambda t=name: stream_rate(here.run_stream(here.read_stream(t))),
                    "stream, memory": lambda n=count, s=size: stream_rate(
                        here.run_stream(memory_stream(n, valueBytes=s))
                    ),
                    "stream, kafka": lambda t=name: stream_rate(here.run_stream(kafka.read_stream(t))),
                    "stream, tuned": lambda t=name: stream_rate(here.run_stream(kafka.read_stream(t, **CONSUMER))),
                },
                ROUNDS,
            )
            for kind in ("batch", "stream"):
                what, taken = f"Spark {kind} read, {shown}, no schema", {n: figures[f"{kind}, {n}"] for n in PEERS}
                rows.append(Row(what, CONNECTOR, "/s", figures[kind], taken["kafka"], at_least(2)))
                rows.append(Row(what, f"{CONNECTOR}, max.poll.records 5000", "/s", figures[kind], taken["tuned"]))
                rows.append(Row(f"{kind} read from memory, {shown}", CONNECTOR, "/s", taken["memory"], taken["kafka"]))
    return rows


# --- with a schema -----------------------------------------------------------------------------------------------------

SCHEMA = pa.schema(
    [
        ("scheduled", pa.timestamp("us", "UTC")),
        ("carrier", pa.string()),
        ("flight", pa.int64()),
        ("tail", pa.string()),
        ("origin", pa.string()),
        ("destination", pa.string()),
        ("departure_delay", pa.float64()),
        ("arrival_delay", pa.float64()),
        ("distance", pa.int64()),
    ]
)


def flights(rows: int, seed: int) -> pa.Table:
    """Rows such as a timetable has, two fifths of which are text."""
    chance = random.Random(seed)
    first = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    places = ["EWR", "JFK", "LGA", "IAH", "MIA", "ORD", "ATL", "FLL", "IAD", "MCO"]
    return pa.Table.from_pylist(
        [
            {
                "scheduled": first + dt.timedelta(minutes=i),
                "carrier": chance.choice(("UA", "AA", "B6", "DL", "EV", "MQ")),
                "flight": chance.randrange(1, 8500),
                "tail": f"N{chance.randrange(10_000, 99_999)}",
                "origin": chance.choice(places),
                "destination": chance.choice(places),
                "departure_delay": float(chance.randrange(-20, 200)),
                "arrival_delay": chance.randrange(-300, 2000) / 10,
                "distance": chance.randrange(80, 5000),
            }
            for i in range(rows)
        ],
        schema=SCHEMA,
    )


def with_schema(run: Run, kafka: Kafka) -> list[Row]:
    part, parts = run.amount(100_000, 500), 10
    with place(run) as here:
        topic = here.store.create_topic("flights", schema=SCHEMA, partitions=PARTITIONS)
        table = flights(part, 7)
        for number in range(parts):
            topic.push_table(table, partition=number % PARTITIONS, writer_id="fill", batch_id=number)
        count = part * parts
        rows = here.read("flights")
        names, text = rows.columns, f.to_json(f.struct(*rows.columns))
        with_place = here.read("flights", metadata="_partition")
        kafka.fill(with_place.select(text.alias("value"), with_place["_partition"].alias("partition")), "flights", 2)

        def parsed(frame: DataFrame) -> DataFrame:
            return frame.select(f.from_json(frame["value"].cast("string"), rows.schema).alias("r")).select("r.*")

        first = parsed(kafka.read("flights"))
        assert first.columns == names
        assert first.where("scheduled is null or distance is null").isEmpty()
        assert first.count() == count
        figures = run.interleave(
            {
                "batch": lambda: read_rate(count, here.read("flights")),
                "batch, kafka": lambda: read_rate(count, parsed(kafka.read("flights", **CONSUMER))),
                "stream": lambda: stream_rate(here.run_stream(here.read_stream("flights"))),
                "stream, kafka": lambda: stream_rate(here.run_stream(parsed(kafka.read_stream("flights", **CONSUMER)))),
            },
            ROUNDS,
        )
    return [
        Row(f"Spark {kind} read, {len(names)} typed columns", f"{CONNECTOR} and from_json", "/s", figures[kind],
            figures[f"{kind}, kafka"], at_least(5))
        for kind in ("batch", "stream")
    ]  # fmt: skip


# --- the sink ----------------------------------------------------------------------------------------------------------


def sink(run: Run, kafka: Kafka) -> list[Row]:
    rows = []
    with place(run) as here:
        for size, full, shown in ((100, 1_000_000, "100 B"), (1024, 250_000, "1 KB")):
            count, name = run.amount(full, 2000), f"sink{size}"
            topic = here.store.create_topic(name, partitions=PARTITIONS)
            kafka.create([name], PARTITIONS)

            def incoming(n: int = count, s: int = size) -> DataFrame:
                return memory_stream(n, valueBytes=s).select("value")

            ours = {"topic": name, "path": str(here.store.path)}
            theirs = kafka.options(topic=name)
            large = theirs | PRODUCER
            figures = run.interleave(
                {
                    "ours": lambda o=ours, i=incoming: stream_rate(here.run_stream(i(), "jjq", **o)),
                    "kafka": lambda o=theirs, i=incoming: stream_rate(here.run_stream(i(), "kafka", **o)),
                    "tuned": lambda o=large, i=incoming: stream_rate(here.run_stream(i(), "kafka", **o)),
                },
                ROUNDS,
            )
            what = f"Spark stream write, exactly once, {shown}"
            peer = f"{CONNECTOR}, at least once"
            rows.append(Row(what, peer, "/s", figures["ours"], figures["kafka"], at_least(1.5)))
            rows.append(Row(what, f"{peer}, large batches", "/s", figures["ours"], figures["tuned"]))
            topic.empty()
    return rows
