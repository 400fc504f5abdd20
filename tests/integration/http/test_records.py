"""Topics and records over HTTP: made, pushed in every form, read, searched, followed."""

import json
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq.server import http_nsq, http_pushing, http_requests
from tests.fronts import Events, Front, Fronting

ARROW = "application/vnd.apache.arrow.stream"


def arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


# --- topics ----------------------------------------------------------------------------------------------------------


def test_a_topic_is_made_altered_described_and_deleted(front: Front) -> None:
    made = front.json(
        "POST", "/api/topics", status=201,
        json={"name": "flights", "partitions": 3, "schema": {"carrier": "string", "delay": "int32"}, "retention": "7 days"},
    )  # fmt: skip
    assert (made["name"], len(made["partitions"]), made["schema"]) == (
        "flights",
        3,
        {"carrier": "string", "delay": "int32"},
    )
    assert made["config"]["retention_us"] == 7 * 86_400_000_000
    assert front.code("POST", "/api/topics", json={"name": "flights"}) == (409, "topic_exists")
    altered = front.json(
        "PATCH", "/api/topics/flights",
        json={
            "partitions": 4, "sync": "interval",
            "add_columns": {"origin": "text", "price": "decimal(10, 2)", "stops": "list<struct<at: string, wait: int>>"},
        },
    )  # fmt: skip
    assert (len(altered["partitions"]), altered["config"]["sync"]) == (4, "interval")
    assert altered["schema"]["stops"] == "list<item: struct<at: string, wait: int32>>"
    assert front.json("GET", "/api/topics/flights") == altered
    assert front.json("GET", "/api/topics")["topics"] == [
        {"name": "flights", "id": made["id"], "partitions": 4, "records": 0}
    ]
    front.json("DELETE", "/api/topics/flights", status=204)
    assert front.code("GET", "/api/topics/flights") == (404, "topic_not_found")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_request"),
        ({"name": "a b"}, "invalid_name"),
        ({"name": "../x"}, "invalid_name"),
        ({"name": "t", "partitons": 2}, "invalid_request"),
        ({"name": "t", "partitions": "2"}, "invalid_request"),
        ({"name": "t", "sync": "sometimes"}, "invalid_argument"),
        ({"name": "t", "schema": {"_x": "string"}}, "schema_mismatch"),
        ({"name": "t", "schema": {"x": "int33"}}, "invalid_argument"),
        ({"name": "t", "schema": {"x": "list<" * 10_000}}, "invalid_argument"),
        ({"name": "t", "schema": {"x": "uuid"}}, "invalid_argument"),
        ([], "invalid_request"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(front: Front, body: Any, code: str) -> None:
    assert front.code("POST", "/api/topics", json=body) == (400, code)
    assert front.store.topics() == []


def test_a_name_with_a_slash_or_a_percent_sign_is_a_name_that_is_not_there(front: Front) -> None:
    for name in ("a%2Fb", "%2e%2e", "%252F", "a%00b"):
        status, code = front.code("GET", f"/api/topics/{name}")
        assert (status, code) in ((400, "invalid_name"), (404, "topic_not_found"))
    assert front.code("GET", "/api/topics/%FF") == (400, "invalid_request")


def test_segments_are_listed_without_their_paths(front: Front) -> None:
    front.store.create_topic("t").push(b"x")
    (segment,) = front.json("GET", "/api/topics/t/segments")["segments"]
    assert (segment["state"], segment["start"], segment["end"], segment["hot"]) == ("active", 0, 1, False)
    assert "path" not in segment
    assert str(front.store.path) not in json.dumps(segment)


def test_a_topic_is_emptied_and_paused(front: Front) -> None:
    front.store.create_topic("t").push(b"x")
    front.json("POST", "/api/topics/t/empty", status=204)
    assert front.json("GET", "/api/topics/t")["records"] == 0
    front.json("POST", "/api/topics/t/pause", status=204)
    assert front.json("GET", "/api/topics/t")["paused"]
    front.json("POST", "/api/topics/t/unpause", status=204)
    assert not front.json("GET", "/api/topics/t")["paused"]


# --- pushing ---------------------------------------------------------------------------------------------------------


def test_what_a_full_topic_drops_has_no_offsets(front: Front) -> None:
    front.store.create_topic("t#ephemeral", partitions=2, max_records=1, when_full="drop_newest")
    with front.store.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe("t#ephemeral")
        path, text = "/api/topics/t%23ephemeral/records?partition=", {"headers": {"content-type": "text/plain"}}
        kept, dropped = [front.json("POST", f"{path}0", content=b"x", **text) for _ in range(2)]
        assert (kept["dropped"], kept["ranges"]) == (0, [{"partition": 0, "start": 0, "end": 1}])
        assert (dropped["records"], dropped["dropped"], dropped["ranges"]) == (1, 1, [])
        assert dropped["positions"][0]["offset"] == -1
        many = front.json("POST", f"{path}1", json={"records": [{"value": "x"}] * 3})
        assert (many["records"], many["dropped"], many["ranges"]) == (3, 3, [])


def test_a_body_is_one_record(front: Front) -> None:
    found = front.json(
        "POST", "/api/topics/t/records", content=b"\0\xff", headers={"content-type": "application/octet-stream"}
    )
    assert (found["records"], found["ranges"]) == (1, [{"partition": 0, "start": 0, "end": 1}])
    front.json(
        "POST", "/api/topics/t/records?key=k&partition=0", content=b"text", headers={"content-type": "text/plain"}
    )
    records = front.json("GET", "/api/topics/t/records")["records"]
    assert [(each["key"], each["value"]) for each in records] == [(None, {"base64": "AP8="}), ("k", "text")]


def test_json_is_one_record_or_many(front: Front) -> None:
    front.json("POST", "/api/topics/t/records", json={"value": "one", "key": "k", "headers": {"a": "b", "c": None}})
    many = {"records": [{"value": {"base64": "/w=="}}, {"value": None, "key": {"base64": "/w=="}}]}
    assert front.json("POST", "/api/topics/t/records", json=many)["records"] == 2
    records = front.json("GET", "/api/topics/t/records")["records"]
    assert [each["value"] for each in records] == ["one", {"base64": "/w=="}, None]
    assert records[0]["headers"] == [["a", "b"], ["c", None]]
    assert records[2]["key"] == {"base64": "/w=="}
    stored = front.store.topic("t").read().read_all().column("value").to_pylist()
    assert stored == [b"one", b"\xff", None]


def test_objects_go_into_a_topic_with_columns(front: Front) -> None:
    schema = pa.schema(
        [("n", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("price", pa.decimal128(10, 2)), ("raw", pa.binary()),
         ("tags", pa.list_(pa.string()))]
    )  # fmt: skip
    front.store.create_topic("typed", schema=schema)
    value = {"n": 1, "at": "2026-01-31T12:00:00Z", "price": "1.50", "raw": {"base64": "/w=="}, "tags": ["a"]}
    front.json("POST", "/api/topics/typed/records", json={"value": value})
    (record,) = front.json("GET", "/api/topics/typed/records")["records"]
    assert record["value"] == value
    for wrong in ({"n": "x"}, {"n": 1.5}, {"m": 1}, {"at": "noon"}, {"raw": {"base64": "?"}}):
        assert front.code("POST", "/api/topics/typed/records", json={"value": wrong}) == (400, "schema_mismatch")
    assert front.code("POST", "/api/topics/typed/records", json={"value": "text"}) == (400, "schema_mismatch")
    assert front.code("POST", "/api/topics/plain/records", json={"value": {"n": 1}}) == (400, "schema_mismatch")
    for path in ("/api/topics/typed/records", "/api/topics/typed/publish", "/pub?topic=typed", "/mpub?topic=typed"):
        message = front.client.post(path, content=b'{"n": 1}').json()["message"]
        assert "with the header Content-Type: application/json to /api/topics/typed/records" in message


def test_a_time_that_python_cannot_say_comes_as_the_number_that_it_is(front: Front) -> None:
    topic = front.store.create_topic("typed", schema=pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))]))
    topic.push_table(pa.table({"n": [1, 2], "at": pa.array([0, 2**62], pa.timestamp("us", "UTC"))}))
    front.store.create_subscriber("typed", "s")
    wanted = [{"n": 1, "at": "1970-01-01T00:00:00Z"}, {"n": 2, "at": 2**62}]
    assert [each["value"] for each in front.json("GET", "/api/topics/typed/records")["records"]] == wanted
    popped = front.json("POST", "/api/subscribers/s/pop?max=2")["records"]
    assert [each["value"] for each in popped] == wanted
    with front.stream("/api/topics/typed/stream?start=0") as events:
        assert [json.loads(events.next().data)["value"] for _ in wanted] == wanted
    answer = front.client.post("/api/topics/typed/records", json={"value": {"at": 2**62}})
    assert answer.status_code == 400
    assert "is no time of the years 1 to 9999" in answer.json()["message"]


