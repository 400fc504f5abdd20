"""What streams of one topic share: a feed that reads what comes, and pieces of history, each encoded once."""

from __future__ import annotations

import asyncio
import bisect
import functools
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from jjq.errors import DataLoss, JjqError
from jjq.feed import Feed, beginnings, watched
from jjq.model import Record, Slice
from jjq.records import METADATA, to_records
from jjq.schema import RAW
from jjq.store import Store
from jjq.topic import Topic
from jjq.wake import until_found

if TYPE_CHECKING:
    from jjq.server.sse import TopicSource

Result = TypeVar("Result")

_ROWS = 1024  # of one piece
_BYTES = 1 << 20
_TAKE_ROWS = 64
_KEPT_PIECES = 16  # of history, for others that come the same way
_KEPT_JOINED = 4  # times its own size that a piece keeps for those who ask for the same; each may come another way
_SMALL_BYTES = 4096  # and of a small one that
_SCAN_ROWS = 64 << 10  # whose filtered column is looked at in one go
_NEAR_ROWS = 4096  # matches that are as near are read together
# A write to a client takes about as long, so with many of them what comes meanwhile goes into the next one.
_PAUSE_S_A_CLIENT = 100e-6
_LONGEST_PAUSE_S = 0.05
_PAUSE_S_A_LOOK = 1e-3  # a stream that is told of topics looks which are there now


class Encoding(Protocol):
    """How records become events. With `own_ids` each has its id in it; else the id is where the stream stands after it."""

    name: str
    own_ids: bool

    def encode(self, records: Sequence[Record]) -> list[bytes]: ...

    def kinds(self, records: Sequence[Record]) -> list[str] | None:
        """What a filter looks at."""


class Keep(Protocol):
    """A filter."""

    @property
    def key(self) -> str: ...

    @property
    def column(self) -> str: ...

    def rows(self, kinds: Sequence[str]) -> list[int]:
        """Which are kept."""

    def mask(self, column: pa.Array) -> pa.Array:
        """Whether each is kept."""


