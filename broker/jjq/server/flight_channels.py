"""The actions of the Flight front on channels. A client's handle has its like here, as for subscribers."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from jjq import wire
from jjq.channel import Channel, Delivery
from jjq.errors import ChannelNotFound, DeliveryExpired, InvalidArgument
from jjq.server.flight_calls import Call, action, named_values, texts
from jjq.server.flight_consuming import parts, waiting
from jjq.server.rights import get_channel
from jjq.values import flag, shown

_HOST_CHARS, _MOST_PID = 255, (1 << 31) - 1
_LATE_S = 60.0  # how long after its time a delivery is kept, for who settles it late


class ChannelHandle:
    """A consumer on behalf of a client, with what that has in hand, by numbers that no other handle gives."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._prefix = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()
        self.in_hand: dict[str, Delivery] = {}
        self._mutex = threading.Lock()
        self._until: dict[str, float] = {}  # in their order: what was touched goes to the end

    def hold(self, delivery: Delivery) -> str:
        number = f"{self._prefix}:{next(self._numbers)}"
        self.in_hand[number] = delivery
        self.touch(number)
        return number

    def touch(self, number: str) -> None:
        with self._mutex:
            self._until.pop(number, None)
            self._until[number] = time.monotonic() + self.channel.ack_timeout + _LATE_S

    def let_go(self, number: str) -> None:
        with self._mutex:
            self.in_hand.pop(number, None)
            self._until.pop(number, None)

    def forget_expired(self) -> None:
        """What a client never settled is another consumer's by now: whoever settles it later is told so all the same."""
        now = time.monotonic()
        with self._mutex:
            late = list(itertools.takewhile(lambda number: self._until[number] < now, self._until))
        for number in late:
            self.let_go(number)

    def close(self) -> None:
        self.in_hand.clear()
        self._until.clear()
        self.channel.close()


def _pack_channel(each: Channel) -> dict[str, Any]:
    return {
        "id": each.id, "name": each.name, "topic_id": each.topic.id, "topic": each.topic.name,
        "ack_timeout": each.ack_timeout, "max_attempts": each.max_attempts, "ordered": each.ordered,
        "dead_letter": each.dead_letter, "created_at": each.created_at,
    }  # fmt: skip


@action
def channel(call: Call, topic: Any, name: Any, create: bool = False, settings: Any = None) -> dict[str, Any]:
    """Finds, makes or changes a channel."""
    call.may("channel.create" if create or settings else "channel.use", topic if isinstance(topic, str) else None)
    # A clock of its own may be given in Python: that of a broker is its own.
    given = {key: value for key, value in named_values(settings, "settings").items() if key != "clock"}
    try:
        found = get_channel(call.store, call.caller, topic, name, create=flag(create, "create"), settings=given)
    except TypeError as error:
        raise InvalidArgument(f"a channel has no such setting: {error}") from error
    return _pack_channel(found)


@action
def channels(call: Call, topic: Any = None) -> list[dict[str, Any]]:
    return [_pack_channel(each) for each in call.store.channels(topic) if call.can("channel.list", each.topic.name)]


@action
def delete_channel(call: Call, topic: Any, name: Any) -> None:
    call.may("channel.delete", topic if isinstance(topic, str) else None)
    call.store.delete_channel(topic, name)


def _channel(call: Call, handle: int, channel: Any, operation: str = "channel.use") -> ChannelHandle:
    topic_id, name, channel_id, max_in_flight, host, pid = parts(channel, "channel", str, str, int, int, str, int)
    if len(host) > _HOST_CHARS or not host.isprintable() or not 0 <= pid <= _MOST_PID:
        raise InvalidArgument(f"a consumer is of a host and a process, not {shown(host)} and {shown(pid)}")

    def make() -> ChannelHandle:
        topic = call.store.topic_row(topic_id)  # raises TopicDeleted
        found = call.store.channel(topic.name, name, max_in_flight=max_in_flight)
        if found.id != channel_id:
            raise ChannelNotFound(f"channel {name!r} of topic {topic.name!r} was deleted", channel=name)
        found._where = host, pid
        return ChannelHandle(found)

    found = call.own_session().handle(handle, ChannelHandle, make)
    call.may(operation, found.channel.topic.name)
    return found


@action
def receive(call: Call, handle: int, channel: Any, max_records: Any = 1, timeout: Any = 0) -> dict[str, Any]:
    """Up to so many records, and of each its number and how often it was delivered."""
    with waiting(call, timeout) as seconds:
        found = _channel(call, handle, channel)
        found.forget_expired()
        deliveries = found.channel.receive(max_records, seconds)
    return {
        "records": wire.pack_records([each.record for each in deliveries]),
        "deliveries": [[found.hold(each), each.attempts] for each in deliveries],
    }


@action
def settle(
    call: Call, handle: int, channel: Any, deliveries: Sequence[str], how: Any, delay: Any = 0.0, reason: Any = None
) -> list[Any]:
    """Acknowledges, requeues or touches what is in hand; returns the numbers of those that were no longer."""
    found = _channel(call, handle, channel)
    deliveries = texts(deliveries, "deliveries")
    held = {number: found.in_hand[number] for number in deliveries if number in found.in_hand}
    gone = [number for number in deliveries if number not in held]
    acts: dict[str, Callable[..., None]] = {
        "acknowledged": found.channel.ack_many,
        "requeued": functools.partial(found.channel.requeue_many, delay=delay, reason=reason),
        "touched": found.channel.touch_many,
    }
    if not isinstance(how, str) or how not in acts:
        raise InvalidArgument(f"deliveries are {', '.join(acts)}, not {shown(how)}")
    try:
        acts[how](held.values())
    except DeliveryExpired:
        gone += [number for number, each in held.items() if each._settled == "expired"]
    for number in held:
        if how == "touched" and number not in gone:
            found.touch(number)
        else:
            found.let_go(number)
    return gone


@action
def channel_counts(call: Call, handle: int, channel: Any) -> dict[str, int]:
    return dataclasses.asdict(_channel(call, handle, channel).channel.counts())


@action
def channel_consumers(call: Call, handle: int, channel: Any) -> list[dict[str, Any]]:
    return [dataclasses.asdict(each) for each in _channel(call, handle, channel).channel.consumers()]


@action
def channel_is_paused(call: Call, handle: int, channel: Any) -> bool:
    return _channel(call, handle, channel).channel.paused


@action
def pause_channel(call: Call, handle: int, channel: Any, paused: bool) -> None:
    found = _channel(call, handle, channel, "channel.pause").channel
    (found.pause if flag(paused, "paused") else found.unpause)()


@action
def empty_channel(call: Call, handle: int, channel: Any) -> None:
    _channel(call, handle, channel, "channel.empty").channel.empty()


@action
def revive(call: Call, handle: int, channel: Any) -> int:
    return _channel(call, handle, channel).channel.revive()
