"""Where a read begins and ends: the options startingOffsets, startingTimestamp and their like as values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jjq import clock
from jjq.config import MAX_PARTITIONS
from jjq.errors import InvalidArgument
from jjq.values import shown
from pyspark_jjq.choice import Choice
from pyspark_jjq.words import LONG_MAX, json_object, nearest, number, shown_json


@dataclass(frozen=True, slots=True)
class Edge:
    """An end of a topic: `earliest` or `latest`."""

    word: str


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time, as written: resolved when it is used, since a relative one means "before now"."""

    text: str

    def at_us(self) -> int:
        """Microseconds since the epoch."""
        return _instant_us(self.text, "the time")


@dataclass(frozen=True, slots=True)
class ByTopic:
    """Offsets by topic and partition (-2 earliest, -1 latest), or an edge for a whole topic."""

    topics: Mapping[str, Edge | Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class TimesByTopic:
    """Microseconds since the epoch by topic and partition."""

    topics: Mapping[str, Mapping[int, int]]


Bound = Edge | Instant | ByTopic | TimesByTopic
EARLIEST = Edge("earliest")
LATEST = Edge("latest")


def parse_bound(given: Mapping[str, str], side: str, choice: Choice) -> Bound | None:
    """Kafka's precedence: one time for all, then times by partition, then offsets."""
    one, many, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if (text := given.get(one.lower())) is not None:
        _instant_us(text, one)
        return Instant(text)
    if (text := given.get(many.lower())) is not None:
        return _times_by_topic(text, many, choice)
    if (text := given.get(offsets.lower())) is not None:
        return parse_offsets(text, offsets, choice)
    return None


def parse_offsets(text: str, option: str, choice: Choice) -> Edge | ByTopic:
    """`earliest`, `latest`, or JSON such as `{"t":{"0":23,"1":-1}}` or `{"t":"earliest"}`.

    Whether every partition is named can only be told where the topic is known, so that is checked later.
    """
    edge = _edge(text)
    if edge is not None:
        if side_forbids(option, edge):
            raise InvalidArgument(
                f"{option} cannot be earliest: nothing would be read; leave it out to read to the end"
            )
        return edge
    example = '{"flights":{"0":23,"1":-1}}'
    by_topic: dict[str, Edge | Mapping[int, int]] = {}
    for topic, inside in json_object(text, option, f"earliest, latest or JSON such as {example}").items():
        if isinstance(inside, str) and (edge := _edge(inside)) is not None:
            by_topic[topic] = edge
        elif isinstance(inside, dict):
            by_topic[topic] = _by_partition(inside, option, functools.partial(_offset, option=option, topic=topic))
        else:
            raise InvalidArgument(f"{option}: topic {topic!r} has {shown_json(inside)}; write it as in {example}")
        if option.startswith("ending") and _asks_earliest(by_topic[topic]):
            raise InvalidArgument(
                f"{option} cannot be earliest (-2) for topic {topic!r}: an end is an offset or latest"
            )
    _check_topics(by_topic, option, choice)
    return ByTopic(by_topic)


def side_forbids(option: str, edge: Edge) -> bool:
    return option.startswith("ending") and edge == EARLIEST


def _asks_earliest(inside: Edge | Mapping[int, int]) -> bool:
    return inside == EARLIEST if isinstance(inside, Edge) else -2 in inside.values()


def _times_by_topic(text: str, option: str, choice: Choice) -> TimesByTopic:
    example = '{"flights":{"0":1357034400000}}'
    by_topic: dict[str, Mapping[int, int]] = {}
    for topic, inside in json_object(text, option, f"JSON such as {example}").items():
        if not isinstance(inside, dict):
            raise InvalidArgument(f"{option}: topic {topic!r} has {shown_json(inside)}; write it as in {example}")
        by_topic[topic] = _by_partition(inside, option, lambda ms: _instant_us(_whole(ms, option, example), option))
    _check_topics(by_topic, option, choice)
    return TimesByTopic(by_topic)


def _whole(ms: object, option: str, example: str) -> str:
    if isinstance(ms, bool) or not isinstance(ms, int):
        raise InvalidArgument(f"{option} takes epoch milliseconds as numbers, as in {example}, not {shown_json(ms)}")
    return str(ms)


def _check_topics(by_topic: Mapping[str, object], option: str, choice: Choice) -> None:
    """What a pattern matches is known only where the topics are, so there `check_topics` of ranges has the last word."""
    for topic in by_topic:
        if not choice.wants(topic):
            hint = f"it reads {choice}" if choice.pattern is not None else nearest(topic, choice.names)
            raise InvalidArgument(f"{option} names topic {topic!r}, which is not read; {hint}")
    missing = [topic for topic in choice.names if topic not in by_topic]
    if missing:
        raise InvalidArgument(f"{option} must name every topic that is read; missing: {', '.join(missing)}")


def _edge(text: str) -> Edge | None:
    word = text.strip().lower()
    return Edge(word) if word in ("earliest", "latest") else None


def _by_partition(inside: Mapping[str, Any], option: str, place: Callable[[Any], int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for text, each in inside.items():
        partition = _partition(text, option)
        if partition in found:  # `0` and `00`; the same text twice is no JSON
            raise InvalidArgument(f"{option} names partition {partition} twice")
        found[partition] = place(each)
    return found


def _partition(text: str, option: str) -> int:
    partition = number(text)
    if partition is None or partition >= MAX_PARTITIONS:
        raise InvalidArgument(
            f"{option}: a partition is a number from 0 to {MAX_PARTITIONS - 1}, written as text, not {shown(text)}"
        )
    return partition


def _offset(value: object, option: str, topic: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -2 <= value <= LONG_MAX:
        raise InvalidArgument(
            f"{option}: an offset of topic {topic!r} is a whole number from 0, -1 for latest or -2 for earliest, "
            f"not {shown_json(value)}"
        )
    return value


# Milliseconds below this lie before March 1973 and above it after the year 5138: seconds or microseconds were meant.
_MS_LOW, _MS_HIGH = 10**11, 10**14


def _instant_us(text: str, option: str) -> int:
    """Microseconds since the epoch of epoch milliseconds, ISO-8601 with a zone, or a time relative to now."""
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        ms = number(text)
        if ms is None or 0 < ms < _MS_LOW or ms >= _MS_HIGH:
            unit = "seconds" if ms is not None and ms < _MS_LOW else "microseconds or nanoseconds"
            hint = "" if text.startswith("-") else f" ({unit} were meant?)"
            raise InvalidArgument(
                f"{option} {text if len(text) < 100 else shown(text)} is not plausible as milliseconds since 1970{hint}; "
                "write milliseconds, or ISO-8601 with a zone such as 2013-01-01T10:00:00Z"
            )
        return ms * 1000
    try:
        us = clock.parse_instant(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{option}: {error.message}") from None
    if us is None:
        raise InvalidArgument(
            f"{option} is milliseconds since 1970, ISO-8601 with a zone such as 2013-01-01T10:00:00Z, "
            f"or relative such as '-10 minutes', not {shown(text)}"
        )
    return us
