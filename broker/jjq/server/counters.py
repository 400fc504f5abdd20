"""What the fronts count of their requests, for `/metrics`."""

from __future__ import annotations

import threading
from collections import Counter


class Requests:
    """Requests by what they ask for: which run, how many were answered with what, and the seconds that they took. For any
    thread."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a read that is garbage may end, and be counted, amid any line
        self.running: Counter[str] = Counter()
        self.answered: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[str, float] = {}

    def begin(self, operation: str) -> None:
        with self._mutex:
            self.running[operation] += 1

    def end(self, operation: str, answer: str, seconds: float) -> None:
        with self._mutex:
            self.running[operation] -= 1
        self.count(operation, answer, seconds)

    def count(self, operation: str, answer: str, seconds: float) -> None:
        """`answer` is a status of HTTP; by Flight the code of an error, and `ok` where there was none."""
        with self._mutex:
            self.answered[operation, answer] += 1
            self.seconds[operation] = self.seconds.get(operation, 0.0) + seconds

    def told(self) -> tuple[dict[str, int], dict[tuple[str, str], int], dict[str, float]]:
        """What runs, what was answered, and the seconds, as they are now."""
        with self._mutex:
            return dict(self.running), dict(self.answered), dict(self.seconds)
