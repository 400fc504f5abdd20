"""Several topics at once over HTTP: names and patterns, followed as they come or page by page, from one place to the next.

A place covers every topic that matches: `<topic>=0:17,1:4;<topic>=0:3`, where a topic is the beginning of its id, so that one
which was made anew under its name is another. A topic that a place does not name came later, and comes from its start.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from jjq import ephemeral
from jjq.errors import DataLoss, JjqError, OffsetOutOfRange, TopicDeleted
from jjq.feed import Feed, beginnings, watched
from jjq.interest import Interest, check_pattern, glob
from jjq.model import Record, TopicOffsets, check_name
from jjq.server.answers import ANSWER_BYTES, bytes_of
from jjq.server.feeds import Chunk, TopicFeed, positions_text
from jjq.server.http_errors import RequestError
from jjq.server.http_operations import EVENTS, JSON, Table, header, query
from jjq.server.http_reading import MAX, TIMEOUT
from jjq.server.http_records import RECORD, RecordEncoding, record_json, start_of
from jjq.server.http_requests import Request
from jjq.server.sse import Stream, TopicSource
from jjq.server.waiting import found_in
from jjq.store import Store
from jjq.topic import Topic

table = Table("Records")

Places = dict[str, dict[int, int]]  # by topic id the next offset of each partition

_MOST_PARTITIONS = 1024  # as many as one topic may have
_MOST_WANTED = 100
_MOST_CHARACTERS = 250
_ID_CHARACTERS = 12  # of a topic's id: enough to tell those of one place apart
_NOTHING = "none"  # a place while no topic matches
_OFFSETS = r"\d{1,4}:\d{1,19}(?:,\d{1,4}:\d{1,19})*"
_PLACE = re.compile(
    rf"{_NOTHING}|\w{{1,{_ID_CHARACTERS}}}={_OFFSETS}(?:;\w{{1,{_ID_CHARACTERS}}}={_OFFSETS})*", re.ASCII
)
_IS_PATTERN = re.compile(r"[*?\[\\]")

TOPICS = query(
    "topics", "Names of topics and patterns (`*`, `?`, `[abc]`), with commas between: `orders,log.*`. They need not be there "
    "yet.", required=True, minLength=1, maxLength=_MOST_WANTED * (_MOST_CHARACTERS + 1),
)  # fmt: skip
_STARTS = (
    "`earliest`, `latest`, a negative number for the last records of each partition, an ISO-8601 time with a zone, "
    "`-10 minutes`, or `next` of an answer"
)


class Wanted:
    """What a request asks for. A name has to be one that the caller may read; of a pattern come the topics that it may."""

    def __init__(self, text: str) -> None:
        """Raises InvalidName, InvalidArgument and RequestError."""
        each = list(dict.fromkeys(part.strip() for part in text.split(",")))
        if len(each) > _MOST_WANTED:
            raise RequestError(f"topics has {len(each)} names and patterns; it takes up to {_MOST_WANTED}")
        self.names = frozenset(check_name(part, "topic") for part in each if not _IS_PATTERN.search(part))
        self.patterns = [check_pattern(part) for part in each if _IS_PATTERN.search(part)]
        if any(len(pattern) > _MOST_CHARACTERS for pattern in self.patterns):
            raise RequestError(f"a pattern of topics has up to {_MOST_CHARACTERS} characters")
        self._globs = [glob(pattern) for pattern in self.patterns]

    def matches(self, name: str) -> bool:
        return name in self.names or any(each.match(name) for each in self._globs)

    def check(self, request: Request) -> None:
        """Raises Forbidden, and Unauthorized."""
        for name in sorted(self.names):
            request.allow("read", name)
        request.caller.can("read", None)

    def held(self, request: Request) -> dict[str, TopicOffsets]:
        """The topics that there are of it now, by id. Raises also RequestError where they are too many."""
        self.check(request)
        found = request.store.offsets(
            None if self.patterns else sorted(self.names),
            matching=lambda name: self.matches(name) and request.can_read(name),
        )
        count = sum(len(each.partitions) for each in found.values())
        if count > _MOST_PARTITIONS:
            raise RequestError(
                f"the {len(found):,} topics that match have {count:,} partitions, and one request takes up to "
                f"{_MOST_PARTITIONS:,}; name fewer of them, in several requests"
            )
        return {each.id: each for each in found.values()}

    def places(self, request: Request, start: str) -> Places:
        """Where each of the topics begins that there are now: at `start`, which may be a place."""
        held = self.held(request)
        known = _places_in(start)
        if known is not None:
            return {topic_id: _resumed(each, known.get(topic_id[:_ID_CHARACTERS])) for topic_id, each in held.items()}
        begin = start_of(start)
        if isinstance(begin, dict) or (isinstance(begin, int) and begin >= 0):
            raise RequestError(f"start {start!r} is of one topic; of several it is {_STARTS}")
        found: Places = {}
        for topic_id in held:
            with contextlib.suppress(TopicDeleted):
                found[topic_id] = opened(request.store, topic_id).resolve(begin)
        return found


def opened(store: Store, topic_id: str) -> Topic:
    return store._topic(store.topic_row(topic_id))


def _places_in(text: str) -> dict[str, dict[int, int]] | None:
    """By the beginning of a topic's id; None where a text is no place."""
    if not _PLACE.fullmatch(text):
        return None
    found: dict[str, dict[int, int]] = {}
    for part in text.split(";") if text != _NOTHING else []:
        topic, _, offsets = part.partition("=")
        pairs = [each.split(":") for each in offsets.split(",")]
        found[topic] = {int(partition): int(offset) for partition, offset in pairs}
    return found


