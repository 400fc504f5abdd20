"""The words of jjq as values. Nothing here touches a disk; everything here may cross a process border."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from jjq.errors import InvalidArgument, InvalidName
from jjq.values import unique

EPHEMERAL = "#ephemeral"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,248}", re.ASCII)
_ID = re.compile(r"[0-9a-f]{32}")


def check_name(name: object, what: str) -> str:
    """The one rule for names of topics, subscribers, channels and writers; returns the name or raises InvalidName.

    1 to 249 of `A-Z a-z 0-9 . _ : -`, first a letter or digit; a topic may end in `#ephemeral`.
    """
    if not isinstance(name, str):
        raise InvalidName(f"the name of a {what} is a str, not {type(name).__name__}")
    stem = name.removesuffix(EPHEMERAL) if what == "topic" else name
    if len(name) > 249 or not _NAME.fullmatch(stem):
        shown = name if len(name) <= 60 else name[:57] + "..."
        raise InvalidName(
            f"{shown!r} cannot name a {what}: use 1 to 249 of A-Z a-z 0-9 . _ : - and begin with a letter or digit"
        )
    return name


class Position(NamedTuple):
    """Where a record went: `offset` in `partition`, and its `timestamp` in microseconds since the epoch (UTC), None of a batch
    that was pushed before and is gone."""

    partition: int
    offset: int
    timestamp: int | None


# What a NamedTuple's own constructor does, without a Python frame: pushing one record takes little more than this does.
make_position: Callable[[tuple[int, int, int | None]], Position] = functools.partial(tuple.__new__, Position)


@dataclass(frozen=True, slots=True)
class PositionRange:
    """Where consecutive records of one partition went: offsets `[start, end)`. `timestamp` is that of the first. With a
    `start` of -1 they were dropped (see `when_full`): each has offset -1, and `end` only tells how many they were."""

    partition: int
    start: int
    end: int
    timestamp: int | None


class Positions(Sequence[Position]):
    """The positions of records pushed together, in the order they were given; `ranges` has one range a partition. `duplicate`
    when a writer's batch was there already: then they are those of the first time, and nothing was pushed."""

    def __init__(
        self, ranges: Sequence[PositionRange], partitions: Sequence[int] | None = None, duplicate: bool = False
    ) -> None:
        self.ranges = tuple(ranges)
        self.duplicate = duplicate
        self._partitions = partitions
        self._each: list[Position] | None = None

    def __len__(self) -> int:
        return sum(each.end - each.start for each in self.ranges)

    def __getitem__(self, index: int) -> Position:  # type: ignore[override]
        return self._all()[index]

    def __iter__(self) -> Iterator[Position]:
        return iter(self._all())

    def __repr__(self) -> str:
        inside = ", ".join(f"{r.partition}:[{r.start}, {r.end})" for r in self.ranges)
        return f"Positions({inside})"

    def _all(self) -> list[Position]:
        if self._each is None:
            if self._partitions is None:
                self._each = [
                    Position(r.partition, -1 if r.start < 0 else o, r.timestamp)
                    for r in self.ranges
                    for o in range(r.start, r.end)
                ]
            else:
                following = {r.partition: r.start for r in self.ranges}
                stamps = {r.partition: r.timestamp for r in self.ranges}
                self._each = []
                for partition in self._partitions:
                    self._each.append(Position(partition, following[partition], stamps[partition]))
                    following[partition] += following[partition] >= 0
        return self._each


