"""What the HTTP interface offers, as one table: routes, parsing, rights and the OpenAPI description come from it alone."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote_to_bytes

from jjq.hints import did_you_mean
from jjq.server.http_errors import RequestError
from jjq.values import shown

if TYPE_CHECKING:
    from jjq.server.http_requests import Request

JSON = "application/json"
TEXT = "text/plain"
BYTES = "application/octet-stream"
LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
EVENTS = "text/event-stream"
HTML = "text/html"

Schema = Mapping[str, Any]
Handler = Callable[["Request"], Awaitable[Any]]
_MOST_PARAMETERS = 50

# Schemas that many operations speak of, by name.
SCHEMAS: dict[str, Schema] = {}


def named(name: str, schema: Schema) -> Schema:
    """A schema that the description has under a name of its own."""
    SCHEMAS[name] = schema
    return {"$ref": f"#/components/schemas/{name}"}


def resolved(schema: Schema) -> Schema:
    reference = schema.get("$ref")
    return schema if reference is None else SCHEMAS[reference.rpartition("/")[2]]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """What comes in the path, the query or a header; `schema` is what it is held against."""

    name: str
    about: str
    where: str = "query"
    schema: Schema = field(default_factory=lambda: {"type": "string"})
    required: bool = False
    missing: str = ""  # what is said when it is; by default in our own words

    @property
    def key(self) -> str:
        """How handlers call it."""
        return self.name.lower().replace("-", "_")

    def parse(self, text: str) -> Any:
        kind = resolved(self.schema).get("type", "string")
        kinds = [kind] if isinstance(kind, str) else kind
        value: Any = text
        if "integer" in kinds and text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= 20:
            value = int(text)
        elif "number" in kinds:
            try:
                value = float(text)
            except ValueError:
                value = text
        elif "boolean" in kinds:
            value = {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
        check(value, self.schema, self.name)
        return value


def query(name: str, about: str, *, required: bool = False, **schema: Any) -> Parameter:
    return Parameter(name=name, about=about, schema={"type": "string", **schema}, required=required)


def path(name: str, about: str, **schema: Any) -> Parameter:
    return Parameter(
        name=name, about=about, where="path", required=True, schema={"type": "string", "minLength": 1, **schema}
    )


def header(name: str, about: str) -> Parameter:
    return Parameter(name=name, about=about, where="header")


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    """One method of one path. `action` is a key of `guard.NEEDS`, None for what anybody may ask.

    `scope` says what it touches: by default the topic that the parameter `topic` names, or without one the store as a whole.
    Of the others only the handler knows, and asks the guard by itself: the topic of a `subscriber`, one that is named in the
    `body`, or asked for behind it; that of the `events`; or a `list`, which shows what the caller may see. `lenient` takes
    parameters that it does not know, as those do that came before jjq.
    """

    method: str
    path: str
    action: str | None
    handler: Handler
    about: str
    group: str
    parameters: Sequence[Parameter] = ()
    body: Mapping[str, Schema] | None = None  # by media type
    answers: Mapping[int, tuple[str, Mapping[str, Schema]]] = field(default_factory=dict)
    scope: str = ""
    lenient: bool = False

    @property
    def by_handler(self) -> bool:
        return self.scope != ""

    @property
    def id(self) -> str:
        return self.handler.__name__

    def arguments(
        self, found_in_path: Mapping[str, str], raw_query: bytes, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        """The parameters as values, None for those that were not given; raises RequestError."""
        given = _query_of(raw_query)
        places = {
            "path": found_in_path, "query": given, "header": {name.lower(): value for name, value in headers.items()},
        }  # fmt: skip
        values: dict[str, Any] = {}
        for each in self.parameters:
            text = places[each.where].get(each.name.lower() if each.where == "header" else each.name)
            if text is None and each.required:
                raise RequestError(each.missing or f"the parameter {each.name!r} is missing: {each.about}")
            values[each.key] = None if text is None else each.parse(text)
        known = [each.name for each in self.parameters if each.where == "query"]
        unknown = next((name for name in given if name not in known), None)
        if unknown is not None and not self.lenient:
            hint = did_you_mean(unknown, known, "'") or (f"there are {', '.join(known)}" if known else "")
            raise RequestError(f"{self.method} {self.path} has no parameter {shown(unknown)}{hint and f'; {hint}'}")
        return values


def _query_of(raw: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS)
    except (UnicodeDecodeError, ValueError) as error:
        raise RequestError("the query is not UTF-8, percent-encoded, with at most 50 parameters") from error
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name in found if [each for each, _ in pairs].count(name) > 1)
        raise RequestError(f"the parameter {shown(twice)} is given twice")
    return found


def segment(raw: str) -> str:
    """One part of a path, decoded; raises RequestError for what is not UTF-8."""
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise RequestError("a name in the path is not UTF-8") from error


# The rule for names, for the description; what checks them is `jjq.model.check_name`.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,248}$"
TOPIC_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,248}(#ephemeral)?$"


class Table:
    """Operations of one group, as its module declares them."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._operations: list[Operation] = []

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)

    def operation(
        self, method: str, path: str, action: str | None, about: str, *, parameters: Sequence[Parameter] = (),
        body: Mapping[str, Schema] | None = None, answers: Mapping[int, tuple[str, Mapping[str, Schema]]] | None = None,
        scope: str = "", lenient: bool = False,
    ) -> Callable[[Handler], Handler]:  # fmt: skip
        """Makes the function under it the handler of an operation."""

        def add(handler: Handler) -> Handler:
            self._operations.append(
                Operation(
                    method=method, path=path, action=action, about=about, group=self.group, parameters=parameters,
                    body=body, answers=answers or {200: ("Done.", {})}, handler=handler, scope=scope,
                    lenient=lenient,
                )
            )  # fmt: skip
            return handler

        return add


