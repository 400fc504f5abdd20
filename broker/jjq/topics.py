"""Making, altering, emptying and deleting topics: each ends the active files of all partitions, under all their locks."""

from __future__ import annotations

import contextlib
import itertools
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jjq import channels, ephemeral, files, subscribers, topicfile
from jjq.catalog.rows import TopicRow
from jjq.clock import now_us
from jjq.config import GRACE_US, TopicConfig, check_partitions, normalise, written
from jjq.errors import (
    DamagedSegment,
    InvalidArgument,
    JjqError,
    SchemaMismatch,
    TopicDeleted,
    TopicExists,
    TopicNotFound,
)
from jjq.log.format import NO_TS
from jjq.log.partition import PartitionLog
from jjq.log.stream import stream_paths
from jjq.model import EPHEMERAL, TopicOffsets, check_name
from jjq.schema import add_columns, check_schema
from jjq.unmade import Unmade
from jjq.values import counted, each_of, flag

if TYPE_CHECKING:
    from jjq.store import Store
    from jjq.topic import Topic


_NAMES_ONE_BY_ONE = 8  # more are found faster in a list of all
_log = logging.getLogger("jjq.topics")


def create(
    store: Store,
    name: str,
    partitions: int | None,
    schema: pa.Schema | None,
    exist_ok: bool,
    settings: Mapping[str, Any],
) -> TopicRow:
    """See `Store.create_topic`."""
    check_name(name, "topic")
    flag(exist_ok, "exist_ok")
    if name.endswith(EPHEMERAL):
        settings = {"ephemeral": True, **settings}
    config = ephemeral.settle(TopicConfig().changed(settings, ("partitions", "schema", "exist_ok")), store.boot_id)
    count = check_partitions(1 if partitions is None else partitions)
    checked = None if schema is None else check_schema(schema)
    known = store.catalog.topic(name)
    while known is None:
        row = TopicRow(uuid.uuid4().hex, name, count, config.to_dict(), 1, now_us(), checked)
        if _make(store, row):
            ring(store)
            return row
        known = store.catalog.topic(name)  # somebody else was faster, and may have deleted it by now
    if not exist_ok:
        raise TopicExists(f"there is a topic {name!r} already; pass exist_ok=True to use it as it is")
    _check_same(known, partitions, checked, {each: getattr(config, each) for each in normalise(settings)})
    return known


def offsets(
    store: Store, names: Sequence[str] | None, matching: Callable[[str], bool] | None
) -> dict[str, TopicOffsets]:  # fmt: skip
    """See `Store.offsets`."""
    if names is not None:
        names = each_of(names, str, "names is a list of topics' names")
    wanted = None if names is None else frozenset(names)
    if names is not None and len(names) <= _NAMES_ONE_BY_ONE:
        rows = [row for name in names for row in store.catalog.partitions_by_topic(name)]
    else:
        rows = store.catalog.partitions_by_topic()
    found: dict[str, TopicOffsets] = {}
    for name, group in itertools.groupby(rows, key=lambda each: each[0]):
        if (wanted is None or name in wanted) and (matching is None or matching(name)):
            partitions = [row for _, row in group]
            reader = store.reader(partitions[0].topic_id, name)
            try:
                held = tuple(reader.glance(row, row.partition) for row in partitions)
            except TopicDeleted:  # a moment ago
                continue
            except DamagedSegment as error:  # left out it would pass for one that is deleted
                raise DamagedSegment(f"topic {name!r} is damaged: {error.message}", **error.details) from error
            found[name] = TopicOffsets(partitions[0].topic_id, name, held)
    return found


_INSTEAD = "leave it out to use the topic as it is"


def _check_same(
    topic: TopicRow, partitions: int | None, schema: pa.Schema | None, settings: Mapping[str, Any]
) -> None:  # fmt: skip
    """Whether a topic is what it was asked to be. Its schema may have grown since: then it begins with the one given."""
    if partitions is not None and partitions != topic.partitions:
        more = ", or add some with alter_topic" if partitions > topic.partitions else ""
        raise InvalidArgument(
            f"partitions: {partitions} were asked for, and topic {topic.name!r} has {topic.partitions}; {_INSTEAD}{more}"
        )
    if schema is not None and (topic.schema is None or list(topic.schema)[: len(schema)] != list(schema)):
        theirs = "none" if topic.schema is None else _columns(topic.schema)
        raise SchemaMismatch(
            f"schema: {_columns(schema)} was asked for, and topic {topic.name!r} has {theirs}; {_INSTEAD}. "
            f"Columns are added with alter_topic(add_columns=...)"
        )
    config = TopicConfig.from_dict(topic.config)
    for name, wanted in settings.items():
        if getattr(config, name) != wanted:
            raise InvalidArgument(
                f"{name.removesuffix('_us')}: {written(name, wanted)} was asked for, and topic {topic.name!r} has "
                f"{written(name, getattr(config, name))}; {_INSTEAD}, or change it with alter_topic"
            )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def at_first_use(store: Store, name: str, use: Callable[[Topic], object], *, ephemeral: bool = False) -> Topic:
    """The topic of that name, made if there is none and the store makes topics on first use. `use` is tried before on one that
    is not made: what it raises leaves none behind."""
    try:
        return store.topic(name)
    except TopicNotFound:
        if not store.create_topics or store.read_only:
            raise
    try:
        use(Unmade(store, name))
    except JjqError:
        with contextlib.suppress(TopicNotFound):
            return store.topic(name)  # somebody else was faster, and it says itself what fits
        raise
    while True:
        with contextlib.suppress(TopicExists):  # somebody else was faster
            return store.create_topic(name, **({"ephemeral": True} if ephemeral else {}))
        with contextlib.suppress(TopicNotFound):  # and has deleted it since
            return store.topic(name)


