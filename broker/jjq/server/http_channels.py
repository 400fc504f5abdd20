"""Channels over HTTP. A consumer of a channel is kept here for those who have none of their own: it holds what was received
until that is acknowledged, requeued, or its time is over."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from jjq import channels
from jjq.channel import Channel, Delivery
from jjq.errors import ChannelNotFound, DeliveryExpired, JjqError, TooManyRequests, TopicDeleted
from jjq.server.http_errors import RequestError
from jjq.server.http_operations import JSON, NAME, Table, named, path, query
from jjq.server.http_pushing import TOPIC
from jjq.server.http_reading import TIMEOUT
from jjq.server.http_records import RECORD, START, instant, record_json, start_in
from jjq.server.http_requests import Request
from jjq.server.http_stats import DAMAGED, told
from jjq.server.rights import get_channel
from jjq.server.waiting import look_until
from jjq.stats import Damaged, those_there
from jjq.store import Store
from jjq.values import counted

table = Table("Channels")

CHANNEL_NAME = path("channel", "The channel's name.", pattern=NAME)
_IDLE_S = 60.0  # then a consumer that has nothing in hand ends
_MOST_CONSUMERS = 1000
_NEW = named(
    "ChannelSettings",
    {
        "type": "object", "additionalProperties": False,
        "properties": {
            "start": START, "max_attempts": {"type": ["integer", "null"]}, "ack_timeout": {"type": ["number", "string"]},
            "ordered": {"type": "boolean"}, "dead_letter": {"type": "string"},
        },
    },
)  # fmt: skip
_CHANNEL = named(
    "Channel",
    {
        "type": "object", "required": ["name", "topic", "paused", "counts"],
        "properties": {
            "name": {"type": "string"}, "topic": {"type": "string"}, "paused": {"type": "boolean"},
            "counts": {"type": "object"}, "consumers": {"type": "array", "items": {"type": "object"}},
        },
    },
)  # fmt: skip
_DELIVERY = named(
    "Delivery",
    {
        "type": "object", "required": ["id", "attempts", "record"],
        "properties": {"id": {"type": "string"}, "attempts": {"type": "integer"}, "record": RECORD},
    },
)  # fmt: skip
_IDS = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 10_000}
_SETTLED = {"type": "object", "required": ["settled"], "properties": {"settled": {"type": "integer"}}}
_GONE: Mapping[int, Any] = {204: ("Done.", {})}


class _Consumer:
    """One handle of a channel, for all requests that name the same consumer."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.deliveries: dict[str, tuple[Delivery, float]] = {}  # by id: and until when it is this consumer's
        self.used_at = time.monotonic()
        self.waiting = 0

    def take(self, most: int) -> list[tuple[str, Delivery]]:
        found = self.channel.receive(most)
        self.used_at = time.monotonic()
        until = self.used_at + self.channel.ack_timeout
        named_now = [(uuid.uuid4().hex, each) for each in found]
        self.deliveries.update((name, (each, until)) for name, each in named_now)
        return named_now

    def forget_expired(self, now: float) -> None:
        for name in [name for name, (_, until) in list(self.deliveries.items()) if until < now]:
            self.deliveries.pop(name, None)


