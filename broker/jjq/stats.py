"""What goes on in a store, in numbers: what `Store.stats` gives, `jjq stats` prints and `jjq top` repeats."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from jjq import ephemeral, files
from jjq.background import last_turn
from jjq.channel import Channel
from jjq.clock import now_us
from jjq.errors import (
    ChannelNotFound,
    DamagedSegment,
    JjqError,
    StoreError,
    SubscriberNotFound,
    TopicDeleted,
    TopicNotFound,
)
from jjq.interest import subscriptions
from jjq.model import PartitionOffsets
from jjq.subscriber import Subscriber
from jjq.topic import Topic

if TYPE_CHECKING:
    from jjq.store import Store

RATE_S = 60
# What a process lacks that looks at a file, and not what is wrong with the file.
_OF_THE_PROCESS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
Thing = TypeVar("Thing", bound=Topic | Subscriber | Channel)
Found = TypeVar("Found")
Damaged = list[dict[str, Any]]


def stats(store: Store, topic: str | None = None) -> dict[str, Any]:
    """See `Store.stats`."""
    store.catalog.check_named()  # else the numbers would be of what was moved away, and of what is in its place
    with files.translated("look at", store.path):
        free = shutil.disk_usage(store.path).free
    chosen = store.topics() if topic is None else [store.topic(topic)]
    interest = subscriptions(store)
    listening = [
        {"names": sorted(names), "patterns": sorted(patterns)}
        for names, patterns in interest
        if topic is None or topic in names or any(each.match(topic) for each in patterns.values())
    ]
    damaged: Damaged = []
    return {
        "at": now_us(),
        "store": {"path": str(store.path), "id": store.id, "disk_free_bytes": free},
        "topics": those_there(chosen, lambda each: _topic(store, each), damaged),
        "subscribers": those_there(store.subscribers(topic), _subscriber, damaged),
        "channels": those_there(store.channels(topic), _channel, damaged),
        "damaged": damaged,
        "subscriptions": listening,
        "hot": store.hot.stats(),
        "maintenance": last_turn(store),
    }  # fmt: skip


def those_there(each: Iterable[Thing], describe: Callable[[Thing], Found], damaged: Damaged) -> list[Found]:
    """But for what is deleted while it is looked at; and what its own files keep from being described is named in `damaged`,
    so that one damaged topic hides no other."""
    found = []
    for one in each:
        topic = one if isinstance(one, Topic) else one.topic
        try:
            found.append(describe(one))
        except (TopicDeleted, TopicNotFound, SubscriberNotFound, ChannelNotFound):
            continue
        except (DamagedSegment, StoreError) as error:
            if not _of_its_own(topic, error):
                raise
            what = "topic" if one is topic else "subscriber" if isinstance(one, Subscriber) else "channel"
            damaged.append({"topic": topic.name, "what": what, "name": one.name, "error": _advised(error)})
    return found


def _of_its_own(topic: Topic, error: JjqError) -> bool:
    """Whether an error is of a topic's files, and not of the store. A broker's errors have paths in the store."""
    if isinstance(error, DamagedSegment):
        return True
    return topic.id in str(error.details.get("path")) and error.details.get("errno") not in _OF_THE_PROCESS


def _advised(error: JjqError) -> str:
    known = isinstance(error, StoreError) or "jjq repair" in error.message
    return error.message if known else f"{error.message}; run `jjq repair`"


def _topic(store: Store, topic: Topic) -> dict[str, Any]:
    bounds = topic.offsets()
    active = [topic.reader.active_bytes(each.partition) for each in bounds]
    kinds = store.catalog.segments_by_kind(topic.id)
    closed_bytes = sum(size for _, size in kinds.values())
    active_bytes = sum(size or 0 for size in active)
    lost = sum(gone for *_, gone in store.catalog.segment_counts(topic.id).values())
    bases = {row.partition: row.end_offset for row in store.catalog.partitions(topic.id)}
    # An active file without records is nothing that was pushed.
    begun = sum(size or 0 for each, size in zip(bounds, active, strict=True) if each.end > bases[each.partition])
    return {
        "name": topic.name, "id": topic.id, "partitions": topic.partitions, "paused": topic.paused,
        "records": sum(each.end - each.start for each in bounds) - lost, "bytes": closed_bytes + active_bytes,
        # Offsets are never given twice in one lineage, so they count what was pushed.
        "pushed_records": sum(each.end for each in bounds),
        "pushed_bytes": max(store.catalog.pushed_bytes(topic.id), closed_bytes) + begun,
        "records_per_s": _rate(topic, bounds),
        "segments": {
            "active": sum(size is not None for size in active), "rolled": kinds.get("arrows", (0, 0))[0],
            "sealed": kinds.get("arrow", (0, 0))[0], "lost": kinds.get("lost", (0, 0))[0],
        },
        "ephemeral": topic.config.ephemeral,
        "dropped": ephemeral.dropped(store, topic) if topic.config.ephemeral else None,
    }  # fmt: skip


def _rate(topic: Topic, bounds: list[PartitionOffsets]) -> float | None:
    """Records a second over the last minute; None where timestamps do not say when a record was pushed."""
    if topic.config.timestamps != "broker":
        return None
    try:
        first = topic.offset_for_timestamp(now_us() - RATE_S * 1_000_000)
    except DamagedSegment:
        return None
    starts = {partition: offset for partition, offset in first.items() if offset is not None}
    return sum(max(0, each.end - starts.get(each.partition, each.end)) for each in bounds) / RATE_S


def _subscriber(subscriber: Subscriber) -> dict[str, Any]:
    lag = subscriber.lag()
    seconds = [each.seconds for each in lag if each.seconds is not None]
    return {
        "name": subscriber.name, "id": subscriber.id, "topic": subscriber.topic.name,
        "records": sum(each.records for each in lag), "bytes": sum(each.bytes for each in lag),
        "seconds": max(seconds, default=None), "lost": sum(each.lost for each in lag),
        "positions": {str(each.partition): each.position for each in lag},
    }  # fmt: skip


def _channel(channel: Channel) -> dict[str, Any]:
    return {
        "name": channel.name, "topic": channel.topic.name, "paused": channel.paused, **asdict(channel.counts()),
        "consumers": [asdict(each) for each in channel.consumers()],
    }  # fmt: skip
