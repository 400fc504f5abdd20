"""Answers for people and for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jjq.cli.exits import DAMAGE, OK
from jjq.clock import EARLIEST_US, LATEST_US, iso, now_us
from jjq.jsonvalues import jsonable as jsonable
from jjq.values import counted, sized

_AGES = ((86_400 * 2, 86_400, "d"), (3_600 * 2, 3_600, "h"), (60 * 2, 60, "min"))


def size(count: float | None) -> str:
    """`1.5 MiB`"""
    return "-" if count is None else sized(count)


def amount(value: float, unit: str) -> str:
    """`12.3k/s`, `45.6 us`: three digits, of records a second (`/s`) or of seconds (`s`)."""
    if unit == "s":
        scale, name = next(((s, n) for s, n in ((1.0, "s"), (1e-3, "ms")) if value >= s), (1e-6, "us"))
        return f"{value / scale:.3g} {name}"
    scale, name = next(((s, n) for s, n in ((1e6, "M"), (1e3, "k")) if value >= s), (1.0, ""))
    return f"{value / scale:.3g}{name}{unit}"


def number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


count = counted


def span(seconds: float | None) -> str:
    """A length of time in its largest sensible unit: `3 min`."""
    if seconds is None:
        return "-"
    for least, unit, name in _AGES:
        if seconds >= least:
            return f"{seconds / unit:.0f} {name}"
    if seconds >= 10:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds else "0 s"


def ago(us: int | None) -> str:
    return "-" if us is None else f"{span(max(0, now_us() - us) / 1_000_000)} ago"


def instant(us: int | None) -> str | None:
    """ISO-8601, where a datetime can hold it."""
    if us is None:
        return None
    return iso(us) if EARLIEST_US <= us <= LATEST_US else f"{us} us"


def with_instants(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A document whose microseconds since the epoch under these names are ISO-8601."""
    return {**found, **{name: instant(found[name]) for name in names}}


def plain(text: object) -> str:
    """Text that moves no cursor and rings no bell on a terminal."""
    shown = str(text)
    return shown if shown.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)


def none_of(what: str, topic: str | None, maker: str) -> str:
    where = f" of topic {plain(topic)}" if topic else ""
    return f"there are no {what}{where} yet; {maker} makes one"


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], nothing: str = "") -> None:
    """Without rows `nothing` is said, on the standard error: who counts lines counts none."""
    lines = table_lines(headers, rows)
    for line in lines:
        print(line)
    if nothing and not lines:
        print(nothing, file=sys.stderr)


def table_lines(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Aligned columns; what is a number in all rows stands to the right. Nothing without rows."""
    lines = [[plain("-" if cell is None else cell) for cell in row] for row in rows]
    if not lines:
        return []
    right = [all(_is_number(line[i]) for line in lines) for i in range(len(headers))]
    widths = [max(len(headers[i]), *(len(line[i]) for line in lines)) for i in range(len(headers))]
    return [
        "  ".join(
            cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in ([*headers], *lines)
    ]


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell == "-"


def pairs(values: Iterable[tuple[str, Any]]) -> None:
    """One fact a line, aligned."""
    shown = [(name, plain("-" if value is None else value)) for name, value in values]
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        print(f"{name.ljust(width)}  {value}")


def damaged_lines(damaged: Iterable[Mapping[str, Any]]) -> list[str]:
    """What is left out, since its files are damaged: one line each, with what to do."""
    return [
        plain(
            f"{each['what']} {each['name']}{'' if each['what'] == 'topic' else ' of topic ' + each['topic']} is left out: "
            f"{each['error']}"
        )
        for each in damaged
    ]


def left_out(damaged: Sequence[Mapping[str, Any]], *, as_json: bool) -> int:
    """Says that on the standard error; the exit code."""
    shown = [json.dumps({"damaged": each}) for each in damaged] if as_json else damaged_lines(damaged)
    for line in shown:
        print(line if as_json else f"jjq: {line}", file=sys.stderr)
    return DAMAGE if damaged else OK


def document(value: Any) -> None:
    """One JSON document, on one line where it goes to a program."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False, indent=indent))