def _place_of(topic_id: str, positions: Mapping[int, int]) -> str:
    return f"{topic_id[:_ID_CHARACTERS]}={positions_text(positions)}"


def place_text(places: Mapping[str, Mapping[int, int]]) -> str:
    return ";".join(_place_of(topic_id, each) for topic_id, each in sorted(places.items())) or _NOTHING


def _from_start(held: TopicOffsets) -> dict[int, int]:
    return {each.partition: each.start for each in held.partitions}


def _resumed(held: TopicOffsets, known: Mapping[int, int] | None) -> dict[int, int]:
    """Where a topic goes on that was at `known`, None when it came since. What retention took meanwhile is seen in reading."""
    positions = _from_start(held) | dict(known or {})
    for partition, offset in positions.items():
        end = held.partitions[partition].end if partition < len(held.partitions) else 0
        if offset > end:
            raise OffsetOutOfRange(
                f"offset {offset} is beyond the end of partition {partition} of topic {held.name!r}, which is {end}: begin "
                f"anew, at a time or with the last records"
            )
    return {each.partition: positions[each.partition] for each in held.partitions}  # and none that is not there


# --- following -----------------------------------------------------------------------------------------------------------


class _Member(TopicSource):
    """One topic of a stream of several. Its events have the places of all in their ids."""

    def __init__(self, all_: _SeveralSource, topic: Topic, positions: dict[int, int]) -> None:
        super().__init__(topic, RecordEncoding(), positions)
        self.topic = topic
        self._all = all_
        self.holder: ephemeral.Holder | None = None

    def open(self, store: Store) -> None:
        if self.topic.config.ephemeral and not store.read_only:
            self.holder = ephemeral.Holder(store, self.topic)

    async def start(self, stream: Stream) -> None:
        self._stream = stream
        self._feed = stream.request.parts.hub.feed(self.topic, self._encoding)
        await self._feed.start(self)

    @property
    def feed(self) -> TopicFeed:
        assert self._feed is not None
        return self._feed

    def finish(self, reason: dict[str, Any]) -> None:
        if reason.get("code") == TopicDeleted.code:
            self.again()
        else:
            super().finish(reason)

    def again(self) -> None:
        self._all.again()

    def taken(self, chunk: Chunk) -> bytes:
        data = super().taken(chunk)
        self._all.moved(self)
        if self.holder is not None:
            self.holder.at(self.positions)
        return data

    def _around(self) -> tuple[str, str]:
        return self._all.around(self)


