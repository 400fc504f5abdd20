"""Channels: records shared among consumers and acknowledged one by one, beside Redis Streams' consumer groups; and what a
deep backlog and many deferred records cost."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import jjq
from tests.bench.run import Run, rate
from tests.bench.table import Row, at_least, at_most_more

BATCH = 100  # records received and acknowledged at once
VALUE_BYTES = 100


def fill(topic: jjq.Topic, count: int) -> None:
    """So many records of 100 B, in files as big as they come."""
    for start in range(0, count, 1 << 17):
        rows = min(1 << 17, count - start)
        data = os.urandom(VALUE_BYTES * rows)
        offsets = pa.array(range(0, len(data) + 1, VALUE_BYTES), pa.int32())
        values = pa.Array.from_buffers(pa.binary(), rows, [None, offsets.buffers()[1], pa.py_buffer(data)])
        topic.push_table(pa.table({"value": values}))


def receive_and_ack(channel: jjq.Channel, count: int) -> None:
    while count > 0:
        got = channel.receive(BATCH)
        channel.ack_many(got)
        count -= len(got)


@contextlib.contextmanager
def redis_server(place: Path, appendfsync: str = "everysec") -> Iterator[tuple[Any, str]]:
    """A client of a Redis of its own that appends to a file and syncs it as told, or why there is none."""
    try:
        import redis
    except ImportError:
        yield None, "redis-py is not installed"
        return
    program = shutil.which("redis-server")
    if program is None:
        yield None, "redis-server is not installed"
        return
    socket = place / "redis.sock"
    server = subprocess.Popen(
        [program, "--port", "0", "--unixsocket", str(socket), "--dir", str(place), "--save", "", "--appendonly", "yes",
         "--appendfsync", appendfsync],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        client = redis.Redis(unix_socket_path=str(socket))
        until = time.monotonic() + 30
        while True:
            try:
                client.ping()
                break
            except redis.exceptions.ConnectionError:
                if time.monotonic() > until or server.poll() is not None:
                    raise
        yield client, ""
        client.close()
    finally:
        server.terminate()
        server.wait()


def receive(run: Run) -> list[Row]:
    count = run.amount(20_000, 200)
    with run.place() as place, jjq.open(place / "store") as store, redis_server(place) as (client, why):
        topic = store.create_topic("work", sync="none")
        channel = store.channel("work", "workers", create=True)
        values = [os.urandom(VALUE_BYTES) for _ in range(count)]

        def ours() -> float:
            topic.push_many(values)
            return rate(count, lambda: receive_and_ack(channel, count))

        def group() -> None:
            left = count
            while left:
                [[_, entries]] = client.xreadgroup("workers", "one", {"work": ">"}, count=BATCH)
                client.xack("work", "workers", *[entry for entry, _ in entries])
                left -= len(entries)

        def theirs() -> float:
            for start in range(0, count, 1000):
                pipe = client.pipeline(transaction=False)
                for value in values[start : start + 1000]:
                    pipe.xadd("work", {"value": value})
                pipe.execute()
            return rate(count, group)

        sides = {"jjq": ours}
        if client is not None:
            client.xgroup_create("work", "workers", id="0", mkstream=True)
            sides["redis"] = theirs
        figures = run.interleave(sides, rounds=11)
    return [
        Row("channel: receive and ack of 100 x 100 B", "Redis XREADGROUP and XACK, by redis-py", "/s",
            figures["jjq"] if client is not None else (), figures.get("redis", ()), at_least(1), skipped=why),
    ]  # fmt: skip


def backlog(run: Run) -> list[Row]:
    deep, count = run.amount(5_000_000, 2000), run.amount(20_000, 200)
    with run.place() as place, jjq.open(place / "store") as store:
        full = store.create_topic("deep", sync="none")
        fill(full, deep)
        consumers = {"deep": store.channel("deep", "work", create=True)}
        empty = store.create_topic("empty", sync="none")
        consumers["empty"] = store.channel("empty", "work", create=True)

        def measure(name: str) -> float:
            if name == "empty":
                fill(empty, count)
            return rate(count, lambda: receive_and_ack(consumers[name], count))

        figures = run.interleave({name: (lambda name=name: measure(name)) for name in consumers}, rounds=11)
    return [
        Row(f"channel: receive and ack, backlog of {deep / 1e6:g} million", "on a backlog of 20,000", "/s",
            figures["deep"], figures["empty"], at_least(0.8)),
    ]  # fmt: skip


_DEFERRING = """
import sys
from pathlib import Path
import jjq

def resident():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024

with jjq.open(sys.argv[1]) as store:
    topic = store.create_topic("later", sync="none", exist_ok=True)
    for start in range(0, int(sys.argv[2]), 1000):
        # Each has a time of its own, so that each is a row of its own.
        now = 2_000_000_000_000_000 + start
        topic.push_many(
            [b"x" * 100] * 1000, headers=[{"jjq-not-before": b"%d" % (now + i * 7919 % 1000)} for i in range(1000)]
        )
    topic.push(b"now")
    channel = store.channel("later", "work", create=True)
    [delivery] = channel.receive(10, timeout=600)
    assert delivery.record.value == b"now"
    delivery.ack()
    assert channel.counts().deferred == int(sys.argv[2])
    print(resident())
"""


def deferred(run: Run) -> list[Row]:
    many, few = run.amount(1_000_000, 2000), run.amount(10_000, 1000)
    if not sys.platform.startswith("linux"):
        return [
            Row(f"channel: {many:,} deferred records", f"{few:,}", "B", target=at_most_more(100e6),
                skipped="memory is read from /proc, which only Linux has"),
        ]  # fmt: skip

    def measure(place: Path, count: int) -> float:
        done = subprocess.run(
            [sys.executable, "-c", _DEFERRING, str(place / f"store-{count}"), str(count)],
            capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        return float(done.stdout)

    with run.place() as place:
        ours, peers = [measure(place, many)], [measure(place, few)]
    return [
        Row(f"channel: memory of a consumer past {many:,} deferred records", f"past {few:,}", "B", ours, peers,
            at_most_more(100e6)),
    ]  # fmt: skip


BENCHMARKS = {"channel": receive, "channel-backlog": backlog, "channel-deferred": deferred}
