"""Staging and committing over HTTP: one batch for several topics, or from several processes, all of it once or none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from jjq.errors import InvalidArgument
from jjq.model import StagedFile
from jjq.server.batches import check_rows
from jjq.server.http_operations import ARROW, JSON, Table, named, query
from jjq.server.http_pushing import TOPIC, arrow_body
from jjq.server.http_requests import Request
from jjq.server.rights import check_may_write_as
from jjq.server.staged import check_staged
from jjq.topic import Topic

table = Table("Writers")

_MOST_FILES = 10_000
_FILE = named(
    "StagedFile",
    {
        "type": "object", "required": ["topic"], "additionalProperties": {"type": ["string", "integer"]},
        "description": "As an answer gave it: a file that is on disk, and that nobody sees yet.",
        "properties": {"topic": {"type": "string"}},
    },
)  # fmt: skip
_FILES = {"type": "array", "items": _FILE, "minItems": 1, "maxItems": _MOST_FILES}
_STAGED = {"type": "object", "required": ["staged"], "additionalProperties": False, "properties": {"staged": _FILES}}
_COMMIT = {
    "type": "object", "required": ["staged"], "additionalProperties": False,
    "properties": {
        "staged": _FILES, "writer_id": {"type": ["string", "null"]},
        "batch_id": {"type": ["integer", "null"], "minimum": 0, "maximum": (1 << 62)},
        "query_id": {"type": ["string", "null"]}, "run_id": {"type": ["string", "null"]},
        "rows_may_differ": {"type": "boolean"},
    },
}  # fmt: skip
_COMMITTED = {
    "type": "object", "required": ["positions", "duplicate", "transaction"],
    "properties": {
        "positions": {"type": "object", "description": "By topic and partition the offsets [start, end)."},
        "duplicate": {"type": "boolean"}, "transaction": {"type": "string"},
    },
}  # fmt: skip


@table.operation(
    "POST", "/api/topics/{topic}/stage", "commit",
    "Writes an Arrow stream of the topic's columns to files that nobody sees until they are committed; what is not committed "
    "goes after seven days.",
    parameters=[
        TOPIC, query("key", "The column that has the keys."),
        query("partition", "The partition, else the key chooses it.", type="integer", minimum=0, maximum=1023),
        query("timestamp", "The column with the producer's time."),
    ],
    body={ARROW: {"type": "string", "format": "binary"}}, answers={200: ("The files, for a commit.", {JSON: _STAGED})},
)  # fmt: skip
async def stage_records(request: Request) -> dict[str, Any]:
    given = request.arguments
    rows = await arrow_body(request)

    def stage() -> list[dict[str, Any]]:
        topic = request.store.topic(given["topic"])
        check_rows(topic, rows)
        stamps = None if given["timestamp"] is None else _column(rows, given["timestamp"])
        with request.store.stage() as stage:
            stage.write(topic, rows, partition=given["partition"], key=given["key"], timestamps=stamps)
            return [asdict(each) for each in stage.finish()]

    return {"staged": await request.run(stage)}


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    if name not in rows.schema.names:
        raise InvalidArgument(f"timestamp {name!r} is no column of the data")
    return rows.column(name)


@table.operation(
    "POST", "/api/commit", "commit",
    "Makes staged files visible, all of them at once or none. With a writer and its batch it happens once, however often it is "
    "sent.",
    body={JSON: _COMMIT}, answers={200: ("Where the records are.", {JSON: _COMMITTED})}, scope="body",
)  # fmt: skip
async def commit_staged(request: Request) -> dict[str, Any]:
    given = await request.document()
    files = _files(request, given.pop("staged"))

    def commit() -> dict[str, Any]:
        check_may_write_as(request.store, request.caller, given.get("writer_id"))
        for each in files:
            _check_topic(request, each)
            check_staged(request.store, each)
        done = request.store.commit(files, given.pop("writer_id", None), given.pop("batch_id", None), **given)
        positions = {
            name: {str(partition): list(span) for partition, span in each.items()}
            for name, each in done.positions.items()
        }
        return {"positions": positions, "duplicate": done.duplicate, "transaction": done.transaction}

    return await request.run(commit)


@table.operation(
    "POST", "/api/discard", "commit", "Removes staged files that no commit has taken.", body={JSON: _STAGED},
    answers={204: ("Done.", {})}, scope="body",
)  # fmt: skip
async def discard_staged(request: Request) -> None:
    files = _files(request, (await request.document())["staged"])

    def discard() -> None:
        for each in files:
            _check_topic(request, each)
        request.store.discard(files)

    await request.run(discard)


def _files(request: Request, given: Sequence[Any]) -> list[StagedFile]:
    for name in {each["topic"] for each in given}:
        request.allow("commit", name)
    return [StagedFile.from_json(json.dumps(each)) for each in given]


def _check_topic(request: Request, file: StagedFile) -> None:
    """That it is of the topic that the caller may write to, and of a partition that is there."""
    topic: Topic = request.store.topic(file.topic)
    if topic.id != file.topic_id:
        raise InvalidArgument(f"the file {file.uuid} was staged for another topic than {file.topic!r}")
    topic.check_partition(file.partition)
