"""Subscribers over HTTP: made, listed, popped, peeked, moved, deleted."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from jjq.errors import TopicDeleted
from jjq.model import Record
from jjq.server.answers import ANSWER_BYTES, popped
from jjq.server.http_errors import RequestError
from jjq.server.http_operations import JSON, NAME, TOPIC_NAME, Table, named, path, query
from jjq.server.http_reading import LONGEST_WAIT_S, TIMEOUT
from jjq.server.http_records import RECORD, START, instant, record_json, start_in
from jjq.server.http_requests import Json, Request
from jjq.server.http_stats import DAMAGED, told
from jjq.server.waiting import look_until
from jjq.stats import Damaged, those_there
from jjq.subscriber import Subscriber
from jjq.values import bound_in_bytes

table = Table("Subscribers")

SUBSCRIBER_NAME = path("subscriber", "The subscriber's name.", pattern=NAME)
SUBSCRIBER = named(
    "Subscriber",
    {
        "type": "object", "required": ["name", "id", "topic", "positions"],
        "properties": {
            "name": {"type": "string"}, "id": {"type": "string"}, "topic": {"type": "string"},
            "on_data_loss": {"type": "string"}, "created_at": {"type": ["string", "null"]},
            "positions": {"type": "object"}, "lag": {"type": "array", "items": {"type": "object"}},
        },
    },
)  # fmt: skip
NEW_SUBSCRIBER = named(
    "NewSubscriber",
    {
        "type": "object", "required": ["topic"], "additionalProperties": False,
        "properties": {
            "topic": {"type": "string", "pattern": TOPIC_NAME}, "name": {"type": ["string", "null"], "pattern": NAME}, "start": START,
            "on_data_loss": {"type": "string"}, "exist_ok": {"type": "boolean"},
        },
    },
)  # fmt: skip
PLACES = r"^(\d{1,4}:\d{1,19}:\d{1,9}(,\d{1,4}:\d{1,19}:\d{1,9})*)?$"
_POLLED = {
    "type": "object", "required": ["records", "next"],
    "properties": {"records": {"type": "array", "items": RECORD}, "next": {"type": "string"}},
}  # fmt: skip
_RECORDS = {"type": "object", "required": ["records"], "properties": {"records": {"type": "array", "items": RECORD}}}


def _described(subscriber: Subscriber) -> dict[str, Any]:
    return {
        "name": subscriber.name, "id": subscriber.id, "topic": subscriber.topic.name,
        "on_data_loss": subscriber.on_data_loss, "created_at": instant(subscriber.created_at),
        "positions": {str(partition): offset for partition, offset in sorted(subscriber.positions().items())},
        "lag": [asdict(each) for each in subscriber.lag()],
    }  # fmt: skip


def _find(request: Request, action: str) -> Subscriber:
    """The subscriber that the path names, if the caller may do that to its topic."""
    found = request.store.subscriber(request.arguments["subscriber"])
    request.allow(action, found.topic.name)
    return found


@table.operation(
    "GET", "/api/subscribers", "subscriber.list", "All subscribers (of one topic) of topics that the caller may read.",
    parameters=[query("topic", "Only those of this topic.")],
    answers={200: ("Subscribers.", {JSON: {"type": "object", "required": ["subscribers", "damaged"], "properties": {
        "subscribers": {"type": "array", "items": SUBSCRIBER}, "damaged": DAMAGED}}})},
    scope="list",
)  # fmt: skip
async def list_subscribers(request: Request) -> dict[str, Any]:
    def listed() -> dict[str, Any]:
        found = request.store.subscribers(request.arguments["topic"])
        damaged: Damaged = []
        shown = those_there((each for each in found if request.can_read(each.topic.name)), _described, damaged)
        return {"subscribers": shown, "damaged": told(request, damaged)}

    topic = request.arguments["topic"]
    if topic is not None:
        request.allow("subscriber.list", topic)
    return await request.run(listed)


@table.operation(
    "POST", "/api/subscribers", "subscriber.create", "Makes a subscriber, a durable cursor; without a name it gets one.",
    body={JSON: NEW_SUBSCRIBER}, answers={201: ("The subscriber.", {JSON: SUBSCRIBER})}, scope="body",
)  # fmt: skip
async def create_subscriber(request: Request) -> Response:
    given = await request.document()
    topic = given.pop("topic")
    request.allow("subscriber.create", topic)
    start = start_in(given.pop("start", "earliest"))
    made = await request.run(request.store.create_subscriber, topic, start=start, **given)
    return Json(await request.run(_described, made), 201)


@table.operation(
    "GET", "/api/subscribers/{subscriber}", "subscriber.list", "Where a subscriber is, and how far behind.",
    parameters=[SUBSCRIBER_NAME], answers={200: ("The subscriber.", {JSON: SUBSCRIBER})}, scope="subscriber",
)  # fmt: skip
async def describe_subscriber(request: Request) -> dict[str, Any]:
    return await request.run(lambda: _described(_find(request, "subscriber.list")))


@table.operation(
    "DELETE", "/api/subscribers/{subscriber}", "subscriber.delete", "Deletes a subscriber; records stay.",
    parameters=[SUBSCRIBER_NAME], answers={204: ("Done.", {})}, scope="subscriber",
)  # fmt: skip
async def delete_subscriber(request: Request) -> None:
    def delete() -> None:
        request.store.delete_subscriber(_find(request, "subscriber.delete").name)

    await request.run(delete)


@table.operation(
    "POST", "/api/subscribers/{subscriber}/pop", "subscriber.use",
    "Takes the next records and moves the cursor past them, durably: each goes to one of all who pop. They are gone for who "
    "dies before the answer has come. Waits up to `timeout` seconds for the first one.",
    parameters=[SUBSCRIBER_NAME, TIMEOUT, query("max", "How many at most, 1 by default.", type="integer", minimum=1, maximum=1000)],
    answers={200: ("Records, none when there was none in time.", {JSON: _RECORDS})}, scope="subscriber",
)  # fmt: skip
async def pop_records(request: Request) -> Any:
    most = request.arguments["max"] or 1

    def look() -> list[Record]:
        return popped(subscriber.pop, most)

    subscriber = await request.run(_find, request, "subscriber.use")
    return await request.answer({"records": list(map(record_json, await _until(request, subscriber, look)))})


@table.operation(
    "GET", "/api/subscribers/{subscriber}/peek", "subscriber.use",
    "The record that the next pop gives, unless somebody else takes it first; moves nothing.",
    parameters=[SUBSCRIBER_NAME, TIMEOUT], answers={200: ("Records, none when there was none in time.", {JSON: _RECORDS})},
    scope="subscriber",
)  # fmt: skip
async def peek_record(request: Request) -> Any:
    def peek() -> list[Record]:
        record = subscriber.peek()
        return [] if record is None else [record]

    subscriber = await request.run(_find, request, "subscriber.use")
    return await request.answer({"records": list(map(record_json, await _until(request, subscriber, peek)))})


@table.operation(
    "GET", "/api/subscribers/{subscriber}/poll", "subscriber.use",
    "Records from the cursor on, or from `next` of the poll before: moves nothing durable, so who dies before the commit gets "
    "them again. For one consumer at a time: while another polls, also by Python, it is `subscriber_busy`.",
    parameters=[
        SUBSCRIBER_NAME, TIMEOUT, query("max", "How many at most, 500 by default.", type="integer", minimum=1, maximum=10_000),
        query("max_bytes", "How many bytes of keys, values and headers at most, such as `65536` or `1MB`; one record comes in any case. "
              "No answer has more than about 8 MiB of several records."),
        query("after", "`next` of an answer before: polls on from there, though that was not committed.", pattern=PLACES),
    ],
    answers={200: ("Records, none when there was none in time; `next` is for the commit.", {JSON: _POLLED})},
    scope="subscriber",
)  # fmt: skip
async def poll_records(request: Request) -> Any:
    given = request.arguments
    most, most_bytes = given["max"] or 500, min(bound_in_bytes(given["max_bytes"], "max_bytes"), ANSWER_BYTES)

    def poll() -> list[Record]:
        records = subscriber.poll(most, max_bytes=most_bytes)
        places.update(subscriber.polled())
        return records

    subscriber = await request.run(_find, request, "subscriber.use")
    places: dict[int, tuple[int, int]] = {}
    if given["after"] is not None:
        await request.run(subscriber.poll_from, await request.run(_places, subscriber, given["after"]))
    records = await _until(request, subscriber, poll)
    going_on = ",".join(f"{partition}:{offset}:{lineage}" for partition, (offset, lineage) in sorted(places.items()))
    return await request.answer({"records": list(map(record_json, records)), "next": going_on})


@table.operation(
    "POST", "/api/subscribers/{subscriber}/commit", "subscriber.use",
    "Moves the cursor past what a poll gave, durably; never back.", parameters=[SUBSCRIBER_NAME],
    body={JSON: {"type": "object", "required": ["next"], "additionalProperties": False,
                 "properties": {"next": {"type": "string", "pattern": PLACES, "description": "Of a poll's answer."}}}},
    answers={200: ("The subscriber.", {JSON: SUBSCRIBER})}, scope="subscriber",
)  # fmt: skip
async def commit_subscriber(request: Request) -> dict[str, Any]:
    text = (await request.document())["next"]

    def commit() -> dict[str, Any]:
        with _find(request, "subscriber.use") as subscriber:
            places = _places(subscriber, text)
            subscriber.poll_from(places)
            subscriber.commit_to(places)
            return _described(subscriber)

    return await request.run(commit)


def _places(subscriber: Subscriber, text: str) -> dict[int, tuple[int, int]]:
    """What `next` of a poll says, where that can be."""
    bounds = {each.partition: each for each in subscriber.topic.offsets()}
    places: dict[int, tuple[int, int]] = {}
    for each in text.split(",") if re.fullmatch(PLACES, text, re.ASCII) else [text]:
        parts = each.split(":")
        if len(parts) != 3 or not all(part.isdecimal() for part in parts):
            raise RequestError("this is no `next` of a poll's answer: give it as it was")
        partition, offset, lineage = map(int, parts)
        known = bounds.get(partition)
        if known is None or offset > known.end or lineage > known.lineage:
            raise RequestError(
                f"partition {partition} of topic {subscriber.topic.name!r} has not come so far: the `next` is another "
                f"subscriber's, or the store is an older copy"
            )
        places[partition] = offset, lineage
    return places


async def _until(request: Request, subscriber: Subscriber, look: Any) -> list[Record]:
    seconds = min(request.arguments["timeout"] or 0.0, LONGEST_WAIT_S)
    try:
        found: list[Record] = await look_until(request, subscriber.topic, look, seconds)
    except TopicDeleted:
        await request.run(subscriber.positions)  # says that its subscriber went with it
        raise
    finally:
        await request.run(subscriber.close)
    return found


@table.operation(
    "POST", "/api/subscribers/{subscriber}/seek", "subscriber.use", "Moves the cursor.", parameters=[SUBSCRIBER_NAME],
    body={JSON: {"type": "object", "required": ["start"], "additionalProperties": False, "properties": {"start": START}}},
    answers={200: ("The subscriber.", {JSON: SUBSCRIBER})}, scope="subscriber",
)  # fmt: skip
async def seek_subscriber(request: Request) -> dict[str, Any]:
    start = start_in((await request.document())["start"])

    def seek() -> dict[str, Any]:
        with _find(request, "subscriber.use") as subscriber:
            subscriber.seek(start)
            return _described(subscriber)

    return await request.run(seek)
