"""The actions of the Flight front on subscribers and subscriptions, and for who follows a topic without one.

A client's handle has its like here, in its session: the embedded object, which does all the work. It is made at the first use,
so that one that went with a broker is made again by the next; what it must know for that comes with each request.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from jjq import wire
from jjq.errors import (
    InvalidArgument,
    RecordTooLarge,
    StoreClosed,
    SubscriberNotFound,
    TopicNotFound,
)
from jjq.feed import TAKE_BYTES, Feed, beginnings, watched
from jjq.model import Record
from jjq.pubsub import Message, PubSub
from jjq.server.answers import ANSWER_BYTES, MOST_RECORDS, taken
from jjq.server.flight_calls import Call, action, texts
from jjq.subscriber import Subscriber
from jjq.topic import Topic
from jjq.values import bound_in_bytes, flag, shown, whole
from jjq.wake import wait_for

LONGEST_WAIT_S = 30.0
_FOLLOW_ROWS = 1000


@contextlib.contextmanager
def waiting(call: Call, timeout: object) -> Iterator[float]:
    """The seconds that a request may wait: a client that is to wait longer asks again."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 <= timeout <= LONGEST_WAIT_S:
        raise InvalidArgument(f"timeout must be seconds from 0 to {LONGEST_WAIT_S:.0f}, not {shown(timeout)}")
    if timeout == 0:
        yield 0.0
    else:
        with call.served.guard.subscription(call.caller):
            yield float(timeout)


# --- subscribers -----------------------------------------------------------------------------------------------------


def _pack_subscriber(each: Subscriber) -> dict[str, Any]:
    return {
        "id": each.id, "name": each.name, "topic_id": each.topic.id, "on_data_loss": each.on_data_loss,
        "created_at": each.created_at, "topic": each.topic.name,
    }  # fmt: skip


@action
def create_subscriber(
    call: Call, topic: Any, name: Any = None, start: Any = "earliest", on_data_loss: Any = None,
    exist_ok: bool = False,
) -> dict[str, Any]:  # fmt: skip
    call.may("subscriber.create", topic if isinstance(topic, str) else None)
    made = call.store.create_subscriber(topic, name, start=start, on_data_loss=on_data_loss, exist_ok=exist_ok)
    return _pack_subscriber(made)


@action
def subscriber(call: Call, name: Any) -> dict[str, Any]:
    return _pack_subscriber(_found(call, "subscriber.use", name))


def _found(call: Call, operation: str, name: Any) -> Subscriber:
    found = call.store.subscriber(name)
    call.may(operation, found.topic.name)
    return found


@action
def subscribers(call: Call, topic: Any = None) -> list[dict[str, Any]]:
    return [
        _pack_subscriber(each) for each in call.store.subscribers(topic) if call.can("subscriber.list", each.topic.name)
    ]


@action
def delete_subscriber(call: Call, name: Any) -> None:
    _found(call, "subscriber.delete", name)
    call.store.delete_subscriber(name)


def _subscriber(call: Call, handle: int, subscriber: Any, places: Sequence[Any] = ()) -> Subscriber:
    """The handle of that number; made anew it polls on where the client says it was."""
    name, subscriber_id, topic_id = parts(subscriber, "subscriber", str, str, str)

    def make() -> Subscriber:
        try:
            found = call.store.subscriber(name)
        except (SubscriberNotFound, TopicNotFound):
            call.store.topic_row(topic_id)  # raises TopicDeleted, if that is why
            raise
        if found.id != subscriber_id:
            raise SubscriberNotFound(f"subscriber {name!r} was deleted")
        if places:
            found.poll_from(_places(places))
        return found

    try:
        found = call.own_session().handle(handle, Subscriber, make)
    except (SubscriberNotFound, TopicNotFound):
        raise SubscriberNotFound(f"subscriber {shown(name)} was deleted") from None
    call.may("subscriber.use", found.topic.name)
    return found


def parts(given: object, what: str, *kinds: type) -> Sequence[Any]:
    """What a client says that its handle is, each part of its kind."""
    if isinstance(given, list) and len(given) == len(kinds) and all(map(isinstance, given, kinds)):
        return given
    raise InvalidArgument(f"{what} is a list of {', '.join(each.__name__ for each in kinds)}, not {shown(given)}")


