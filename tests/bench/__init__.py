"""Benchmarks: what jjq does beside a peer or a limit, in the same run on the same machine.

`python -m tests.bench` prints the table; `docs/benchmarks.md` says what each row means. Each module named here has a
table `BENCHMARKS` of functions by name, which take a `Run` and return the rows of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bench.run import Run
    from tests.bench.table import Row

Benchmark = Callable[["Run"], list["Row"]]

MODULES = (
    "push",
    "contention",
    "segments",
    "consume",
    "channels",
    "memory",
    "flight",
    "http",
    "spark_read",
    "spark_write",
    "spark_memory",
    "kafka",
)