def test_lines_are_a_record_each(front: Front) -> None:
    lines = {"content-type": "application/x-ndjson"}
    front.json("POST", "/api/topics/t/records", content=b'{"a": 1}\r\n\nplain\n', headers=lines)
    assert [each["value"] for each in front.json("GET", "/api/topics/t/records")["records"]] == ['{"a": 1}', "plain"]
    front.store.create_topic("typed", schema=pa.schema([("n", pa.int64())]))
    front.json("POST", "/api/topics/typed/records", content=b'{"n": 1}\n{"n": null}\n', headers=lines)
    assert front.store.topic("typed").read().read_all().column("n").to_pylist() == [1, None]
    front.store.create_topic("short", max_record_bytes=3)
    for topic, body in (
        ("typed", b'{"n": 1}\n\n{"n": x}\n'), ("typed", b'{"n": 1}\n\n{"n": "x"}\n{"n": 2}'), ("typed", b'{"n": 1}\n\n[2]\n'),
        ("short", b"abc\n\nabcd\nabc"),
    ):  # fmt: skip
        answer = front.client.post(f"/api/topics/{topic}/records", content=body, headers=lines)
        assert answer.status_code in {400, 413}
        assert answer.json()["message"].startswith("line 3")


def test_arrow_goes_in_and_out(front: Front) -> None:
    table = pa.table({"carrier": ["AA", "UA"] * 500, "delay": list(range(1000))})
    front.store.create_topic("flights", schema=table.schema, partitions=2)
    headers = {"content-type": ARROW}
    found = front.json("POST", "/api/topics/flights/records?key=carrier", content=arrow(table), headers=headers)
    assert found["records"] == 1000
    answer = front.client.get(
        "/api/topics/flights/records?columns=delay&metadata=_partition,_offset", headers={"accept": ARROW}
    )
    assert answer.headers["content-type"] == ARROW
    read = pa.ipc.open_stream(answer.content).read_all()
    assert read.schema.names == ["delay", "_partition", "_offset"]
    assert sorted(read.column("delay").to_pylist()) == list(range(1000))
    answer = front.client.get("/api/topics/flights/records?start=0&end=3&partition=0", headers={"accept": ARROW})
    assert pa.ipc.open_stream(answer.content).read_all().num_rows == min(3, found["ranges"][0]["end"])


