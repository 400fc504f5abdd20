"""The interface's description, made from the table of operations; and a page that shows it."""

from __future__ import annotations

import functools
from importlib.metadata import version
from typing import Any

from jjq.server.http_operations import BYTES, JSON, SCHEMAS, Operation, Parameter, Table, resolved
from jjq.server.http_requests import Json, Request

table = Table("Description")

_ERROR = {
    "type": "object", "required": ["code", "message", "retryable"],
    "properties": {
        "code": {"type": "string", "description": "Stable: what went wrong."},
        "message": {"type": "string", "description": "What it was, and what to do."},
        "retryable": {"type": "boolean", "description": "Whether the same request may succeed later."},
        "details": {"type": "object"},
    },
}  # fmt: skip


@table.operation(
    "GET", "/openapi.json", None, "This description.", answers={200: ("OpenAPI 3.1.", {JSON: {"type": "object"}})},
    lenient=True,
)  # fmt: skip
async def openapi(request: Request) -> Json:
    from jjq.server.http_app import all_operations  # which has this module's table, too

    return Json(document(tuple(all_operations())))


@functools.cache
def document(operations: tuple[Operation, ...]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jjq", "version": version("jjq"),
            "description": "A message log that is also a table. Errors are JSON with a stable code.",
        },
        "paths": paths,
        "components": {
            "schemas": {**SCHEMAS, "Error": _ERROR},
            "responses": {"Error": {"description": "What went wrong.", "content": {JSON: {"schema": _ref("Error")}}}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }  # fmt: skip


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _operation(each: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": each.id, "summary": each.about.split(". ")[0].rstrip("."), "description": each.about,
        "tags": [each.group], "parameters": [_parameter(one) for one in each.parameters],
        "responses": {str(status): _answer(about, content) for status, (about, content) in each.answers.items()}
        | {"default": {"$ref": "#/components/responses/Error"}},
    }  # fmt: skip
    if each.body is not None:
        found["requestBody"] = {
            "required": not _may_be_empty(each), "content": {kind: {"schema": schema} for kind, schema in each.body.items()},
        }  # fmt: skip
    if each.action is None:
        found["security"] = []
    return found


def _may_be_empty(each: Operation) -> bool:
    """Whether the body may be left out: then it is empty bytes, which are a value, or says nothing that has to be said. NSQ takes
    none of no bytes."""
    if each.body is None or each.group == "NSQ":
        return False
    if BYTES in each.body:
        return True
    needs = resolved(each.body[JSON]) if JSON in each.body else {"required": True}
    return not needs.get("required") and not needs.get("minProperties")


def _parameter(each: Parameter) -> dict[str, Any]:
    return {
        "name": each.name, "in": each.where, "required": each.required, "description": each.about,
        "schema": dict(each.schema),
    }  # fmt: skip


def _answer(about: str, content: Any) -> dict[str, Any]:
    if not content:
        return {"description": about}
    return {"description": about, "content": {kind: {"schema": schema} for kind, schema in content.items()}}
