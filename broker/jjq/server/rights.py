"""What callers of both fronts may do where more than the topic they name is concerned: channels write, objects are shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jjq import objects
from jjq.channel import Channel
from jjq.deadletter import dead_letter_name
from jjq.errors import Forbidden
from jjq.server.guard import NEEDS, Caller
from jjq.store import Store


def get_channel(
    store: Store, caller: Caller, topic: Any, name: Any, *, create: bool, settings: Mapping[str, Any]
) -> Channel:
    """`Store.channel`, for who may make or use it. Who may not push to the topic does not have it made either, and raises
    TopicNotFound; who may not push to another topic does not have dead letters go there, and raises Forbidden."""
    needed = NEEDS["push"]
    if create and isinstance(topic, str) and not caller.can(needed, topic):
        store.topic(topic)
    dead = settings.get("dead_letter")
    if isinstance(dead, str) and dead != dead_letter_name(str(topic), str(name), None):
        caller.may(needed, dead)
    return store.channel(topic, name, create=create, **settings)


def check_may_write_as(store: Store, caller: Caller, writer_id: Any) -> None:
    """Raises Forbidden where batches of a writer have gone to topics that the caller may not write to: its owner could commit no
    batch below one of the caller's."""
    topics = store.catalog.writer_topics(writer_id) if isinstance(writer_id, str) else ()
    if not all(caller.can(NEEDS["commit"], each) for each in topics):
        raise Forbidden(
            f"writer {writer_id!r} writes to topics that token {caller.name!r} has no write right for; take another writer_id"
        )


def check_may_read_object(store: Store, caller: Caller, digest: str) -> None:
    """Raises Forbidden unless the caller may read a topic that the object was pushed to: a header that names it anybody can
    push."""
    needed, names = NEEDS["read"], {each.id: each.name for each in store.topics()}
    if not any(caller.can(needed, names[topic]) for topic in objects.topics_of(store, digest) if topic in names):
        caller.may(needed, None)  # who may read every topic is told that there is none
