"""Subscribers that follow a query: what it has committed, visible outside Spark as the lag of a durable cursor."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jjq.errors import (
    DataLoss,
    InvalidArgument,
    InvalidName,
    SubscriberBusy,
    SubscriberExists,
    SubscriberNotFound,
    TopicDeleted,
    TopicNotFound,
)
from jjq.model import check_name
from pyspark_jjq.choice import Choice
from pyspark_jjq.offsets import Offsets, TopicPositions
from pyspark_jjq.stores import find_topic, open_store

if TYPE_CHECKING:
    from jjq import Subscriber, Topic

log = logging.getLogger("jjq.spark")


class Follower:
    """The subscribers of one query: one named as the option says where it reads one topic that is named, else one for each
    topic, `name:topic`. They are only moved, never read: where a query begins is in its checkpoint."""

    def __init__(self, path: str, name: str, choice: Choice) -> None:
        self._path, self._name = path, name
        self._alone = choice.pattern is None and len(choice.names) == 1
        self._subscribers: dict[str, Subscriber] = {}  # by topic id
        self._at: dict[str, TopicPositions] = {}
        self._sought: dict[str, dict[int, int]] = {}  # by topic id: where they were moved last
        self._moved: set[str] = set()
        self._busy: set[str] = set()
        self._nameless: set[str] = set()

    def follow(self, at: Offsets) -> None:
        """Moves the subscribers to where the query stands; makes those that are missing. Back, too: a query that was begun
        anew reads again.

        Raises InvalidArgument where a subscriber of the name belongs to another topic, StoreReadOnly.
        """
        for topic, positions in at.topics.items():
            if positions.gone or self._at.get(topic) == positions:
                continue
            try:
                self._move(topic, positions)
            except (TopicDeleted, TopicNotFound, DataLoss):
                continue  # it went, or lost records, a moment ago: those decide about it who read it
            except SubscriberBusy:
                self._say_busy(topic)
                continue
            except InvalidName as error:
                self._say_nameless(topic, error)
                continue
            self._at[topic] = positions

    def name_for(self, topic: str) -> str:
        """The name of a topic's subscriber. (`#`, as in `t#ephemeral`, is for topics only.)"""
        if self._alone:
            return self._name
        return check_name(f"{self._name}:{topic.replace('#', ':')}", "subscriber")

    def _move(self, name: str, positions: TopicPositions) -> None:
        topic = find_topic(open_store(self._path), name)
        if topic is None or topic.id != positions.id:
            return
        offsets = [each for each in topic.offsets() if each.partition in positions.partitions]
        # Retention may have passed a query that waits, and a store that was put back may end before it.
        start = {p.partition: min(max(positions.partitions[p.partition].offset, p.start), p.end) for p in offsets}
        known = self._subscribers.get(topic.id)
        if known is not None:
            try:
                self._look_for_others(known, {p.partition: p.start for p in offsets})
                known.seek(start)
                self._sought[topic.id] = start
                return
            except SubscriberNotFound:  # deleted meanwhile; it is made again
                pass
        made = self._subscribers[topic.id] = self._make(topic, start)
        made.seek(start)
        self._sought[topic.id] = start

    def _look_for_others(self, subscriber: Subscriber, earliest: Mapping[int, int]) -> None:
        """Two queries with one subscriber would each undo what the other has done. (Emptying moves it, too, to what is the
        earliest then.)"""
        now, name = subscriber.positions(), subscriber.name
        sought = self._sought.get(subscriber.topic.id, {})
        if name not in self._moved and any(now.get(p, at) not in (at, earliest.get(p)) for p, at in sought.items()):
            self._moved.add(name)
            log.warning(
                "somebody else has moved subscriber %r, maybe another query that names it, too, so it says of neither how far "
                "it is; give each query a subscriber of its own",
                name,
            )

    def _make(self, topic: Topic, start: dict[int, int]) -> Subscriber:
        name = self.name_for(topic.name)
        # Partitions that the query does not read (assign) are where they end: nothing of them waits for it.
        everywhere = {each.partition: each.end for each in topic.offsets()} | start
        make = functools.partial(open_store(self._path).create_subscriber, topic.name, name, start=everywhere)
        try:
            with contextlib.suppress(SubscriberExists):
                return make(on_data_loss="skip")
            return make(exist_ok=True)  # one that is there stays as it is
        except SubscriberExists as error:
            raise InvalidArgument(
                f"subscriber {name!r} is of another topic than {topic.name!r}, so it cannot follow this query; "
                "name another with the option subscriber, or delete it with `jjq subscriber delete`"
            ) from error

    def _say_nameless(self, topic: str, error: InvalidName) -> None:
        if topic not in self._nameless:
            self._nameless.add(topic)
            log.warning(
                "no subscriber follows the query in topic %r, whose name leaves no room for its own: %s", topic, error
            )

    def _say_busy(self, topic: str) -> None:
        if topic not in self._busy:
            self._busy.add(topic)
            log.warning(
                "subscriber %r is polled by a consumer, so it does not follow the query; name one that nobody polls",
                self.name_for(topic),
            )
