"""Which topics, and which of their partitions, a read is of: subscribe, topic, subscribePattern, assign."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jjq.config import MAX_PARTITIONS
from jjq.errors import InvalidArgument
from jjq.values import shown
from pyspark_jjq.words import json_object, names_in, shown_json

_TOLD = 3  # topics
OPTIONS = ("subscribe", "topic", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True)
class Choice:
    """Topics by name, or all whose whole name a pattern matches; `assigned` are the partitions if not all are read."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None

    def wants(self, topic: str) -> bool:
        if self.pattern is None:
            return topic in self.names
        return compiled(self.pattern).fullmatch(topic) is not None

    def check_no_glob(self, topics: Sequence[str]) -> None:
        """Raises InvalidArgument for a pattern that matches none of the topics, and would if it were one of names of files."""
        pattern = self.pattern or ""
        written = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".").replace(r"\-", "-")
        meant = [topic for topic in topics if re.fullmatch(written, topic)]
        if meant:
            more = " and more" if len(meant) > _TOLD else ""
            raise InvalidArgument(
                f"subscribePattern {shown(pattern)} is a regular expression, and matches no topic; {shown(written)} matches "
                f"{', '.join(meant[:_TOLD])}{more}"
            )

    def partitions(self, topic: str, count: int) -> tuple[int, ...]:
        """Which of a topic's partitions are read. Raises InvalidArgument where an assigned one is not there."""
        if self.assigned is None:
            return tuple(range(count))
        for partition in self.assigned[topic]:
            if partition >= count:
                raise InvalidArgument(
                    f"assign names partition {partition} of topic {topic!r}, which has 0 to {count - 1}"
                )
        return self.assigned[topic]

    def __str__(self) -> str:
        return ", ".join(self.names) if self.pattern is None else f"subscribePattern {self.pattern!r}"


def parse_choice(given: Mapping[str, str]) -> Choice:
    """Exactly one of the options, by lower-cased name."""
    named = [name for name in OPTIONS if given.get(name.lower())]
    if len(named) > 1:
        raise InvalidArgument(f"{' and '.join(named)} each say what to read; give one of them")
    if not named:
        raise InvalidArgument(
            'no topic is named: write .option("subscribe", "flights"), or "a,b" for several, '
            'or .option("subscribePattern", "flights-.*")'
        )
    [option] = named
    if option == "subscribePattern":
        compiled(given["subscribepattern"])
        return Choice(pattern=given["subscribepattern"])
    if option == "assign":
        assigned = _assigned(given["assign"])
        return Choice(names=tuple(assigned), assigned=assigned)
    return Choice(names=names_in(given, option) or ())


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    example = '{"flights":[0,1]}'
    found: dict[str, tuple[int, ...]] = {}
    for topic, inside in json_object(text, "assign", f"JSON of topics and partitions such as {example}").items():
        if not isinstance(inside, list) or not inside:
            raise InvalidArgument(f"assign: topic {topic!r} has {shown_json(inside)}; write it as in {example}")
        for partition in inside:
            if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < MAX_PARTITIONS:
                raise InvalidArgument(
                    f"assign: a partition is a number from 0 to {MAX_PARTITIONS - 1}, not {shown_json(partition)}"
                )
        if len(set(inside)) != len(inside):
            raise InvalidArgument(f"assign names a partition of topic {topic!r} twice: {shown_json(inside)}")
        found[topic] = tuple(sorted(inside))
    if not found:
        raise InvalidArgument(f"assign names no topic; write it as in {example}")
    return found


# --- Java's expressions ----------------------------------------------------------------------------------------------

# What jobs written for the Kafka source use and Python spells otherwise. Names of topics are ASCII, so the classes are.
_CLASSES = {
    "Lower": "a-z", "Upper": "A-Z", "Alpha": "a-zA-Z", "Digit": "0-9", "Alnum": "a-zA-Z0-9", "XDigit": "0-9a-fA-F",
    "Punct": r"!-/:-@\[-`{-~", "L": "a-zA-Z", "Ll": "a-z", "Lu": "A-Z", "N": "0-9", "Nd": "0-9",
    "IsAlphabetic": "a-zA-Z", "IsDigit": "0-9", "IsLowercase": "a-z", "IsUppercase": "A-Z",
}  # fmt: skip
_JAVAS = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|$)"
    r"|\\(?P<negated>[pP])\{(?P<named>\w+)\}"
    r"|\(\?<(?P<group>[A-Za-z]\w*)>"
    r"|\\k<(?P<reference>\w+)>"
    r"|(?P<end>\\z)"
    r"|(?P<escaped>\\.)"
    r"|(?P<bracket>[\[\]])",
    re.DOTALL,
)


@functools.lru_cache(maxsize=64)
def compiled(pattern: str) -> re.Pattern[str]:
    """A Java expression as Python's. Raises InvalidArgument for one that is wrong or that only Java has."""
    inside = False

    def translated(found: re.Match[str]) -> str:
        nonlocal inside
        if (quoted := found["quoted"]) is not None:
            return re.escape(quoted)
        if (named := found["named"]) is not None:
            if named not in _CLASSES or (inside and found["negated"] == "P"):
                raise InvalidArgument(f"subscribePattern {shown(pattern)}: {found[0]} is not known here; {_SUPPORTED}")
            members = _CLASSES[named]
            return members if inside else f"[{'^' if found['negated'] == 'P' else ''}{members}]"
        if found["group"] is not None:
            return f"(?P<{found['group']}>"
        if found["reference"] is not None:
            return f"(?P={found['reference']})"
        if found["end"] is not None:
            return r"\Z"
        if found["bracket"] is not None:
            if inside and found["bracket"] == "[":
                raise InvalidArgument(f"subscribePattern {shown(pattern)} has a class in a class; {_SUPPORTED}")
            inside = found["bracket"] == "["
        return found[0]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # for [a&&b] and [[a]b], which mean something else in Java
            return re.compile(_JAVAS.sub(translated, pattern), re.ASCII)
    except (re.error, FutureWarning, OverflowError, ValueError) as error:
        raise InvalidArgument(f"subscribePattern {shown(pattern)} cannot be read: {error}; {_SUPPORTED}") from None


_SUPPORTED = "write an expression such as 'flights-.*' or 'a|b', without Java's nested classes and &&"
