"""Exactly-once writers over HTTP: listed, and forgotten."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from jjq.server.http_errors import RequestError
from jjq.server.http_operations import JSON, Table, path
from jjq.server.http_records import instant
from jjq.server.http_requests import Request

table = Table("Writers")


@table.operation(
    "GET", "/api/writers", "writer.list", "Exactly-once writers, with the last batch of each.",
    answers={200: ("Writers.", {JSON: {"type": "object", "required": ["writers"], "properties": {
        "writers": {"type": "array", "items": {"type": "object"}}}}})},
)  # fmt: skip
async def list_writers(request: Request) -> dict[str, Any]:
    found = [asdict(each) for each in await request.run(request.store.writers)]
    return {"writers": [each | {"updated_at": instant(each["updated_at"])} for each in found]}


@table.operation(
    "DELETE", "/api/writers/{writer}", "writer.reset", "Forgets what a writer has committed: its batch ids begin anew.",
    parameters=[path("writer", "The writer's id.")], answers={204: ("Done.", {})},
)  # fmt: skip
async def reset_writer(request: Request) -> None:
    name = request.arguments["writer"]
    if not await request.run(request.store.reset_writer, name):
        raise RequestError("there is no writer of that id", "writer_not_found")