def test_an_arrow_stream_goes_on_behind_what_is_gone_if_it_may(front: Front) -> None:
    topic = front.store.create_topic("t")
    topic.push_many([b"a", b"b"])
    topic.empty()
    topic.push_many([b"c", b"d"])
    where, headers = "/api/topics/t/records?start=0&metadata=_offset", {"accept": ARROW}
    assert front.client.get(where, headers=headers).status_code == 410
    answer = front.client.get(f"{where}&on_data_loss=skip", headers=headers)
    assert pa.ipc.open_stream(answer.content).read_all().column("_offset").to_pylist() == [2, 3]
    assert front.client.get(f"{where}&on_data_loss=fail", headers=headers).status_code == 400
    assert front.code("GET", "/api/topics/t/records?on_data_loss=skip") == (400, "invalid_request")


def test_an_arrow_batch_of_a_writer_goes_in_once(front: Front) -> None:
    table = pa.table({"value": pa.array([b"a", b"b"], pa.binary())})
    path = "/api/topics/t/records?writer_id=loader&batch_id=7"
    first = front.json("POST", path, content=arrow(table), headers={"content-type": ARROW})
    assert front.json("POST", path, content=arrow(table), headers={"content-type": ARROW})["ranges"] == first["ranges"]
    assert front.json("GET", "/api/topics/t")["records"] == 2
    assert [each["id"] for each in front.json("GET", "/api/writers")["writers"]] == ["loader"]
    front.json("DELETE", "/api/writers/loader", status=204)
    assert front.code("DELETE", "/api/writers/loader") == (404, "writer_not_found")


