"""NSQ's HTTP paths, asked as its own documentation does."""

import struct

import pytest

from tests.fronts import Front, Fronting


def values(front: Front, topic: str) -> list[bytes]:
    return [bytes(each) for each in front.store.topic(topic).read(columns=["value"]).read_all().column(0).to_pylist()]


def frames(*messages: bytes) -> bytes:
    return struct.pack(">i", len(messages)) + b"".join(struct.pack(">i", len(each)) + each for each in messages)


def test_pub_pushes_the_body_and_makes_the_topic(front: Front) -> None:
    answer = front.client.post("/pub?topic=orders", content=b"hello \xff world")
    assert (answer.status_code, answer.text) == (200, "OK")
    assert values(front, "orders") == [b"hello \xff world"]


def test_pub_takes_what_any_client_says_of_the_body(front: Front) -> None:
    for kind in ("application/x-www-form-urlencoded", "application/json", "text/plain", "x/y"):
        assert front.client.post("/pub?topic=orders", content=b"{}", headers={"content-type": kind}).text == "OK"
    assert values(front, "orders") == [b"{}"] * 4


def test_mpub_pushes_each_line_or_each_frame(front: Front) -> None:
    assert front.client.post("/mpub?topic=lines", content=b"one\ntwo\n\nthree\n").text == "OK"
    assert values(front, "lines") == [b"one", b"two", b"three"]
    assert front.client.post("/mpub?topic=frames&binary=true", content=frames(b"one\n", b"\0\xff")).text == "OK"
    assert values(front, "frames") == [b"one\n", b"\0\xff"]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/pub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/pub?topic=", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=a%20b", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=a:b", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=" + "x" * 65, b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=..%2F..%2Fx", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=t", b"", 400, "MSG_EMPTY"),
        ("/pub?topic=t&defer=x", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=-1", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t&defer=3600001", b"x", 400, "INVALID_DEFER"),
        ("/pub?topic=t", b"x" * 5000, 413, "MSG_TOO_BIG"),
        ("/mpub?topic=t", b"\n\n", 400, "MSG_EMPTY"),
        ("/mpub?topic=t&binary=true", b"abc", 400, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=true", struct.pack(">i", 2_000_000_000), 400, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=true", frames(b"one", b"two")[:-1], 400, "BAD_MESSAGE"),
        ("/mpub?topic=t&binary=true", struct.pack(">ii", 1, -5), 400, "BAD_MESSAGE"),
        ("/topic/empty?topic=none", b"", 404, "TOPIC_NOT_FOUND"),
        ("/topic/delete?topic=none", b"", 404, "TOPIC_NOT_FOUND"),
        ("/channel/create?topic=none&channel=c", b"", 404, "TOPIC_NOT_FOUND"),
        ("/channel/create?topic=none", b"", 400, "MISSING_ARG_CHANNEL"),
        ("/channel/pause?topic=there&channel=none", b"", 404, "CHANNEL_NOT_FOUND"),
        ("/channel/pause?topic=there&channel=a%2Fb", b"", 400, "INVALID_CHANNEL"),
    ],
)
def test_errors_are_nsqs_words_and_jjqs_codes(
    serve: Fronting, path: str, body: bytes, status: int, message: str
) -> None:
    front = serve(max_record_bytes=4096)
    front.store.create_topic("there")
    answer = front.client.post(path, content=body)
    assert (answer.status_code, answer.json()["message"]) == (status, message)
    assert answer.json()["code"]
    assert [each.name for each in front.store.topics()] == ["there"]


def test_a_deferred_message_waits_for_its_time_on_channels_alone(front: Front) -> None:
    front.client.post("/topic/create?topic=orders")
    front.client.post("/channel/create?topic=orders&channel=workers")
    assert front.client.post("/pub?topic=orders&defer=3600000", content=b"later").text == "OK"
    with front.store.channel("orders", "workers") as channel:
        assert channel.receive() == []
        assert channel.counts().deferred == 1
    assert values(front, "orders") == [b"later"]


def test_topics_are_made_emptied_paused_and_deleted(front: Front) -> None:
    for _ in range(2):
        assert front.client.post("/topic/create?topic=orders").status_code == 200
    front.client.post("/pub?topic=orders", content=b"x")
    assert front.client.post("/topic/empty?topic=orders").status_code == 200
    topic = front.store.topic("orders")
    assert (topic.offsets()[0].start, topic.offsets()[0].end) == (1, 1)
    assert front.client.post("/topic/pause?topic=orders").status_code == 200
    assert topic.paused
    assert front.client.post("/topic/unpause?topic=orders").status_code == 200
    assert not topic.paused
    assert front.client.post("/topic/delete?topic=orders").status_code == 200
    assert front.store.topics() == []


def test_channels_are_made_paused_emptied_and_deleted(front: Front) -> None:
    front.client.post("/pub?topic=orders", content=b"x")
    for _ in range(2):
        assert front.client.post("/channel/create?topic=orders&channel=workers").status_code == 200
    channel = front.store.channel("orders", "workers")
    assert channel.counts().depth == 1
    assert front.client.post("/channel/pause?topic=orders&channel=workers").status_code == 200
    assert channel.paused
    assert front.client.post("/channel/unpause?topic=orders&channel=workers").status_code == 200
    assert not channel.paused
    assert front.client.post("/channel/empty?topic=orders&channel=workers").status_code == 200
    assert channel.counts().depth == 0
    channel.close()
    assert front.client.post("/channel/delete?topic=orders&channel=workers").status_code == 200
    assert front.store.channels() == []


def test_an_ephemeral_topic_is_one_by_its_name(front: Front) -> None:
    with front.store.pubsub() as listener:
        listener.subscribe("news#ephemeral")
        assert front.client.post("/pub?topic=news%23ephemeral", content=b"x").text == "OK"
        assert front.store.topic("news#ephemeral").config.ephemeral


def test_stats_are_those_that_nsqs_tools_read(front: Front) -> None:
    front.client.post("/mpub?topic=orders", content=b"a\nbb\nccc")
    front.client.post("/channel/create?topic=orders&channel=workers")
    with front.store.channel("orders", "workers") as channel:
        first, _ = channel.receive(2)
        first.ack()
        found = front.json("GET", "/stats?format=json")
        assert found["health"] == "OK"
        (topic,) = found["topics"]
        assert (topic["topic_name"], topic["message_count"], topic["paused"]) == ("orders", 3, False)
        (there,) = topic["channels"]
        assert (there["channel_name"], there["depth"], there["in_flight_count"]) == ("workers", 1, 1)
        assert (there["message_count"], there["client_count"], len(there["clients"])) == (2, 1, 1)
        text = front.client.get("/stats").text
        assert "[orders" in text
        assert "[workers" in text
        assert front.json("GET", "/stats?format=json&topic=orders&channel=x")["topics"][0]["channels"] == []


def test_ping_and_info(front: Front) -> None:
    assert front.client.get("/ping").text == "OK"
    assert front.json("GET", "/info")["http_port"] == front.port
