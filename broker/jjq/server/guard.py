"""Who may do what, how fast, and what is written down of it. Both fronts ask here before they call the store."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from jjq.errors import Forbidden, TooManyRequests
from jjq.server.settings import ServerSettings

ACTIONS = ("read", "write", "admin")
ANYBODY = "anybody"  # the caller's name where there are no tokens

log = logging.getLogger("jjq.server")
audit_log = logging.getLogger("jjq.audit")

# What each operation needs, on the topic it touches. Without a topic it is about the whole store, and needs the right to
# every topic. Who may write need not be able to read, nor the other way round; who may admin may do both.
NEEDS = {
    "topic.list": "read",  # of topics that may be read
    "topic.describe": "read",
    "topic.create": "admin",
    "topic.alter": "admin",
    "topic.delete": "admin",
    "topic.empty": "admin",
    "topic.pause": "admin",  # and unpause
    "push": "write",  # in every way, also publish; makes the topic on first use
    "commit": "write",  # and stage and discard
    "read": "read",  # also segments, subscriptions, events
    "subscriber.list": "read",
    "subscriber.create": "read",  # subscribers and channels belong to those who read
    "subscriber.use": "read",
    "subscriber.delete": "read",
    "channel.list": "read",
    "channel.create": "read",
    "channel.use": "read",  # receive, ack, requeue, touch, counts
    "channel.pause": "admin",
    "channel.empty": "admin",
    "channel.delete": "admin",
    "writer.list": "read",
    "writer.reset": "admin",
    "stats": "read",
    "maintain": "admin",
    "verify": "admin",
}


class Caller:
    """Who a request comes from."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<Caller {self.name}>"

    def can(self, action: str, topic: str | None) -> bool:
        """Whether it may `read`, `write` or `admin` a topic; None: the whole store."""
        return True

    def may(self, action: str, topic: str | None) -> None:
        """Raises Forbidden unless it can."""
        if not self.can(action, topic):
            where = f"topic {topic!r}" if topic is not None else "the store as a whole"
            raise Forbidden(f"{self.name} may not {action} {where}")

    def spend(self, records: int, bytes_: int) -> None:
        """Counts what is about to be pushed; raises TooManyRequests, whose `retry_after` is in seconds."""


class Guard:
    """Asked by all threads of both fronts."""

    def __init__(self, settings: ServerSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._mutex = threading.Lock()
        self._subscriptions = 0

    def caller(self, token: str | None) -> Caller:
        """Whose token it is; without tokens anybody. Raises Unauthorized."""
        return Caller(ANYBODY)

    @contextlib.contextmanager
    def subscription(self, caller: Caller) -> Iterator[None]:
        """Held while a client is being sent what comes: raises TooManyRequests when there are as many as may be."""
        with self._mutex:
            if self._subscriptions >= self._settings.max_subscriptions:
                raise TooManyRequests(
                    f"there are {self._subscriptions} subscriptions, as many as this broker takes (max_subscriptions)",
                    retry_after=1.0,
                )
            self._subscriptions += 1
        try:
            yield
        finally:
            with self._mutex:
                self._subscriptions -= 1

    def audit(self, caller: Caller, action: str, topic: str | None, **details: Any) -> None:
        """Writes down that `caller` did something that needs `admin`, or tried to; `action` is a key of NEEDS."""
        audit_log.info(action, extra={"fields": {"caller": caller.name, "topic": topic, **details}})