class _SeveralSource:
    """Topics by name and pattern, for one stream. It reads of each what was before, a piece at a time, until it has come to
    where all their feeds are; then it gets what comes. When a topic comes or goes it begins again, from where it is."""

    def __init__(self, request: Request, wanted: Wanted, places: Places) -> None:
        self._request, self._wanted = request, wanted
        self._begins_at = places
        self._known = Interest(request.store)
        self._members: dict[str, _Member] = {}  # by topic id
        self._places: dict[str, str] = {}  # the same, in their order, as ids have them
        self._stream: Stream | None = None
        self._stale = False  # whether topics came or went since it was looked which there are

    async def enter(self, stream: Stream) -> None:
        self._stream = stream
        if not self._request.store.read_only:
            await self._request.run(self._known.announce, self._wanted.names, self._wanted.patterns)
        await self._request.parts.hub.news.start(self)

    async def begin(self, stream: Stream) -> None:
        self._part()
        self._stale = True
        while stream.outbox.end is None and (self._stale or not self._join()):
            if self._stale:
                self._stale = False
                await self._take_in(stream)
            for member in list(self._members.values()):
                try:
                    chunk = await member.feed.history(member.positions, None)
                except TopicDeleted:
                    await self._request.run(_let_go, [self._forget(member.topic.id)])
                    continue
                if chunk is not None and (data := member.taken(chunk)):
                    await stream.send(data)

    async def _take_in(self, stream: Stream) -> None:
        held = await self._request.run(self._wanted.held, self._request)
        gone = [topic_id for topic_id in self._members if topic_id not in held]
        await self._request.run(_let_go, list(map(self._forget, gone)))
        for topic_id, each in held.items():
            if topic_id not in self._members:
                positions = self._begins_at.pop(topic_id, None) or _from_start(each)
                with contextlib.suppress(TopicDeleted):
                    self._members[topic_id] = await self._opened(stream, topic_id, positions)
        self._begins_at.clear()
        self._members = dict(sorted(self._members.items()))
        self._places = {topic_id: _place_of(topic_id, each.positions) for topic_id, each in self._members.items()}

    async def _opened(self, stream: Stream, topic_id: str, positions: dict[int, int]) -> _Member:
        store = self._request.store
        member = _Member(self, await self._request.run(opened, store, topic_id), positions)
        try:
            await member.start(stream)
            await self._request.run(member.open, store)
        except BaseException:
            member.leave(stream)
            raise
        return member

    def _join(self) -> bool:
        """Nothing comes between the look at all of them and the last one's joining."""
        if not all(each.feed.reached(each) for each in self._members.values()):
            return False
        return all(each.feed.join(each) for each in self._members.values())

    def _part(self) -> None:
        for each in self._members.values():
            each.feed.part(each)

    def again(self) -> None:
        assert self._stream is not None
        self._stale = True
        self._part()
        self._stream.begin_again()

    def topics_changed(self, came: Collection[str], gone: Collection[str]) -> None:
        if any(topic_id in self._members for topic_id in gone) or any(map(self._wanted.matches, came)):
            self.again()

    def moved(self, member: _Member) -> None:
        self._places[member.topic.id] = _place_of(member.topic.id, member.positions)

    def around(self, member: _Member) -> tuple[str, str]:
        """What stands before and behind the positions of one topic."""
        each = list(self._places.values())
        at = list(self._places).index(member.topic.id)
        before = "".join(f"{place};" for place in each[:at])
        behind = "".join(f";{place}" for place in each[at + 1 :])
        return f"{before}{_place_of(member.topic.id, {})}", behind

    def check(self) -> None:
        """Raises Forbidden when a topic that is being sent may not be read any more, and Unauthorized."""
        self._wanted.check(self._request)
        for each in self._members.values():
            self._request.allow("read", each.topic.name)

    def finish(self, reason: dict[str, Any]) -> None:
        if self._stream is not None:
            self._stream.outbox.finish(reason)

    def leave(self, stream: Stream) -> None:
        self._request.parts.hub.news.leave(self)
        holders = [self._forget(topic_id) for topic_id in list(self._members)]
        self._request.parts.calls.submit(_let_go, holders, self._known)

    def _forget(self, topic_id: str) -> ephemeral.Holder | None:
        assert self._stream is not None
        member = self._members.pop(topic_id)
        self._places.pop(topic_id, None)
        member.leave(self._stream)
        return member.holder