class Chunk:
    """Consecutive records of a partition, encoded: offsets `[start, end)`, those of them that are there and were asked for.
    `first` is the earliest that was left when it was read."""

    def __init__(
        self, partition: int, start: int, end: int, offsets: list[int], frames: list[bytes], kinds: list[str] | None,
        first: int = 0,
    ) -> None:  # fmt: skip
        self.partition, self.start, self.end, self.first = partition, start, end, first
        self.offsets, self.frames, self.kinds = offsets, frames, kinds
        self.size = sum(map(len, frames))
        self._joined: dict[Any, bytes] = {}
        self._joined_bytes = 0

    def part(self, position: int, id_bytes: int) -> Chunk:
        """The first of its records from a position on, as many as have ids that are about a piece; all, if these are."""
        begin = bisect.bisect_left(self.offsets, position)
        end = begin + max(1, _BYTES // max(1, id_bytes))
        if end >= len(self.offsets):
            return self
        kinds = None if self.kinds is None else self.kinds[begin:end]
        return Chunk(
            self.partition, max(position, self.start), self.offsets[end], self.offsets[begin:end], self.frames[begin:end],
            kinds, self.first,
        )  # fmt: skip

    def joined(
        self, position: int, keep: Keep | None, places: Mapping[int, int] | None, around: tuple[str, str] = ("", "")
    ) -> bytes:
        """The events from a position on, as they are sent; made once for all who ask for the same.

        `places` are the stream's positions, where they are what ids are made of; `around` stands before and behind them.
        """
        begin = max(position, self.start)
        at = None if places is None else tuple(sorted(places.items()))
        key = (begin, None if keep is None else keep.key, at, around)
        known = self._joined.get(key)
        if known is None:
            known = self._join(begin, keep, places, around)
            self._joined_bytes += len(known)
            if self._joined_bytes <= _KEPT_JOINED * max(self.size, _SMALL_BYTES):
                self._joined[key] = known
        return known

    def _join(
        self, begin: int, keep: Keep | None, places: Mapping[int, int] | None, around: tuple[str, str]
    ) -> bytes:  # fmt: skip
        rows: Sequence[int] = range(len(self.frames))
        if keep is not None and self.kinds is not None:
            rows = keep.rows(self.kinds)
        if begin > self.start:
            rows = [i for i in rows if self.offsets[i] >= begin]
        if places is None:
            return b"".join([self.frames[i] for i in rows])
        # Only this partition moves: with a thousand others each id is made of what stands before and behind it.
        lower = positions_text({each: offset for each, offset in places.items() if each < self.partition})
        upper = positions_text({each: offset for each, offset in places.items() if each > self.partition})
        before = f"id: {around[0]}{lower}{lower and ','}{self.partition}:".encode()
        behind = f"{upper and ','}{upper}{around[1]}\n".encode()
        return b"".join([b"%b%d%b%b" % (before, self.offsets[i] + 1, behind, self.frames[i]) for i in rows])


def positions_text(positions: Mapping[int, int]) -> str:
    """Where a stream stands: `0:17,1:4`, by partition the next offset."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


class TopicFeed:
    """One topic in one encoding. Used from the loop; what reads runs in threads."""

    def __init__(
        self, store: Store, topic: Topic, encoding: Encoding, calls: Executor, forget: Callable[[], object],
        reason: Callable[[BaseException], dict[str, Any]],
    ) -> None:  # fmt: skip
        self._store, self.topic, self.encoding = store, topic, encoding
        self._calls, self._forget, self._reason = calls, forget, reason
        self._users: set[TopicSource] = set()
        self._live: dict[TopicSource, None] = {}
        self._starting = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._feed: Feed | None = None
        self._found: list[Chunk] = []
        self._pieces: OrderedDict[tuple[int, int], asyncio.Future[Chunk]] = OrderedDict()
        self.positions: dict[int, int] = {}
        self.ended = False

    async def start(self, source: TopicSource) -> None:
        """Begins to read what comes, unless it does so already; until `leave` it goes on for this source."""
        self._users.add(source)
        async with self._starting:
            if self._task is None:
                bounds = await self._run_call(self.topic.offsets)
                places = {each.partition: (each.end, each.lineage) for each in bounds}
                self.positions = {partition: end for partition, (end, _) in places.items()}
                self._feed = Feed(self.topic, places, places_now=functools.partial(beginnings, self.topic))
                self._task = asyncio.ensure_future(self._follow())

    def reached(self, source: TopicSource) -> bool:
        """Whether a source has come to where the feed is."""
        return all(source.positions.get(partition, 0) >= end for partition, end in self.positions.items())

    def join(self, source: TopicSource) -> bool:
        """True when a source has come to where the feed is: then it gets what comes."""
        if not self.reached(source):
            return False
        self._live[source] = None
        return True

    def part(self, source: TopicSource) -> None:
        """It gets no more of what comes, until it joins again."""
        self._live.pop(source, None)

    def leave(self, source: TopicSource) -> None:
        self.part(source)
        self._users.discard(source)
        if not self._users:
            self._end()

    def _end(self) -> None:
        self.ended = True
        self._forget()
        if self._task is not None:
            self._task.cancel()

    # --- what comes ---------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        listener = self._store.listener(functools.partial(watched, self.topic))
        try:
            while True:
                await until_found(self._look, listener)
                found, self._found = self._found, []
                for chunk in found:
                    self._publish(chunk)
                await asyncio.sleep(min(_LONGEST_PAUSE_S, _PAUSE_S_A_CLIENT * len(self._live)))
        except Exception as error:  # noqa: BLE001 - every client must hear of it
            self.ended = True
            self._forget()
            reason = self._reason(error)
            for source in self._users:
                source.finish(reason)
        finally:
            listener.close()

    def _look(self) -> bool:
        """Reads what there is, in a thread; what it found stays in `_found`."""
        assert self._feed is not None
        records: list[Record] = []
        size = 0
        try:
            while len(records) < _ROWS and size < _BYTES:
                more = self._feed.take_many(_TAKE_ROWS, _BYTES - size)
                if not more:
                    break
                records += more
                size += sum(map(_size, more))
        except DataLoss as loss:
            if loss.earliest < loss.asked:  # the end has moved back: what clients have may be no more
                raise
            lineage = self.topic.reader.offsets(loss.partition).lineage
            self._feed.move(loss.partition, (loss.earliest, lineage))
            self._found += self._encoded(records)
            self._found.append(Chunk(loss.partition, loss.asked, loss.earliest, [], [], [], loss.earliest))
            return True
        except JjqError:
            if not records:
                raise  # else the next look meets it
        self._found += self._encoded(records)
        return bool(self._found)

    def _encoded(self, records: Sequence[Record]) -> list[Chunk]:
        """By runs of one partition, as ids need them in order."""
        chunks = []
        begin = 0
        for i in range(1, len(records) + 1):
            if i == len(records) or records[i].partition != records[begin].partition:
                run = records[begin:i]
                chunks.append(self._chunk(run[0].partition, run[0].offset, run[-1].offset + 1, run))
                begin = i
        return chunks

    def _chunk(self, partition: int, start: int, end: int, records: Sequence[Record], first: int = 0) -> Chunk:
        encode = self.encoding
        offsets = [each.offset for each in records]
        return Chunk(partition, start, end, offsets, encode.encode(records), encode.kinds(records), first)

    def _publish(self, chunk: Chunk) -> None:
        self.positions[chunk.partition] = chunk.end
        for source in list(self._live):
            if source.positions.get(chunk.partition, 0) < chunk.end:
                source.put(chunk)

    # --- history ------------------------------------------------------------------------------------------------------

    async def history(self, positions: Mapping[int, int], keep: Keep | None) -> Chunk | None:
        """The next piece for a stream that is behind the feed; None when it is not."""
        behind = (each for each, end in sorted(self.positions.items()) if positions.get(each, 0) < end)
        partition = next(behind, None)
        if partition is None:
            return None
        start, end = positions.get(partition, 0), self.positions[partition]
        if keep is not None:
            return await self._run_call(self._scan, partition, start, min(end, start + _SCAN_ROWS), keep)
        block = start // _ROWS
        key = partition, block
        known = self._pieces.get(key)
        if known is None or (known.done() and not _has(known, start)):
            reading = self._run_call(self._read, partition, block * _ROWS, min(end, (block + 1) * _ROWS))
            known = self._pieces[key] = asyncio.ensure_future(reading)
            while len(self._pieces) > _KEPT_PIECES:
                self._pieces.popitem(last=False)
        try:
            chunk = await asyncio.shield(known)
        except JjqError:
            if start == block * _ROWS:
                raise  # else it may be of what lies before
        else:
            if chunk.size > _BYTES:
                self._pieces.pop(key, None)
            if chunk.start <= start < chunk.end:
                return chunk
        return await self._run_call(self._read, partition, start, min(end, (block + 1) * _ROWS))

    def _read(self, partition: int, start: int, end: int) -> Chunk:
        """Records from `start` on, as many as are about a piece; at least one, if there is one."""
        self.topic.catch_up()
        first = self.topic.reader.offsets(partition).start
        if first >= end:
            return Chunk(partition, start, first, [], [], [], first)
        slices, stop = _cut(self.topic.plan(partition, max(start, first), end, skip_lost=True), end)
        records: list[Record] = []
        try:
            records.extend(self.topic.records(slices))
        except JjqError:  # what came before it is in the list
            if not records:
                raise
            stop = records[-1].offset + 1  # what is whole goes out; who reads on meets it
        return self._chunk(partition, start, stop, records, first)

    def _scan(self, partition: int, start: int, end: int, keep: Keep) -> Chunk:
        """As `_read`, of the records that are kept: of the others only the one column is read, but for their neighbours."""
        topic = self.topic
        topic.catch_up()
        reader = topic.reader
        first = reader.offsets(partition).start
        if first >= end:
            return Chunk(partition, start, first, [], [], [], first)
        slices = topic.plan(partition, max(start, first), end, skip_lost=True)
        user = RAW if topic.schema is None else topic.schema
        spans: list[tuple[int, int]] = []
        seen = start
        try:
            for batch in reader.read(slices, pa.schema([user.field(keep.column)]), ("_offset",), _BYTES):
                _add_spans(spans, batch.column(1).filter(keep.mask(batch.column(0))).to_pylist())
                seen = batch.column(1)[-1].as_py() + 1
        except JjqError:
            if seen == start:
                raise
            end = seen
        wanted = [part for each in slices for part in _parts(each, spans)]
        records: list[Record] = []
        size = 0
        try:
            for batch in reader.read(wanted, user, METADATA, _BYTES):
                found = batch.filter(keep.mask(batch.column(user.get_field_index(keep.column))))
                records += to_records(topic.name, found, topic.schema is None)
                size += found.nbytes
                if size > _BYTES and records:
                    end = batch.column(len(user) + 1)[-1].as_py() + 1
                    break
        except JjqError:
            if not records:
                raise
            end = records[-1].offset + 1
        return self._chunk(partition, start, end, records, first)

    async def _run_call(self, call: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._calls, functools.partial(call, *arguments))


class Told(Protocol):
    """Who hears of topics that come and go. Called in the loop."""

    def topics_changed(self, came: Collection[str], gone: Collection[str]) -> None:
        """`came` are names, `gone` are ids."""

    def finish(self, reason: dict[str, Any]) -> None:
        """There will be no more news."""


class TopicNews:
    """Which topics come and go, for all who follow patterns. Used from the loop; what looks runs in threads."""

    def __init__(self, store: Store, calls: Executor, reason: Callable[[BaseException], dict[str, Any]]) -> None:
        self._store, self._calls, self._reason = store, calls, reason
        self._told: set[Told] = set()
        self._starting = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._names: dict[str, str] = {}  # by id
        self._seen: dict[str, str] = {}

    async def start(self, told: Told) -> None:
        """What comes or goes from here on is told, until `leave`."""
        self._told.add(told)
        async with self._starting:
            if self._task is None:
                loop = asyncio.get_running_loop()
                self._names = await loop.run_in_executor(self._calls, self._store.catalog.topic_ids)
                self._task = asyncio.ensure_future(self._follow())

    def leave(self, told: Told) -> None:
        self._told.discard(told)
        if not self._told and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _follow(self) -> None:
        listener = self._store.listener(lambda: [self._store.path / "catalog.lock"])  # rung when topics come and go
        try:
            while True:
                await until_found(self._look, listener)
                before, now = self._names, self._seen
                self._names = now
                came = {name for topic_id, name in now.items() if topic_id not in before}
                for each in list(self._told):
                    each.topics_changed(came, before.keys() - now.keys())
                await asyncio.sleep(min(_LONGEST_PAUSE_S, _PAUSE_S_A_LOOK * len(self._told)))
        except Exception as error:  # noqa: BLE001 - every client must hear of it
            self._task = None
            reason = self._reason(error)
            for each in list(self._told):
                each.finish(reason)
        finally:
            listener.close()

    def _look(self) -> bool:
        self._seen = self._store.catalog.topic_ids()
        return self._seen != self._names


def _size(record: Record) -> int:
    value = record.value
    if isinstance(value, dict):
        return sum(len(each) if isinstance(each, (bytes, str)) else 16 for each in value.values())
    return len(value or b"")


def _has(known: asyncio.Future[Chunk], offset: int) -> bool:
    if known.cancelled() or known.exception() is not None:
        return False
    chunk = known.result()
    return chunk.start <= offset < chunk.end


def _cut(slices: Sequence[Slice], end: int) -> tuple[list[Slice], int]:
    """The first of the slices that are about a piece together, and where they end."""
    taken: list[Slice] = []
    room = _BYTES
    for each in slices:
        rows = each.end - each.start
        fit = max(1, rows * room // max(1, each.bytes))
        if fit < rows:
            if taken and room <= 0:
                return taken, taken[-1].end
            cut = each.part(each.start, each.start + fit)
            return [*taken, cut], cut.end
        taken.append(each)
        room -= each.bytes
    return taken, end


def _add_spans(spans: list[tuple[int, int]], offsets: Sequence[int]) -> None:
    """Adds ascending offsets to ranges, so that near ones are in one."""
    for offset in offsets:
        if spans and offset - spans[-1][1] < _NEAR_ROWS:
            spans[-1] = spans[-1][0], offset + 1
        else:
            spans.append((offset, offset + 1))


def _parts(each: Slice, spans: Sequence[tuple[int, int]]) -> list[Slice]:
    """What of a slice lies in the ranges."""
    return [
        each.part(max(each.start, first), min(each.end, last))
        for first, last in spans
        if first < each.end and last > each.start
    ]
