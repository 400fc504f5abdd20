"""Reading over HTTP: pages of records, waiting for more, searching, Arrow streams, and following a topic."""

from __future__ import annotations

import functools
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import Response, StreamingResponse

from jjq.errors import JjqError
from jjq.feed import Feed, beginnings
from jjq.log.format import tight
from jjq.model import Record
from jjq.records import METADATA, to_records
from jjq.schema import RAW
from jjq.server.answers import ANSWER_BYTES, bytes_of, taken
from jjq.server.feeds import positions_text
from jjq.server.http_errors import RequestError
from jjq.server.http_operations import ARROW, BYTES, EVENTS, JSON, Table, header, path, query
from jjq.server.http_pushing import TOPIC
from jjq.server.http_records import RECORD, RecordEncoding, record_json, start_of
from jjq.server.http_requests import Request
from jjq.server.sse import Stream, TopicSource
from jjq.server.waiting import look_until
from jjq.skipping import ON_DATA_LOSS
from jjq.topic import Topic

table = Table("Records")

_MOST = 10_000
_SEARCH_S = 2.0  # then what was found so far is answered, with where to go on
_SEARCH_ROWS = 16 << 10
_BATCH_BYTES = 1 << 20
LONGEST_WAIT_S = 300

START = query(
    "start",
    "An offset, a negative number for the last records, `earliest`, `latest`, an ISO-8601 time with a zone, `-10 minutes`, "
    "or `next` of an answer, such as `0:17,1:4`.",
)
TIMEOUT = query("timeout", "How many seconds to wait for a record when there is none.", type="number", minimum=0,
                maximum=LONGEST_WAIT_S)  # fmt: skip
PARTITION = path("partition", "The partition.", type="integer", minimum=0, maximum=1023)
OFFSET = path("offset", "The offset.", type="integer", minimum=0, maximum=(1 << 62))
MAX = query("max", "How many records at most.", type="integer", minimum=1, maximum=_MOST)
_PAGE = {
    "type": "object", "required": ["records", "next"],
    "properties": {
        "records": {"type": "array", "items": RECORD},
        "next": {"type": "string", "description": "Where to go on: a `start`."},
        "end": {"type": "boolean", "description": "Of a search: whether all there is was looked at."},
    },
}  # fmt: skip


@table.operation(
    "GET", "/api/topics/{topic}/records", "read",
    "Records from a start on, in the order of their offsets in each partition; `next` of the answer is the start of the "
    "next request. With a timeout it waits for the first record. Asked for Arrow (Accept) it streams all records up to `end`.",
    parameters=[
        TOPIC, START, MAX, TIMEOUT,
        query("partition", "Only this partition.", type="integer", minimum=0, maximum=1023),
        query("end", "Of an Arrow stream: where it ends, by default the latest."),
        query("columns", "Of an Arrow stream: columns of the topic, with commas between."),
        query("on_data_loss", "Of an Arrow stream: `skip` to go on where records are gone or damaged, which the broker logs; by "
              "default they are an error.", enum=list(ON_DATA_LOSS)),
        query("metadata", "Of an Arrow stream: which of _topic, _partition, _offset, _timestamp, _key, _headers to add."),
    ],
    answers={200: ("Records.", {JSON: _PAGE, ARROW: {"type": "string", "format": "binary"}})},
)  # fmt: skip
async def read_records(request: Request) -> Any:
    given = request.arguments
    topic = await request.run(request.store.topic, given["topic"])
    if request.accepts(ARROW):
        return await _read_arrow(request, topic)
    only_arrow = [name for name in ("end", "columns", "metadata", "on_data_loss") if given[name] is not None]
    if only_arrow:
        raise RequestError(f"{only_arrow[0]} is for Arrow streams: ask for them with Accept: {ARROW}")
    feed = await request.run(_feed, topic, given["start"] or "earliest", given["partition"])
    look = functools.partial(taken, feed.take_many, given["max"] or 100)
    records = await look_until(request, topic, look, given["timeout"] or 0.0)
    positions = {partition: offset for partition, (offset, _) in feed.places().items()}
    return await request.answer({"records": list(map(record_json, records)), "next": positions_text(positions)})