class Record(NamedTuple):
    """One record as a consumer gets it.

    `value` is bytes (or None) in a topic without a schema, else a dict of the topic's columns. `timestamp` is in
    microseconds since the epoch. `headers` is a list of (name, bytes) pairs in the order pushed, or None.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    value: Any


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """A partition's records are `[start, end)`. `lineage` counts how often a power cut moved the end back."""

    partition: int
    start: int
    end: int
    lineage: int


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """What a topic holds, by partition; `id` tells it from one that was made later under its name."""

    id: str
    name: str
    partitions: tuple[PartitionOffsets, ...]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """What a subscriber has not read of a partition that holds `[start, end)`: from its `position` on.

    `records` and `bytes` (estimated, on disk) that can still be read, `seconds` since the oldest of them was pushed (None
    when it cannot be read for damage), and `lost`, how many were gone before they were read.
    """

    partition: int
    position: int
    start: int
    end: int
    records: int
    bytes: int
    seconds: float | None
    lost: int


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a partition: what the catalog (or, for the active one, its index) says of it.

    `kind` is `arrows` (stream with an index: active or rolled) or `arrow` (sealed file). Offsets are `[base, end)`,
    timestamps and `appended_at` in microseconds; `prefix_max_ts` is the highest timestamp of the partition up to and
    including this file. `length` in bytes; `crc` is the CRC32C of the whole file, `meta_crc` of a sealed file's head
    and footer.
    """

    uuid: str
    kind: str
    base: int
    end: int
    length: int
    crc: int
    meta_crc: int
    schema_version: int
    min_ts: int
    max_ts: int
    prefix_max_ts: int
    appended_at: int
    level: int = 0

    @property
    def rows(self) -> int:
        return self.end - self.base


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What `topic.segments()` shows of a segment. `state` is `active`, `rolled`, `sealed`, or `lost` for records that repair
    could not save, which have no file: `path` is None; `next` and `previous` are the neighbours' ids, None at the ends; times in
    microseconds, `bytes` on disk."""

    topic: str
    partition: int
    id: str
    state: str
    start: int
    end: int
    rows: int
    bytes: int
    min_timestamp: int | None
    max_timestamp: int | None
    appended_at: int
    checksum: str
    schema_version: int
    path: str | None
    previous: str | None
    next: str | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Slice:
    """Records `[start, end)` of one partition, and a hint where they lay when this was planned.

    A slice keeps its meaning when its file is compacted away: a reader that does not find `segment` plans the range
    again and gets identical rows. `bytes` is an estimate. `planned_on` is the planner's host and boot.
    """

    topic_id: str
    topic: str
    partition: int
    start: int
    end: int
    lineage: int
    bytes: int
    segment: Segment | None = None
    planned_on: str = ""

    def split(self, at: int) -> tuple[Slice, Slice]:
        """Two slices that meet at offset `at`, which must lie inside."""
        if not self.start < at < self.end:
            raise ValueError(f"{at} is not inside [{self.start}, {self.end})")
        left = int(self.bytes * (at - self.start) / (self.end - self.start))
        return self._cut(self.start, at, left), self._cut(at, self.end, self.bytes - left)

    def part(self, start: int, end: int) -> Slice:
        """The slice of the records `[start, end)`, which lie inside."""
        return self._cut(start, end, int(self.bytes * (end - start) / (self.end - self.start)))

    def _cut(self, start: int, end: int, size: int) -> Slice:
        return Slice(
            self.topic_id, self.topic, self.partition, start, end, self.lineage, size, self.segment, self.planned_on
        )


class Ranged(Protocol):
    """Records `[start, end)` of one partition, of which `part` is some."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    def part(self, start: int, end: int) -> Self: ...


AnyRanged = TypeVar("AnyRanged", bound=Ranged)


def behind(ranges: Iterable[AnyRanged], rows: int) -> list[AnyRanged]:
    """What is left of ranges when so many records have come of them, in their order."""
    left: list[AnyRanged] = []
    for each in ranges:
        passed = min(rows, each.end - each.start)
        rows -= passed
        if each.start + passed < each.end:
            left.append(each.part(each.start + passed, each.end) if passed else each)
    return left


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A sealed file that has no offsets yet: whole, synced, and named by nobody until a commit takes it."""

    topic_id: str
    topic: str
    partition: int
    uuid: str
    rows: int
    length: int
    crc: int
    meta_crc: int
    schema_version: int
    min_ts: int
    max_ts: int

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> StagedFile:
        """Raises InvalidArgument for what `to_json` did not write."""
        try:
            values = json.loads(text, object_pairs_hook=unique)
            made = cls(**values)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(
                f"this is no staged file as to_json writes one: {error}; give its text as it was"
            ) from error
        numbers = (values[each.name] for each in fields(cls) if each.type == "int")
        names = (made.topic_id, made.topic, made.uuid)
        if not all(type(each) is int for each in numbers) or not all(isinstance(each, str) for each in names):
            raise InvalidArgument("this is no staged file as to_json writes one: a value is of another kind")
        if not all(_ID.fullmatch(each) for each in (made.topic_id, made.uuid)):
            raise InvalidArgument("this is no staged file as to_json writes one: its ids are none")
        return made


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit did. `duplicate` when the writer's batch was there already: then `positions` are the first ones."""

    positions: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    duplicate: bool = False
    transaction: str = ""

    @property
    def rows(self) -> int:
        return sum(end - start for topic in self.positions.values() for start, end in topic.values())


@dataclass(frozen=True, slots=True)
class WriterInfo:
    """An exactly-once writer: its id, the Spark query that uses it (or None), its last batch and when, in microseconds."""

    id: str
    query_id: str | None
    last_batch: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class ChannelCounts:
    """Records of a channel. Now: `depth` waits for a consumer, `in_flight` is in one's hands, `deferred` waits for its time.

    Since it was made: `delivered` (each attempt counts), `acked`, `requeued`, `timed_out`, `returned` (by consumers that
    closed or died), `dead` (given up), and `lost` (gone from the topic before they were acknowledged).
    """

    depth: int
    in_flight: int
    deferred: int
    delivered: int
    acked: int
    requeued: int
    timed_out: int
    returned: int
    dead: int
    lost: int


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer of a channel: where it runs, since when (microseconds), and how many records it has in hand. Of one behind a broker,
    where its client says that it runs; of one by HTTP, where the broker does."""

    id: str
    host: str
    pid: int
    started_at: int
    in_flight: int
