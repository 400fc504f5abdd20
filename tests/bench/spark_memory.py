"""What a Spark task holds in memory while it reads or writes much, beside the same over little.

Counted is anonymous memory (RssAnon) of Spark's Python workers: mapped files are the page cache's, not the task's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from tests.bench.run import Run
from tests.bench.spark_session import place, session
from tests.bench.table import Row, at_most_more

ROW_BYTES = 1000
EVERY_S = 0.02
MOST_MORE = 100e6


def workers() -> list[int]:
    """Spark's Python processes: the descendants of this one that run pyspark's daemon."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found, waiting = [], [os.getpid()]
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child)
            with contextlib.suppress(OSError):
                if b"pyspark.daemon" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(child)
    return found


def anonymous(process: int) -> int:
    """Bytes; 0 for a process that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def peak(action: Callable[[], object]) -> float:
    """The most bytes that any one worker held while `action` ran."""
    done, most = threading.Event(), [0]

    def watch() -> None:
        while not done.wait(EVERY_S):
            most[0] = max([most[0], *map(anonymous, workers())])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        action()
    finally:
        done.set()
        watcher.join()
    return float(most[0])


def memory(run: Run) -> list[Row]:
    little, much = run.amount(100_000, 1000), run.amount(4_000_000, 4000)
    with place(run) as here:

        def write(rows: int, topic: str) -> None:
            frame = session().range(0, rows, 1, 2).selectExpr(f"cast(rpad(id, {ROW_BYTES}, 'x') as binary) as value")
            frame.write.format("jjq").option("topic", topic).mode("append").save(str(here.store.path))

        def read(topic: str) -> None:
            here.read(topic).write.format("noop").mode("overwrite").save()

        write(1000, "warm")
        read("warm")
        # Little before much, as workers live on and what they have grown to stays.
        written = [peak(lambda rows=rows, name=name: write(rows, name)) for name, rows in (("a", little), ("b", much))]
        had = [peak(lambda name=name: read(name)) for name in ("a", "b")]
    size, against = f"{much * ROW_BYTES / 1e9:.1f} GB", f"{little * ROW_BYTES / 1e6:.0f} MB"
    return [
        Row(
            f"anonymous memory, Spark sink task, {size}",
            against,
            "B",
            written[1:],
            written[:1],
            at_most_more(MOST_MORE),
        ),
        Row(f"anonymous memory, Spark read task, {size}", against, "B", had[1:], had[:1], at_most_more(MOST_MORE)),
    ]


BENCHMARKS = {"spark-memory": memory}
