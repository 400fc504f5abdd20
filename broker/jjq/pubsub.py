"""Publish and subscribe among any processes that have the store open, without a server.

```python
with store.pubsub() as subscription:
    subscription.subscribe("news")
    subscription.psubscribe("log.*")
    message = subscription.get_message(timeout=1.0)     # {"type": ..., "pattern": ..., "channel": ..., "data": ...}

store.publish("news", b"hello")                         # -> how many live subscriptions it reached
```

Messages and confirmations have the shape of redis-py's. A subscription reads the topic's log from where it began, so
messages wait for one that is not looking. It has an id and a file from its first `subscribe`; its life is the lock of
that file: one whose process died is found by whoever publishes or subscribes next, and removed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jjq import ephemeral
from jjq.errors import DataLoss, InvalidArgument, JjqError, StoreClosed, TopicDeleted
from jjq.feed import Feed, beginnings, watched
from jjq.hints import keywords_of
from jjq.interest import Interest, check_pattern, glob, reached
from jjq.model import check_name
from jjq.topics import at_first_use
from jjq.values import counted, each_of, flag, timeout_s
from jjq.wake import until_found, wait_for

if TYPE_CHECKING:
    from jjq.store import Store
    from jjq.topic import Topic

Message = dict[str, Any]
_subscriptions: weakref.WeakSet[PubSub] = weakref.WeakSet()


@dataclass(slots=True)
class _Reading:
    """One topic that a subscription follows, for its name, for patterns, or for both."""

    topic: Topic
    feed: Feed
    holder: ephemeral.Holder | None
    named: bool = False
    patterns: list[str] = field(default_factory=list)


@keywords_of("__init__")
class PubSub:
    """A subscription to topics by name and by pattern; for one thread at a time. Close it, or use it in a `with` block."""

    def __init__(
        self, store: Store, *, decode_responses: bool = False, ignore_subscribe_messages: bool = False
    ) -> None:
        self._store = store
        self._decode = flag(decode_responses, "decode_responses")
        self._quiet = flag(ignore_subscribe_messages, "ignore_subscribe_messages")
        self._names: set[str] = set()
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._readings: dict[str, _Reading] = {}  # by topic id
        self._waiting: deque[Message] = deque()
        self._known = Interest(store)  # to others
        self._turn = 0
        self._closed = False
        self._catalog_seen: tuple[str, ...] = ()
        self._inherited = False  # from a parent process, and not used in this one yet
        self.dropped = 0  # messages that a bounded topic dropped before this subscription read them
        self._renew_locks()
        _subscriptions.add(self)

    def _renew_locks(self) -> None:
        self._mutex = threading.RLock()
        self._listener = self._store.listener(self._watched)
        if self._closed:
            self._listener.close()

    def __repr__(self) -> str:
        state = (
            "closed"
            if self._closed
            else f"{counted(len(self._names), 'name')}, {counted(len(self._patterns), 'pattern')}"
        )
        return f"<PubSub {state}>"

    @property
    def id(self) -> str | None:
        """None before the first subscribe."""
        return self._known.id

    @property
    def subscribed(self) -> bool:
        return bool(self._names or self._patterns)

    # --- subscribing -------------------------------------------------------------------------------------------------

    def subscribe(self, *names: str) -> None:
        """From now on, the messages of these topics; a topic that does not exist yet is made by who publishes to it."""
        if not names:
            raise InvalidArgument("subscribe to at least one name; psubscribe('*') takes all")
        checked = [check_name(name, "topic") for name in names]
        with self._mutex:
            self._check_open()
            for name in checked:
                self._follow_topics()
                self._names.add(name)
                self._begin()
                self._confirm("subscribe", name)

    def psubscribe(self, *patterns: str) -> None:
        """From now on, the messages of topics whose names match these patterns, those made later included."""
        if not patterns:
            raise InvalidArgument("psubscribe to at least one pattern; '*' takes all")
        with self._mutex:
            self._check_open()
            for pattern in patterns:
                compiled = glob(check_pattern(pattern))
                self._follow_topics()
                self._patterns[pattern] = compiled
                self._begin()
                self._confirm("psubscribe", pattern)

    def unsubscribe(self, *names: str) -> None:
        """No more messages of these topics by name; none named means all."""
        each_of(names, str, "give names of topics")
        with self._mutex:
            self._check_open()
            for name in names or sorted(self._names) or [""]:
                self._names.discard(name)
                self._after_leaving("unsubscribe", name)

    def punsubscribe(self, *patterns: str) -> None:
        """No more messages by these patterns; none named means all."""
        each_of(patterns, str, "give patterns such as 'log.*'")
        with self._mutex:
            self._check_open()
            for pattern in patterns or sorted(self._patterns) or [""]:
                self._patterns.pop(pattern, None)
                self._after_leaving("punsubscribe", pattern)

    def _after_leaving(self, kind: str, name: str) -> None:
        self._follow_topics()
        if self.subscribed:
            self._announce()
        else:
            self._known.withdraw()
        self._confirm(kind, name)

    def _confirm(self, kind: str, name: str) -> None:
        if not self._quiet:
            count = len(self._names) + len(self._patterns)
            shown = self._text(name) if name else None
            self._waiting.append({"type": kind, "pattern": None, "channel": shown, "data": count})

    def _text(self, text: str) -> str | bytes:
        return text if self._decode else text.encode()

    # --- what others see ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """From where the topics end, then known to others: so all comes that a publish counts as reaching this one."""
        self._follow_topics(joining=True)
        self._announce()

    def _announce(self) -> None:
        self._known.announce(self._names, self._patterns)

    def _watched(self) -> list[Path] | None:
        found = [self._store.path / "catalog.lock"]  # rung when topics come and go
        for reading in list(self._readings.values()):
            with contextlib.suppress(TopicDeleted):
                paths = watched(reading.topic)
                if paths is None:
                    return None
                found += paths
        return found

    # --- following topics --------------------------------------------------------------------------------------------

    def _follow_topics(self, joining: bool = False) -> None:
        """Begins to read topics that match now: from their start if they were made since the last look, from their end
        when it is the interest that is new (`joining`)."""
        topics = {topic.id: topic for topic in self._store.topics()}
        known = set(self._catalog_seen)
        for topic_id in [topic_id for topic_id in self._readings if topic_id not in topics]:
            self._leave(topic_id)
        for topic_id, topic in topics.items():
            named = topic.name in self._names
            patterns = [pattern for pattern, glob in self._patterns.items() if glob.match(topic.name)]
            reading = self._readings.get(topic_id)
            if not named and not patterns:
                if reading is not None:
                    self._leave(topic_id)
                continue
            if reading is None:
                fresh = not joining and topic_id not in known
                with contextlib.suppress(TopicDeleted):
                    holder = ephemeral.Holder(self._store, topic) if topic.config.ephemeral else None
                    places = {o.partition: (o.start if fresh else o.end, o.lineage) for o in topic.offsets()}
                    feed = Feed(topic, places, places_now=functools.partial(beginnings, topic))
                    self._readings[topic_id] = reading = _Reading(topic, feed, holder)
            if reading is not None:
                reading.named, reading.patterns = named, patterns
        self._catalog_seen = tuple(topics)

    def _leave(self, topic_id: str) -> None:
        reading = self._readings.pop(topic_id)
        if reading.holder is not None:
            reading.holder.release()

    # --- messages ----------------------------------------------------------------------------------------------------

    def get_message(self, timeout: float | None = 0.0) -> Message | None:
        """The next message or confirmation: at once, or within `timeout` seconds (None: as long as it takes), else None."""
        return wait_for(self._next, timeout_s(timeout), self._listener)

    def listen(self) -> Iterator[Message]:
        """Messages as they come, until this subscription is closed or has nothing left to wait for."""
        while self.subscribed or self._waiting:
            message = self.get_message(timeout=None)
            if message is not None:
                yield message

    def __aiter__(self) -> AsyncIterator[Message]:
        """As `listen`, in a coroutine."""
        return self._listen_async()

    async def _listen_async(self) -> AsyncIterator[Message]:
        while self.subscribed or self._waiting:
            await until_found(lambda: self._look() or not self.subscribed, self._listener)
            if self._waiting:
                yield self._waiting.popleft()

    def _next(self) -> Message | None:
        with self._mutex:
            return self._waiting.popleft() if self._look() else None

    def _look(self) -> bool:
        """Whether a message waits, as the topics are now."""
        with self._mutex:
            self._check_open()
            if self._waiting:
                return True
            if not self.subscribed:
                return False
            if self._take():
                return True
            ids = tuple(self._store.catalog.topic_ids())
            if ids != self._catalog_seen:
                self._follow_topics()
                if self._take():
                    return True
                self._listener.wake()  # who waits has armed before, for the files of other topics
            return False

    def _take(self) -> bool:
        """Moves the next record of some topic, as one message for each way it matches, to those waiting."""
        readings = list(self._readings.values())
        for step in range(len(readings)):
            reading = readings[(self._turn + step) % len(readings)]
            try:
                partition = self._waiting_in(reading)
            except TopicDeleted:
                self._leave(reading.topic.id)
                continue
            if partition is None:
                continue
            record = reading.feed.take(partition)
            if reading.holder is not None:
                reading.holder.at({partition: record.offset + 1})
            channel = self._text(reading.topic.name)
            data = self._data(record.value)
            if reading.named:
                self._waiting.append({"type": "message", "pattern": None, "channel": channel, "data": data})
            self._waiting.extend(
                {"type": "pmessage", "pattern": self._text(pattern), "channel": channel, "data": data}
                for pattern in reading.patterns
            )
            self._turn = (self._turn + step + 1) % len(readings)
            return True
        return False

    def _waiting_in(self, reading: _Reading) -> int | None:
        """The partition that has a record; what a bounded topic let go before it was read is counted and passed over."""
        while True:
            try:
                return reading.feed.waiting()
            except DataLoss as loss:
                self.dropped += loss.lost
                reading.feed.move(loss.partition, (loss.earliest, reading.feed.place(loss.partition)[1]))

    def _data(self, value: Any) -> Any:
        return value.decode() if self._decode and isinstance(value, bytes) else value

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the subscription; what waited for it goes. Quiet when repeated."""
        self._listener.close()
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(JjqError):
                if not self._inherited:
                    self._follow_topics()  # also those made since the last look go with their last subscription
            with contextlib.ExitStack() as rest:  # each part is closed though another fails
                for topic_id in list(self._readings):
                    rest.callback(self._leave, topic_id)
                rest.callback(self._known.withdraw)  # first, so that nobody counts this one any more
            self._names.clear()
            self._patterns.clear()
            self._waiting.clear()

    def __enter__(self) -> PubSub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the subscription was closed; make another with store.pubsub()")
        self._store.check_open()
        if self._inherited:
            self._inherited = False
            self._begin()

    def _after_fork(self) -> None:
        """In a forked child: the subscription and what waits for it stay the parent's. The child has one of its own to the same
        names and patterns, from when it first uses it."""
        self._renew_locks()
        self._known.forget()
        for reading in self._readings.values():
            if reading.holder is not None:
                reading.holder.forget()
        self._readings.clear()
        self._waiting.clear()
        self._inherited = self.subscribed and not self._closed


def publish(store: Store, name: str, data: bytes | str) -> int:
    """See `Store.publish`."""
    check_name(name, "topic")
    count = reached(store, name)
    while True:
        topic = at_first_use(store, name, lambda unmade: unmade.push(data), ephemeral=True)
        try:
            topic.push(data)
        except TopicDeleted:
            continue  # its last holder left between the two lines: the next one is another topic
        return count


def _after_fork_in_child() -> None:
    for each in list(_subscriptions):
        each._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
