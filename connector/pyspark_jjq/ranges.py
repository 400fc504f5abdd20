"""From what was asked for (words, offsets, times) and what is there to ranges of offsets and to slices of files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jjq.errors import DataLoss, InvalidArgument, OffsetOutOfRange, TopicDeleted
from pyspark_jjq.edges import EARLIEST, LATEST, Bound, ByTopic, Edge, Instant, TimesByTopic
from pyspark_jjq.offsets import Position, TopicPositions
from pyspark_jjq.options import SourceOptions
from pyspark_jjq.stores import TopicView

if TYPE_CHECKING:
    from jjq.model import PartitionOffsets, Slice

log = logging.getLogger("jjq.spark")

GO_ON = "To go on all the same, set the option failOnDataLoss to false"


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


def positions(view: TopicView, end: bool) -> TopicPositions:
    """The first (or with `end` the next) position of every partition."""
    return TopicPositions(
        view.id, {p: Position(each.end if end else each.start, each.lineage) for p, each in view.offsets.items()}
    )


def check_topics(bound: Bound, views: Mapping[str, TopicView], options: SourceOptions, *, end: bool) -> None:
    """Raises InvalidArgument where offsets by topic name others than those there are: what a pattern matches, no more
    and no less, as for topics that are named."""
    if options.choice.pattern is None or not isinstance(bound, ByTopic | TimesByTopic):
        return
    missing, wrong = sorted(views.keys() - bound.topics.keys()), sorted(bound.topics.keys() - views.keys())
    if missing or wrong:
        parts = [f"missing: {', '.join(missing)}"] if missing else []
        parts += [f"not there: {', '.join(wrong)}"] if wrong else []
        raise InvalidArgument(
            f"{'ending' if end else 'starting'} offsets by topic must name every topic that {options.choice} matches now, "
            f"and no other; {'; '.join(parts)}"
        )


def resolve(topic: TopicView, bound: Bound, options: SourceOptions, *, end: bool) -> TopicPositions:
    """Where `bound` lies in a topic now. `end` says which option it came from, as they differ where nothing is found.

    Raises OffsetOutOfRange for an offset beyond the end, InvalidArgument for partitions that are missing or not there,
    and for a start at a time after the last record, unless the strategy is `latest`.
    """
    now = topic.offsets
    if isinstance(bound, Edge):
        return positions(topic, bound == LATEST)
    if isinstance(bound, ByTopic):
        inside = bound.topics[topic.name]
        if isinstance(inside, Edge):
            return positions(topic, inside == LATEST)
        _check_partitions(topic.name, inside, now, "ending" if end else "starting")
        return TopicPositions(
            topic.id, {p: Position(_offset(topic.name, inside[p], at, end), at.lineage) for p, at in now.items()}
        )
    if isinstance(bound, Instant):
        times: Mapping[int, int] = dict.fromkeys(now, bound.at_us())
    else:
        times = bound.topics[topic.name]
        _check_partitions(topic.name, times, now, "ending" if end else "starting")
    found = {p: topic.reader.seek_time(p, us) for p, us in times.items()}
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
        whole = list(now) == list(range(len(now)))
        each = (
            f"each partition of topic {name!r}, 0 to {len(now) - 1}" if whole else f"what is assigned of topic {name!r}"
        )
        raise InvalidArgument(f"{side} offsets must name {each}, and no other; " + "; ".join(parts))


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


def bounds(
    options: SourceOptions, views: Mapping[str, TopicView]
) -> list[tuple[TopicView, TopicPositions, TopicPositions]]:
    """For a batch: each topic with where it is read from and to, the end fixed now. The start defaults to earliest."""
    starting, ending = options.starting or EARLIEST, options.ending or LATEST
    check_topics(starting, views, options, end=False)
    check_topics(ending, views, options, end=True)
    found = []
    for topic in views.values():
        start, end = resolve(topic, starting, options, end=False), resolve(topic, ending, options, end=True)
        if isinstance(starting, ByTopic) and isinstance(ending, ByTopic):
            for p, at in start.partitions.items():
                if at.offset > end.partitions[p].offset:
                    raise InvalidArgument(
                        f"partition {p} of topic {topic.name!r} would end at {end.partitions[p].offset}, "
                        f"before it starts at {at.offset}; end offsets are exclusive and not below the start"
                    )
        found.append((topic, start, end))
    return found


def overtaken(topic: TopicView, partition: int, at: Position) -> int | None:
    """Where a later lineage begins that gave offsets before `at` again; None while `at` means what it did."""
    found: int | None = topic.reader.check_lineage(partition, at.offset, at.lineage)
    return found


def plan_all(
    topic: TopicView, wanted: Mapping[int, tuple[Position, Position]], policy: LossPolicy
) -> dict[int, list[Slice]]:
    """`plan` of each partition. As a rule all is there: then a broker is asked once, and not for each of them."""
    asked = [(p, start.offset, start.lineage, end.offset, end.lineage) for p, (start, end) in wanted.items()]
    try:
        found = topic.reader.plan_all(asked)
    except TopicDeleted:
        found = [None] * len(asked)
    return {
        p: plan(topic, p, *wanted[p], policy) if slices is None else slices
        for p, slices in zip(wanted, found, strict=True)
    }


def plan(topic: TopicView, partition: int, start: Position, end: Position, policy: LossPolicy) -> list[Slice]:
    """The slices of `[start, end)`; under a lenient policy without what is gone.

    What a power cut took is gone on both sides: behind the start begins what was given again, and before the end
    stops what had been planned. So nothing is read twice, and the next micro-batch begins where the new records do.
    """
    try:
        return _plan(topic, partition, start, end, policy)
    except TopicDeleted:
        policy.lost(f"topic {topic.name!r} is gone: it was deleted", topic=topic.name)
        return []


def _plan(topic: TopicView, partition: int, start: Position, end: Position, policy: LossPolicy) -> list[Slice]:
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
        return list(topic.reader.plan(partition, first, last))
    except DataLoss as loss:
        policy.lost(
            str(loss), topic=topic.name, partition=partition, asked=loss.asked, earliest=loss.earliest, lost=loss.lost
        )
        return list(topic.reader.plan(partition, first, last, skip_lost=True))


def _given_again(topic: TopicView, partition: int, at: Position, again: int, policy: LossPolicy) -> None:
    policy.lost(
        f"partition {partition} of topic {topic.name!r} lost its end in a power cut: offsets from {again} on were given "
        f"to other records, and this query has counted up to {at.offset}",
        topic=topic.name,
        partition=partition,
        asked=at.offset,
        earliest=again,
        lost=at.offset - again,
    )
