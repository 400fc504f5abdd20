"""What callers give: numbers are checked in one way, and said in one way however long they are; JSON means one thing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from weakref import WeakSet

from jjq.errors import InvalidArgument

MOST = 1 << 62  # what the catalog's 64 bits hold, also with a time added to it
_EVER_S = 1e9  # thirty years of waiting are for ever
_SHOWN = 200
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
T = TypeVar("T")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def shown(value: object) -> str:
    """`repr` for a message: cut where it is long, and of numbers that Python writes no more."""
    try:
        text = repr(value)
    except ValueError:  # sys.set_int_max_str_digits
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"


def counted(number: int, one: str, more: str | None = None) -> str:
    """`1 record`, `1,234 records`; `more` where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def sized(count: float) -> str:
    """`1.5 MiB`"""
    unit = 0
    while abs(count) >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} B" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"


def whole(value: object, what: str, low: int = 0, high: int = MOST) -> int:
    """A whole number from `low` to `high`; raises InvalidArgument."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        upper = "" if high == MOST else f" to {high}"
        most = f"{what} can be at most {MOST}" if isinstance(value, int) and value > high == MOST else None
        raise InvalidArgument(most or f"{what} must be a whole number from {low}{upper}, not {shown(value)}")
    return value


def flag(value: object, what: str) -> bool:
    """True or False, and nothing that would pass for it, as the text `no` does; raises InvalidArgument."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{what} must be true or false, not {shown(value)}")
    return value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, for `object_pairs_hook`; raises ValueError where a name stands there twice."""
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {shown(twice)} stands there twice")
    return value


def each_of(given: object, kind: type[T], what: str) -> list[T]:
    """A list of values of one kind, in any form but one text; raises InvalidArgument that begins with `what`."""
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        raise InvalidArgument(f"{what}, not one {type(given).__name__}")
    found = list(given)
    for each in found:
        if not isinstance(each, kind):
            raise InvalidArgument(f"{what}, and among these is {shown(each)}, of type {type(each).__name__}")
    return found


def timeout_s(timeout: object) -> float | None:
    """Seconds to wait; None for ever. Raises InvalidArgument."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise InvalidArgument(f"timeout must be seconds from 0, or None to wait for ever, not {shown(timeout)}")
    return None if timeout > _EVER_S else float(timeout)


def between(value: object, what: str, low: float, high: float) -> float:
    """A number, whole or not, from `low` to `high`; raises InvalidArgument."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        upper = "" if math.isinf(high) else f" to {high:g}"
        raise InvalidArgument(f"{what} must be a number from {low:g}{upper}, not {shown(value)}")
    return value


def living(them: WeakSet[T]) -> list[T]:
    """Those there are, also where another thread adds one meanwhile."""
    while True:
        try:
            return list(them)
        except RuntimeError:  # it changed size: a set of weak references only minds those that go
            continue


def without_home(path: str) -> str:
    """A path that does not begin with `~`, which Python and Spark do not expand, nor all shells in `--store=~/jjq`: it would be a
    directory named `~`. Raises InvalidArgument."""
    if path.startswith("~"):
        raise InvalidArgument(
            f"{shown(path)} begins with ~, which shells make the home directory of and nobody else: write the whole path"
        )
    return path


def size(text: str, name: str = "") -> int:
    """Bytes of `4096`, `64KB`, `1.5 GiB`; K, M, G and T are powers of 1024. `name`: of the setting that it is for."""
    match, said = _SIZE.fullmatch(text.strip()), f"{name and name + ': '}{shown(text)}"
    if match is None:
        raise InvalidArgument(f"{said} is no size; write 4096, 64KB or 1.5GB")
    found = float(match.group(1)) * _SIZES[match.group(2).lower()]
    if found > MOST:
        raise InvalidArgument(f"{said} is more than any file has")
    return int(found)


def bound_in_bytes(value: object, what: str) -> int:
    """At most so many bytes, as a number or a text such as `64MB`; None: there is no bound. Raises InvalidArgument."""
    if value is None:
        return MOST
    if isinstance(value, str):
        value = size(value, what)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidArgument(f"{what} must be a size from 1 byte, such as 1048576 or '64MB', not {shown(value)}")
    return min(value, MOST)


def size_of(value: Any) -> int:
    """About how many bytes a value or a record has, as it goes into messages and answers."""
    if isinstance(value, (bytes, str)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(size_of, value))
    return 8