def _let_go(holders: Iterable[ephemeral.Holder | None], known: Interest | None = None) -> None:
    with contextlib.ExitStack() as rest:  # each is let go of though another fails
        for holder in holders:
            if holder is not None:
                rest.callback(holder.release)
        if known is not None:
            rest.callback(known.withdraw)  # first, so that nobody counts this one any more: that keeps topics, too


@table.operation(
    "GET", "/api/stream", "read",
    "Records of several topics as they come, by names and patterns, as server-sent events: as of one topic; those of topics "
    "that are made later too, from their start. An id says where the stream stands in all of them: reconnecting with it, and "
    "with the same topics, goes on there. Of a pattern come the topics that the caller may read.",
    parameters=[
        TOPICS, query("start", f"Where to begin without Last-Event-ID, by default the latest: {_STARTS}."),
        header("Last-Event-ID", "Goes on there."),
    ],
    answers={200: ("Records, for ever.", {EVENTS: {"type": "string"}})}, scope="list",
)  # fmt: skip
async def follow_several(request: Request) -> Stream:
    given = request.arguments
    wanted = Wanted(given["topics"])
    start = given["last_event_id"] or given["start"] or "latest"
    places = await request.run(wanted.places, request, start)
    source = _SeveralSource(request, wanted, places)
    return Stream(request, source, source.check, place_text(places))


# --- pages ---------------------------------------------------------------------------------------------------------------


