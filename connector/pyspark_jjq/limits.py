"""How much of what waits goes into the next micro-batch, and when there is enough for one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from pyspark_jjq.options import SourceOptions
from pyspark_jjq.planning import fit, share
from pyspark_jjq.words import LONG_MAX

Partition = tuple[str, int]  # the topic's name and the number
Rows = Mapping[Partition, int]
Runs = Mapping[Partition, Sequence[tuple[int, int]]]  # what waits, in order: (rows, bytes)


class Pace:
    """The limits of one running query: two maxima, which both hold, and a minimum that waits.

    What it remembers is only when the last micro-batch was and whose turn it is; a restart may forget it.
    """

    def __init__(self, options: SourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_rows = options.max_offsets_per_trigger
        self._most_bytes = options.max_bytes_per_trigger
        self._least_rows = options.min_offsets_per_trigger
        self._delay_s = options.max_trigger_delay_s
        self._clock = clock
        self._last: float | None = None
        self._turns = 0

    @property
    def most_rows(self) -> int | None:
        """What Spark is told, which knows one limit a source; None where there is none at all."""
        if (self._most_rows, self._most_bytes, self._least_rows) == (None, None, None):
            return None
        return self._most_rows or LONG_MAX

    def holds_back(self, rows: int) -> bool:
        """Whether so few rows wait that a micro-batch waits for more: as with Kafka's source, the first one never does, and
        no other longer than `maxTriggerDelay` after the one before it."""
        if self._least_rows is None or rows >= self._least_rows or self._last is None:
            return False
        return self._clock() - self._last < self._delay_s

    def admit(self, waiting: Rows, read_before: int, runs: Callable[[Rows], Runs]) -> Rows:
        """How many rows of each partition the next micro-batch has. `read_before` are the rows of all earlier ones, `runs`
        says how large what waits is: it is asked only where bytes count."""
        self._last = self._clock()
        self._turns += 1
        if self._most_bytes is None:
            return waiting if self._most_rows is None else share(self._most_rows, waiting, read_before)
        # The bytes may leave less than the rows allow, so the turn is not what was read but how often it was asked.
        rows = waiting if self._most_rows is None else share(self._most_rows, waiting, self._turns)
        return fit(self._most_bytes, runs(rows), self._turns)
