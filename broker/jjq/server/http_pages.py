"""The pages and what they are made of: files of the package, nothing from elsewhere; and logging in to them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from starlette.responses import Response

from jjq.errors import Unauthorized
from jjq.server.http_errors import RequestError
from jjq.server.http_operations import HTML, JSON, Table, path
from jjq.server.http_requests import COOKIE, Json, Request

table = Table("Pages")

_KINDS = {
    "html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}  # fmt: skip
_STATIC = files("jjq.server") / "static"
_LOGIN_BYTES = 4096
_TOKEN = {"type": "object", "required": ["token"], "additionalProperties": False,
          "properties": {"token": {"type": "string", "minLength": 1, "maxLength": 1000}}}  # fmt: skip


def _file(name: str) -> Response:
    kind = _KINDS.get(name.rpartition(".")[2])
    # Only names of files that are there, so that nothing in one can lead elsewhere.
    found = None if kind is None else next((each for each in _STATIC.iterdir() if each.name == name), None)
    if found is None:
        raise RequestError("there is no such file", "path_not_found")
    return Response(found.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})


@table.operation("GET", "/", None, "The page.", answers={200: ("The page.", {HTML: {"type": "string"}})}, lenient=True)
async def index(request: Request) -> Response:
    return _file("index.html")


@table.operation(
    "GET", "/docs", None, "What there is to call, as a page.", answers={200: ("The page.", {HTML: {"type": "string"}})},
    lenient=True,
)  # fmt: skip
async def docs(request: Request) -> Response:
    return _file("docs.html")


@table.operation(
    "GET", "/static/{name}", None, "A part of a page.", parameters=[path("name", "Its name.")],
    answers={200: ("The file.", {"text/css": {"type": "string"}, "text/javascript": {"type": "string"}})}, lenient=True,
)  # fmt: skip
async def static(request: Request) -> Response:
    return _file(request.arguments["name"])


@table.operation(
    "POST", "/api/session", None, "Has the browser send a token with each request, in a cookie that scripts cannot read.",
    body={JSON: _TOKEN}, answers={200: ("Whose token it is.", {JSON: {
        "type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}})},
)  # fmt: skip
async def log_in(request: Request) -> Response:
    token = (await request.document(_LOGIN_BYTES))["token"]
    if not (token.isascii() and token.isprintable()) or set(token) & set(' ",;\\'):
        raise Unauthorized("there is no such token")
    caller = request.parts.guard.caller(token)
    response = Json({"name": caller.name})
    response.set_cookie(
        COOKIE, token, httponly=True, samesite="strict", secure=request.scope["scheme"] == "https", path="/"
    )
    return response


@table.operation(
    "DELETE", "/api/session", None, "Forgets the token.", answers={204: ("Done.", {})},
)  # fmt: skip
async def log_out(request: Request) -> Response:
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict", path="/")
    return response


@table.operation(
    "GET", "/api/session", "topic.list", "Who the caller is.", answers={200: ("The caller.", {JSON: {
        "type": "object", "required": ["name", "can"], "properties": {
            "name": {"type": "string"}, "can": {"type": "array", "items": {"type": "string"}}}}})},
    scope="list",
)  # fmt: skip
async def who(request: Request) -> dict[str, Any]:
    caller = request.caller
    everywhere = [action for action in ("read", "write", "admin") if caller.can(action, None)]
    return {"name": caller.name, "can": everywhere, "events_topic": request.parts.settings.events_topic}
