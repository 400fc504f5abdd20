"""Consuming: what a subscriber reads, pops and waits for; across the ends of compressed segments; and producers that gather."""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import jjq
from jjq.log.format import ENTRY_SIZE
from tests.bench.channels import VALUE_BYTES, fill, redis_server
from tests.bench.contention import processes
from tests.bench.run import Run, percentile, rate, seconds
from tests.bench.table import Row, at_least, at_most, at_most_more, below

MANY = 1000


def xadd_all(client: Any, stream: str, count: int, value: bytes) -> None:
    """In pipelines of a thousand, as fast as Python does it."""
    for start in range(0, count, MANY):
        pipe = client.pipeline(transaction=False)
        for _ in range(min(MANY, count - start)):
            pipe.xadd(stream, {"value": value})
        pipe.execute()


# --- history -----------------------------------------------------------------------------------------------------------


def poll(run: Run) -> list[Row]:
    count = run.amount(200_000, 2000)
    with run.place() as place, jjq.open(place / "store") as store, redis_server(place) as (client, why):
        topic = store.create_topic("measured", sync="none")
        fill(topic, count)
        subscriber = store.create_subscriber("measured")

        def ours() -> None:
            subscriber.seek("earliest")
            left = count
            while left:
                left -= len(subscriber.poll(MANY))

        def theirs() -> None:
            last: Any = "0"
            left = count
            while left:
                [[_, entries]] = client.xread({"measured": last}, count=MANY)
                last = entries[-1][0]
                left -= len(entries)

        sides = {"jjq": lambda: rate(count, ours)}
        if client is not None:
            xadd_all(client, "measured", count, os.urandom(VALUE_BYTES))
            sides["redis"] = lambda: rate(count, theirs)
        figures = run.interleave(sides, rounds=11)
    return [
        Row("poll(1000) of 100 B to Python records", "Redis XREAD COUNT 1000, by redis-py and hiredis", "/s",
            figures["jjq"] if client is not None else (), figures.get("redis", ()), at_least(3), skipped=why),
    ]  # fmt: skip


def pop(run: Run) -> list[Row]:
    try:
        import diskcache
    except ImportError:
        return [Row("pop of 100 B, the cursor surviving SIGKILL", "diskcache.Deque.popleft", "/s", target=at_least(2),
                    skipped="diskcache is not installed")]  # fmt: skip
    count = run.amount(3000, 20)
    with run.place() as place, jjq.open(place / "store") as store:
        topic = store.create_topic("measured", sync="none")
        subscriber = store.create_subscriber("measured")
        deque = diskcache.Deque(directory=str(place / "deque"))
        value = os.urandom(VALUE_BYTES)

        def ours() -> float:
            topic.push_many([value] * count)
            return rate(count, lambda: [subscriber.pop() for _ in range(count)])

        def theirs() -> float:
            deque.extend([value] * count)
            return rate(count, lambda: [deque.popleft() for _ in range(count)])

        figures = run.interleave({"jjq": ours, "deque": theirs}, rounds=11)
        deque.cache.close()
    return [
        Row("pop of 100 B, the cursor surviving SIGKILL", "diskcache.Deque.popleft", "/s", figures["jjq"],
            figures["deque"], at_least(2)),
    ]  # fmt: skip


# --- waiting -----------------------------------------------------------------------------------------------------------

_WAITER = """
import os, sys, time
import jjq

with jjq.open(sys.argv[1]) as store, store.subscriber("waiter") as subscriber:
    os.write(1, b"ready\\n")
    while subscriber.poll(timeout=None):
        os.write(1, b"%d\\n" % time.monotonic_ns())
"""
_FIFO_WAITER = """
import os, sys, time

fifo = os.open(sys.argv[1], os.O_RDONLY)
os.write(1, b"ready\\n")
while os.read(fifo, 1) == b"x":
    os.write(1, b"%d\\n" % time.monotonic_ns())
"""
_FILES_WAITER = """
import ctypes, os, select, sys, time

libc = ctypes.CDLL(None)
told = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
libc.inotify_add_watch(told, os.fsencode(sys.argv[1] + "/index"), 2)
poll = select.poll()
poll.register(told, select.POLLIN)
data, index = (os.open(sys.argv[1] + name, os.O_RDONLY) for name in ("/data", "/index"))
known = 0
os.write(1, b"ready\\n")
while True:
    poll.poll()
    os.read(told, 4096)
    end = os.lseek(index, 0, os.SEEK_END)
    if end > known:
        entry = os.pread(index, end - known, known)
        known = end
        os.pread(data, int.from_bytes(entry[8:16], "little"), int.from_bytes(entry[:8], "little"))
        os.write(1, b"%d\\n" % time.monotonic_ns())
"""


