"""How far long work has come, on the standard error of a person at a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

from jjq.cli.output import count, plain, size, span

_EVERY_S = 0.1
_BAR = 20


class Progress:
    """A line that is written over. Silent where the standard error is no terminal, or `quiet`."""

    def __init__(self, what: str, total: int | None = None, *, quiet: bool = False) -> None:
        self.what, self.total = what, total
        self._began = time.monotonic()
        self._shown_at = 0.0
        self._on = not quiet and sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._on and self._shown_at:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def show(self, done: int, rows: int | None = None) -> None:
        """`done` in bytes. Called as often as one likes; writes ten times a second."""
        now = time.monotonic()
        if self._on and now - self._shown_at >= _EVERY_S:
            self._shown_at = now
            width = shutil.get_terminal_size().columns
            print(
                "\r\033[K" + self.line(done, rows, max(self.seconds, 1e-9))[: width - 1],
                end="",
                file=sys.stderr,
                flush=True,
            )

    def line(self, done: int, rows: int | None, spent_s: float) -> str:
        parts = [self.what]
        if self.total:
            part = min(1.0, done / self.total)
            filled = round(part * _BAR)
            parts.append(f"{part:4.0%} [{'#' * filled}{'.' * (_BAR - filled)}]")
        parts.append(f"{size(done)}, {size(done / spent_s)}/s")
        if rows is not None:
            parts.append(f"{count(rows, 'row')}, {rows / spent_s:,.0f}/s")
        if self.total and 0 < done < self.total:
            parts.append(f"{span(spent_s * (self.total - done) / done)} left")
        return "  ".join(parts)

    def report(self, done: int, total: int, what: str) -> None:
        """As maintenance, verify and repair call it."""
        self.total = total
        self.show(done)
        self.what = f"{self.what.split(' ')[0]} {plain(what)}"