def _places(given: Sequence[Any]) -> dict[int, tuple[int, int]]:
    try:
        return {int(partition): (int(offset), int(lineage)) for partition, offset, lineage in given}
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"places are [partition, offset, lineage] of each, not {shown(given)}") from error


@action
def pop(call: Call, handle: int, subscriber: Any, timeout: Any = 0, places: Sequence[Any] = ()) -> Any:
    with waiting(call, timeout) as seconds:
        return _single(call, _subscriber(call, handle, subscriber, places), lambda each: each.pop(seconds))


@action
def peek(call: Call, handle: int, subscriber: Any, timeout: Any = 0, places: Sequence[Any] = ()) -> Any:
    with waiting(call, timeout) as seconds:
        return _single(call, _subscriber(call, handle, subscriber, places), lambda each: each.peek(seconds))


def _single(call: Call, found: Subscriber, take: Any) -> dict[str, Any]:
    record: Record | None = take(found)
    return {"records": wire.pack_records([] if record is None else [record]), "skipped": found.skipped}


@action
def poll(
    call: Call, handle: int, subscriber: Any, max_records: Any = 500, timeout: Any = 0, places: Sequence[Any] = (),
    max_bytes: Any = TAKE_BYTES,
) -> dict[str, Any]:  # fmt: skip
    """Up to so many records of up to so many bytes, and the places behind them: `[partition, offset, lineage]` of each."""
    with waiting(call, timeout) as seconds:
        found = _subscriber(call, handle, subscriber, places)
        most = min(whole(max_records, "max_records", 1), MOST_RECORDS)
        records = found.poll(most, seconds, max_bytes=min(bound_in_bytes(max_bytes, "max_bytes"), ANSWER_BYTES))
    return {
        "records": wire.pack_records(records), "skipped": found.skipped,
        "places": [[partition, *place] for partition, place in found.polled().items()],
    }  # fmt: skip


@action
def commit_polled(call: Call, handle: int, subscriber: Any, taken: Sequence[Any], places: Sequence[Any] = ()) -> None:
    """Moves the cursor past what the client has taken of what it polled."""
    _subscriber(call, handle, subscriber, places).commit_to(_places(taken))


@action
def seek(call: Call, handle: int, subscriber: Any, start: Any, places: Sequence[Any] = ()) -> list[Any]:
    """Moves the cursor; returns where polling goes on: `[partition, offset, lineage]` of each."""
    found = _subscriber(call, handle, subscriber, places)
    found.seek(start)
    cursors = call.store.catalog.cursors(found.id)
    return [
        [partition, *place] for partition, place in cursors.items() if not isinstance(start, dict) or partition in start
    ]


@action
def positions(call: Call, handle: int, subscriber: Any, places: Sequence[Any] = ()) -> list[Any]:
    return list(_subscriber(call, handle, subscriber, places).positions().items())


@action
def lag(call: Call, handle: int, subscriber: Any, places: Sequence[Any] = ()) -> list[dict[str, Any]]:
    return [dataclasses.asdict(each) for each in _subscriber(call, handle, subscriber, places).lag()]


@action
def sleep(call: Call, handle: int, subscriber: Any, places: Sequence[Any] = ()) -> None:
    _subscriber(call, handle, subscriber, places).sleep()


@action
def wakeup(call: Call, handle: int, subscriber: Any, places: Sequence[Any] = ()) -> None:
    _subscriber(call, handle, subscriber, places).wakeup()


# --- following a topic without a subscriber ----------------------------------------------------------------------------


class FollowHandle:
    """Where a client is in a topic that it follows."""

    def __init__(self, call: Call, topic: Topic, places: Any, columns: Any, new_partitions: bool) -> None:
        grown = functools.partial(beginnings, topic) if new_partitions else None
        self.topic = topic
        self.feed = Feed(topic, places, columns, places_now=grown)
        self.listener = call.store.listener(functools.partial(watched, topic))
        self.closed = False

    def take(self, most: int, most_bytes: int) -> list[Record]:
        if self.closed:
            raise StoreClosed("this handle was closed")
        return self.feed.take_many(most, most_bytes)

    def close(self) -> None:
        self.closed = True
        self.listener.close()