# --- checking ----------------------------------------------------------------------------------------------------------

_KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "null": lambda value: value is None,
}
_WORDS = {
    "string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
    "object": "an object", "array": "a list", "null": "null",
}  # fmt: skip


def check(value: Any, schema: Schema, where: str) -> None:
    """Holds a value against the part of JSON Schema that the table uses; raises RequestError that says what is wrong."""
    schema = resolved(schema)
    kinds = schema.get("type")
    if kinds is not None:
        listed = [kinds] if isinstance(kinds, str) else kinds
        if not any(_KINDS[kind](value) for kind in listed):
            words = " or ".join(_WORDS[kind] for kind in listed)
            raise RequestError(f"{where} must be {words}, not {shown(value)}")
    if "enum" in schema and value not in schema["enum"]:
        raise RequestError(f"{where} must be one of {', '.join(map(str, schema['enum']))}, not {shown(value)}")
    if isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            raise RequestError(
                f"{where} must have {schema.get('minLength', 0)} to {schema.get('maxLength', 'any number of')} characters"
            )
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = schema.get("minimum"), schema.get("maximum")
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            most = "" if high is None else f" to {high}"
            raise RequestError(f"{where} must be from {low}{most}, not {shown(value)}")
    elif isinstance(value, list) and "items" in schema:
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            raise RequestError(
                f"{where} must have {schema.get('minItems', 0)} to {schema.get('maxItems', 'any')} items"
            )
        for i, each in enumerate(value):
            check(each, schema["items"], f"item {i} of {where}")
    elif isinstance(value, dict):
        _check_object(value, schema, where)


def _check_object(value: dict[str, Any], schema: Schema, where: str) -> None:
    known: Mapping[str, Schema] = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            raise RequestError(f"{where} lacks {name!r}; it takes {', '.join(known)}")
    if len(value) < schema.get("minProperties", 0):
        raise RequestError(f"{where} has nothing in it; it takes {', '.join(known)}")
    for name, each in value.items():
        if name in known:
            check(each, known[name], f"{name!r} of {where}")
        elif rest is False:
            hint = did_you_mean(name, known, "'") or f"there are {', '.join(known)}"
            raise RequestError(f"{where} has {shown(name)}, which is nothing there; {hint}")
        elif rest is not True:
            check(each, rest, f"{name!r} of {where}")


def parse_json(data: bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """A JSON document; raises RequestError, also for NaN and for one that is nested too deeply. `pairs` makes its objects."""
    try:
        return json.loads(data, parse_constant=_no_constant, object_pairs_hook=pairs)
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error
    except ValueError as error:
        raise RequestError(f"the body is no JSON: {error}") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
