"""The store's care over HTTP: maintenance now, and whether everything is whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jjq import wire
from jjq.server.http_operations import JSON, Table, query
from jjq.server.http_requests import Request

table = Table("Care")

_REPORT = {"type": "object"}


@table.operation(
    "POST", "/api/maintain", "maintain", "Does what maintenance has to do now, and says what that was.",
    answers={200: ("What was done.", {JSON: _REPORT})},
)  # fmt: skip
async def maintain_store(request: Request) -> dict[str, Any]:
    return await _reported(request, lambda: request.store.maintain().to_dict())


@table.operation(
    "POST", "/api/verify", "verify",
    "Reads everything, or a part of it, and says whether it is whole. It answers when it has, which may take long.",
    parameters=[query("sample", "Which part of the sealed files to read, chosen anew each time; by default all.", type="number",
                      minimum=0.001, maximum=1)],
    answers={200: ("What was read, and what is wrong.", {JSON: _REPORT})},
)  # fmt: skip
async def verify_store(request: Request) -> dict[str, Any]:
    sample = request.arguments["sample"]
    return await _reported(request, lambda: request.store.verify(sample=sample).to_dict())


async def _reported(request: Request, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    async with request.parts.searches:
        found: dict[str, Any] = wire.hidden(await request.run(act), str(request.store.path))
    return found