def positions_of(topic: Topic, start: str, partition: int | None = None) -> dict[int, int]:
    """Where a start is now, by partition."""
    chosen = None if partition is None else [topic.check_partition(partition)]
    return topic.resolve(start_of(start), partitions=chosen)


def _feed(topic: Topic, start: str, partition: int | None) -> Feed:
    positions = positions_of(topic, start, partition)
    lineages = {each.partition: each.lineage for each in topic.offsets()}
    places = {each: (offset, lineages[each]) for each, offset in positions.items()}
    return Feed(topic, places, places_now=functools.partial(beginnings, topic) if partition is None else None)


@table.operation(
    "GET", "/api/topics/{topic}/partitions/{partition}/records/{offset}", "read",
    "One record. Asked for application/octet-stream (Accept), its value alone as it is.",
    parameters=[TOPIC, PARTITION, OFFSET],
    answers={200: ("The record.", {JSON: RECORD, BYTES: {"type": "string", "format": "binary"}})},
)  # fmt: skip
async def read_record(request: Request) -> Any:
    given = request.arguments
    topic = await request.run(request.store.topic, given["topic"])
    record = await request.run(one_record, topic, given["partition"], given["offset"])
    if not request.accepts(BYTES):
        return await request.answer(record_json(record))
    if isinstance(record.value, dict):
        raise RequestError("a record of a topic with a schema has columns, not one value; ask for JSON")
    return Response(record.value or b"", media_type=BYTES, headers={"content-disposition": "attachment"})


def one_record(topic: Topic, partition: int, offset: int) -> Record:
    """Raises RequestError where there is none."""
    topic.check_partition(partition)
    bounds = next(each for each in topic.offsets() if each.partition == partition)
    if not bounds.start <= offset < bounds.end:
        raise RequestError(
            f"partition {partition} of topic {topic.name!r} holds [{bounds.start}, {bounds.end}), not {offset}",
            "record_not_found",
        )
    return next(iter(topic.records(topic.plan(partition, offset, offset + 1))))


# --- searching -----------------------------------------------------------------------------------------------------------


@table.operation(
    "GET", "/api/topics/{topic}/search", "read",
    "Records that contain a text, in their key, their value or a column of any plain type, from a start on. It looks for about "
    "two seconds at most; `end` says whether it has seen everything, `next` where to go on.",
    parameters=[
        TOPIC, query("contains", "The text, as it is.", required=True, minLength=1, maxLength=1000), START, MAX,
        query("partition", "Only this partition.", type="integer", minimum=0, maximum=1023),
    ],
    answers={200: ("Records.", {JSON: _PAGE})},
)  # fmt: skip
async def search_records(request: Request) -> Any:
    given = request.arguments
    topic = await request.run(request.store.topic, given["topic"])
    start = given["start"] or "earliest"
    async with request.parts.searches:
        records, positions, end = await request.run(
            _search, topic, start, given["partition"], given["contains"], given["max"] or 100
        )
    return await request.answer(
        {"records": list(map(record_json, records)), "next": positions_text(positions), "end": end}
    )


