"""How much memory of its own a process takes for large input beside small input: what does not grow with it.

The figure is the highest anonymous memory (RssAnon; pages of files are the kernel's to drop) of a process that does one
thing, as its parent sees it every few milliseconds; pyarrow's and Python's own, about 60 MB, is in both.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import jjq
from tests.bench.run import Run
from tests.bench.table import Row, at_most_more
from tests.brokers import serving

ROOT = Path(__file__).resolve().parents[2]
SAMPLE_S = 0.002
VALUE_BYTES = 1000
BATCH_ROWS = 4000
COMMAND = (sys.executable, "-c", "import sys; from jjq.cli import main; sys.exit(main())")
READING = (sys.executable, "-m", "tests.bench.memory")


def build(path: Path, size: int) -> None:
    """A store with so many bytes of values in one topic, in files as pushing leaves them."""
    data = os.urandom(VALUE_BYTES * BATCH_ROWS)
    values = [data[at : at + VALUE_BYTES] for at in range(0, len(data), VALUE_BYTES)]
    table = pa.table({"value": pa.array(values, pa.binary())})
    with jjq.open(path, maintenance=False) as store:
        topic = store.create_topic("measured", sync="none")
        store.create_subscriber("measured", "reader")
        for _ in range(max(1, size // len(data))):
            topic.push_table(table)


def write_lines(path: Path, size: int) -> None:
    data = b"".join(os.urandom(VALUE_BYTES // 2).hex().encode() + b"\n" for _ in range(BATCH_ROWS))
    with path.open("wb") as file:
        for _ in range(max(1, size // len(data))):
            file.write(data)


def rss_anon(pid: int) -> int:
    """Anonymous memory of a process in bytes, 0 where it has ended."""
    with contextlib.suppress(OSError, ValueError):
        text = Path(f"/proc/{pid}/status").read_text()
        if (at := text.find("RssAnon:")) >= 0:
            return int(text[at + 8 : text.index("kB", at)]) * 1024
    return 0


def peak(command: tuple[str, ...]) -> float:
    """The highest RssAnon of a process over its life, in bytes."""
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    highest = 0
    while process.poll() is None:
        highest = max(highest, rss_anon(process.pid))
        time.sleep(SAMPLE_S)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return highest


def measure(place: Path, size: int) -> dict[str, float]:
    """Peaks by what was done, over a store and a file of so many bytes."""
    store, lines, other = place / "store", place / "lines", place / "other"
    build(store, size)
    peaks = {what: peak((*READING, what, str(store))) for what in ("read", "poll")}
    for what in ("maintain", "verify"):
        peaks[what] = peak((*COMMAND, what, "--store", str(store)))
    shutil.rmtree(store)
    write_lines(lines, size)
    with jjq.open(other) as made:
        made.create_topic("measured", sync="none")
    peaks["push"] = peak((*COMMAND, "push", "measured", str(lines), "--store", str(other)))
    lines.unlink()
    shutil.rmtree(other)
    return peaks


def memory(run: Run) -> list[Row]:
    large, small = run.amount(4_000_000_000, 1), run.amount(100_000_000, 1)
    sizes = f"{large / 1e9:g} GB", f"{small / 1e6:g} MB"
    named = {
        "read": "reading {}", "poll": "polling {}", "maintain": "jjq maintain, compacting {}", "verify": "jjq verify of {}",
        "push": "jjq push of a file of {}",
    }  # fmt: skip
    with run.place() as place:
        free = shutil.disk_usage(place).free
        why = "" if free > 3 * large else f"it takes {3 * large / 1e9:.0f} GB of disk, and {free / 1e9:.0f} GB are free"
        few = {} if why else measure(place, small)
        many = few if run.quick or why else measure(place, large)
    return [
        Row(f"peak memory of {text.format(sizes[0])}", f"of {sizes[1]}", "B", [many[what]] if many else (),
            [few[what]] if few else (), at_most_more(100e6), skipped=why)
        for what, text in named.items()
    ]  # fmt: skip


def peak_while(pid: int, act: Callable[[], object]) -> float:
    """The highest RssAnon of a process while this one does something with it."""
    highest, done = 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(5 * SAMPLE_S):
            highest = max(highest, rss_anon(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        act()
    finally:
        done.set()
        thread.join()
    return max(highest, rss_anon(pid))


def measure_broker(place: Path, size: int) -> dict[str, float]:
    """Peaks of a broker over its clients' pushing and reading so many bytes, which stay."""
    data = os.urandom(VALUE_BYTES * BATCH_ROWS)
    values = [data[at : at + VALUE_BYTES] for at in range(0, len(data), VALUE_BYTES)]
    table = pa.table({"value": pa.array(values, pa.binary())})
    batches = max(2, size // len(data))
    with serving(place / "broker", "--no-http") as broker, jjq.connect(broker.flight) as store:
        topic = store.create_topic("measured", sync="none")
        subscriber = store.create_subscriber("measured")

        def push() -> None:
            with store.producer() as producer:
                for number in range(batches):
                    if number % 2:
                        topic.push_table(table)
                    else:
                        for value in values:
                            producer.push("measured", value)
            assert producer.failed == 0

        def read() -> None:
            assert sum(batch.num_rows for batch in topic.read()) == batches * BATCH_ROWS

        def poll() -> None:
            rows = 0
            while records := subscriber.poll(max_records=500):
                rows += len(records)
                subscriber.commit()
            assert rows == batches * BATCH_ROWS

        peaks = {
            what: peak_while(broker.process.pid, act) for what, act in (("push", push), ("read", read), ("poll", poll))
        }
    shutil.rmtree(place / "broker")
    return peaks


def memory_broker(run: Run) -> list[Row]:
    large, small = run.amount(10_000_000_000, 1), run.amount(100_000_000, 1)
    named = {"push": "pushing {} to it", "read": "reading {} from it", "poll": "polling {} from it"}
    sizes = f"{large / 1e9:g} GB", f"{small / 1e6:g} MB"
    with run.place() as place:
        free = shutil.disk_usage(place).free
        why = "" if free > 3 * large else f"it takes {3 * large / 1e9:.0f} GB of disk, and {free / 1e9:.0f} GB are free"
        few = {} if why else measure_broker(place, small)
        many = few if run.quick or why else measure_broker(place, large)
    return [
        Row(f"peak memory of a broker, {text.format(sizes[0])}", sizes[1], "B", [many[what]] if many else (),
            [few[what]] if few else (), at_most_more(100e6), skipped=why)
        for what, text in named.items()
    ]  # fmt: skip


BENCHMARKS = {"memory": memory, "memory-broker": memory_broker}


def _main(what: str, path: str) -> None:
    with jjq.open(path, maintenance=False) as store:
        if what == "read":
            rows = sum(batch.num_rows for batch in store.topic("measured").read())
        else:
            rows, subscriber = 0, store.subscriber("reader")
            while records := subscriber.poll(max_records=500):
                rows += len(records)
                subscriber.commit()
        assert rows == store.topic("measured").offsets()[0].end


if __name__ == "__main__":
    _main(*sys.argv[1:])