class Consumers:
    """The consumers of a front, by topic, channel and name. Safe among threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mutex = threading.Lock()
        self._consumers: dict[tuple[str, str, str], _Consumer] = {}

    def __len__(self) -> int:
        return len(self._consumers)

    def get(self, topic: str, channel: str, name: str, max_in_flight: int | None) -> _Consumer:
        key = topic, channel, name
        self.sweep()
        with self._mutex:
            known = self._consumers.get(key)
            if known is not None:
                known.used_at = time.monotonic()
                return known
            if len(self._consumers) >= _MOST_CONSUMERS:
                raise TooManyRequests(
                    f"there are {_MOST_CONSUMERS} consumers, as many as this broker keeps; name fewer, or try again when some "
                    f"have not been used for {_IDLE_S:.0f} seconds",
                    retry_after=_IDLE_S,
                )
        most = channels.MAX_IN_FLIGHT if max_in_flight is None else max_in_flight
        made = _Consumer(self._store.channel(topic, channel, max_in_flight=most))
        with self._mutex:
            known = self._consumers.setdefault(key, made)
        if known is not made:
            made.channel.close()
        return known

    def of(self, topic: str, channel: str) -> list[_Consumer]:
        with self._mutex:
            return [each for key, each in self._consumers.items() if key[:2] == (topic, channel)]

    def drop(self, gone: _Consumer) -> None:
        """Of a channel that is no more, or of another by its name by now."""
        with self._mutex:
            for key in [key for key, each in self._consumers.items() if each is gone]:
                del self._consumers[key]
        with contextlib.suppress(JjqError):
            gone.channel.close()

    def sweep(self) -> None:
        """Ends those that nobody has used for a while and that have nothing in hand."""
        now = time.monotonic()
        with self._mutex:
            for each in self._consumers.values():
                each.forget_expired(now)
            idle = [
                each for each in self._consumers.values()
                if not each.deliveries and not each.waiting and each.used_at + _IDLE_S < now
            ]  # fmt: skip
        for each in idle:
            self.drop(each)

    def close(self) -> None:
        """What is in hand goes to other consumers at once."""
        with self._mutex:
            all_of_them = list(self._consumers.values())
        for each in all_of_them:
            self.drop(each)


def _described(channel: Channel) -> dict[str, Any]:
    consumers = [asdict(each) | {"started_at": instant(each.started_at)} for each in channel.consumers()]
    return {
        "name": channel.name, "topic": channel.topic.name, "paused": channel.paused, "ordered": channel.ordered,
        "max_attempts": channel.max_attempts, "ack_timeout": channel.ack_timeout, "dead_letter": channel.dead_letter,
        "created_at": instant(channel.created_at), "counts": asdict(channel.counts()), "consumers": consumers,
    }  # fmt: skip


def _open(request: Request) -> Channel:
    return request.store.channel(request.arguments["topic"], request.arguments["channel"])


@table.operation(
    "GET", "/api/channels", "channel.list", "All channels (of one topic) of topics that the caller may read.",
    parameters=[query("topic", "Only those of this topic.")],
    answers={200: ("Channels.", {JSON: {"type": "object", "required": ["channels", "damaged"], "properties": {
        "channels": {"type": "array", "items": _CHANNEL}, "damaged": DAMAGED}}})},
    scope="list",
)  # fmt: skip
async def list_channels(request: Request) -> dict[str, Any]:
    def listed() -> dict[str, Any]:
        found = request.store.channels(request.arguments["topic"])
        damaged: Damaged = []
        shown = those_there((each for each in found if request.can_read(each.topic.name)), _described, damaged)
        return {"channels": shown, "damaged": told(request, damaged)}

    topic = request.arguments["topic"]
    if topic is not None:
        request.allow("channel.list", topic)
    return await request.run(listed)


@table.operation(
    "PUT", "/api/topics/{topic}/channels/{channel}", "channel.create",
    "Makes a channel, and for who may push the topic, if there is none; changes what is given of one that is there. Dead "
    "letters go to another topic than the channel's own only for who may push there.",
    parameters=[TOPIC, CHANNEL_NAME], body={JSON: _NEW}, answers={200: ("The channel.", {JSON: _CHANNEL})},
)  # fmt: skip
async def put_channel(request: Request) -> dict[str, Any]:
    given = await request.document()
    if "start" in given:
        given["start"] = start_in(given["start"])
    topic, name = request.arguments["topic"], request.arguments["channel"]
    return await request.run(
        lambda: _described(get_channel(request.store, request.caller, topic, name, create=True, settings=given))
    )


@table.operation(
    "GET", "/api/topics/{topic}/channels/{channel}", "channel.use", "A channel's settings, counts and consumers.",
    parameters=[TOPIC, CHANNEL_NAME], answers={200: ("The channel.", {JSON: _CHANNEL})},
)  # fmt: skip
async def describe_channel(request: Request) -> dict[str, Any]:
    return await request.run(lambda: _described(_open(request)))


@table.operation(
    "DELETE", "/api/topics/{topic}/channels/{channel}", "channel.delete", "Deletes a channel; records stay.",
    parameters=[TOPIC, CHANNEL_NAME], answers=_GONE,
)  # fmt: skip
async def delete_channel(request: Request) -> None:
    await request.run(request.store.delete_channel, request.arguments["topic"], request.arguments["channel"])


def _act(action: str, method: str, about: str) -> Callable[[Request], Any]:
    """An operation that calls one method of the channel."""

    async def act(request: Request) -> Any:
        result = await request.run(lambda: getattr(_open(request), method)())
        return {"revived": result} if method == "revive" else None

    act.__name__ = f"{method}_channel"
    revived = {"type": "object", "required": ["revived"], "properties": {"revived": {"type": "integer"}}}
    answers: Mapping[int, Any] = {200: ("How many.", {JSON: revived})} if method == "revive" else _GONE
    return table.operation(
        "POST", f"/api/topics/{{topic}}/channels/{{channel}}/{method}", action, about, parameters=[TOPIC, CHANNEL_NAME],
        answers=answers,
    )(act)  # fmt: skip


_act("channel.pause", "pause", "Nothing is delivered until unpaused.")
_act("channel.pause", "unpause", "Delivers again.")
_act("channel.empty", "empty", "Skips everything pushed up to now.")
_act("channel.use", "revive", "Gives its dead letters back to the channel, for new attempts.")


# --- consuming -----------------------------------------------------------------------------------------------------------


@table.operation(
    "POST", "/api/topics/{topic}/channels/{channel}/receive", "channel.use",
    "Records for this consumer, each with an id to acknowledge or requeue it by. What is not settled within the channel's "
    "ack_timeout is delivered again. The channel has to be there.",
    parameters=[
        TOPIC, CHANNEL_NAME, TIMEOUT, query("max", "How many at most, 1 by default.", type="integer", minimum=1, maximum=1000),
        query("consumer", "A name of the caller's own: each has its own max_in_flight.", minLength=1, maxLength=100),
        query("max_in_flight", "How many records the consumer has in hand at most; of its first request.", type="integer",
              minimum=1, maximum=100_000),
    ],
    answers={200: ("Deliveries, none when there was none in time.", {JSON: {
        "type": "object", "required": ["deliveries"], "properties": {
            "deliveries": {"type": "array", "items": _DELIVERY}}}})},
)  # fmt: skip
async def receive(request: Request) -> Any:
    try:
        found = await _receive(request)
    except (ChannelNotFound, TopicDeleted):
        found = await _receive(request)  # there may be another by that name by now
    deliveries = [{"id": name, "attempts": each.attempts, "record": record_json(each.record)} for name, each in found]
    return await request.answer({"deliveries": deliveries})


async def _receive(request: Request) -> list[tuple[str, Delivery]]:
    given, consumers = request.arguments, request.parts.consumers
    consumer = await request.run(
        consumers.get, given["topic"], given["channel"], given["consumer"] or "", given["max_in_flight"]
    )
    channel = consumer.channel
    consumer.waiting += 1
    try:
        return await look_until(
            request, channel.topic, functools.partial(consumer.take, given["max"] or 1), given["timeout"] or 0.0,
            channel=channel.id, longest=channel._until_due,
        )  # fmt: skip
    except (ChannelNotFound, TopicDeleted):
        await request.run(consumers.drop, consumer)
        raise
    finally:
        consumer.waiting -= 1


def _settled_by(method: str, about: str, properties: Mapping[str, Any]) -> None:
    async def settle(request: Request) -> Any:
        given = await request.document()
        return await request.run(_settle, request, method, given.pop("deliveries"), given)

    settle.__name__ = f"{method.removesuffix('_many')}_deliveries"
    table.operation(
        "POST", f"/api/topics/{{topic}}/channels/{{channel}}/{method.removesuffix('_many')}", "channel.use", about,
        parameters=[TOPIC, CHANNEL_NAME],
        body={JSON: {"type": "object", "required": ["deliveries"], "additionalProperties": False,
                     "properties": {"deliveries": _IDS, **properties}}},
        answers={200: ("How many.", {JSON: _SETTLED})},
    )(settle)  # fmt: skip


_settled_by("ack_many", "These deliveries are done: they are not delivered again.", {})
_settled_by(
    "requeue_many", "Gives deliveries back, to be delivered again after `delay` seconds.",
    {"delay": {"type": "number", "minimum": 0, "maximum": 1e9}, "reason": {"type": "string", "maxLength": 1000}},
)  # fmt: skip
_settled_by("touch_many", "Begins the time of these deliveries anew.", {})


def _settle(request: Request, method: str, ids: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Settles what is known of the ids, then says which are not."""
    rest = list(dict.fromkeys(ids))
    settled = 0
    for consumer in request.parts.consumers.of(request.arguments["topic"], request.arguments["channel"]):
        # Others may settle, and forget, the same ones meanwhile.
        own = {name: found[0] for name in rest if (found := consumer.deliveries.get(name)) is not None}
        if not own:
            continue
        rest = [name for name in rest if name not in own]
        consumer.used_at = time.monotonic()
        # Where some have expired the others of them are settled, and so are those of other consumers.
        with contextlib.suppress(DeliveryExpired):
            getattr(consumer.channel, method)(list(own.values()), **options)
        for name, each in own.items():
            late = each._settled == "expired"
            if method == "touch_many" and not late:
                consumer.deliveries[name] = each, consumer.used_at + consumer.channel.ack_timeout
            else:
                consumer.deliveries.pop(name, None)
            if late:
                rest.append(name)
        settled += len(own)
    if rest:
        raise RequestError(
            f"{len(rest)} of {counted(len(ids), 'delivery', 'deliveries')} {'is' if len(rest) == 1 else 'are'} not in hand: settled "
            f"before, timed out, or never there; the others are settled",
            "delivery_expired",
        )
    return {"settled": settled}
