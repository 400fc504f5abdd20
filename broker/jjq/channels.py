"""Making, finding, pausing and deleting channels: what a store and a topic offer of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jjq import presence
from jjq.catalog import channels as catalog
from jjq.catalog.channels import ChannelRow, ChannelState
from jjq.channel import MAX_IN_FLIGHT, Channel
from jjq.clock import now_us, parse_duration
from jjq.config import Duration
from jjq.cursors import resolve_places
from jjq.deadletter import dead_letter_name
from jjq.errors import ChannelNotFound, InvalidArgument
from jjq.feed import Place
from jjq.hints import which
from jjq.model import check_name
from jjq.values import flag, whole

if TYPE_CHECKING:
    from jjq.store import Store
    from jjq.topic import Topic

MAX_ATTEMPTS = 5
ACK_TIMEOUT_S = 60.0


__all__ = ["MAX_IN_FLIGHT", "NOT_GIVEN", "delete", "forget", "get", "get_all", "ids_of", "new", "pause_topic"]


class _NotGiven:
    def __repr__(self) -> str:
        return "(not given)"


NOT_GIVEN: Any = _NotGiven()  # None says that there is no limit


def get(
    store: Store, topic: Topic, name: str, *, create: bool, start: Any, max_attempts: int | None, ack_timeout: Duration,
    ordered: bool | None, dead_letter: str | None, max_in_flight: int, clock: Callable[[], int],
) -> Channel:  # fmt: skip
    """See `Store.channel`."""
    _check(name, ordered, max_in_flight)
    driver = store.catalog.driver
    known = catalog.find_channel(driver, topic.id, name)
    if known is None and create:
        store.check_open(write=True)
        row, places = new(topic, name, start, max_attempts, ack_timeout, ordered, dead_letter, max_in_flight)
        number = catalog.add_channel(driver, row, places)
        if number is not None:
            return Channel(store, topic, replace(row, id=number), max_in_flight, clock)
        known = catalog.find_channel(driver, topic.id, name)
    if known is None:
        names = [each.name for each in catalog.all_channels(driver) if each.topic_id == topic.id]
        hint = which(name, names) or "make it with create=True"
        raise ChannelNotFound(f"topic {topic.name!r} has no channel {name!r}; {hint}", channel=name)
    if ordered is not None and ordered != known.ordered:
        raise InvalidArgument(
            f"channel {name!r} of topic {topic.name!r} was made with ordered={known.ordered}, which cannot be changed"
        )
    row = _altered(known, max_attempts, ack_timeout, dead_letter)
    if row != known:
        store.check_open(write=True)
        ChannelState(driver, row).alter(row.ack_timeout_us, row.max_attempts, row.dead_letter)
    return Channel(store, topic, row, max_in_flight, clock)


def new(
    topic: Topic, name: str, start: Any, max_attempts: int | None, ack_timeout: Duration, ordered: bool | None,
    dead_letter: str | None, max_in_flight: int,
) -> tuple[ChannelRow, dict[int, Place]]:  # fmt: skip
    """A channel that is to be made, checked, and where it begins."""
    _check(name, ordered, max_in_flight)
    row = ChannelRow(
        0, topic.id, topic.name, name, int(ACK_TIMEOUT_S * 1_000_000), MAX_ATTEMPTS, bool(ordered),
        dead_letter_name(topic.name, name, None) if dead_letter is None else "", False, now_us(),
    )  # fmt: skip
    places = resolve_places(topic, "earliest" if start is None else start, "error")
    return _altered(row, max_attempts, ack_timeout, dead_letter), places


def _check(name: str, ordered: bool | None, max_in_flight: int) -> None:
    check_name(name, "channel")
    if ordered is not None:
        flag(ordered, "ordered")
    whole(max_in_flight, "max_in_flight", 1)


def _altered(row: ChannelRow, max_attempts: int | None, ack_timeout: Duration, dead_letter: str | None) -> ChannelRow:
    """With those settings that were given."""
    if max_attempts is not NOT_GIVEN:
        row = replace(row, max_attempts=None if max_attempts is None else whole(max_attempts, "max_attempts", 1))
    if ack_timeout is not None:
        row = replace(row, ack_timeout_us=parse_duration(ack_timeout, "ack_timeout") or 0)
    if dead_letter is not None:
        row = replace(row, dead_letter=dead_letter_name(row.topic, row.name, dead_letter))
    if row.dead_letter == row.topic:
        raise InvalidArgument(f"the dead letters of topic {row.topic!r} cannot go to itself")
    return row


def get_all(store: Store, topic: str | None) -> list[Channel]:
    """See `Store.channels`."""
    topics = {each.id: each for each in (store.topics() if topic is None else [store.topic(topic)])}
    rows = catalog.all_channels(store.catalog.driver)
    return [Channel(store, topics[row.topic_id], row) for row in rows if row.topic_id in topics]


def delete(store: Store, topic: Topic, name: str) -> None:
    """See `Store.delete_channel`."""
    found = get(
        store, topic, name, create=False, start=None, max_attempts=NOT_GIVEN, ack_timeout=None, ordered=None,
        dead_letter=None, max_in_flight=1, clock=now_us,
    )  # fmt: skip
    found._state.drop()
    presence.remove(store.path, found.id)


def ids_of(store: Store, topic_id: str) -> list[int]:
    """The ids of a topic's channels."""
    return [each.id for each in catalog.all_channels(store.catalog.driver) if each.topic_id == topic_id]


def forget(store: Store, ids: list[int]) -> None:
    """Removes the files of channels that went with their topic, and wakes who waits in them."""
    for each in ids:
        presence.remove(store.path, each)


def pause_topic(store: Store, topic: Topic, paused: bool) -> None:
    """See `Topic.pause`."""
    catalog.pause_topic(store.catalog.driver, topic.id, topic.name, paused)
    for each in ids_of(store, topic.id):
        presence.ring(store.path, each)
