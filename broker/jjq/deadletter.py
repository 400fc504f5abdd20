"""Dead letters: records that a channel has given up are kept in a topic of their own, and can be revived from there.

A record goes into the dead-letter topic in the same catalog transaction in which it leaves the channel, so it gets there
exactly once.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from jjq import staging
from jjq.catalog.channels import ChannelRow, ChannelState
from jjq.catalog.leases import Lease, Mark
from jjq.catalog.rows import Statements
from jjq.deferral import NOT_BEFORE, Pairs
from jjq.errors import TopicExists, TopicNotFound
from jjq.headers import headers_array
from jjq.lookahead import key_hash, rows_at
from jjq.model import EPHEMERAL, Record, check_name
from jjq.records import METADATA
from jjq.values import counted

if TYPE_CHECKING:
    from jjq.store import Store
    from jjq.topic import Topic

PREFIX = "jjq-dead-"
_log = logging.getLogger("jjq.channel")
_REVIVED_AT_ONCE = 1000


def dead_letter_name(topic: str, channel: str, chosen: str | None) -> str:
    """The name of a channel's dead-letter topic; raises InvalidName when that is too long."""
    name = f"{topic.removesuffix(EPHEMERAL)}.{channel}.dead" if chosen is None else chosen
    return check_name(name, "topic")


def bury(
    store: Store, topic: Topic, channel: ChannelRow, state: ChannelState, leases: Sequence[Lease], now: int
) -> None:
    """Moves what had its last attempt to the dead-letter topic, all in one transaction.

    Where another consumer is at the same ones, one of the two gets nothing done.
    """
    tables: list[pa.Table] = []
    headers: list[Pairs] = []
    whole: list[Lease] = []
    gone: list[Mark] = []
    for lease in leases:
        batches = list(rows_at(topic, lease.partition, lease.offsets()))
        missing = set(lease.offsets()).difference(*(batch.column("_offset").to_pylist() for batch in batches))
        if missing:
            bits = sum(1 << (offset - lease.start) for offset in missing)
            gone.append(Mark(lease.id, lease.attempts, lease.partition, lease.start, bits))
            continue  # what is left of it is due again at once
        whole.append(lease)
        tables += [pa.Table.from_batches([batch]) for batch in batches]
        headers += [each for batch in batches for each in _headers(batch, channel, lease)]
    if gone:
        state.lose(gone, now)
    if whole:
        _move(store, topic, channel, state, whole, pa.concat_tables(tables, promote_options="default"), headers, now)


def _move(store: Store, topic: Topic, channel: ChannelRow, state: ChannelState, leases: Sequence[Lease], table: pa.Table,
          headers: Sequence[Pairs], now: int) -> None:  # fmt: skip
    dead = _dead_letter_topic(store, topic, channel.dead_letter)

    def also(tx: Statements) -> None:
        if not state.bury(tx, leases, now):
            raise _BuriedByAnother

    with store.stage() as stage:
        stage.write(
            dead, table.drop_columns(list(METADATA)), partition=0, keys=table.column("_key"), headers=headers_array(headers),
            timestamps=table.column("_timestamp") if dead.config.timestamps == "producer" else None,
        )  # fmt: skip
        files = stage.finish()
    try:
        staging.commit(store, files, None, None, None, also=also)
    except _BuriedByAnother:
        store.discard(files)
        return
    except BaseException:
        store.discard(files)
        raise
    first = leases[0]
    _log.info(
        "channel %r of topic %r gave up %s, the first at offset %d of partition %d after %s (%s): in topic %r "
        "now",
        channel.name, topic.name, counted(len(headers), "record"), first.start, first.partition,
        counted(first.attempts, "attempt"), first.reason, dead.name,
    )  # fmt: skip


class _BuriedByAnother(Exception):
    """Rolls the transaction back."""


def _dead_letter_topic(store: Store, topic: Topic, name: str) -> Topic:
    """Made when it is needed; with the columns that the topic has got since."""
    with contextlib.suppress(TopicExists):  # it may be like anything
        return store.create_topic(name, schema=topic.schema, sync=topic.config.sync)
    dead = store.topic(name)
    if topic.schema is not None and dead.schema is not None and dead.schema != topic.schema:
        missing = [each for each in topic.schema if each.name not in dead.schema.names]
        if missing:
            dead = store.alter_topic(name, add_columns=pa.schema(missing))
    return dead


def _headers(batch: pa.RecordBatch, channel: ChannelRow, lease: Lease) -> Iterator[Pairs]:
    """The records' own headers, and where they are from and why they are here."""
    stamps = batch.column("_timestamp").cast(pa.int64()).to_pylist()
    offsets = batch.column("_offset").to_pylist()
    for headers, offset, stamp in zip(batch.column("_headers").to_pylist(), offsets, stamps, strict=True):
        facts = {
            "topic": channel.topic, "topic-id": channel.topic_id, "partition": lease.partition, "offset": offset,
            "timestamp": stamp, "channel": channel.name, "attempts": lease.attempts, "reason": lease.reason or "unknown",
        }  # fmt: skip
        own = [(each["key"], each["value"]) for each in headers or ()]
        kept = [pair for pair in own if not pair[0].startswith(PREFIX) and pair[0] != NOT_BEFORE]
        yield [*kept, *((PREFIX + name, str(value).encode()) for name, value in facts.items())]


def revive(store: Store, topic: Topic, channel: ChannelRow, state: ChannelState, now: int) -> int:
    """Gives every record of the dead-letter topic that was not revived yet back to its channel; returns how many.

    They are delivered from where they are in the topic, with their attempts counted anew. Those that retention has taken
    from there stay in the dead-letter topic alone.
    """
    count = 0
    while True:
        position = state.dead_position()
        try:
            dead = store.topic(channel.dead_letter)
        except TopicNotFound:
            return count
        bounds = dead.offsets()[0]
        start = max(bounds.start, position[1]) if position[0] == dead.id else bounds.start
        end = min(bounds.end, start + _REVIVED_AT_ONCE)
        if start >= end:
            return count
        records = [
            place
            for record in dead.records(dead.plan(0, start, end, skip_lost=True))
            if (place := _origin(record, channel)) is not None
        ]
        starts = {each.partition: each.start for each in topic.offsets()}
        alive = [each for each in records if each[1] >= starts.get(each[0], 1 << 63)]
        if state.revive(position, (dead.id, end), alive, now):
            count += len(alive)


def _origin(record: Record, channel: ChannelRow) -> tuple[int, int, int | None] | None:
    """(partition, offset, hash of the key if that counts) of a dead letter of this channel."""
    facts = {name.removeprefix(PREFIX): value or b"" for name, value in record.headers or () if name.startswith(PREFIX)}
    if facts.get("topic-id") != channel.topic_id.encode() or facts.get("channel") != channel.name.encode():
        return None
    try:
        return int(facts["partition"]), int(facts["offset"]), key_hash(record.key) if channel.ordered else None
    except (KeyError, ValueError):
        return None