def test_an_arrow_stream_is_held_to_the_bound_when_it_is_unpacked(serve: Fronting) -> None:
    front = serve(max_request_bytes=1 << 20)
    headers, packed = {"content-type": ARROW}, pa.ipc.IpcWriteOptions(compression="zstd")
    for rows, answer in ((100, None), (4000, (413, "request_too_large"))):
        table = pa.table({"value": [bytes(1000)] * rows})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=packed) as writer:
            writer.write_table(table)
        body = sink.getvalue().to_pybytes()
        assert len(body) < 100_000
        if answer is None:
            assert front.json("POST", "/api/topics/t/records", content=body, headers=headers)["records"] == rows
        else:
            assert front.code("POST", "/api/topics/t/records", content=body, headers=headers) == answer


@pytest.mark.parametrize("kind", ["value", "lines", "document", "row", "arrow", "stage"])
def test_a_record_is_bounded_by_the_broker_however_it_is_pushed(serve: Fronting, kind: str) -> None:
    front = serve(max_record_bytes=1024, max_request_bytes=100_000)
    front.store.create_topic("plain")
    front.store.create_topic("rows", schema=pa.schema([("text", pa.string())]))
    for size, status in ((900, 200), (1025, 413)):
        text = "x" * size
        sent: dict[str, Any]
        as_arrow: dict[str, Any] = {"content": arrow(pa.table({"text": [text]})), "headers": {"content-type": ARROW}}
        path, sent = {
            "value": ("plain/records", {"content": text.encode()}),
            "lines": ("plain/records", {"content": text.encode(), "headers": {"content-type": "application/x-ndjson"}}),
            "document": ("plain/records", {"json": {"value": "", "headers": {"h": text}}}),
            "row": ("rows/records", {"json": {"value": {"text": text}}}),
            "arrow": ("rows/records", as_arrow),
            "stage": ("rows/stage", as_arrow),
        }[kind]
        answer = front.client.post(f"/api/topics/{path}", **sent)
        assert (answer.status_code, answer.json().get("code")) == (
            status,
            None if status == 200 else "record_too_large",
        )


def test_a_limit_that_is_altered_holds_for_the_next_push(front: Front) -> None:
    front.json("POST", "/api/topics/t/records", content=b"as it was made")
    front.json("PATCH", "/api/topics/t", json={"max_record_bytes": 5})
    assert front.code("POST", "/api/topics/t/records", content=b"longer") == (413, "record_too_large")


def test_a_body_that_is_encoded_is_refused(front: Front) -> None:
    headers = {"content-encoding": "gzip"}
    assert front.code("POST", "/pub?topic=t", content=b"x", headers=headers) == (415, "unsupported_media_type")
    front.json("POST", "/api/topics/t/records", content=b"x", headers={"content-encoding": "identity"})


