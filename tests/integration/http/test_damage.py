"""What is whole before a damaged place comes over HTTP in every way to read, and is not passed over; then the damage is told."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jjq.server.events import SCHEMA
from tests.fronts import Front
from tests.stores import flip, roll

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
