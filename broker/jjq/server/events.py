"""The event bus at `/api/events`: a topic of one partition with the columns `type` and `body`, posted to and followed."""

from __future__ import annotations

import base64
import functools
import unicodedata
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import Response

from jjq.clock import now_us
from jjq.errors import InvalidArgument, TopicNotFound
from jjq.model import Record
from jjq.server.event_ids import event_id, parse_event_id
from jjq.server.gathering import Item
from jjq.server.http_errors import RequestError
from jjq.server.http_operations import BYTES, EVENTS, JSON, TEXT, Table, header, named, query
from jjq.server.http_requests import Parts, Request
from jjq.server.sse import Stream, TopicSource, field_lines
from jjq.topic import Topic

table = Table("Events")

SCHEMA = pa.schema([("type", pa.string()), ("body", pa.binary())])
BASE64 = "base64"
_HEADER = "encoding"  # of a record whose sender said that the body is bytes
_TYPE_CHARACTERS = 1000
_PATTERN_CHARACTERS = 1000
_KNOWN_TYPES = 10_000
_MARK = b"encoding: base64\n"

ID = named(
    "EventId",
    {"type": "object", "required": ["id"], "additionalProperties": False,
     "properties": {"id": {"type": "string", "format": "uuid", "description": "A UUID of version 6; ids sort as events do."}}},
)  # fmt: skip


# --- the topic -----------------------------------------------------------------------------------------------------------


def known_topic(parts: Parts) -> Topic | None:
    """The topic of events, as it was when it was opened a moment ago."""
    known = parts.known(parts.settings.events_topic)
    return known if known is not None and known.schema is not None else None


def open_topic(parts: Parts, *, anew: bool = False) -> Topic:
    """The topic of events, made if there is none; raises InvalidArgument when one of that name is of another kind."""
    settings = parts.settings
    known = None if anew else known_topic(parts)
    if known is not None:
        return known
    try:
        topic = parts.store.topic(settings.events_topic)
    except TopicNotFound:
        if not parts.store.create_topics or parts.store.read_only:
            raise
        topic = parts.store.create_topic(
            settings.events_topic, schema=SCHEMA, exist_ok=True, segment_bytes=settings.events_segment_bytes,
            retention_segments=settings.events_segments,
        )  # fmt: skip
    found = {} if topic.schema is None else {each.name: each.type for each in topic.schema}
    if topic.partitions != 1 or any(found.get(each.name) != each.type for each in SCHEMA):
        raise InvalidArgument(
            f"topic {topic.name!r} is no topic of events: that has one partition and the columns type (string) and body "
            f"(binary). Name another in the setting `events_topic`, or delete it"
        )
    return parts.keep(topic)


# --- posting -------------------------------------------------------------------------------------------------------------


@table.operation(
    "POST", "/api/events", "push",
    "Stores an event; answered when it is durable. The body is kept as it is.",
    parameters=[
        query("type", "What kind of event it is: any text without control characters.", required=True, minLength=1,
              maxLength=_TYPE_CHARACTERS),
        query("encoding", "`base64` for a body that is not UTF-8: it is served as base64, and marked.", enum=[BASE64]),
    ],
    body={TEXT: {"type": "string"}, BYTES: {"type": "string", "format": "binary"}, JSON: {}},
    answers={200: ("The event's id.", {JSON: ID})},
    scope="events",
)  # fmt: skip
async def post_event(request: Request) -> Response:
    parts = request.parts
    name = parts.settings.events_topic
    request.allow("push", name)
    kind = checked_type(request.arguments["type"])
    body = await request.body()
    headers = None
    if request.arguments["encoding"] == BASE64:
        headers = {_HEADER: BASE64}
    elif not _is_utf8(body):
        raise RequestError("the body is not UTF-8; say encoding=base64, and it is kept as it is and served as base64")
    request.check_record(len(body))
    request.caller.spend(1, len(body))
    if known_topic(parts) is None:
        await request.run(open_topic, parts)
    position = await parts.gathering.push(name, Item({"type": kind, "body": body}, None, headers, len(body) + 64))
    assert position.timestamp is not None  # as it is only of a writer's batch that was there before
    found = event_id(position.timestamp, position.partition, position.offset)
    return Response(b'{"id":"%b"}' % found.encode(), media_type=JSON)


def checked_type(kind: str) -> str:
    if not kind.isprintable() and any(unicodedata.category(each) == "Cc" for each in kind):
        raise RequestError("the type has a control character, such as the end of a line; leave it out")
    return kind


def _is_utf8(body: bytes) -> bool:
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- following -----------------------------------------------------------------------------------------------------------


class EventEncoding:
    """Events as followme's clients know them: id, event, data."""

    name = "events"
    own_ids = True

    def encode(self, records: Sequence[Record]) -> list[bytes]:
        return [encode_event(each) for each in records]

    def kinds(self, records: Sequence[Record]) -> list[str] | None:
        return [str(each.value["type"] or "") for each in records]


def encode_event(record: Record) -> bytes:
    """One event as it is sent. Whoever wrote the record, and whatever is in it, the fields are these."""
    kind, body = record.value["type"], record.value["body"] or b""
    head = f"id: {event_id(record.timestamp, record.partition, record.offset)}\n"
    if kind:
        head += f"event: {_printable(kind)}\n"
    said = record.headers is not None and (_HEADER, BASE64.encode()) in record.headers
    if not said:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            said = True
        else:
            if "\n" not in text and "\r" not in text:  # as most are
                return f"{head}data: {text}\n\n".encode()
            return head.encode() + field_lines("data", text) + b"\n"
    return head.encode() + _MARK + b"data: " + base64.b64encode(body) + b"\n\n"


