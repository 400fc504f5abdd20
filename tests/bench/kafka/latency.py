"""How long from a push until a running query has the record in its sink, with the trigger that is the default."""

from __future__ import annotations

import mmap
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from tests.bench.kafka.broker import Kafka
from tests.bench.kafka.queue import COUNTER, MemoryQueue, SeenSink
from tests.bench.run import Run, percentile
from tests.bench.spark_session import place, session
from tests.bench.table import Row, at_most

ROUNDS = 4
UNCOUNTED = 5  # pushes of a query that has just begun
APART_S = 0.2  # at most, between a record that is seen and the next push: so pushes meet the query at any point
GIVE_UP_S = 60


class Watch:
    """Hears from the sink. Its clock is the kernel's, the same for all processes."""

    def __init__(self, directory: Path) -> None:
        self.address = str(directory / "seen")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.settimeout(GIVE_UP_S)

    def latency(self, push: Callable[[bytes], object], number: int) -> float:
        """Seconds from before the push until the sink has the record."""
        began = time.monotonic_ns()
        push(number.to_bytes(8, "big"))
        while True:
            said = self._socket.recv(64)
            if int.from_bytes(said[:8], "big") == number:
                return (int.from_bytes(said[8:], "big") - began) / 1e9


def seen(run: Run, kafka: Kafka) -> list[Row]:
    times = run.amount(60, 3)
    session().dataSource.register(MemoryQueue)
    session().dataSource.register(SeenSink)
    chance = random.Random(3)
    with place(run) as here:
        watch = Watch(here.directory)
        topic = here.store.create_topic("pushed")
        kafka.create(["pushed"], 1)
        producer = kafka.producer()
        counter = here.directory / "counter"
        counter.write_bytes(bytes(COUNTER))
        with counter.open("r+b") as file, mmap.mmap(file.fileno(), COUNTER) as mapped:

            def count(value: bytes) -> None:
                mapped[:COUNTER] = value

            numbers = iter(range(1, 1 << 30))

            def latencies(frame: Callable[[], DataFrame], push: Callable[[bytes], object]) -> list[float]:
                checkpoint = tempfile.mkdtemp(prefix="checkpoint-", dir=here.directory)
                options = {"checkpointLocation": checkpoint, "seen": watch.address}
                query = frame().select("value").writeStream.format("seen").options(**options).start()
                taken = []
                try:
                    while not query.recentProgress:  # it has begun, at the end of what there is
                        time.sleep(0.02)
                    for _ in range(UNCOUNTED + times):
                        time.sleep(chance.uniform(0, APART_S))
                        taken.append(watch.latency(push, next(numbers)))
                finally:
                    query.stop()
                shutil.rmtree(checkpoint)
                return taken[UNCOUNTED:]

            queue = {"counter": str(counter)}
            figures = run.interleave(
                {
                    "ours": lambda: latencies(lambda: here.read_stream("pushed", startingOffsets="latest"), topic.push),
                    "memory": lambda: latencies(
                        lambda: session().readStream.format("memory_queue").options(**queue).load(), count
                    ),
                    "kafka": lambda: latencies(
                        lambda: kafka.read_stream("pushed", startingOffsets="latest"),
                        lambda value: producer.send(kafka.record("pushed", value)).get(),
                    ),
                },
                ROUNDS,
            )
        producer.close()
    rows = []
    for percent in (50, 99):
        ours, memory, theirs = ([percentile(each, percent) for each in figures[n]] for n in ("ours", "memory", "kafka"))
        what, queue_name = f"push to seen by a running query, p{percent}", "a Python source and sink in memory"
        rows.append(Row(what, f"{queue_name}, p{percent}", "s", ours, memory, at_most(1.2)))
        rows.append(Row(what, f"Kafka, Spark's connector, p{percent}", "s", ours, theirs))
    return rows