@action
def follow(
    call: Call, handle: int, topic_id: Any, places: Sequence[Any], columns: Any = None, new_partitions: bool = True,
    timeout: Any = 0,
) -> dict[str, Any]:  # fmt: skip
    """The next records of a topic, from `places` on when the handle is made, and the places behind them."""
    topic = call.topic("read", topic_id)

    def make() -> FollowHandle:
        own = call.store._topic(topic.row)  # a feed keeps it to itself
        return FollowHandle(call, own, _places(places), columns, flag(new_partitions, "new_partitions"))

    with waiting(call, timeout) as seconds:
        found = call.own_session().handle(handle, FollowHandle, make)
        call.may("read", found.topic.name)  # which the handle, and not the request, says
        records = wait_for(lambda: taken(found.take, _FOLLOW_ROWS), seconds, found.listener) or []
    return {
        "records": wire.pack_records(records),
        "places": [[partition, *place] for partition, place in found.feed.places().items()],
    }


# --- publish and subscribe -------------------------------------------------------------------------------------------


@action
def publish(call: Call, name: Any, data: Any) -> int:
    call.may("push", name if isinstance(name, str) else None)
    sent = data.encode(errors="replace") if isinstance(data, str) else data
    size = len(sent if isinstance(sent, bytes) else wire.encode(sent))
    most = call.served.settings.max_record_bytes
    if size > most:
        raise RecordTooLarge(f"the message has {size:,} bytes, the broker takes up to {most:,} (max_record_bytes)")
    call.caller.spend(1, size)
    return call.store.publish(name, data)


def _subscription(call: Call, handle: int, interest: Any) -> PubSub:
    """The subscription of that handle; made anew it is subscribed to what the client says. It asks by itself for no
    confirmations: the client makes those."""
    given = parts(interest, "interest", list, list)
    names, patterns = texts(given[0], "names"), texts(given[1], "patterns")

    def make() -> PubSub:
        for name in names:
            call.may("read", name)
        made = call.store.pubsub(ignore_subscribe_messages=True)
        try:
            if names:
                made.subscribe(*names)
            if patterns:
                made.psubscribe(*patterns)
        except BaseException:  # it holds topics, and nobody else would let go of them
            made.close()
            raise
        return made

    return call.own_session().handle(handle, PubSub, make)


@action
def change_subscription(call: Call, handle: int, interest: Any, kind: str, names: Sequence[str]) -> list[Any]:
    """`subscribe`, `psubscribe`, `unsubscribe` or `punsubscribe`; returns id, names and patterns as they are now."""
    found = _subscription(call, handle, interest)
    names = texts(names, "names")
    if kind not in ("subscribe", "psubscribe", "unsubscribe", "punsubscribe"):
        raise InvalidArgument(f"a subscription cannot {shown(kind)}")
    if kind == "subscribe":
        for name in names:
            call.may("read", name)
    getattr(found, kind)(*names)
    return [found.id, sorted(found._names), sorted(found._patterns)]


@action
def get_message(call: Call, handle: int, interest: Any, timeout: Any = 0) -> dict[str, Any]:
    """The next message of a topic that the caller may read."""
    with waiting(call, timeout) as seconds:
        found = _subscription(call, handle, interest)
        message = found.get_message(seconds)
        while message is not None and not call.can("read", _text(message["channel"])):
            message = found.get_message(0)
    return {"message": None if message is None else _pack_message(message), "dropped": found.dropped}


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _pack_message(message: Message) -> dict[str, Any]:
    return {**message, "data": wire.outgoing(message["data"])}


@action
def pubsub_channels(call: Call, pattern: Any = "*") -> list[str]:
    if not isinstance(pattern, str):
        raise InvalidArgument(f"a pattern is a text such as 'log.*', not {shown(pattern)}")
    return [name for name in call.store.pubsub_channels(pattern) if call.can("topic.list", name)]


@action
def pubsub_numsub(call: Call, names: Sequence[str]) -> list[Any]:
    for name in texts(names, "names"):
        call.may("topic.list", name)
    return list(call.store.pubsub_numsub(*names).items())


@action
def pubsub_numpat(call: Call) -> int:
    return call.store.pubsub_numpat()
