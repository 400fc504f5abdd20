"""A broker over Flight, beside a bare Flight server that does nothing else, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import flight

import jjq
from tests.bench.channels import redis_server
from tests.bench.consume import xadd_all
from tests.bench.nats import nats_publish
from tests.bench.run import Run, rate
from tests.bench.table import Row, at_least
from tests.brokers import serving

VALUE = os.urandom(100)
BATCH_ROWS = 64 << 10
SCHEMA = pa.schema([("value", pa.binary())])


class Bare(flight.FlightServerBase):
    """Streams an IPC file that was named, and answers every batch it is sent. It keeps nothing; or appends the bytes to a file, or
    pushes the values into a store, of its own process, where the descriptor goes on with which of them and its name."""

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.RecordBatchStream:
        return flight.RecordBatchStream(pa.ipc.open_file(pa.memory_map(ticket.ticket.decode())).read_all())

    def do_put(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader, writer: flight.FlightMetadataWriter,
    ) -> None:  # fmt: skip
        with contextlib.ExitStack() as stack:
            keep = _keeper(stack, *descriptor.path[1:])
            while True:
                try:
                    batch = reader.read_chunk().data
                except StopIteration:
                    break
                keep(batch)
                writer.write(pa.py_buffer(b"{}"))


def _keeper(stack: contextlib.ExitStack, how: bytes = b"", name: bytes = b"") -> Callable[[pa.RecordBatch], None]:
    if how == b"file":
        file = stack.enter_context(open(name, "ab", buffering=0))  # noqa: SIM115 - the stack closes it

        def write(batch: pa.RecordBatch) -> None:
            for buffer in filter(None, (each for column in batch.columns for each in column.buffers())):
                file.write(buffer)

        return write
    if how == b"store":
        topic = stack.enter_context(jjq.open(name.decode())).create_topic("measured", sync="none")
        return lambda batch: [topic.push(each.as_py()) for each in batch.column(0)].clear()
    return lambda _: None


@contextlib.contextmanager
def bare() -> Iterator[flight.FlightClient]:
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.flight"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        with flight.FlightClient(f"grpc://127.0.0.1:{int(process.stdout.readline())}") as client:
            yield client
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def served(directory: Path) -> Iterator[jjq.Store]:
    with serving(directory / "store", "--no-http") as broker, jjq.connect(broker.flight) as store:
        yield store


def batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([VALUE] * rows, pa.binary())], schema=SCHEMA)


def flight_get(run: Run) -> list[Row]:
    rows = run.amount(40 * BATCH_ROWS, 1000)
    with run.place() as place, bare() as peer, served(place) as store:
        topic = store.create_topic("measured", sync="none")
        for _ in range(max(1, rows // BATCH_ROWS)):
            topic.push_table(batch(min(rows, BATCH_ROWS)))
        store.maintain()
        with jjq.open(place / "store", maintenance=False) as files:
            log = files.logs[topic.id, 0]
            with log.exclusive():
                log.roll_locked()
            files.maintain(grace_us=0)
        with pa.OSFile(str(place / "peer.arrow"), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for each in topic.read(metadata=[]):
                writer.write_batch(each)
        ticket = flight.Ticket(str(place / "peer.arrow").encode())

        def read() -> None:
            assert sum(each.num_rows for each in topic.read(metadata=[])) == rows

        figures = run.interleave(
            {
                "jjq": lambda: rate(rows, read),
                "bare": lambda: rate(rows, lambda: sum(each.data.num_rows for each in peer.do_get(ticket))),
            }
        )
    return [
        Row("broker, DoGet of a sealed topic, 100 B", "bare Flight server, the same IPC file", "/s", figures["jjq"],
            figures["bare"], at_least(0.8))
    ]  # fmt: skip


def flight_put(run: Run) -> list[Row]:
    count = run.amount(20, 1)
    data = batch(run.amount(BATCH_ROWS, 10))
    with run.place() as place, bare() as peer, served(place) as store:
        store.create_topic("measured", sync="interval", retention_segments=2)
        broker = flight.FlightClient(store.url.replace("jjq", "grpc"))

        def put(client: flight.FlightClient, *names: str) -> None:
            writer, reader = client.do_put(flight.FlightDescriptor.for_path("measured", *names), SCHEMA)
            for _ in range(count):
                writer.write_batch(data)
            writer.done_writing()
            for _ in range(count):
                assert reader.read() is not None
            writer.close()

        figures = run.interleave(
            {
                "jjq": lambda: rate(count * data.num_rows, lambda: put(broker)),
                "bare": lambda: rate(count * data.num_rows, lambda: put(peer)),
                "writes": lambda: rate(count * data.num_rows, lambda: put(peer, "file", str(place / "bare"))),
            }
        )
        broker.close()
    what, ours = "broker, DoPut of 64 Ki rows of 100 B, `interval`", figures["jjq"]
    return [
        Row(what, "bare Flight server that drops them", "/s", ours, figures["bare"], at_least(0.5)),
        Row(what, "bare Flight server that appends them to a file, never synced", "/s", ours, figures["writes"]),
    ]


def flight_push(run: Run) -> list[Row]:
    count = run.amount(2000, 5)
    with run.place() as place, bare() as peer, served(place) as store, nats_publish(place) as (publish, why):
        topic = store.create_topic("measured", sync="none")
        data = batch(1)
        dropped = peer.do_put(flight.FlightDescriptor.for_path("x"), SCHEMA)
        pushed = peer.do_put(flight.FlightDescriptor.for_path("x", "store", str(place / "bare")), SCHEMA)

        def push() -> None:
            for _ in range(count):
                topic.push(VALUE)

        def put(writer: flight.FlightStreamWriter, reader: flight.FlightMetadataReader) -> None:
            for _ in range(count):
                writer.write_batch(data)
                reader.read()

        sides = {
            "jjq": lambda: rate(count, push),
            "bare": lambda: rate(count, lambda: put(*dropped)),
            "pushes": lambda: rate(count, lambda: put(*pushed)),
        }
        if publish is not None:
            sides["nats"] = lambda: rate(count, lambda: publish(VALUE, count))
        figures = run.interleave(sides)
        for writer, _ in (dropped, pushed):
            writer.close()
    what, ours = "broker, acknowledged push of 100 B, `none`", figures["jjq"]
    return [
        Row(what, "NATS JetStream, by nats-py", "/s", ours if publish is not None else (), figures.get("nats", ()),
            at_least(0.8), skipped=why),
        Row(what, "bare Flight server that answers", "/s", ours, figures["bare"]),
        Row(what, "bare Flight server that pushes into a store of its own", "/s", ours, figures["pushes"]),
    ]  # fmt: skip


def flight_producer(run: Run) -> list[Row]:
    count = run.amount(300_000, 100)
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(run.place())
        store = stack.enter_context(served(place))
        embedded = stack.enter_context(jjq.open(place / "embedded", maintenance=False))
        for each in (store, embedded):
            each.create_topic("always", sync="always")
        store.create_topic("none", sync="none")

        def produce(to: jjq.Store, topic: str) -> None:
            with to.producer() as producer:
                for _ in range(count):
                    producer.push(topic, VALUE)
            assert producer.failed == 0

        sides = {
            "jjq": lambda: rate(count, lambda: produce(store, "always")),
            "none": lambda: rate(count, lambda: produce(store, "none")),
            "embedded": lambda: rate(count, lambda: produce(embedded, "always")),
        }
        why = ""
        for fsync in ("everysec", "always"):
            (directory := place / fsync).mkdir()
            client, why = stack.enter_context(redis_server(directory, fsync))
            if client is not None:
                sides[fsync] = lambda client=client: rate(
                    count // 10, lambda: xadd_all(client, "measured", count // 10, VALUE)
                )
        figures = run.interleave(sides)
    what, ours, peer = "broker, producer, 100 B, always", figures["jjq"], "Redis XADD pipelined by 1,000, appendfsync"
    return [
        Row(what, f"{peer} everysec", "/s", () if why else ours, figures.get("everysec", ()), at_least(5), skipped=why),
        Row(what, f"{peer} always", "/s", () if why else ours, figures.get("always", ()), at_least(10), skipped=why),
        Row(what, "the same producer, embedded", "/s", ours, figures["embedded"]),
        Row("broker, producer, 100 B, none", "always", "/s", figures["none"], ours),
    ]


BENCHMARKS = {
    "flight-get": flight_get, "flight-put": flight_put, "flight-push": flight_push, "flight-producer": flight_producer,
}  # fmt: skip


if __name__ == "__main__":
    server = Bare("grpc://127.0.0.1:0")
    print(server.port, flush=True)
    server.serve()