def _search(
    topic: Topic, start: str, partition: int | None, text: str, most: int
) -> tuple[list[Record], Mapping[int, int], bool]:
    until = time.monotonic() + _SEARCH_S
    positions = positions_of(topic, start, partition)
    ends = {each.partition: each.end for each in topic.offsets()}
    found: list[Record] = []
    size = 0
    for each in sorted(positions):
        while positions[each] < ends[each]:
            stop = min(ends[each], positions[each] + _SEARCH_ROWS)
            user = RAW if topic.schema is None else topic.schema
            try:
                slices = topic.plan(each, positions[each], stop, skip_lost=True)
                for batch in topic.reader.read(slices, user, METADATA, _BATCH_BYTES):
                    rows = batch.filter(_contains(batch, text))
                    for record in to_records(topic.name, rows, topic.schema is None):
                        found.append(record)
                        size += bytes_of(record)
                        positions[each] = record.offset + 1
                        if len(found) >= most or size > ANSWER_BYTES:
                            return found, positions, False
            except JjqError:
                if not found:
                    raise
                return found, positions, False  # the next request meets it
            positions[each] = stop
            if time.monotonic() > until:
                return found, positions, all(positions[p] >= ends[p] for p in positions)
    return found, positions, True


def _contains(batch: pa.RecordBatch, text: str) -> pa.Array:
    """Which rows have the text in their key or in a plain column."""
    own = batch.num_columns - len(METADATA)
    columns = [*batch.columns[:own], batch.column(own + METADATA.index("_key"))]
    mask = pa.array([False] * batch.num_rows)
    for column in columns:
        kind = column.type
        if pa.types.is_nested(kind):
            continue
        if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            column = column.cast(pa.string())
        mask = pc.or_(mask, pc.fill_null(pc.match_substring(column, text), False))
    return mask


# --- Arrow ---------------------------------------------------------------------------------------------------------------


async def _read_arrow(request: Request, topic: Topic) -> StreamingResponse:
    given = request.arguments
    if given["max"] is not None or given["timeout"] is not None:
        raise RequestError("an Arrow stream takes no max and no timeout: it has all records from `start` to `end`")
    read = functools.partial(
        topic.read, start_of(given["start"] or "earliest"), start_of(given["end"] or "latest"),
        columns=_listed(given["columns"]), metadata=_listed(given["metadata"]),
        partitions=None if given["partition"] is None else [given["partition"]],
        on_data_loss=given["on_data_loss"] or "error",
    )  # fmt: skip
    reader = await request.run(read)
    # It may be taken back amid them: this can take hours.
    check = functools.partial(request.allow, "read", topic.name)
    pieces: Iterator[bytes] = iter(()) if request.scope["method"] == "HEAD" else _arrow_pieces(reader, check)
    return StreamingResponse(pieces, media_type=ARROW, headers={"cache-control": "no-store"})


def _listed(text: str | None) -> Sequence[str] | None:
    return None if text is None else [each for each in text.split(",") if each]


class _Pieces(io.RawIOBase):
    """Takes what is written to it, to be taken away again piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._position += len(piece)
        return len(piece)

    def taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def _arrow_pieces(reader: pa.RecordBatchReader, check: Callable[[], object]) -> Iterator[bytes]:
    sink = _Pieces()
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        for batch in reader:
            check()
            writer.write_batch(tight(batch))
            yield sink.taken()
    yield sink.taken()


# --- following -----------------------------------------------------------------------------------------------------------


@table.operation(
    "GET", "/api/topics/{topic}/stream", "read",
    "The topic's records as they come, as server-sent events: each is a record as JSON, its id says where the stream stands "
    "after it. Reconnecting with the last id goes on there.",
    parameters=[
        TOPIC, query("start", "Where to begin without Last-Event-ID, by default the latest: see `records`."),
        header("Last-Event-ID", "Goes on there: `0:17,1:4`, by partition the next offset."),
    ],
    answers={200: ("Records, for ever.", {EVENTS: {"type": "string"}})},
)  # fmt: skip
async def follow_records(request: Request) -> Stream:
    given = request.arguments
    topic = await request.run(request.store.topic, given["topic"])
    start = given["last_event_id"] or given["start"] or "latest"
    positions = await request.run(positions_of, topic, start)
    source = TopicSource(topic, RecordEncoding(), dict(positions))
    return Stream(request, source, functools.partial(request.allow, "read", topic.name), positions_text(positions))