def test_a_column_whose_name_is_no_text_is_refused(front: Front) -> None:
    body = {
        "content": b'{"name": "t", "schema": {"\\ud800": "int32"}}',
        "headers": {"content-type": "application/json"},
    }
    assert front.code("POST", "/api/topics", **body) == (400, "invalid_argument")


@pytest.mark.parametrize("body", [b"", b"x", b"\xff" * 100, arrow(pa.table({"value": [b"x" * 100]}))[:-40]])
def test_what_is_no_arrow_stream_is_refused(front: Front, body: bytes) -> None:
    status, _ = front.code("POST", "/api/topics/t/records", content=body, headers={"content-type": ARROW})
    assert status == 400


@pytest.mark.parametrize("body", [b"", b"{", b"NaN", b'{"value": Infinity}', b"[" * 100_000, b'{"value": 1}', b'"x"',
                                  b'{"value": "x", "vaule": 1}', b'{"records": []}', b'{"value": "\\ud800"}', b"\xff"])  # fmt: skip
def test_what_is_no_record_in_json_is_refused(front: Front, body: bytes) -> None:
    status, code = front.code(
        "POST", "/api/topics/t/records", content=body, headers={"content-type": "application/json"}
    )
    assert (status, code) == (400, "invalid_request")


@pytest.mark.parametrize("body", [[{"value": "a"}], {"values": ["a"]}, {"carrier": "AA"}, "a", {}])
def test_json_that_is_no_record_is_told_what_one_is(front: Front, body: Any) -> None:
    front.store.create_topic("t")
    answer = front.client.post("/api/topics/t/records", json=body)
    assert answer.status_code == 400
    message = answer.json()["message"]
    assert message.startswith('the body must be {"value": ...}, where the row of a topic with a schema is the value, ')
    assert '{"records": [{"value": ...}, ...]}' in message


def test_one_bad_record_among_those_that_gathered_fails_alone(front: Front) -> None:
    front.store.create_topic("t", max_record_bytes=100)
    plain = {"content-type": "text/plain"}
    with ThreadPoolExecutor(20) as clients:
        answers = list(
            clients.map(
                lambda i: (
                    front.client.post(
                        "/api/topics/t/records", content=b"x" * (200 if i % 5 == 0 else 10), headers=plain
                    ).status_code
                ),
                range(40),
            )
        )
    assert answers == [413 if i % 5 == 0 else 200 for i in range(40)]
    assert front.json("GET", "/api/topics/t")["records"] == 32


def test_a_first_push_that_cannot_be_makes_no_topic(front: Front) -> None:
    records, publish = "/api/topics/orders/records", "/api/topics/orders/publish"
    columns = arrow(pa.table({"a": [1]}))
    assert front.code("POST", records, json={"value": {"a": 1}})[0] == 400
    assert front.code("POST", records, json={"value": "1", "timestamp": 1})[0] == 400
    assert front.code("POST", records + "?partition=1", content=b"1", headers={"content-type": "text/plain"})[0] == 400
    assert front.code("POST", records, content=columns, headers={"content-type": ARROW})[0] == 400
    assert front.json("GET", "/api/topics")["topics"] == []
    rows = arrow(pa.table({"value": [b"1"], "key": [b"k"]}))
    front.json("POST", records, content=rows, headers={"content-type": ARROW})
    front.json("POST", publish, content=b"2", headers={"content-type": "text/plain"})
    assert [each["records"] for each in front.json("GET", "/api/topics")["topics"]] == [2]


def test_publishing_says_how_many_it_reached(front: Front) -> None:
    with front.store.pubsub(ignore_subscribe_messages=True) as listener:
        listener.psubscribe("news.*")
        assert front.json("POST", "/api/topics/news.today/publish", content=b"hi") == {"receivers": 1}
        message = listener.get_message(timeout=60.0)
        assert message is not None
        assert message["data"] == b"hi"


# --- reading ---------------------------------------------------------------------------------------------------------


