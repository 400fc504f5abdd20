"""Where a stream stands: the offsets that Spark keeps in its checkpoint, as values.

Written as `{"v":1,"topics":{"flights":{"id":"6f…","0":[1200,0],"1":[990,0]}}}`: by partition the next offset and the
lineage it was seen in. Spark compares offsets as JSON text, so the same position must always give the same text: topics
are sorted by name, partitions by number. A partition that is gone stays in, or it would be read again from 0 on return;
a topic that was deleted, and passed over once, has `"gone":true`, so that it is not reported again.

The end of a micro-batch may have `"since":{…}` beside the topics: where it begins in what the offsets before it do not
have. Of the first micro-batch that is all. Spark keeps no offsets from before it, and asks for them anew where it is done
again after a restart; by then "latest", "an hour ago" and "earliest" are elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jjq.config import MAX_PARTITIONS
from jjq.errors import InvalidArgument
from pyspark_jjq.words import LONG_MAX, number

VERSION = 1


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The next offset to read, and the lineage (how often a power cut had moved the end back) it was seen in."""

    offset: int
    lineage: int


@dataclass(frozen=True, slots=True)
class TopicPositions:
    """The positions in one topic. `id` tells a topic from one that was made later under the same name.

    `gone`: it was deleted, and the query went on without it.
    """

    id: str
    partitions: Mapping[int, Position]
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Offsets:
    """A stream's position in all its topics, by name. `since` is no part of it: see above."""

    topics: Mapping[str, TopicPositions]
    since: Mapping[str, TopicPositions] = field(default_factory=dict, compare=False)

    def to_json(self) -> dict[str, Any]:
        """What Spark gets; `json.dumps` of it is the same text for the same positions, whatever order they came in."""
        since = {"since": _to_json(self.since)} if self.since else {}
        return {"v": VERSION, "topics": _to_json(self.topics), **since}

    @classmethod
    def from_json(cls, value: object) -> Offsets:
        """Reads what any version up to this one wrote. Raises InvalidArgument for a later one and for anything else."""
        if not isinstance(value, dict):
            raise InvalidArgument(_strange(value))
        version = value.get("v")
        if type(version) is int and version > VERSION:
            raise InvalidArgument(
                f"the checkpoint's offsets have version {version}, and this jjq reads up to {VERSION}: "
                "they were written by a later jjq; upgrade this one, or start with a new checkpoint"
            )
        if type(version) is not int or version != VERSION:
            raise InvalidArgument(_strange(value))
        try:
            return cls(_topics(value["topics"]), _topics(value.get("since", {})))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InvalidArgument(_strange(value)) from None


def _to_json(topics: Mapping[str, TopicPositions]) -> dict[str, Any]:
    return {
        name: {
            "id": topic.id,
            **({"gone": True} if topic.gone else {}),
            **{str(p): [at.offset, at.lineage] for p, at in sorted(topic.partitions.items())},
        }
        for name, topic in sorted(topics.items())
    }


def _topics(value: Any) -> dict[str, TopicPositions]:
    return {_text(name): _topic(inside) for name, inside in value.items()}


def _topic(inside: Mapping[str, Any]) -> TopicPositions:
    partitions = {_partition(p): _position(at) for p, at in inside.items() if p not in ("id", "gone")}
    if inside.get("gone", True) is not True:
        raise TypeError("gone")
    return TopicPositions(_text(inside["id"]), partitions, "gone" in inside)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    value.encode()  # JSON may hold halves of characters, which neither a catalog nor an error's text can
    return value


def _partition(text: str) -> int:
    """Only as it is written here: of two spellings of one number the one would silently go before the other."""
    found = number(text)
    if found is None or found >= MAX_PARTITIONS or str(found) != text:
        raise ValueError(text)
    return found


def _position(at: Any) -> Position:
    offset, lineage = at
    if not all(type(each) is int and 0 <= each <= LONG_MAX for each in (offset, lineage)):
        raise ValueError(at)
    return Position(offset, lineage)


def _strange(value: object) -> str:
    shown = repr(value)
    shown = shown if len(shown) <= 200 else shown[:197] + "..."
    return (
        f"these are not offsets of jjq: {shown}; does the checkpoint belong to another source? "
        "Use one checkpoint a query, or start with a new one"
    )