class BareFiles:
    """The system calls of a push without a sync, with as many bytes, and nothing else."""

    def __init__(self, directory: Path, message: int) -> None:
        names = ("lock", "data", "index")
        self._lock, self._data, self._index = (os.open(directory / name, os.O_RDWR | os.O_CREAT) for name in names)
        self._message = os.urandom(message)

    def push(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        at, end = os.lseek(self._data, 0, os.SEEK_END), os.lseek(self._index, 0, os.SEEK_END)
        os.pwrite(self._data, self._message, at)
        entry = at.to_bytes(8, "little") + len(self._message).to_bytes(8, "little")
        os.pwrite(self._index, entry.ljust(ENTRY_SIZE), end)
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        for fd in (self._lock, self._data, self._index):
            os.close(fd)


@contextlib.contextmanager
def child(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that has said that it is ready."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wakes(process: subprocess.Popen[bytes], write: Callable[[], object], times: int) -> list[float]:
    """Seconds from before a write until the process that slept has it in hand."""
    assert process.stdout is not None
    taken = []
    for _ in range(times):
        time.sleep(0.002)  # so that it sleeps
        began = time.monotonic_ns()
        write()
        taken.append((int(process.stdout.readline()) - began) / 1e9)
    return taken


def wake(run: Run) -> list[Row]:
    times = run.amount(300, 5)
    with run.place() as place, jjq.open(place / "store") as store, contextlib.ExitStack() as stack:
        topic = store.create_topic("measured", sync="none")
        value = os.urandom(VALUE_BYTES)
        topic.push(value)
        before = topic.segments()[0].bytes
        topic.push(value)
        message = topic.segments()[0].bytes - before
        store.create_subscriber("measured", "waiter", start="latest").close()
        waiter = stack.enter_context(child(_WAITER, str(place / "store")))
        os.mkfifo(place / "fifo")
        reader = stack.enter_context(child(_FIFO_WAITER, str(place / "fifo")))
        fifo = os.open(place / "fifo", os.O_WRONLY)
        stack.callback(os.close, fifo)
        bare = BareFiles(place, message)
        stack.callback(bare.close)
        looker = stack.enter_context(child(_FILES_WAITER, str(place)))
        for each in (waiter, reader, looker):
            assert each.stdout is not None
            each.stdout.readline()
        figures = run.interleave(
            {
                "jjq": lambda: wakes(waiter, lambda: topic.push(value), times),
                "fifo": lambda: wakes(reader, lambda: os.write(fifo, b"x"), times),
                "files": lambda: wakes(looker, bare.push, times),
            },
            rounds=9,
        )
    return [
        Row(f"push (none) to wake-up in another process, p{percent}", f"a bare FIFO, p{percent}", "s",
            [percentile(each, percent) for each in figures["jjq"]],
            [percentile(each, percent) for each in figures["fifo"]], target)
        for percent, target in ((50, at_most(3)), (99, at_most_more(0.01)))
    ] + [
        Row("the same system calls alone to wake-up, p50", "a bare FIFO, p50", "s",
            [percentile(each, 50) for each in figures["files"]], [percentile(each, 50) for each in figures["fifo"]]),
    ]  # fmt: skip


_WAITERS = """
import os, sys, threading, time
import jjq

count, duration = int(sys.argv[2]), float(sys.argv[3])
with jjq.open(sys.argv[1], maintenance=False) as store:
    def wait(number):
        try:
            store.subscriber(f"s{number}").pop(timeout=None)
        except jjq.StoreClosed:
            pass
    threads = [threading.Thread(target=wait, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(min(1.0, duration))  # until all of them sleep
    used, began = time.process_time(), time.perf_counter()
    time.sleep(duration)
    print((time.process_time() - used) / (time.perf_counter() - began))
for thread in threads:
    thread.join()
"""


def waiting(run: Run) -> list[Row]:
    count, duration = run.amount(100, 5), 0.05 if run.quick else 5.0
    with run.place() as place:
        with jjq.open(place / "store") as store:
            store.create_topic("measured", sync="none").push(b"x")
            for number in range(count):
                store.create_subscriber("measured", f"s{number}", start="latest").close()
        ours = []
        for _ in range(run.amount(3, 1)):
            done = subprocess.run(
                [sys.executable, "-c", _WAITERS, str(place / "store"), str(count), str(duration)], check=True,
                capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
            ours.append(max(1e-6, float(done.stdout)))
    return [
        Row(f"{count} waiting subscribers, CPU a second", "one core", "s", ours, [1.0] * len(ours), below(0.01)),
    ]


# --- across the ends of compressed segments ----------------------------------------------------------------------------


def lines(chance: random.Random, count: int) -> list[bytes]:
    """JSON of about a kilobyte that shrinks to a fifth, as logs do."""
    words = ["".join(chance.choices("abcdefghijklmnop", k=8)) for _ in range(400)]
    return [
        json.dumps({f"field{i}": chance.choice(words) for i in range(24)} | {"n": chance.random()}).encode()
        for _ in range(count)
    ]


def reads(subscriber: jjq.Subscriber, ends: list[int], act: Callable[[], int], total: int) -> dict[str, list[float]]:
    """Seconds of the calls that had to read on: in one segment, or across the end of one. The others only hand out what was
    read, wherever it lay."""
    taken: dict[str, list[float]] = {"within": [], "across": []}
    done = 0
    before = 0
    while done < total:
        began = time.perf_counter()
        done += act()
        spent = time.perf_counter() - began
        feed = subscriber._polling or subscriber._popping
        assert feed is not None
        after = feed._windows[0].end
        if after != before:
            crossed = any(before <= end < after for end in ends)
            if before:  # the first of all loads what nobody could know of
                taken["across" if crossed else "within"].append(spent)
            before = after
    return taken


def crossing(run: Run) -> list[Row]:
    segments, rows = run.amount(30, 4), run.amount(4000, 2500)
    chance = random.Random(7)
    found: list[Row] = []
    with run.place() as place, jjq.open(place / "store", maintenance=False) as store:
        topic = store.create_topic("measured", compression="zstd", sync="none")
        values = pa.table({"value": pa.array(lines(chance, rows), pa.binary())})
        for number in range(segments):
            topic.push_table(values, writer_id="bench", batch_id=number)
        ends = [each.end for each in topic.segments() if each.state == "sealed"]
        assert ends == [rows * (number + 1) for number in range(segments)]
        total = segments * rows
        for name, most in (("poll(1000)", run.amount(total, total)), ("pop", run.amount(total, total))):
            across, within = [], []
            for _ in range(run.amount(5 if name != "pop" else 3, 1)):
                with store.create_subscriber("measured") as subscriber:
                    act = (
                        (lambda s=subscriber: len(s.poll(MANY)))
                        if name != "pop"
                        else (lambda s=subscriber: s.pop() is not None)
                    )
                    taken = reads(subscriber, ends, act, most)
                across.append(percentile(taken["across"], 99))
                within.append(percentile(taken["within"], 99))
                store.delete_subscriber(subscriber.name)
            found.append(
                Row(f"{name} across a segment's end, zstd, p99", "within a segment, p99", "s", across, within, at_most(2))
            )  # fmt: skip
    return found


# --- producers that gather ---------------------------------------------------------------------------------------------


def produce(run: Run) -> list[Row]:
    count = run.amount(100_000, 1000)
    value = os.urandom(VALUE_BYTES)
    with run.place() as place, jjq.open(place / "store") as store, redis_server(place, "always") as (client, why):
        store.create_topic("measured", sync="always")
        with store.producer() as producer:

            def ours() -> None:
                for _ in range(count):
                    producer.push("measured", value)
                producer.flush()

            sides = {"jjq": lambda: rate(count, ours)}
            if client is not None:
                sides["redis"] = lambda: rate(count // 10, lambda: xadd_all(client, "measured", count // 10, value))
            figures = run.interleave(sides, rounds=9)
    return [
        Row("batching producer, 100 B, always", "Redis XADD pipelined by 1,000, appendfsync always, by redis-py", "/s",
            figures["jjq"] if client is not None else (), figures.get("redis", ()), at_least(10), skipped=why),
    ]  # fmt: skip


_PUSHES = 500


def _producers(place: Path, number: int) -> dict[str, Callable[[], object]]:
    store = jjq.open(place / "store", maintenance=False)
    producer = store.producer()
    value = os.urandom(VALUE_BYTES)

    def push() -> None:
        for _ in range(_PUSHES):
            producer.push("measured", value, partition=number)
        producer.flush()

    return {"jjq": push}


def _cpu_of_children() -> float:
    """CPU seconds so far of this process's children that are alive."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = 0.0
    for each in multiprocessing.active_children():
        fields = Path(f"/proc/{each.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        found += (int(fields[11]) + int(fields[12])) / ticks
    return found


def produce_processes(run: Run) -> list[Row]:
    count, duration = run.amount(8, 2), 0.001 if run.quick else 1.5
    with run.place() as place:
        with jjq.open(place / "store") as store:
            store.create_topic("measured", sync="always", partitions=count)
        with processes(count, _producers, place) as many, processes(1, _producers, place) as one:
            used: list[float] = []

            def measure(act: Callable[[str, float], list[float]]) -> float:
                done: list[float] = []
                before = _cpu_of_children()
                taken = seconds(lambda: done.extend(act("jjq", duration)))
                used.append((_cpu_of_children() - before) / (len(done) * _PUSHES))
                return len(done) * _PUSHES / taken

            def measure_bound() -> float:
                """What all cores could do if every record cost what it costs one process alone, and no sync were waited for."""
                measure(one)
                return (os.cpu_count() or 1) / max(used[-1], 1e-9)

            figures = run.interleave(
                {"many": lambda: measure(many), "one": lambda: measure(one), "bound": measure_bound}, rounds=7
            )
    return [
        Row(f"{os.cpu_count()} cores at the CPU time of one process", "one process", "/s", figures["bound"], figures["one"]),
        Row(f"batching producers of 100 B, always, {count} processes", "one process", "/s", figures["many"],
            figures["one"], at_least(3)),
    ]  # fmt: skip


BENCHMARKS = {
    "poll": poll,
    "pop": pop,
    "wake": wake,
    "waiting": waiting,
    "crossing": crossing,
    "produce": produce,
    "produce-processes": produce_processes,
}
