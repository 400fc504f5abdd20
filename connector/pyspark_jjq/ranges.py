"""From what was asked for (words, offsets, times) and what is there to ranges of offsets and to slices of files."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jjq.errors import DataLoss, InvalidArgument, OffsetOutOfRange
from pyspark_jjq.offsets import Position, TopicPositions
from pyspark_jjq.options import EARLIEST, LATEST, Bound, ByTopic, Edge, Instant, SourceOptions

if TYPE_CHECKING:
    from jjq import Topic
    from jjq.model import PartitionOffsets, Slice

log = logging.getLogger("jjq.spark")

GO_ON = "To go on without them, set the option failOnDataLoss to false"


class LossPolicy:
    """What happens when records that were asked for are gone: an error, or one warning for each loss and on it goes."""

    def __init__(self, fail: bool) -> None:
        self.fail = fail
        self._said: set[tuple[object, ...]] = set()

    def lost(self, what: str, **details: object) -> None:
        """Raises DataLoss, or logs `what` if that was not said before."""
        if self.fail:
            raise DataLoss(f"{what}. {GO_ON}", **details)
        key = tuple(sorted(details.items(), key=lambda item: item[0]))
        if key not in self._said:
            self._said.add(key)
            log.warning("%s; going on, as failOnDataLoss is false", what)


def positions(topic: Topic, offsets: Sequence[PartitionOffsets], end: bool) -> TopicPositions:
    """The first (or with `end` the next) position of every partition."""
    return TopicPositions(
        topic.id, {each.partition: Position(each.end if end else each.start, each.lineage) for each in offsets}
    )


def resolve(topic: Topic, bound: Bound, options: SourceOptions, *, end: bool) -> TopicPositions:
    """Where `bound` lies in a topic now. `end` says which option it came from, as they differ where nothing is found.

    Raises OffsetOutOfRange for an offset beyond the end, InvalidArgument for partitions that are missing or not there,
    and for a start at a time after the last record, unless the strategy is `latest`.
    """
    now = {each.partition: each for each in topic.offsets()}
    if isinstance(bound, Edge):
        return positions(topic, list(now.values()), bound == LATEST)
    if isinstance(bound, ByTopic):
        inside = bound.topics[topic.name]
        if isinstance(inside, Edge):
            return positions(topic, list(now.values()), inside == LATEST)
        _check_partitions(topic.name, inside, now, "ending" if end else "starting")
        return TopicPositions(
            topic.id, {p: Position(_offset(topic.name, inside[p], at, end), at.lineage) for p, at in now.items()}
        )
    if isinstance(bound, Instant):
        us = bound.at_us()
        found = topic.offset_for_timestamp(us)
    else:
        times = bound.topics[topic.name]
        _check_partitions(topic.name, times, now, "ending" if end else "starting")
        by_time = {us: topic.offset_for_timestamp(us) for us in set(times.values())}
        found = {p: by_time[us][p] for p, us in times.items()}
    none = [p for p, offset in found.items() if offset is None]
    if none and not end and options.starting_without_match == "error":
        raise InvalidArgument(
            f"no record of topic {topic.name!r} is as late as the starting time in partition "
            f"{', '.join(map(str, none))}; start earlier, or set startingOffsetsByTimestampStrategy to latest"
        )
    chosen: dict[int, Position] = {}
    for p, at in now.items():
        offset = found.get(p)
        chosen[p] = Position(at.end if offset is None else offset, at.lineage)
    return TopicPositions(topic.id, chosen)


def _check_partitions(name: str, given: Mapping[int, int], now: Mapping[int, object], side: str) -> None:
    wrong = sorted(given.keys() - now.keys())
    missing = sorted(now.keys() - given.keys())
    if wrong or missing:
        parts = [f"missing: {', '.join(map(str, missing))}"] if missing else []
        parts += [f"not there: {', '.join(map(str, wrong))}"] if wrong else []
        raise InvalidArgument(
            f"{side} offsets must name each partition of topic {name!r}, 0 to {len(now) - 1}, and no other; "
            + "; ".join(parts)
        )


def _offset(name: str, asked: int, at: PartitionOffsets, end: bool) -> int:
    if asked == -2:
        return at.start
    if asked == -1:
        return at.end
    if asked > at.end:
        side = "ending" if end else "starting"
        raise OffsetOutOfRange(
            f"{side} offset {asked} of topic {name!r}, partition {at.partition}, is beyond its end {at.end}; "
            "use latest (-1) for the end"
        )
    return asked


def bounds(options: SourceOptions, topics: Sequence[Topic]) -> list[tuple[Topic, TopicPositions, TopicPositions]]:
    """For a batch: each topic with where it is read from and to, the end fixed now. The start defaults to earliest."""
    found = []
    for topic in topics:
        start = resolve(topic, options.starting or EARLIEST, options, end=False)
        end = resolve(topic, options.ending or LATEST, options, end=True)
        if isinstance(options.starting, ByTopic) and isinstance(options.ending, ByTopic):
            for p, at in start.partitions.items():
                if at.offset > end.partitions[p].offset:
                    raise InvalidArgument(
                        f"partition {p} of topic {topic.name!r} would end at {end.partitions[p].offset}, "
                        f"before it starts at {at.offset}; end offsets are exclusive and not below the start"
                    )
        found.append((topic, start, end))
    return found


def overtaken(topic: Topic, partition: int, at: Position) -> int | None:
    """Where a later lineage begins that gave offsets before `at` again; None while `at` means what it did."""
    found: int | None = topic.reader.check_lineage(partition, at.offset, at.lineage)
    return found


def plan(topic: Topic, partition: int, start: Position, end: Position, policy: LossPolicy) -> list[Slice]:
    """The slices of `[start, end)`; under a lenient policy without what is gone.

    What a power cut took is gone on both sides: behind the start begins what was given again, and before the end
    stops what had been planned. So nothing is read twice, and the next micro-batch begins where the new records do.
    """
    first, last = start.offset, end.offset
    if start.lineage < end.lineage and (again := overtaken(topic, partition, start)) is not None:
        _given_again(topic, partition, start, again, policy)
        first = again
    if (again := overtaken(topic, partition, end)) is not None:
        _given_again(topic, partition, end, again, policy)
        last = again
    if last <= first:
        return []
    try:
        return list(topic.plan(partition, first, last))
    except DataLoss as loss:
        policy.lost(
            str(loss), topic=topic.name, partition=partition, asked=loss.asked, earliest=loss.earliest, lost=loss.lost
        )
        return list(topic.plan(partition, first, last, skip_lost=True))


def _given_again(topic: Topic, partition: int, at: Position, again: int, policy: LossPolicy) -> None:
    policy.lost(
        f"partition {partition} of topic {topic.name!r} lost its end in a power cut: offsets from {again} on were given "
        f"to other records, and this query has counted up to {at.offset}",
        topic=topic.name,
        partition=partition,
        asked=at.offset,
        earliest=again,
        lost=at.offset - again,
    )
