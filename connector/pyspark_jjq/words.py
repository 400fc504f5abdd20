"""What people write as the value of an option, read as names, numbers and JSON. Every error says what to write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jjq.errors import InvalidArgument
from jjq.hints import did_you_mean
from jjq.values import shown, unique

LONG_MAX = 2**63 - 1  # Spark keeps offsets and limits as JVM longs
_SHOWN = 200
_DIGITS = len(str(LONG_MAX))


def number(text: str) -> int | None:
    """A whole number from 0 that a JVM long holds; None for anything else, however long."""
    digits = text.lstrip("0") or text[:1]
    if not (text.isascii() and text.isdigit()) or len(digits) > _DIGITS or int(digits) > LONG_MAX:
        return None
    return int(digits)


def nearest(name: str, names: Sequence[str]) -> str:
    """A sentence part that names the closest of `names`, or all of them when nothing is close."""
    return did_you_mean(name, names) or ("there are: " + ", ".join(names) if names else "there are none")


def names_in(given: Mapping[str, str], option: str) -> tuple[str, ...] | None:
    """A list of names separated by commas; None where the option is not given."""
    text = given.get(option.lower())
    if text is None:
        return None
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise InvalidArgument(f"{option} is a list of names separated by commas, without empty ones, not {shown(text)}")
    if len(set(names)) != len(names):
        raise InvalidArgument(f"{option} names something twice: {shown(text)}")
    return names


def json_object(text: str, option: str, wanted: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=unique, parse_int=_whole)
    except RecursionError:
        raise InvalidArgument(f"{option} is {wanted}, not {shown(text)} (it is nested too deeply)") from None
    except ValueError as error:
        raise InvalidArgument(f"{option} is {wanted}, not {shown(text)} ({error})") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"{option} is {wanted}, not {shown(text)}")
    return value


def shown_json(value: object) -> str:
    """A value as it was written in JSON, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"


def _whole(digits: str) -> int:
    if len(digits) > _SHOWN:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)
