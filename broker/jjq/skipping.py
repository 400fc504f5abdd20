"""What happens to who reads a range in which records are gone or damaged: an error, or they are passed over and named."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jjq.errors import DamagedSegment, DataLoss, InvalidArgument
from jjq.model import Slice, behind
from jjq.values import shown

if TYPE_CHECKING:
    from jjq.topic import Topic

ON_DATA_LOSS = ("error", "skip")
_log = logging.getLogger("jjq.topic")


def check_on_data_loss(value: object) -> str:
    if value not in ON_DATA_LOSS:
        raise InvalidArgument(f"on_data_loss must be 'error' or 'skip', not {shown(value)}")
    return str(value)


def resolve_past(topic: Topic, position: Any, *, end: bool = False, partitions: Sequence[int]) -> dict[int, int]:
    """`Topic.resolve`, without the active files that cannot be read, which is logged for the `end`: nobody knows how many
    records are gone with one."""
    try:
        return topic.resolve(position, end=end, partitions=partitions)
    except DamagedSegment as error:
        if len(partitions) > 1:
            each = (resolve_past(topic, position, end=end, partitions=[one]) for one in partitions)
            return {partition: offset for found in each for partition, offset in found.items()}
        found = topic.resolve(position, end=end, partitions=partitions, closed=True)
        if end:
            _say_from(topic, partitions[0], found[partitions[0]], error)
        return found


def plan_whole(topic: Topic, partition: int, start: int, end: int) -> list[Slice]:
    """`Topic.plan`; where records are gone, its error says how to read what is left."""
    slices, lost = plan_before_loss(topic, partition, start, end)
    if lost is not None:
        raise lost
    return slices


def plan_before_loss(topic: Topic, partition: int, start: int, end: int) -> tuple[list[Slice], DataLoss | None]:
    """`Topic.plan` of what lies before the first records that are gone, and the error of these, which says how to read what is
    left."""
    try:
        return topic.plan(partition, start, end), None
    except DataLoss as error:
        first, behind_it = error.details["asked"], error.details["earliest"]
        how = "read from 'earliest'"
        if topic.resolve("earliest", partitions=[partition])[partition] < behind_it:  # they are amid others
            how = f"read up to {first} or from {behind_it} on"
        lost = DataLoss(f"{error.message}; {how}, or with on_data_loss='skip'", **error.details)
        return plan_before_loss(topic, partition, start, first)[0], lost


def plan_past(topic: Topic, partition: int, start: int, end: int) -> list[Slice]:
    """`Topic.plan` of what is there; what is gone is logged, once a gap."""
    try:
        slices = topic.plan(partition, start, end, skip_lost=True)
    except DamagedSegment as error:  # the active file went since the end was looked up
        closed = topic.resolve("latest", end=True, partitions=[partition], closed=True)[partition]
        if closed >= end:
            raise
        _say_from(topic, partition, max(start, closed), error)
        return plan_past(topic, partition, start, closed)
    at = start
    for first, last in [*((each.start, each.end) for each in slices), (end, end)]:
        if first > at:
            _say(topic, partition, at, first, "they are gone")
        at = last
    return slices


def read_past(
    topic: Topic, slices: Sequence[Slice], read: Callable[[Sequence[Slice]], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """What `read` gives of slices, past what it cannot: that is logged. Behind damage in an index it goes on with the next
    segment."""
    left = list(slices)
    while left:
        try:
            for batch in read(left):
                left = behind(left, batch.num_rows)
                yield batch
            return
        except (DamagedSegment, DataLoss) as error:
            here = left[0]
            if isinstance(error, DataLoss):
                stop = error.earliest
            else:
                lost = error.details.get("lost")
                stop = min(here.end, int(lost[1])) if lost is not None and lost[1] > here.start else here.end
            if stop <= here.start:  # taken back, and given again: another history
                raise
            _say(topic, here.partition, here.start, stop, str(error))
            left = [
                each if each.partition != here.partition else each.part(max(each.start, stop), each.end)
                for each in left
                if each.partition != here.partition or each.end > stop
            ]


def _say_from(topic: Topic, partition: int, start: int, why: DamagedSegment) -> None:
    _log.warning("skipped offsets %d and up of partition %d of topic %r: %s", start, partition, topic.name, why)


def _say(topic: Topic, partition: int, start: int, end: int, why: str) -> None:
    _log.warning("skipped offsets %d to %d of partition %d of topic %r: %s", start, end - 1, partition, topic.name, why)
