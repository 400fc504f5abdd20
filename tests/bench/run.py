"""One run of benchmarks: how much is done, where, and how figures are taken."""

from __future__ import annotations

import contextlib
import cProfile
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from jjq.founding import file_system

Figure = TypeVar("Figure")

CACHE = Path.home() / ".cache" / "jjq-bench"


class Run:
    """What a benchmark gets. `quick` does as little as still runs every line: its figures mean nothing."""

    def __init__(
        self, directory: Path, *, quick: bool = False, profiler: cProfile.Profile | None = None, cache: Path = CACHE
    ) -> None:
        """`cache` is where what has to be fetched stays."""
        self.directory = directory
        self.quick = quick
        self.profiler = profiler
        self.cache = cache

    def amount(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @contextlib.contextmanager
    def place(self) -> Iterator[Path]:
        """An empty directory on the disk that is measured, removed at the end."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix="bench-", dir=self.directory))
        try:
            yield path
        finally:
            remove(path)

    def interleave(self, sides: Mapping[str, Callable[[], Figure]], rounds: int = 7) -> dict[str, list[Figure]]:
        """Figures by side and round: A B A B, so that what else the machine does meets all sides alike.

        Each side runs once before, uncounted. The first side is the one that a profiler looks at.
        """
        for name, measure in sides.items():
            if self.profiler is not None and name == next(iter(sides)):
                measure()
                self.profiler.runcall(measure)
            elif not self.quick:
                measure()
        figures: dict[str, list[Figure]] = {name: [] for name in sides}
        for _ in range(self.amount(rounds, 1)):
            for name, measure in sides.items():
                figures[name].append(measure())
        return figures


def remove(directory: Path) -> None:
    """Removes a directory into which a process of Spark, which outlives its query, may be writing its last."""
    for left in reversed(range(5)):
        try:
            shutil.rmtree(directory)
            return
        except OSError:
            if not left:
                raise
            time.sleep(0.2)


def rate(count: int, action: Callable[[], object]) -> float:
    """How many a second, for an action that does `count` of them."""
    started = time.perf_counter()
    action()
    return count / (time.perf_counter() - started)


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def machine(directory: Path) -> dict[str, str]:
    """What the figures depend on."""
    model, memory = platform.processor() or platform.machine(), 0
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    with contextlib.suppress(OSError):
        memory = int(Path("/proc/meminfo").read_text(encoding="utf-8").split()[1]) * 1024
    facts = {
        "cores": f"{os.cpu_count()} x {model}",
        "memory": f"{memory / 1e9:.0f} GB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}, {file_system(directory) or 'unknown file system'}",
        "python": platform.python_version(),
    }
    return facts | {name: found for name in ("pyarrow", "pyspark", "plyvel") if (found := package(name))}
