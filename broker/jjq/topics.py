"""Making, altering, emptying and deleting topics: each ends the active files of all partitions, under all their locks."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jjq import channels, ephemeral, files, subscribers, topicfile
from jjq.catalog.base import TopicRow
from jjq.clock import now_us
from jjq.config import GRACE_US, TopicConfig, check_partitions
from jjq.errors import TopicExists, TopicNotFound
from jjq.log.partition import PartitionLog
from jjq.model import EPHEMERAL, check_name
from jjq.schema import add_columns, check_schema

if TYPE_CHECKING:
    from jjq.store import Store
    from jjq.topic import Topic


def create(
    store: Store, name: str, partitions: int, schema: pa.Schema | None, exist_ok: bool, settings: Mapping[str, Any]
) -> TopicRow:
    """See `Store.create_topic`."""
    check_name(name, "topic")
    if name.endswith(EPHEMERAL):
        settings = {"ephemeral": True, **settings}
    config = ephemeral.settle(TopicConfig().changed(settings), store.boot_id)
    count = check_partitions(partitions)
    checked = None if schema is None else check_schema(schema)
    known = store.catalog.topic(name)
    if known is None:
        row = TopicRow(uuid.uuid4().hex, name, count, config.to_dict(), 1, now_us(), checked)
        if _make(store, row):
            ring(store)
            return row
        known = store.topic(name).row  # somebody else was faster
    if not exist_ok:
        raise TopicExists(f"there is a topic {name!r} already; pass exist_ok=True to use it as it is")
    return known


def at_first_use(store: Store, name: str, *, ephemeral: bool = False) -> Topic:
    """The topic of that name, made if there is none and the store makes topics on first use."""
    try:
        return store.topic(name)
    except TopicNotFound:
        if not store.create_topics or store.read_only:
            raise
    return store.create_topic(name, exist_ok=True, **({"ephemeral": True} if ephemeral else {}))


def _make(store: Store, row: TopicRow) -> bool:
    """The directories, and then the row that makes them a topic; False when the name was taken meanwhile."""
    directory = store.path / "topics" / row.id
    with files.translated("create", directory):
        for partition in range(row.partitions):
            files.make_dirs(directory / str(partition))
        files.sync_dir(directory)
        files.sync_dir(directory.parent)
    topicfile.write(store.path, store.catalog, row)
    if store.catalog.add_topic(row, store.boot_id, -(1 << 63)):
        return True
    _remove_empty(directory)
    return False


def _remove_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        files.unlink(directory / "topic.json")
        for each in sorted(directory.iterdir()):
            files.remove_dir(each)
        files.remove_dir(directory)


def ring(store: Store) -> None:
    """Wakes who waits for topics to come and go."""
    with contextlib.suppress(OSError):
        (store.path / "catalog.lock").write_bytes(b"\0")


def alter(store: Store, topic: Topic, added: pa.Schema | None, settings: Mapping[str, Any]) -> None:
    """See `Store.alter_topic`."""
    with _all_locked(store, topic) as logs:
        topic.refresh()
        config = topic.config.changed(settings)
        schema, version = topic.schema, topic.schema_version
        if added is not None:
            schema = add_columns(topic.schema, added)
            version += schema != topic.schema
        _close_all_locked(store, topic, logs, "altered")
        store.catalog.alter_topic(topic.id, config.to_dict(), version, schema)
        topic.refresh()
        topicfile.write(store.path, store.catalog, topic.row)


def delete(store: Store, topic: Topic) -> None:
    """See `Store.delete_topic`."""
    with _all_locked(store, topic) as logs:
        topic.refresh()
        for log in logs:
            log.close_active_locked("deleted")
        garbage = [f"topics/{topic.id}", *subscribers.lock_files(store, topic.id)]
        channel_ids = channels.ids_of(store, topic.id)
        store.catalog.drop_topic(topic.id, garbage, now_us() + GRACE_US)
        topicfile.write(store.path, store.catalog, topic.row, deleted=True)
        for log in logs:
            log.forget_active()
            log.ring_locked()
    ring(store)
    channels.forget(store, channel_ids)


def empty(store: Store, topic: Topic) -> None:
    """See `Topic.empty`."""
    with _all_locked(store, topic) as logs:
        _close_all_locked(store, topic, logs, "emptied")
        ends: dict[int, int] = {}
        garbage: list[str] = []
        for log in logs:
            row, segments = store.catalog.segments(topic.id, log.partition, 0, 1 << 62)
            ends[log.partition] = row.end_offset
            garbage += [path for s in segments for path in store.segment_files(topic.id, log.partition, s.uuid)]
        store.catalog.advance_starts(topic.id, ends, garbage, now_us() + GRACE_US, move_cursors=True)
        topicfile.write(store.path, store.catalog, topic.row)


@contextlib.contextmanager
def _all_locked(store: Store, topic: Topic) -> Iterator[list[PartitionLog]]:
    logs = [store.log(topic.id, partition) for partition in range(topic.partitions)]
    with contextlib.ExitStack() as locks:
        for log in logs:
            locks.enter_context(log.exclusive())
        yield logs


def _close_all_locked(store: Store, topic: Topic, logs: Sequence[PartitionLog], reason: str) -> None:
    """Ends the active files of a topic and gives them their rows, in one transaction."""
    rows, segments = {}, {}
    for log in logs:
        with files.translated("close a segment of", log.directory):
            row, closed = log.close_active_locked(reason)
        if row.active is not None:
            rows[topic.id, log.partition] = row
            segments[topic.id, log.partition] = [closed] if closed else []
    if rows:
        store.catalog.link(rows, segments, writer=None, positions={}, now=now_us())
    for log in logs:
        log.forget_active()
        log.ring_locked()