def test_pages_follow_each_other(front: Front) -> None:
    topic = front.store.create_topic("t", partitions=3)
    for i in range(100):
        topic.push(b"%d" % i, key=b"%d" % i)
    seen, start = [], "earliest"
    while records := (page := front.json("GET", f"/api/topics/t/records?max=7&start={start}"))["records"]:
        seen += [(each["partition"], each["offset"], each["value"]) for each in records]
        start = page["next"]
    assert sorted(int(value) for _, _, value in seen) == list(range(100))
    for partition in range(3):
        own = [offset for p, offset, _ in seen if p == partition]
        assert own == list(range(len(own)))
    only = front.json("GET", "/api/topics/t/records?partition=1&max=1000")["records"]
    assert {each["partition"] for each in only} == {1}


def test_waiting_ends_when_a_record_comes(front: Front) -> None:
    front.store.create_topic("t")
    start = front.json("GET", "/api/topics/t/records?start=latest")["next"]
    with ThreadPoolExecutor(1) as waiting:
        page = waiting.submit(front.json, "GET", f"/api/topics/t/records?start={start}&timeout=60")
        front.store.topic("t").push(b"x")
        assert [each["value"] for each in page.result()["records"]] == ["x"]
    assert front.json("GET", "/api/topics/t/records?start=latest&timeout=0.01")["records"] == []


def test_one_record_is_read_as_it_is(front: Front) -> None:
    front.store.create_topic("t").push(b"\xff\0")
    path = "/api/topics/t/partitions/0/records/0"
    assert front.json("GET", path)["value"] == {"base64": "/wA="}
    answer = front.client.get(path, headers={"accept": "application/octet-stream"})
    assert (answer.content, answer.headers["x-content-type-options"]) == (b"\xff\0", "nosniff")
    assert front.code("GET", "/api/topics/t/partitions/0/records/1") == (404, "record_not_found")
    assert front.code("GET", "/api/topics/t/partitions/1/records/0") == (400, "invalid_argument")


def test_records_that_are_gone_are_named(front: Front) -> None:
    topic = front.store.create_topic("t")
    topic.push_many([b"x"] * 5)
    topic.empty()
    assert front.code("GET", "/api/topics/t/records?start=2") == (410, "data_loss")
    answer = front.client.get("/api/topics/t/records?start=2")
    assert answer.json()["details"] == {"topic": "t", "partition": 0, "asked": 2, "earliest": 5, "lost": 3}


def test_searching_finds_text_in_keys_values_and_columns(front: Front) -> None:
    topic = front.store.create_topic("t")
    topic.push_many([b"needle" if i % 1000 == 1 else b"hay" for i in range(5000)])
    topic.push(b"x", key=b"a needle, too")
    found = front.json("GET", "/api/topics/t/search?contains=needle")
    assert ([each["offset"] for each in found["records"]], found["end"]) == ([1, 1001, 2001, 3001, 4001, 5000], True)
    first = front.json("GET", "/api/topics/t/search?contains=needle&max=2")
    assert ([each["offset"] for each in first["records"]], first["end"]) == ([1, 1001], False)
    rest = front.json("GET", f"/api/topics/t/search?contains=needle&start={first['next']}")
    assert [each["offset"] for each in rest["records"]] == [2001, 3001, 4001, 5000]
    front.store.create_topic("typed", schema=pa.schema([("s", pa.string()), ("n", pa.int64())]))
    front.store.topic("typed").push_many([{"s": "a.b*c", "n": 12345}, {"s": None, "n": None}])
    for text, count in (("b*c", 1), ("234", 1), ("x", 0)):
        assert len(front.json("GET", "/api/topics/typed/search", params={"contains": text})["records"]) == count


# --- following -------------------------------------------------------------------------------------------------------


