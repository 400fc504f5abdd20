"""Every operation of the HTTP interface, asked with what its description allows and with what it does not: the answer is one
that the description knows, an error is JSON with a code, and nothing of the broker's machine gets out."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jjq
from jjq.server.http_app import all_operations
from jjq.server.http_operations import ARROW, EVENTS, JSON, Operation, Parameter, resolved
from tests.fronts import Front, fronting
from tests.stores import assert_whole

OPERATIONS = {f"{each.method} {each.path}": each for each in all_operations()}
NAMES = st.sampled_from(
    ["t", "typed", "s", "c", "w", "new", "events", "a b", "a/b", "..", "%", "é", "x" * 250, "e#ephemeral", ""]
)
TEXTS = st.one_of(
    NAMES,
    st.text(max_size=20).filter(
        lambda text: "Traceback" not in text
    ),  # which is told again, and looked for in what is told
    st.sampled_from(["earliest", "-1", "0", "0:0", "-1 hour", "9:9", "true", "1e400", "\0"]),
)


def of_schema(schema: Any) -> st.SearchStrategy[Any]:
    """Values as a schema of the table describes them."""
    schema = resolved(schema)
    if "anyOf" in schema:
        return st.one_of(*map(of_schema, schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = schema.get("type", ["string", "null", "boolean", "integer", "object"])
    return st.one_of(*(_of_kind(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds)))


def _of_kind(kind: str, schema: Any) -> st.SearchStrategy[Any]:
    if kind == "string":
        return TEXTS
    if kind == "integer":
        return st.integers(schema.get("minimum", -5), min(schema.get("maximum", 1 << 63), 1 << 63))
    if kind == "number":
        return st.floats(0, 0.01)  # a wait, mostly
    if kind == "boolean":
        return st.booleans()
    if kind == "null":
        return st.none()
    if kind == "array":
        return st.lists(of_schema(schema.get("items", {})), max_size=3)
    known = {name: of_schema(each) for name, each in schema.get("properties", {}).items()}
    needed = {name: each for name, each in known.items() if name in schema.get("required", ())}
    optional = {name: each for name, each in known.items() if name not in needed}
    if not known:
        return st.dictionaries(TEXTS, st.one_of(TEXTS, st.none(), st.integers()), max_size=3)
    return st.fixed_dictionaries(needed, optional=optional)


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)


def parameter(each: Parameter) -> st.SearchStrategy[str]:
    right = of_schema(each.schema).map(lambda value: value if isinstance(value, str) else json.dumps(value))
    # Mostly right, so that more is reached than the check of parameters.
    wrong = st.sampled_from(["", "x", "-1", "1.5", "99999999999999999999999", "nan", "null", "\n", "ü"])
    return (
        st.one_of(right, right, right, wrong)
        if each.name != "timeout"
        else st.sampled_from(["0", "0.01", "-1", "x", "nan"])
    )


def arrow() -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"value": pa.array([b"x"], pa.binary())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def body(kind: str, schema: Any) -> st.SearchStrategy[bytes]:
    junk = st.binary(max_size=60)
    if kind == JSON:
        right = of_schema(schema).map(lambda value: json.dumps(value).encode())
        return st.one_of(right, right, ANYTHING.map(lambda value: json.dumps(value).encode()), junk)
    if kind == ARROW:
        whole = arrow()
        cut = st.integers(0, len(whole)).map(lambda end: whole[:end])
        flipped = st.tuples(st.integers(0, len(whole) - 1), st.integers(1, 255)).map(
            lambda where: whole[: where[0]] + bytes([whole[where[0]] ^ where[1]]) + whole[where[0] + 1 :]
        )
        return st.one_of(st.just(whole), cut, flipped, junk)
    return st.one_of(junk, TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")))


def _part(text: str) -> str:
    """One part of a path. Dots alone are encoded: clients make `/a/..` into `/`."""
    part = quote(text.encode("utf-8", "surrogatepass"), safe="") or "%20"
    return part.replace(".", "%2E") if not part.strip(".") else part


@st.composite
def requests(draw: st.DrawFn, operation: Operation) -> tuple[str, dict[str, str], bytes | None]:
    """The address, headers and body of a request."""
    path, query, headers = operation.path, [], {}
    for each in operation.parameters:
        if not (each.required or draw(st.booleans())) or (
            each.required and each.where == "query" and draw(st.integers(0, 9)) == 0
        ):
            continue
        text = draw(parameter(each))
        if each.where == "path":
            path = path.replace(f"{{{each.name}}}", _part(text))
        elif each.where == "query":
            query.append(f"{each.name}={quote(text.encode('utf-8', 'surrogatepass'), safe='')}")
        elif text.isprintable() and text.isascii():
            headers[each.name] = text.strip()  # a client sends no other
    content = None
    if operation.body is not None:
        kind = draw(st.sampled_from(sorted(operation.body)))
        content = draw(body(kind, operation.body[kind]))
        headers["content-type"] = draw(
            st.sampled_from([kind, kind, kind, "text/plain", "application/json; charset=x", "?"])
        )
    if draw(st.booleans()):
        headers["accept"] = draw(st.sampled_from([ARROW, JSON, "application/octet-stream", "*/*", ";,"]))
    return path + ("?" + "&".join(query) if query else ""), headers, content


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    path = tmp_path_factory.mktemp("fuzz") / "store"
    with fronting(path) as served:
        yield served
    assert_whole(path)


def prepare(front: Front) -> None:
    """What operations act on, again where one took it away."""
    store = front.store
    topic = store.create_topic("t", exist_ok=True)
    with contextlib.suppress(jjq.RecordTooLarge, jjq.TopicFull):  # by what was altered: that may be as it is
        topic.push(b"x", key=b"k")
    store.create_topic("typed", exist_ok=True, schema=pa.schema([("n", pa.int64()), ("s", pa.string())]))
    store.create_subscriber("t", "s", exist_ok=True).close()
    store.channel("t", "c", create=True).close()


@pytest.mark.parametrize("name", OPERATIONS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_every_answer_is_one_that_is_described(front: Front, name: str, data: st.DataObject) -> None:
    operation = OPERATIONS[name]
    prepare(front)
    url, headers, content = data.draw(requests(operation))
    front.client.cookies.clear()
    with front.client.stream(operation.method, url, headers=headers, content=content) as answer:
        described = operation.answers.get(answer.status_code)
        kind = answer.headers.get("content-type", "").partition(";")[0]
        if described is not None:
            assert kind in described[1] or not described[1]
            if kind == EVENTS:
                return
            answer.read()
            if kind == JSON:
                answer.json()
        else:
            assert 400 <= answer.status_code < 500, answer.read()
            found = json.loads(answer.read())
            assert found["code"] != "internal"
            assert found["message"]
    assert str(front.store.path) not in answer.text
    assert "Traceback" not in answer.text