def _printable(kind: str) -> str:
    """A type that came another way may have what a post may not."""
    if kind.isprintable():
        return kind
    return "".join("�" if unicodedata.category(each) == "Cc" else each for each in kind)


class TypeFilter:
    """A pattern that types are searched for: RE2, so that no pattern takes longer than the text is long."""

    column = "type"

    def __init__(self, pattern: str) -> None:
        self.key = pattern
        self._known: dict[str, bool] = {}
        try:
            self._takes_none = bool(self._match(pa.array([""], pa.string()))[0].as_py())
        except pa.ArrowInvalid as error:
            said = str(error).splitlines()[0]
            raise RequestError(f"typeMatcher is no regular expression as RE2 knows them: {said}") from error

    def _match(self, types: pa.Array) -> pa.Array:
        return pc.match_substring_regex(types, pattern=self.key)

    def rows(self, kinds: Sequence[str]) -> list[int]:
        known = self._known
        new = [each for each in set(kinds) if each not in known]
        if new:
            if len(known) + len(new) > _KNOWN_TYPES:
                known.clear()
                new = list(set(kinds))
            known.update(zip(new, self._match(pa.array(new, pa.string())).to_pylist(), strict=True))
        return [i for i, each in enumerate(kinds) if known[each]]

    def mask(self, column: pa.Array) -> pa.Array:
        """Each type is looked at once, however often it comes."""
        encoded = column.dictionary_encode()
        found = self._match(encoded.dictionary).take(encoded.indices)
        return pc.fill_null(found, self._takes_none)


@table.operation(
    "GET", "/api/events", "read",
    "Events as they come, as server-sent events: `id`, `event` (the type) and `data` (the body; a line each). What was sent "
    "with encoding=base64, or is no UTF-8, has base64 as its data and a field `encoding: base64` before it. A comment comes "
    "now and then while there is nothing. Reconnecting with the last id goes on after it.",
    parameters=[
        query("typeMatcher", "A regular expression (RE2) that is searched for in types; only events that match are sent.",
              maxLength=_PATTERN_CHARACTERS),
        query("start", "Where to begin without Last-Event-ID: an id, an offset, a negative number for the last events, "
              "`earliest`, `latest` (the default), an ISO-8601 time with a zone, or a time such as `-10 minutes`."),
        header("Last-Event-ID", "Goes on after the event with this id, or where it would be."),
    ],
    answers={200: ("Events, for ever.", {EVENTS: {"type": "string"}})},
    scope="events",
)  # fmt: skip
async def follow_events(request: Request) -> Stream:
    parts = request.parts
    request.allow("read", parts.settings.events_topic)
    pattern = request.arguments["typematcher"]
    keep = None if not pattern else TypeFilter(pattern)
    topic = await request.run(open_topic, parts, anew=True)
    last, start = request.arguments["last_event_id"], request.arguments["start"]
    position = await request.run(place_of, topic, last or None, "latest" if start is None else start)
    mark = await request.run(id_before, topic, position)
    check = functools.partial(request.allow, "read", topic.name)
    return Stream(request, TopicSource(topic, EventEncoding(), {0: position}, keep), check, mark)


def place_of(topic: Topic, last: str | None, start: str) -> int:
    """The offset to begin at: after the event with the id `last`, where there is one, else at a start in any form."""
    if last is not None:
        found = after_id(topic, last)
        if found is None:
            raise RequestError("Last-Event-ID is none that this broker gave: it is no UUID of version 6")
        return found
    found = after_id(topic, start, including=True)
    if found is not None:
        return found
    number = int(start) if start.removeprefix("-").isdecimal() and start.isascii() and len(start) <= 20 else start
    return topic.resolve(number)[0]


def after_id(topic: Topic, text: str, *, including: bool = False) -> int | None:
    """The offset of the first event after an id (or, `including`, of that itself), which need not be there (any more);
    None where the text is no id."""
    place = parse_event_id(text)
    if place is None:
        return None
    bounds = topic.offsets()[0]
    after = place.offset if including else place.offset + 1
    stamp, rest = divmod(place.time_100ns, 10)
    if bounds.start <= place.offset < bounds.end and not rest:
        record = _record(topic, place.offset)
        if record is not None and record.timestamp == stamp:
            return after
    # Ids sort by time, and of one time by offset.
    seek = functools.partial(_seek, topic, bounds.end)
    later = seek(stamp + 1)
    return later if rest else min(max(seek(stamp), after), later)


def id_before(topic: Topic, position: int) -> str:
    """An id after which the events from a position on come: that of the event before it, or one that lies before it."""
    bounds = topic.offsets()[0]
    if position > bounds.start:
        record = _record(topic, position - 1)
        if record is not None:
            return event_id(record.timestamp, 0, record.offset)
    record = _record(topic, position) if position < bounds.end else None
    return event_id((now_us() if record is None else record.timestamp) - 1, 0, 0)


def _record(topic: Topic, offset: int) -> Record | None:
    return next(iter(topic.records(topic.plan(0, offset, offset + 1, skip_lost=True))), None)


def _seek(topic: Topic, end: int, stamp: int) -> int:
    found = topic.reader.seek_time(0, max(min(stamp, 1 << 61), -(1 << 61)))
    return end if found is None else found