def test_a_topic_is_followed_and_resumed(front: Front) -> None:
    topic = front.store.create_topic("t", partitions=2)
    topic.push_many([b"%d" % i for i in range(10)], keys=[b"%d" % i for i in range(10)])
    with front.stream("/api/topics/t/stream?start=earliest") as events:
        first = events.take(4)
    with front.stream("/api/topics/t/stream", headers={"Last-Event-ID": first[-1].id}) as events:
        topic.push(b"new", partition=1)
        second = events.take(7)
    values = [json.loads(each.data)["value"] for each in (*first, *second)]
    assert sorted(values) == sorted([*(str(i) for i in range(10)), "new"])
    assert front.code("GET", "/api/topics/t/stream?start=0:99") == (400, "offset_out_of_range")


def test_a_follower_gets_partitions_that_are_added(front: Front) -> None:
    topic = front.store.create_topic("t")
    with front.stream("/api/topics/t/stream") as events:
        front.store.alter_topic("t", partitions=2)
        topic.push(b"in the new one", partition=1)
        found = events.next()
    assert json.loads(found.data)["partition"] == 1
    assert found.id == "0:0,1:1"


@pytest.mark.parametrize("path", ["/api/topics/wide/stream", "/api/stream?topics=wide"])
def test_events_with_long_ids_come_in_pieces_to_who_reads(serve: Fronting, path: str) -> None:
    """With more partitions an id has kilobytes, and a thousand events megabytes: more than may wait for one client."""
    front = serve(buffer_bytes=1 << 20)
    topic = front.store.create_topic("wide", partitions=256, sync="none")
    with front.stream(path) as deaf, front.stream(path) as stream:
        values = [b"%d" % i for i in range(4000)]
        topic.push_many(values, partition=3)
        found = stream.take(len(values))
        assert [json.loads(each.data)["value"].encode() for each in found] == values
        assert max(each.outbox.size for each in list(front.http._parts.hub.streams)) <= 2 << 20
        assert [json.loads(each.data)["value"].encode() for each in deaf.take(len(values))] == values
    last = found[1234].id
    with front.client.stream("GET", path, headers={"last-event-id": last}) as answer:
        assert json.loads(Events(answer).next().data)["value"] == "1235"
    assert not front.http._parts.counters.slow_clients


def test_all_followers_share_one_feed_and_no_thread_each(front: Front) -> None:
    front.store.create_topic("t")
    streams = 40
    ready, got = threading.Barrier(streams + 1), []

    def follow() -> None:
        with front.stream("/api/topics/t/stream") as events:
            ready.wait(60)
            got.append(events.next().data)

    followers = [threading.Thread(target=follow) for _ in range(streams)]
    for each in followers:
        each.start()
    ready.wait(60)
    hub = front.http._parts.hub
    assert len(hub.streams) == streams
    assert len(hub._feeds) == 1
    assert sum(each.name.startswith("jjq-http") for each in threading.enumerate()) <= 26
    front.store.topic("t").push(b"x")
    for each in followers:
        each.join(60)
    assert len(got) == streams
    assert len(set(got)) == 1


def test_a_read_only_store_is_served_and_refuses_pushes(tmp_path: Any) -> None:
    from tests.fronts import fronting

    with jjq.open(tmp_path / "s") as store:
        store.create_topic("t").push(b"x")
    with fronting(tmp_path / "s", options={"read_only": True}) as front:
        assert [each["value"] for each in front.json("GET", "/api/topics/t/records")["records"]] == ["x"]
        assert front.code("POST", "/pub?topic=t", content=b"y") == (409, "store_read_only")
        assert front.json("GET", "/readyz") == {"status": "ok"}


