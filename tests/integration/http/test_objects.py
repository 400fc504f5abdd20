"""Big objects over HTTP: kept, got whole and in parts, refused."""

import hashlib
import itertools
import os

import pyarrow as pa
import pytest

from jjq.server import http_objects
from jjq.server.http_requests import Request
from tests.fronts import Front, Fronting

BODY = os.urandom(300_000)


@pytest.fixture
def kept(front: Front) -> str:
    """The path of an object."""
    front.store.create_topic("t")
    made = front.json("POST", "/api/topics/t/objects?value=cat.png&key=cats", status=201, content=BODY)
    assert (made["value"], made["key"], made["offset"]) == ("cat.png", "cats", 0)
    assert made["headers"] == [["jjq-object", f"sha256:{hashlib.sha256(BODY).hexdigest()}"]]
    return "/api/topics/t/partitions/0/records/0/object"


def test_an_object_is_kept_and_got_whole(front: Front, kept: str) -> None:
    answer = front.client.get(kept)
    assert (answer.status_code, answer.content) == (200, BODY)
    assert answer.headers["accept-ranges"] == "bytes"
    head = front.client.head(kept)
    assert (head.headers["content-length"], head.content) == (str(len(BODY)), b"")
    listed = front.json("GET", "/api/objects")["objects"]
    assert [(each["bytes"], each["references"]) for each in listed] == [(len(BODY), 1)]
    record = next(iter(front.store.topic("t").records(front.store.topic("t").plan(0, 0, 1))))
    with front.store.open_object(record) as file:
        assert file.read() == BODY
    assert not [each for each in front.store.path.rglob("*") if each.suffix == ".new"]


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [("bytes=0-0", 0, 1), ("bytes=10-99", 10, 100), ("bytes=299990-", 299_990, 300_000), ("bytes=-7", 299_993, 300_000),
     ("bytes=1-999999999", 1, 300_000), ("bytes=-999999999", 0, 300_000)],
)  # fmt: skip
def test_a_range_of_an_object(front: Front, kept: str, wanted: str, start: int, end: int) -> None:
    answer = front.client.get(kept, headers={"range": wanted})
    assert answer.content == BODY[start:end]
    if end - start < len(BODY):
        assert answer.status_code == 206
        assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(BODY)}"
    else:
        assert answer.status_code == 200


@pytest.mark.parametrize("wanted", ["bytes=300000-", "bytes=-0"])
def test_a_range_with_nothing_in_it_is_refused(front: Front, kept: str, wanted: str) -> None:
    answer = front.client.get(kept, headers={"range": wanted})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{len(BODY)}")


@pytest.mark.parametrize("wanted", ["bytes=5-1", "bytes=-", "lines=0-1", "bytes=0-1,3-4"])
def test_a_range_of_another_form_gets_the_whole(front: Front, kept: str, wanted: str) -> None:
    answer = front.client.get(kept, headers={"range": wanted})
    assert (answer.status_code, answer.content) == (200, BODY)


def test_a_topic_with_a_schema_takes_columns_beside_an_object(front: Front) -> None:
    front.store.create_topic("typed", schema=pa.schema([("name", pa.string())]))
    path = "/api/topics/typed/objects"
    made = front.json("POST", path, status=201, params={"value": '{"name": "cat"}'}, content=b"")
    assert made["value"] == {"name": "cat"}
    answer = front.client.get("/api/topics/typed/partitions/0/records/0/object")
    assert (answer.status_code, answer.content) == (200, b"")
    assert front.code("POST", path, content=b"x") == (400, "schema_mismatch")
    assert front.code("POST", path, params={"value": "cat"}, content=b"x") == (400, "invalid_request")


def test_what_is_no_object_and_what_is_too_large_are_refused(serve: Fronting) -> None:
    front = serve(max_object_bytes=1024)
    topic = front.store.create_topic("t")
    topic.push(b"x")
    assert front.code("GET", "/api/topics/t/partitions/0/records/0/object") == (400, "invalid_argument")
    assert front.code("GET", "/api/topics/t/partitions/0/records/1/object") == (404, "record_not_found")
    assert front.code("POST", "/api/topics/t/objects", content=b"x" * 1025) == (413, "request_too_large")
    in_pieces = (b"x" * 600 for _ in range(2))  # whose length nobody said before
    assert front.code("POST", "/api/topics/t/objects", content=in_pieces) == (413, "request_too_large")
    assert topic.offsets()[0].end == 1
    assert front.store.list_objects() == []


def test_an_object_is_read_no_further_when_its_client_has_gone(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_objects, "_PIECE_BYTES", 1024)
    front.store.create_topic("t").push_file(bytes(64 << 20))
    pieces = itertools.count()
    allow = Request.allow

    def counted(request: Request, action: str, topic: str | None) -> None:
        next(pieces)
        allow(request, action, topic)

    monkeypatch.setattr(Request, "allow", counted)
    with front.client.stream("GET", "/api/topics/t/partitions/0/records/0/object") as answer:
        next(answer.iter_raw())
    while front.http._parts.counters.running["read_object"]:
        front.client.get("/readyz")
    assert next(pieces) < 32 << 10  # of 64 Ki