def _make(store: Store, row: TopicRow) -> bool:
    """The directories, and then the row that makes them a topic; False when the name was taken meanwhile."""
    store.catalog.check_named()  # before anything is made in another store, or in none
    directory = store.path / "topics" / row.id
    try:
        _make_directories(directory, range(row.partitions))
        with files.translated("create", directory):
            files.sync_dir(directory.parent)
        topicfile.write(store.path, store.catalog, row)
    except BaseException:  # it has no row, so nobody would look for it
        _remove_empty(directory)
        raise
    if store.catalog.add_topic(row, store.boot_id, NO_TS):
        return True
    _remove_empty(directory)
    return False


def _make_directories(directory: Path, partitions: range) -> None:
    """Those of partitions that nobody knows yet; what is there was left by who died before naming them."""
    with files.translated("create", directory):
        for partition in partitions:
            files.make_dirs(directory / str(partition))
        files.sync_dir(directory)


def _remove_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        files.unlink(directory / "topic.json")
        for each in sorted(directory.iterdir()):
            files.remove_dir(each)
        files.remove_dir(directory)


def ring(store: Store) -> None:
    """Wakes who waits for topics to come and go."""
    files.ring(store.path / "catalog.lock")


def alter(
    store: Store, topic: Topic, partitions: int | None, added: pa.Schema | None, settings: Mapping[str, Any]
) -> None:
    """See `Store.alter_topic`."""
    wanted = None if partitions is None else check_partitions(partitions)
    with _all_locked(store, topic) as logs:
        config = topic.config.changed(settings, ("partitions", "add_columns"))
        schema, version = topic.schema, topic.schema_version
        if added is not None:
            schema = add_columns(topic.schema, added)
            version += schema != topic.schema
        count = topic.partitions if wanted is None else wanted
        if count < topic.partitions:
            raise InvalidArgument(
                f"topic {topic.name!r} has {counted(topic.partitions, 'partition')} and cannot have fewer: the records of those beyond "
                f"{count} would go, and with them what positions in them mean; make another topic and copy to it"
            )
        _close_all_locked(store, topic, logs, "altered")
        store.catalog.check_named()  # as above
        _make_directories(store.path / "topics" / topic.id, range(topic.partitions, count))
        after = replace(topic.row, partitions=count, config=config.to_dict(), schema_version=version, schema=schema)
        store.catalog.alter_topic(after, store.boot_id, NO_TS)
        topic.refresh()
        topicfile.write(store.path, store.catalog, topic.row)
        for log in logs:
            log.ring_locked()  # whoever waits takes new partitions in


def say_unknown(store: Store, topic: Topic) -> None:
    """Warns of names in `retention_waits` that nobody has: that is no error, since who has one may be made later."""
    waits = topic.config.retention_waits
    if isinstance(waits, bool):
        return
    known = {each.name for each in store.subscribers(topic.name)} | {each.name for each in store.channels(topic.name)}
    for name in waits:
        if name not in known:
            _log.warning(
                "topic %r has no subscriber or channel %r, which its retention_waits names: until there is one, records go "
                "without waiting for it", topic.name, name,
            )  # fmt: skip


def delete(store: Store, topic: Topic) -> None:
    """See `Store.delete_topic`. Damage is no hindrance: what somebody wants to be gone needs no repair first."""
    store.catalog.check_named()  # as above
    _make_directories(store.path / "topics" / topic.id, range(topic.partitions))  # one that is missing has no lock
    unclosed: list[Path] = []
    with _all_locked(store, topic) as logs:
        for log in logs:
            try:
                log.close_active_locked("deleted")
            except DamagedSegment:
                active = store.catalog.partition(topic.id, log.partition).active
                unclosed += stream_paths(log.directory, active) if active is not None else ()
        garbage = [f"topics/{topic.id}", *subscribers.lock_files(store, topic.id)]
        channel_ids = channels.ids_of(store, topic.id)
        store.catalog.drop_topic(topic.id, garbage, now_us() + GRACE_US)
        topicfile.write(store.path, store.catalog, topic.row, deleted=True)
        for path in unclosed:  # whoever has it open looks for its name, and finds that the topic is deleted
            with contextlib.suppress(OSError):
                files.unlink(path)
        for log in logs:
            log.forget_active()
            log.ring_locked()
    for log in logs:  # each has its lock's file open
        store.logs.pop((topic.id, log.partition), None)
        log.close()
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
    """Every partition, as the topic is now: who holds the first one's lock keeps others from changing it."""
    logs: list[PartitionLog] = []
    with contextlib.ExitStack() as locks:
        while len(logs) < topic.partitions:
            log = store.logs[topic.id, len(logs)]
            locks.enter_context(log.exclusive())
            logs.append(log)
            if len(logs) == 1:
                topic.refresh()
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
