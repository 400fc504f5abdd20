"""A benchmark's result and how it is shown: each figure beside its peer's from the same run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

HEADER = ("what", "figure", "peer", "peer's figure", "ratio", "target", "ok")


@dataclass(frozen=True, slots=True)
class Target:
    """What a row has to reach: `sense` is `>=`, `<=` or `<`.

    `of` says of what: the `ratio` of our figure to the peer's, or the `excess` of ours over it, in the row's unit.
    """

    sense: str
    value: float
    of: str = "ratio"

    def met(self, value: float) -> bool:
        return {">=": value >= self.value, "<=": value <= self.value, "<": value < self.value}[self.sense]

    def text(self, unit: str) -> str:
        if self.of == "excess":
            return f"{self.sense} +{amount(self.value, unit)}"
        return f"{self.sense} {self.value:g}"


def at_least(ratio: float) -> Target:
    return Target(">=", ratio)


def at_most(ratio: float) -> Target:
    return Target("<=", ratio)


def below(ratio: float) -> Target:
    return Target("<", ratio)


def at_most_more(excess: float) -> Target:
    return Target("<=", excess, "excess")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Figures come in pairs, one of each round; what counts is the median of the pairs' ratios.

    `unit`: `/s` (records or rows a second), `s` (seconds) or `B` (bytes). `skipped` says why there are no figures.
    """

    what: str
    peer: str
    unit: str
    ours: Sequence[float] = ()
    peers: Sequence[float] = ()
    target: Target | None = None
    skipped: str = ""

    @property
    def compared(self) -> list[float]:
        """By round: the ratio of ours to the peer's, or the excess of ours over it."""
        if self.target is not None and self.target.of == "excess":
            return [a - b for a, b in zip(self.ours, self.peers, strict=True)]
        return [a / b for a, b in zip(self.ours, self.peers, strict=True)]

    @property
    def ok(self) -> bool | None:
        if self.skipped or self.target is None:
            return None
        return self.target.met(statistics.median(self.compared))

    def cells(self) -> tuple[str, ...]:
        target = "" if self.target is None else self.target.text(self.unit)
        if self.skipped:
            return (self.what, "", self.peer, "", f"skipped: {self.skipped}", target, "-")
        values = sorted(self.compared)
        shown = [
            excess(v, self.unit) if self.target is not None and self.target.of == "excess" else f"{v:.2f}"
            for v in (statistics.median(values), values[0], values[-1])
        ]
        spread = f" ({shown[1]} to {shown[2]})" if len(values) > 1 else ""
        ok = {True: "yes", False: "NO", None: ""}[self.ok]
        ours, peers = statistics.median(self.ours), statistics.median(self.peers)
        return (
            self.what, amount(ours, self.unit), self.peer, amount(peers, self.unit), shown[0] + spread, target, ok,
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what, "peer": self.peer, "unit": self.unit, "ours": list(self.ours), "peers": list(self.peers),
            "compared": [] if self.skipped else self.compared,
            "target": None if self.target is None else self.target.text(self.unit), "ok": self.ok,
            "skipped": self.skipped,
        }  # fmt: skip


def amount(value: float, unit: str) -> str:
    """Three digits that count, in a unit a person reads."""
    if unit == "s":
        scale, name = next(((s, n) for s, n in ((1, "s"), (1e-3, "ms")) if value >= s), (1e-6, "us"))
        return f"{value / scale:.3g} {name}"
    if unit == "B":
        return f"{value / 1e6:,.0f} MB"
    scale, name = next(((s, n) for s, n in ((1e6, "M"), (1e3, "k")) if value >= s), (1, ""))
    return f"{value / scale:.3g}{name}{unit}"


def excess(value: float, unit: str) -> str:
    if unit == "B":
        return f"{value / 1e6:+.0f} MB"
    return ("-" if value < 0 else "+") + amount(abs(value), unit)


def plain(rows: Iterable[Row]) -> str:
    """The table for a terminal."""
    lines = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    shown.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(shown)


def markdown(rows: Iterable[Row]) -> str:
    lines = [HEADER, tuple("---" for _ in HEADER), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
