"""The subscribers of a store: made, found, deleted. What one does is in `subscriber.py`."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any

from jjq import files
from jjq.catalog.rows import SubscriberRow
from jjq.clock import now_us
from jjq.cursors import lock_path, resolve_places, ring
from jjq.errors import InvalidArgument, SubscriberExists, SubscriberNotFound
from jjq.hints import which
from jjq.model import check_name
from jjq.skipping import check_on_data_loss
from jjq.subscriber import Subscriber
from jjq.values import flag

if TYPE_CHECKING:
    from jjq.store import Store
    from jjq.topic import Topic


def create(
    store: Store, topic: Topic, name: str | None, start: Any, on_data_loss: str | None, exist_ok: bool
) -> Subscriber:  # fmt: skip
    """See `Store.create_subscriber`."""
    flag(exist_ok, "exist_ok")
    policy = "error" if on_data_loss is None else check_on_data_loss(on_data_loss)
    chosen = f"sub-{uuid.uuid4().hex[:16]}" if name is None else check_name(name, "subscriber")
    row = SubscriberRow(uuid.uuid4().hex, chosen, topic.id, policy, now_us(), topic.name)
    known = store.catalog.subscriber(chosen)
    if known is None and store.catalog.add_subscriber(row, resolve_places(topic, start, policy)):
        return Subscriber(store, topic, row)
    known = known or store.catalog.subscriber(chosen)
    if exist_ok and known is not None and known.topic_id == topic.id:
        if on_data_loss not in (None, known.on_data_loss):
            raise InvalidArgument(
                f"on_data_loss: {policy!r} was asked for, and subscriber {chosen!r} has {known.on_data_loss!r}; leave it out to "
                f"use the subscriber as it is, or make another"
            )
        return Subscriber(store, topic, known)
    of = f" of topic {known.topic!r}" if known is not None else ""
    other = known is not None and known.topic_id != topic.id
    advice = "give this one another name" if other else f"use it with store.subscriber({chosen!r})"
    raise SubscriberExists(f"there is a subscriber {chosen!r}{of} already; {advice}")


def find(store: Store, name: str) -> Subscriber:
    """See `Store.subscriber`."""
    row = store.catalog.subscriber(check_name(name, "subscriber"))
    if row is None:
        names = [each.name for each in store.catalog.subscribers()]
        hint = which(name, names) or "make it with create_subscriber, or `jjq subscriber create`"
        if store.catalog.topic(name) is not None:
            hint = "that is a topic; make a subscriber of it with create_subscriber, or `jjq subscriber create`"
        raise SubscriberNotFound(f"there is no subscriber {name!r} in {store.path}{hint and f'; {hint}'}")
    topic = store.topic(row.topic)
    if topic.id != row.topic_id:  # deleted, and made again, a moment ago
        raise SubscriberNotFound(f"there is no subscriber {name!r} in {store.path}")
    return Subscriber(store, topic, row)


def find_all(store: Store, topic: str | None) -> list[Subscriber]:
    """See `Store.subscribers`."""
    topics = {each.id: each for each in (store.topics() if topic is None else [store.topic(topic)])}
    rows = store.catalog.subscribers()
    return [Subscriber(store, topics[row.topic_id], row) for row in rows if row.topic_id in topics]


def delete(store: Store, name: str) -> None:
    """See `Store.delete_subscriber`."""
    found = find(store, name)
    if not store.catalog.drop_subscriber(found.id):
        raise SubscriberNotFound(f"there is no subscriber {name!r} in {store.path}")
    drop_lock(store, found.id)
    ring(found.topic)


def lock_files(store: Store, topic_id: str) -> list[str]:
    """The lock files of a topic's subscribers, relative to the store."""
    found = [row for row in store.catalog.subscribers() if row.topic_id == topic_id]
    return [str(lock_path(store.path, row.id).relative_to(store.path)) for row in found]


def drop_lock(store: Store, subscriber_id: str) -> None:
    """Removes the lock file of a subscriber that is gone; ids are never used again, so nobody needs it."""
    with contextlib.suppress(OSError):
        files.unlink(lock_path(store.path, subscriber_id))