def _encoded() -> dict[str, pa.RecordBatch]:
    """A few kilobytes each, and as plain columns from a hundred megabytes to terabytes."""
    one = pa.array(["x" * 1000])
    rows = 300_000
    indices = pa.Array.from_buffers(pa.int8(), rows, [None, pa.py_buffer(bytes(rows))])
    view = pa.array(["x" * 10_000]).cast(pa.string_view())
    views = pa.py_buffer(bytes(memoryview(view.buffers()[1])[:16]) * 15_000)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1 << 28], pa.int32()), one)
    elements = pa.nulls(1 << 28)
    ends = pa.py_buffer(struct.pack("<2i", 0, 1 << 28))
    columns = {
        "dictionary": pa.DictionaryArray.from_arrays(indices, one),
        "numbers": pa.DictionaryArray.from_arrays(indices, pa.array([1.5])),
        "view": pa.Array.from_buffers(pa.string_view(), 15_000, [None, views, view.buffers()[2]]),
        "runs": runs,
        "null": pa.nulls(1 << 28),
        "empty": pa.Array.from_buffers(pa.binary(0), 1 << 28, [None, pa.py_buffer(b"")]),
        "list": pa.Array.from_buffers(pa.list_(pa.null()), 1, [None, ends], children=[elements]),
    }
    return {name: pa.record_batch({"value": column}) for name, column in columns.items()}


@pytest.mark.parametrize("kind", ["dictionary", "numbers", "view", "runs", "null", "empty", "list"])
@pytest.mark.parametrize("where", ["records", "stage"])
def test_an_arrow_stream_is_held_to_the_bound_by_what_its_columns_come_to(
    serve: Fronting, kind: str, where: str
) -> None:
    front = serve(max_request_bytes=1 << 20)
    front.store.create_topic("t")
    body = arrow(pa.Table.from_batches([_encoded()[kind]]))
    assert len(body) < 1 << 20
    answer = front.code("POST", f"/api/topics/t/{where}", content=body, headers={"content-type": ARROW})
    assert answer == (413, "record_too_large")


@pytest.mark.parametrize("where", ["records", "stage"])
def test_columns_that_are_missing_count_for_each_row(serve: Fronting, where: str) -> None:
    front = serve()
    front.store.create_topic("wide", schema=pa.schema([(f"c{i}", pa.int64()) for i in range(4096)]))
    for rows, status in ((10, 200), (1_000_000, 413)):
        body = arrow(pa.table({"c0": pa.Array.from_buffers(pa.int8(), rows, [None, pa.py_buffer(bytes(rows))])}))
        path = f"/api/topics/wide/{where}"
        assert front.client.post(path, content=body, headers={"content-type": ARROW}).status_code == status


def test_list_views_are_refused(front: Front) -> None:
    for offsets in ([0, 1, 2, 3], [0] * 4):
        views = pa.table({"value": pa.ListViewArray.from_arrays(offsets, [3, 2, 1, 0], pa.array([3, 1, 2]))})
        answer = front.code("POST", "/api/topics/t/records", content=arrow(views), headers={"content-type": ARROW})
        assert answer == (400, "invalid_argument")


def test_large_bodies_are_taken_apart_beside_the_loop(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of millions of lines or values each step takes seconds, in which nobody else would be answered."""
    names: list[str] = []

    def spied(where: Any, name: str) -> None:
        call = getattr(where, name)

        def spy(*arguments: Any) -> Any:
            names.append(threading.current_thread().name)
            return call(*arguments)

        monkeypatch.setattr(where, name, spy)

    spied(http_pushing, "check")
    spied(http_requests, "check")
    spied(http_nsq, "_frames")
    spied(http_requests.Request, "check_record")
    front.store.create_topic("t")
    large = json.dumps({"records": [{"value": "x" * 1000}] * 100})
    front.json("POST", "/api/topics/t/records", content=large, headers={"content-type": "application/json"})
    front.json("POST", "/api/topics/t/records", content=b"a\nb", headers={"content-type": "application/x-ndjson"})
    assert front.client.post("/mpub?topic=t", content=b"a\nb").text == "OK"
    assert front.client.post("/mpub?topic=t&binary=true", content=struct.pack(">ii1s", 1, 1, b"a")).text == "OK"
    assert front.code("POST", "/api/subscribers", json={"topic": "t", "name": "x" * 70_000})[1] == "invalid_name"
    assert front.store.topic("t").offsets()[0].end == 105
    assert len(names) >= 104
    assert {name.rpartition("_")[0] for name in names} == {"jjq-http-call"}
