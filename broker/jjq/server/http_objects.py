"""Big objects over HTTP: kept beside a record that refers to them, and got again, whole or a range."""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from jjq import files
from jjq.errors import InvalidArgument, StoreReadOnly
from jjq.model import Record
from jjq.objects import digest_of
from jjq.server.http_errors import RequestError
from jjq.server.http_operations import BYTES, JSON, Table, header, parse_json, query
from jjq.server.http_pushing import TOPIC, pushing
from jjq.server.http_reading import OFFSET, PARTITION, one_record
from jjq.server.http_records import RECORD, instant, record_json, value_for
from jjq.server.http_requests import Json, Receive, Request, Scope, Send
from jjq.server.rights import check_may_read_object
from jjq.topic import Topic
from jjq.values import counted

table = Table("Objects")

_PIECE_BYTES = 256 << 10
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_BINARY = {"type": "string", "format": "binary"}


@table.operation(
    "POST", "/api/topics/{topic}/objects", "push",
    "Keeps the body in the store, once however often it comes, and pushes a record that refers to it. It may be as large as "
    "`max_object_bytes` says, and takes no memory. The object goes with its last record.",
    parameters=[
        TOPIC, query("value", "The record's value, such as a file's name; of a topic with a schema a JSON object of its columns."),
        query("key", "The record's key."),
        query("partition", "The partition, else the key chooses it.", type="integer", minimum=0, maximum=1023),
    ],
    body={BYTES: _BINARY}, answers={201: ("The record, whose header jjq-object refers to the object.", {JSON: RECORD})},
)  # fmt: skip
async def push_object(request: Request) -> Json:
    given, store = request.arguments, request.store
    if store.read_only:
        raise StoreReadOnly("the store can only be read from here")
    length = request.headers.get("content-length", "")
    request.caller.spend(1, int(length) if length.isdecimal() else 0)
    file = await request.run(_unnamed, store.path)
    try:
        size = 0
        async for piece in request.pieces(request.parts.settings.max_object_bytes):
            size += len(piece)
            await request.run(_write, file, piece)
        if not length.isdecimal():
            request.caller.spend(0, size)

        def push(topic: Topic) -> Record:
            _rewind(file)
            topic.refresh()
            value: Any = given["value"]
            if topic.schema is not None:
                value = None if value is None else value_for(topic, parse_json(value.encode()), "value")
            position = topic.push_file(file, value, key=given["key"], partition=given["partition"])
            return one_record(topic, position.partition, position.offset)

        record = await request.run(pushing, request.parts, given["topic"], push)
    finally:
        await request.run(_close, file)
    return Json(record_json(record), 201)


def _unnamed(directory: Path) -> IO[bytes]:
    """A file on the store's disk that goes with this process."""
    with files.translated("write to", directory):
        return tempfile.TemporaryFile(dir=directory, buffering=_PIECE_BYTES)


def _write(file: IO[bytes], piece: bytes) -> None:
    with files.translated("write an object to", "the store"):
        file.write(piece)


def _rewind(file: IO[bytes]) -> None:
    with files.translated("write an object to", "the store"):
        file.seek(0)  # which writes what is not written yet


def _close(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # what cannot be written is nobody's any more
        file.close()


@table.operation(
    "GET", "/api/topics/{topic}/partitions/{partition}/records/{offset}/object", "read",
    "The object that a record refers to, checked whole before the first byte is sent; with Range a part of it.",
    parameters=[TOPIC, PARTITION, OFFSET, header("Range", "`bytes=0-99`, `bytes=100-` or `bytes=-100`; one range.")],
    answers={
        200: ("The object.", {BYTES: _BINARY}), 206: ("The range of it.", {BYTES: _BINARY}),
        416: ("There is nothing in this range.", {JSON: {"type": "object"}}),
    },
)  # fmt: skip
async def read_object(request: Request) -> Any:
    given = request.arguments

    def found() -> tuple[str, int, IO[bytes]]:
        record = one_record(request.store.topic(given["topic"]), given["partition"], given["offset"])
        digest = digest_of(record)
        check_may_read_object(request.store, request.caller, digest)
        file = request.store.open_object(record)
        return digest, file.seek(0, 2), file

    async with request.parts.searches:  # large ones take long to check
        digest, size, file = await request.run(found)
    try:
        start, end = _range_of(given["range"], size)
    except RequestError as error:
        await request.run(file.close)
        return Json(
            {"code": error.code, "message": error.message, "retryable": False}, 416,
            {"content-range": f"bytes */{size}"},
        )  # fmt: skip
    headers = {
        "content-type": BYTES, "content-length": str(end - start), "accept-ranges": "bytes", "etag": f'"{digest}"',
        "content-disposition": "attachment", "cache-control": "no-store",
    }  # fmt: skip
    if end - start < size:
        headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
    return _Part(request, file, start, end, headers, 206 if end - start < size else 200)


def _range_of(text: str | None, size: int) -> tuple[int, int]:
    """`[start, end)` that a Range asks for: everything where it is of a form that need not be known."""
    match = None if text is None else _RANGE.fullmatch(text.strip())
    if match is None or match.group() == "bytes=-":
        return 0, size
    first, last = match.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return 0, size  # no range at all
    if start >= end and size:
        raise RequestError(f"the object has {counted(size, 'byte')}, and nothing in this range", "invalid_request")
    return start, end


class _Part:
    """An answer from an open file, which it closes."""

    def __init__(
        self, request: Request, file: IO[bytes], start: int, end: int, headers: Mapping[str, str], status: int
    ) -> None:
        self._request, self._file, self._start, self._end = request, file, start, end
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaves = asyncio.ensure_future(self._request.disconnected())  # what is sent to who is gone raises nothing
        try:
            with contextlib.closing(self._file) as file:
                await self._send(file, scope, send, leaves)
        finally:
            leaves.cancel()

    async def _send(self, file: IO[bytes], scope: Scope, send: Send, leaves: asyncio.Future[None]) -> None:
        run = self._request.run
        await send({"type": "http.response.start", "status": self._status, "headers": self._headers})
        await run(file.seek, self._start)
        left = 0 if scope["method"] == "HEAD" else self._end - self._start
        while left > 0:
            self._request.allow("read", self._request.arguments["topic"])  # it may have been taken back since
            piece = await run(file.read, min(left, _PIECE_BYTES))
            if leaves.done():
                return
            if not piece:
                raise InvalidArgument("the object became shorter while it was being sent")
            left -= len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@table.operation(
    "GET", "/api/objects", "stats", "The objects that records refer to.",
    answers={200: ("Objects.", {JSON: {"type": "object", "required": ["objects"], "properties": {
        "objects": {"type": "array", "items": {"type": "object"}}}}})},
)  # fmt: skip
async def list_objects(request: Request) -> Any:
    def listed() -> list[dict[str, Any]]:
        return [asdict(each) | {"created_at": instant(each.created_at)} for each in request.store.list_objects()]

    return await request.answer({"objects": await request.run(listed)})
