"""Channels as callers of both fronts ask for them: none of them gets written what its maker may not write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jjq.channel import Channel
from jjq.deadletter import dead_letter_name
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
