"""The actions of the Flight front for who plans reads by itself, such as Spark's driver: slices of ranges, what of them a
filter may want, and waiting until there is more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jjq.errors import DataLoss, InvalidArgument
from jjq.layout import segment_to_json
from jjq.model import Slice
from jjq.schema import MOST_COLUMNS
from jjq.server.flight_calls import MOST_RANGES, Call, action, listed, texts
from jjq.server.flight_consuming import waiting
from jjq.topic import Topic
from jjq.values import MOST, flag, shown, whole
from jjq.wake import wait_for

MOST_AWAITED = 256  # partitions that one request waits for


def _packed(each: Slice, files: bool) -> list[Any]:
    """A slice as `partition, start, end, lineage, bytes`, and with `files` also the segment, where that is a sealed file:
    for who can see those. Where the store is, is told to nobody."""
    told: list[Any] = [each.partition, each.start, each.end, each.lineage, each.bytes]
    if files and each.segment is not None:
        told.append(segment_to_json(each.segment) if each.segment.kind == "arrow" else None)
    return told


@action
def plan(
    call: Call, topic_id: Any, partition: Any, start: Any, end: Any, lineage: Any = None, skip_lost: bool = False,
    files: bool = False,
) -> list[Any]:  # fmt: skip
    """Slices of a range: `partition, start, end, lineage, bytes` of each, and with `files` the sealed file it is in."""
    slices = call.topic("read", topic_id).plan(partition, start, end, lineage, skip_lost=skip_lost)
    return [_packed(each, flag(files, "files")) for each in slices]


@action
def plan_all(call: Call, topic_id: Any, ranges: Any, files: bool = False) -> list[Any]:
    """Of each range, `partition, start, its lineage, end, its lineage`, what `plan` gives, or null where something of it is gone,
    or was given again."""
    topic = call.topic("read", topic_id)
    found = topic.reader.plan_all(_ranges(topic, ranges, "start", "its lineage", "end", "its lineage"))
    return [None if slices is None else [_packed(each, flag(files, "files")) for each in slices] for slices in found]


@action
def within(call: Call, topic_id: Any, ranges: Any, since: Any, until: Any, files: bool = False) -> list[Any]:
    """Slices of ranges, each `partition, start, end, lineage`, without what is known to have no time in `[since, until)`."""
    topic = call.topic("read", topic_id)
    first, last = whole(since, "since", -MOST), whole(until, "until", -MOST)
    found: list[Any] = []
    for slices in _planned(topic, ranges):
        found += [_packed(each, flag(files, "files")) for each in topic.reader.within(slices, first, last)]
    return found


@action
def bounds(call: Call, topic_id: Any, ranges: Any, columns: Any, batches: bool = True) -> list[Any]:
    """Of the batches of sealed files in ranges, or of whole files, `partition, start, end`, and for each column `[low, high,
    nulls, rows]`, or null where nothing is said."""
    topic, names = call.topic("read", topic_id), texts(columns, "columns")
    if len(names) > MOST_COLUMNS or len(set(names)) < len(names):
        raise InvalidArgument(f"bounds are those of up to {MOST_COLUMNS:,} columns, each named once")
    return [
        [place, start, end, [None if each is None else list(each) for each in said]]
        for slices in _planned(topic, ranges)
        for place, start, end, said in topic.reader.bounds(slices, names, batches=flag(batches, "batches"))
    ]


def _ranges(topic: Topic, given: Any, *names: str) -> list[list[int]]:
    """Ranges as a client gives them: of each a partition, and numbers of these names. In a partition one comes behind the other,
    so that an answer has no more than the topic."""
    if len(listed(given, "ranges")) > MOST_RANGES:
        raise InvalidArgument(f"up to {MOST_RANGES:,} ranges go into one request")
    for each in given:
        if not isinstance(each, list) or len(each) != 1 + len(names):
            raise InvalidArgument(f"a range is partition, {', '.join(names)}, not {shown(each)}")
    found = [[topic.check_partition(each[0]), *map(whole, each[1:], names)] for each in given]
    ends: dict[int, int] = {}
    for each in found:
        place, start, end = each[0], each[1], each[1 + names.index("end")]
        if start < ends.get(place, 0):
            raise InvalidArgument(
                f"ranges of a partition come in their order and do not overlap: [{start}, {end}) of partition {place} comes behind "
                f"one that ends at {ends[place]}; ask for it by itself"
            )
        ends[place] = max(start, end)
    return found


def _planned(topic: Topic, ranges: Any) -> list[list[Slice]]:
    """The slices of each range; of one that has lost records the range itself, for who reads it to say so."""
    found = []
    for partition, start, end, lineage in _ranges(topic, ranges, "start", "end", "lineage"):
        try:
            found.append(topic.plan(partition, start, end, lineage))
        except DataLoss:
            found.append([Slice(topic.id, topic.name, partition, start, end, lineage, 0)])
    return found


@action
def check_lineage(call: Call, topic_id: Any, partition: Any, offset: Any, lineage: Any) -> int | None:
    """Where the lineage that overtook an offset begins; null while the offset still means what it did."""
    topic = call.topic("topic.describe", topic_id)
    place = topic.check_partition(partition)
    return topic.reader.check_lineage(place, whole(offset, "offset"), whole(lineage, "lineage"))


@action
def offset_for_timestamp(call: Call, topic_id: Any, ts_us: Any, partition: Any = None) -> list[Any]:
    """By partition the first offset with a time of at least `ts_us`; of all partitions, or one."""
    topic = call.topic("topic.describe", topic_id)
    if partition is None:
        return list(topic.offset_for_timestamp(ts_us).items())
    place = topic.check_partition(partition)
    return [[place, topic.reader.seek_time(place, whole(ts_us, "a timestamp in microseconds", -MOST))]]


@action
def await_records(call: Call, ends: Any, timeout: Any = 0) -> bool:
    """Waits until a partition has another end than it is given with, each as `topic_id, partition, end`."""
    if len(listed(ends, "ends")) > MOST_AWAITED:
        raise InvalidArgument(f"up to {MOST_AWAITED} partitions are awaited at once")
    known: Mapping[tuple[str, int], tuple[Topic, int]] = dict(_awaited(call, each) for each in ends)

    def look() -> bool:
        return any(topic.reader.offsets(place).end != end for (_, place), (topic, end) in known.items())

    def watched() -> list[Path] | None:
        each_paths = [topic.reader.watched(place) for (_, place), (topic, _) in known.items()]
        return None if None in each_paths else [path for paths in each_paths for path in paths or ()]

    with waiting(call, timeout) as seconds:
        listener = call.store.listener(watched)
        try:
            return bool(wait_for(look, seconds, listener))
        finally:
            listener.close()


def _awaited(call: Call, each: Sequence[Any]) -> tuple[tuple[str, int], tuple[Topic, int]]:
    if not isinstance(each, list) or len(each) != 3:
        raise InvalidArgument(f"what is awaited is topic_id, partition, end, not {shown(each)}")
    topic = call.topic("read", each[0])
    place = topic.check_partition(each[1])
    return (topic.id, place), (topic, whole(each[2], "end"))