class _Page:
    """What one answer has. Looked for in threads, by one at a time."""

    def __init__(self, request: Request, wanted: Wanted, start: str, most: int) -> None:
        self._request, self._wanted, self._most = request, wanted, most
        self.places = wanted.places(request, start)
        self._topics: dict[str, Topic] = {}
        self._feeds: dict[str, Feed] = {}
        self.records: list[Record] = []
        self.lost: list[dict[str, Any]] = []

    def look(self) -> bool:
        """Takes what there is; True when there is something to answer."""
        held = self._held()
        waiting = [
            topic_id
            for topic_id, each in sorted(held.items())
            if any(self.places[topic_id].get(bounds.partition, 0) < bounds.end for bounds in each.partitions)
        ]
        if not waiting:
            return False
        # As `Feed` does: it moves on with what was taken, so that who comes for one record each time starves none.
        turn = sum(offset for places in self.places.values() for offset in places.values()) % len(waiting)
        self._take(waiting[turn:] + waiting[:turn], held)
        return bool(self.records or self.lost)

    def _held(self) -> dict[str, TopicOffsets]:
        held = self._wanted.held(self._request)
        self.places = {topic_id: self.places.get(topic_id) or _from_start(each) for topic_id, each in held.items()}
        return held

    def _take(self, waiting: list[str], held: Mapping[str, TopicOffsets]) -> None:
        """Of each topic an even share, as long as it has that. What cannot be read of one is raised when the others have
        nothing."""
        size, failure = 0, None
        while waiting and len(self.records) < self._most and size < ANSWER_BYTES:
            share = -(-(self._most - len(self.records)) // len(waiting))
            for topic_id in list(waiting):
                most = min(share, self._most - len(self.records))
                if most == 0 or size >= ANSWER_BYTES:
                    break
                try:
                    more = self._taken(held[topic_id], most, ANSWER_BYTES - size)
                except TopicDeleted:
                    more = []
                except JjqError as error:
                    more, failure = [], error
                if not more:
                    waiting.remove(topic_id)
                self.records += more
                size += sum(map(bytes_of, more))
        if failure is not None and not self.records and not self.lost:
            raise failure

    def _taken(self, held: TopicOffsets, most: int, most_bytes: int) -> list[Record]:
        feed = self._feed(held)
        while True:
            try:
                return feed.take_many(most, most_bytes)
            except DataLoss as loss:
                if loss.earliest < loss.asked:  # the end has moved back
                    raise
                feed.move(loss.partition, (loss.earliest, feed.place(loss.partition)[1]))
                self.lost.append(
                    {"topic": held.name, "partition": loss.partition, "lost": loss.lost, "earliest": loss.earliest}
                )
            finally:
                self.places[held.id] = {partition: offset for partition, (offset, _) in feed.places().items()}

    def _feed(self, held: TopicOffsets) -> Feed:
        known = self._feeds.get(held.id)
        if known is None:
            topic = self._topic(held.id)
            at = self.places[held.id]
            places = {each.partition: (at.get(each.partition, each.start), each.lineage) for each in held.partitions}
            known = self._feeds[held.id] = Feed(topic, places, places_now=functools.partial(beginnings, topic))
        return known

    def _topic(self, topic_id: str) -> Topic:
        if topic_id not in self._topics:
            self._topics[topic_id] = opened(self._request.store, topic_id)
        return self._topics[topic_id]

    def watched(self) -> list[Path] | None:
        """The files that tell of something to answer."""
        found = [self._request.store.path / "catalog.lock"]  # rung when topics come and go
        for topic_id in self._held():  # also those that have come since the last look
            with contextlib.suppress(TopicDeleted):
                paths = watched(self._topic(topic_id))
                if paths is None:
                    return None
                found += paths
        return found

    async def wait(self, timeout: float) -> None:
        """As long as there is nothing; meanwhile whoever publishes counts this one."""
        known, run = Interest(self._request.store), self._request.run
        try:
            if not self._request.store.read_only:
                await run(known.announce, self._wanted.names, self._wanted.patterns)
            await found_in(self._request, self.watched, self.look, timeout)
        finally:
            await asyncio.shield(run(known.withdraw))


_LOST = {
    "type": "object", "required": ["topic", "partition", "lost", "earliest"],
    "properties": {
        "topic": {"type": "string"}, "partition": {"type": "integer"}, "lost": {"type": "integer"},
        "earliest": {"type": "integer"},
    },
}  # fmt: skip


@table.operation(
    "GET", "/api/records", "read",
    "Records of several topics from a start on, by names and patterns, in the order of their offsets in each partition; `next` "
    "of the answer is the start of the next request for the same topics, which has those that were made since, too. With a "
    "timeout it waits for the first record. Of a pattern come the topics that the caller may read.",
    parameters=[TOPICS, query("start", f"Where to begin, by default the earliest: {_STARTS}."), MAX, TIMEOUT],
    answers={200: ("Records.", {JSON: {
        "type": "object", "required": ["records", "next", "lost"],
        "properties": {
            "records": {"type": "array", "items": RECORD},
            "next": {"type": "string", "description": "Where to go on in all topics: a `start`."},
            "lost": {"type": "array", "items": _LOST, "description": "Records that were gone before they were read."},
        },
    }})},
    scope="list",
)  # fmt: skip
async def read_several(request: Request) -> Any:
    given = request.arguments
    page = await request.run(_Page, request, Wanted(given["topics"]), given["start"] or "earliest", given["max"] or 100)
    if not await request.run(page.look) and given["timeout"]:
        await page.wait(given["timeout"])
    found = {"records": list(map(record_json, page.records)), "next": place_text(page.places), "lost": page.lost}
    return await request.answer(found)
