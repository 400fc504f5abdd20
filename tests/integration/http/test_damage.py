"""What is whole before a damaged place comes over HTTP in every way to read, and is not passed over; then the damage is told."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jjq
from jjq.server.events import SCHEMA
from jjq.server.http_operations import ARROW
from tests.fronts import Front
from tests.stores import flip, roll, without_active_file

WHOLE = 100  # records before the damage


def damage(front: Front, name: str, segment: str) -> Iterator[None]:
    """One bit of a file the other way round, and back."""
    path: Path = front.store.path / "topics" / front.store.topic(name).id / "0" / f"{segment}.arrows"
    length = path.stat().st_size
    flip(path, length - 60)
    yield
    flip(path, length - 60)


@pytest.fixture
def damaged(front: Front) -> Iterator[Front]:
    """A topic `t` of two segments, of which the second is damaged."""
    topic = front.store.create_topic("t")
    topic.push_many([b"%d" % i for i in range(WHOLE)])
    roll(front.store, "t")
    topic.push_many([b"x" * 100] * 3)
    for _ in damage(front, "t", topic.segments()[-1].id):
        yield front


def offsets(found: dict[str, Any], topic: str = "t") -> list[int]:
    return [each["offset"] for each in found["records"] if each["topic"] == topic]


@pytest.mark.parametrize("others", [0, 1])
def test_pages_of_several_topics(damaged: Front, others: int) -> None:
    for _ in range(others):
        damaged.store.create_topic("u").push(b"y")
    found = damaged.json("GET", "/api/records?topics=*&max=1000")
    assert (offsets(found), len(offsets(found, "u"))) == (list(range(WHOLE)), others)
    path = f"/api/records?topics=*&start={found['next']}"
    assert damaged.code("GET", path) == (500, "damaged_segment")


@pytest.mark.parametrize("what", ["records?", "search?contains=9&"])
def test_pages_and_searches_of_one(damaged: Front, what: str) -> None:
    found = damaged.json("GET", f"/api/topics/t/{what}max=1000")
    assert offsets(found) == [i for i in range(WHOLE) if what == "records?" or "9" in str(i)]
    assert damaged.code("GET", f"/api/topics/t/{what}start={found['next']}") == (500, "damaged_segment")


def test_who_asks_for_the_head_of_an_arrow_stream_has_nothing_read(
    damaged: Front, caplog: pytest.LogCaptureFixture
) -> None:
    answer = damaged.client.head("/api/topics/t/records", headers={"accept": ARROW})
    assert (answer.status_code, answer.headers["content-type"]) == (200, ARROW)
    assert damaged.client.head("/api/topics/t/records?start=1000", headers={"accept": ARROW}).status_code == 400
    assert damaged.client.get("/healthz").status_code == 200  # by the same connection, so that the others are over
    assert "failed while it was being answered" not in caplog.text


def test_pops(damaged: Front) -> None:
    """They have moved the cursor, so nobody else gets what they took."""
    front = damaged
    front.store.create_subscriber("t", "s").close()
    assert offsets(front.json("POST", "/api/subscribers/s/pop?max=1000")) == list(range(WHOLE))
    assert front.code("POST", "/api/subscribers/s/pop") == (500, "damaged_segment")
    assert front.json("GET", "/api/subscribers/s")["positions"] == {"0": WHOLE}


def test_polls(damaged: Front) -> None:
    damaged.store.create_subscriber("t", "s").close()
    found = damaged.json("GET", "/api/subscribers/s/poll?max=1000")
    assert offsets(found) == list(range(WHOLE))
    answer = damaged.code("GET", "/api/subscribers/s/poll", params={"after": found["next"]})
    assert answer == (500, "damaged_segment")


@pytest.mark.parametrize("path", ["/api/topics/t/stream?start=0", "/api/stream?topics=t&start=earliest"])
def test_streams(damaged: Front, path: str) -> None:
    with damaged.stream(path) as events:
        found = [json.loads(each.data)["offset"] for each in events.take(WHOLE)]
        end = events.next()
    assert found == list(range(WHOLE))
    assert (end.type, json.loads(end.data)["code"]) == ("jjq-end", "damaged_segment")


def test_a_stream_that_begins_behind_the_damage(front: Front) -> None:
    """Though others read the piece that it is in from its start."""
    topic = front.store.create_topic("t")
    topic.push_many([b"x" * 100] * 3)
    bad = topic.segments()[-1].id
    roll(front.store, "t")
    topic.push_many([b"y"] * 3)
    for _ in damage(front, "t", bad):
        with front.stream("/api/topics/t/stream?start=4") as events:
            assert [json.loads(each.data)["offset"] for each in events.take(2)] == [4, 5]


def test_events_of_a_type(front: Front) -> None:
    topic = front.store.create_topic("events", schema=SCHEMA)
    topic.push_many([{"type": "a" if i % 2 else "b", "body": b"%d" % i} for i in range(WHOLE)])
    roll(front.store, "events")
    topic.push_many([{"type": "a", "body": b"x" * 100}] * 3)
    for _ in damage(front, "events", topic.segments()[-1].id):
        with front.stream("/api/events?start=0&typeMatcher=a") as events:
            found = [int(each.data) for each in events.take(WHOLE // 2)]
            end = events.next()
        assert found == list(range(1, WHOLE, 2))
        assert (end.type, json.loads(end.data)["code"]) == ("jjq-end", "damaged_segment")


def test_lists_and_numbers_name_what_is_damaged_and_have_the_others(front: Front) -> None:
    for name in ("bad", "good"):
        # By another store, so that the front's has no file of theirs open.
        with jjq.open(front.store.path) as store:
            store.create_topic(name).push(b"x")
            store.create_subscriber(name, f"{name}-reader")
            store.channel(name, f"{name}-work", create=True)
    of = front.store.topic("bad").id
    with without_active_file(front.store.path, of, "*.index"):
        for path, kind, name in (
            ("/api/topics", "topic", "good"), ("/api/subscribers", "subscriber", "good-reader"),
            ("/api/channels", "channel", "good-work"),
        ):  # fmt: skip
            found = front.json("GET", path)
            assert [each["name"] for each in found[f"{kind}s"]] == [name]
            assert_told(front, found["damaged"], [kind])
        every = ["topic", "subscriber", "channel"]
        found = front.json("GET", "/api/stats")
        assert [each["name"] for each in found["topics"]] == ["good"]
        assert_told(front, found["damaged"], every)
        with front.stream("/api/stats/stream") as events:
            assert_told(front, json.loads(events.next().data)["damaged"], every)
        found = front.json("GET", "/stats?format=json")
        assert [each["topic_name"] for each in found["topics"]] == ["good"]
        assert_told(front, found["damaged"], every)
        assert "damaged: topic bad: the store: the active file is missing" in front.client.get("/stats").text
        lines = front.client.get("/metrics").text.splitlines()
        assert [each for each in lines if each.startswith("jjq_damaged")] == ['jjq_damaged{topic="bad"} 1']
        assert 'jjq_topic_records{topic="good"} 1' in lines
    assert front.json("GET", "/api/stats")["damaged"] == []


def assert_told(front: Front, damaged: list[dict[str, str]], kinds: list[str]) -> None:
    assert [(each["topic"], each["what"]) for each in damaged] == [("bad", kind) for kind in kinds]
    for each in damaged:
        assert "run `jjq repair`" in each["error"]
        assert str(front.store.path) not in each["error"]
