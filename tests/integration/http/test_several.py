"""Several topics at once: names and patterns, followed and page by page, with those that are made later; what is resumed, who may
read what, who counts as reached, and what there is at most."""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import jjq
from jjq.server.settings import tokens_in
from jjq.server.tokens import TokenFile
from tests.fronts import Events, Front, Fronting, fronting
from tests.stores import flip


def values(events: Events, count: int) -> list[str]:
    return [json.loads(each.data)["value"] for each in events.take(count)]


def page(front: Front, topics: str, **parameters: Any) -> Any:
    return front.json("GET", "/api/records", params={"topics": topics, **parameters})


def listening(store: jjq.Store) -> int:
    return len(store.stats()["subscriptions"])


def until_nobody_listens(front: Front) -> None:
    """And has left nothing, which comes a moment after it is not counted any more."""
    while listening(front.store) or list((front.store.path / "pubsub").iterdir()):
        front.json("GET", "/api/topics")


# --- following -------------------------------------------------------------------------------------------------------


def test_names_and_patterns_are_followed_with_topics_that_come_later(front: Front) -> None:
    orders, web = front.store.create_topic("orders"), front.store.create_topic("log.web")
    front.store.create_topic("other")
    for topic in (orders, web):
        topic.push(b"before")
    with front.stream("/api/stream?topics=orders,later,log.*") as events:
        front.store.topic("other").push(b"not asked for")
        orders.push(b"by name")
        web.push(b"by pattern")
        for name in ("later", "log.new"):
            front.store.create_topic(name, partitions=2).push_many([b"1", b"2"], partition=1)
        found = [json.loads(each.data) for each in events.take(6)]
    assert sorted((each["topic"], each["value"]) for each in found) == [
        ("later", "1"), ("later", "2"), ("log.new", "1"), ("log.new", "2"), ("log.web", "by pattern"), ("orders", "by name"),
    ]  # fmt: skip


def test_a_record_that_matches_several_ways_comes_once(front: Front) -> None:
    topic = front.store.create_topic("log.web")
    topic.push_many([b"1", b"2"])
    with front.stream("/api/stream?topics=log.web,log.*,*&start=earliest") as events:
        topic.push(b"3")
        assert values(events, 3) == ["1", "2", "3"]
    assert [each["value"] for each in page(front, "log.web, log.*, *")["records"]] == ["1", "2", "3"]


@pytest.mark.parametrize("start", ["earliest", "-3", "-1 hour"])
def test_history_of_all_comes_before_what_comes(front: Front, start: str) -> None:
    for name in ("a", "b"):
        front.store.create_topic(name).push_many([b"%d" % i for i in range(3)])
    with front.stream("/api/stream", params={"topics": "*", "start": start}) as events:
        assert sorted(values(events, 6)) == sorted(["0", "1", "2"] * 2)
        front.store.topic("b").push(b"new")
        assert values(events, 1) == ["new"]


def test_a_client_goes_on_from_any_id_in_all_topics(front: Front) -> None:
    """Also from the id that comes before the first event, and with topics that were made while it was away."""
    topics = [front.store.create_topic(f"t.{i}", partitions=1 + i) for i in range(3)]
    for i in range(30):
        topics[i % 3].push(b"%d" % i, key=b"%d" % i)
    with front.stream("/api/stream?topics=t.*&start=earliest") as events:
        begins_at = events.last_id
        taken = events.take(30)
    ids, first = [begins_at, *(each.id for each in taken)], [json.loads(each.data)["value"] for each in taken]
    front.store.create_topic("t.new").push(b"30")
    front.store.topic("t.0").push(b"31")
    for seen in (0, 1, 17, 30):
        with front.stream("/api/stream?topics=t.*&start=latest", headers={"Last-Event-ID": ids[seen]}) as events:
            rest = values(events, 32 - seen)
        assert sorted(first[:seen] + rest, key=int) == [str(i) for i in range(32)]


def test_while_no_topic_matches_there_is_a_place_to_go_on_from(front: Front) -> None:
    with front.stream("/api/stream?topics=later.*") as events:
        place = events.last_id
    assert place == page(front, "later.*")["next"] == "none"
    front.store.create_topic("later.a").push(b"1")
    with front.stream("/api/stream?topics=later.*", headers={"Last-Event-ID": place}) as events:
        assert values(events, 1) == ["1"]
    assert [each["value"] for each in page(front, "later.*", start=place)["records"]] == ["1"]


def test_a_topic_that_is_made_anew_under_its_name_comes_from_its_start(front: Front) -> None:
    front.store.create_topic("t").push_many([b"old"] * 5)
    front.store.create_topic("stays")
    with front.stream("/api/stream?topics=t,stays&start=earliest") as events:
        assert values(events, 5) == ["old"] * 5
        place = events.last_id
        front.store.delete_topic("t")
        front.store.topic("stays").push(b"1")
        assert values(events, 1) == ["1"]
        front.store.create_topic("t").push(b"new")
        assert values(events, 1) == ["new"]
    with front.stream("/api/stream?topics=t,stays", headers={"Last-Event-ID": place}) as events:
        assert sorted(values(events, 2)) == ["1", "new"]
    assert sorted(each["value"] for each in page(front, "t,stays", start=place)["records"]) == ["1", "new"]


def test_partitions_that_are_added_come_too(front: Front) -> None:
    topic = front.store.create_topic("t")
    with front.stream("/api/stream?topics=*") as events:
        place = events.last_id
        front.store.alter_topic("t", partitions=2)
        topic.push(b"x", partition=1)
        assert values(events, 1) == ["x"]
    assert [each["partition"] for each in page(front, "*", start=place)["records"]] == [1]


def test_nothing_is_missed_or_twice_however_often_a_client_is_cut_off(front: Front) -> None:
    """While several push, and topics are made."""
    names = [f"t.{i}" for i in range(4)]
    each, chance = 150, random.Random(7)

    def push(name: str) -> None:
        topic = front.store.create_topic(name, partitions=2)
        for i in range(each):
            topic.push(b"%d" % i, key=b"%d" % i)

    seen: list[tuple[str, int]] = []
    last = {"Last-Event-ID": "none"}
    with ThreadPoolExecutor(len(names)) as pushing:
        done = [pushing.submit(push, name) for name in names]
        while len(seen) < each * len(names):
            with front.stream("/api/stream?topics=t.*", headers=last) as events:
                for _ in range(min(chance.randrange(1, 60), each * len(names) - len(seen))):
                    record = json.loads(events.next().data)
                    seen.append((record["topic"], int(record["value"])))
                last = {"Last-Event-ID": events.last_id}
        for future in done:
            future.result()
    assert sorted(seen) == sorted((name, i) for name in names for i in range(each))


@pytest.mark.parametrize(("lost", "said"), [(1, "1 record is gone"), (4, "4 records are gone")])
def test_what_retention_took_is_said_and_passed_over(lost: int, said: str, front: Front) -> None:
    topic = front.store.create_topic("t")
    front.store.create_topic("u").push(b"u")
    topic.push_many([b"x"] * (lost + 1))
    place = page(front, "*", start="earliest", max=2)["next"]
    topic.empty()
    topic.push(b"y")
    with front.stream("/api/stream?topics=*", headers={"Last-Event-ID": place}) as events:
        assert values(events, 1) == ["y"]
        assert events.comments[1:] == [said]
    found = page(front, "*", start=place)
    assert [each["value"] for each in found["records"]] == ["y"]
    assert found["lost"] == [{"topic": "t", "partition": 0, "lost": lost, "earliest": lost + 1}]
    assert page(front, "*", start=found["next"])["lost"] == []


def test_a_store_that_can_only_be_read_is_followed(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "s") as store:
        store.create_topic("t").push(b"x")
    with fronting(tmp_path / "s", options={"read_only": True}) as front:
        with front.stream("/api/stream?topics=*&start=earliest") as events:
            assert values(events, 1) == ["x"]
        found = page(front, "*")
        assert [each["value"] for each in found["records"]] == ["x"]
        assert page(front, "*", start=found["next"], timeout=0.01)["records"] == []


# --- pages -----------------------------------------------------------------------------------------------------------


def test_pages_have_of_each_topic_its_share_and_all_in_the_end(front: Front) -> None:
    for name, count in (("a", 200), ("b", 10), ("c", 10)):
        front.store.create_topic(name).push_many([b"%d" % i for i in range(count)])
    first = page(front, "*", max=30)
    assert {name: sum(each["topic"] == name for each in first["records"]) for name in "abc"} == dict.fromkeys("abc", 10)
    seen, start, single = [], "earliest", []
    while records := (found := page(front, "a,[bc]", start=start, max=7))["records"]:
        seen += [(each["topic"], each["offset"]) for each in records]
        start = found["next"]
    assert sorted(seen) == sorted((name, i) for name, count in (("a", 200), ("b", 10), ("c", 10)) for i in range(count))
    start = "earliest"
    for _ in range(6):
        found = page(front, "*", start=start, max=1)
        single += [each["topic"] for each in found["records"]]
        start = found["next"]
    assert set(single) == set("abc")


def test_a_wait_ends_with_a_record_of_a_topic_that_is_made_meanwhile(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("jjq.server.waiting._LONGEST_S", 1000.0)  # it is told
    front.store.create_topic("t.a").push(b"before")
    start = page(front, "t.*", start="latest")["next"]
    with ThreadPoolExecutor(1) as waiting:
        found = waiting.submit(page, front, "t.*", start=start, timeout=60)
        while not listening(front.store):
            assert not found.done()
        front.store.create_topic("t.b").push(b"x")
        assert [(each["topic"], each["value"]) for each in found.result()["records"]] == [("t.b", "x")]
        again = waiting.submit(page, front, "t.*", start=found.result()["next"], timeout=60)
        while not listening(front.store):
            assert not again.done()
        front.store.topic("t.a").push(b"y")
        assert [each["value"] for each in again.result()["records"]] == ["y"]
    assert page(front, "t.*", start=again.result()["next"], timeout=0.01)["records"] == []


def test_damage_in_one_topic_holds_up_no_other(front: Front) -> None:
    bad, good = front.store.create_topic("bad"), front.store.create_topic("good")
    for topic in (bad, good):
        topic.push_many([b"x" * 100] * 3)
    (path,) = (front.store.path / "topics" / bad.id / "0").glob("*.arrows")
    whole = path.read_bytes()
    flip(path, len(whole) - 60)
    found = page(front, "*")
    assert [each["topic"] for each in found["records"]] == ["good"] * 3
    answer = front.client.get("/api/records", params={"topics": "*", "start": found["next"]})
    assert (answer.status_code, answer.json()["code"]) == (500, "damaged_segment")
    good.push(b"more")
    assert [each["value"] for each in page(front, "*", start=found["next"])["records"]] == ["more"]
    path.write_bytes(whole)


# --- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/stream", "/api/records"])
@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({}, (400, "invalid_request")),
        ({"topics": ""}, (400, "invalid_request")),
        ({"topics": "a,,b"}, (400, "invalid_name")),
        ({"topics": "a b"}, (400, "invalid_name")),
        ({"topics": "*\0x"}, (400, "invalid_argument")),
        ({"topics": "*" * 251}, (400, "invalid_request")),
        ({"topics": ",".join(f"t{i}" for i in range(101))}, (400, "invalid_request")),
        ({"topics": "t", "start": "0"}, (400, "invalid_request")),
        ({"topics": "t", "start": "17"}, (400, "invalid_request")),
        ({"topics": "t", "start": "0:17"}, (400, "invalid_request")),
        ({"topics": "t", "start": "tomorrow"}, (400, "invalid_argument")),
    ],
)
def test_what_cannot_be_asked_for(front: Front, path: str, parameters: dict[str, str], error: tuple[int, str]) -> None:
    front.store.create_topic("t")
    assert front.code("GET", path, params=parameters) == error


@pytest.mark.parametrize("path", ["/api/stream", "/api/records"])
def test_a_place_beyond_what_there_is_is_refused(front: Front, path: str) -> None:
    topic = front.store.create_topic("t")
    topic.push(b"x")
    for place in ("0:2", "1:0,2:1"):
        place = f"{topic.id[:12]}={place}"
        assert front.code("GET", path, params={"topics": "t", "start": place}) == (400, "offset_out_of_range")


def test_a_place_keeps_no_partitions_that_are_not_there(front: Front) -> None:
    """They would be in the id of each event."""
    topic = front.store.create_topic("t", partitions=2)
    topic.push(b"x", partition=1)
    start = f"{topic.id[:12]}=0:0,1:0,2:0,9999:0"
    with front.stream("/api/stream", params={"topics": "t", "start": start}) as stream:
        assert stream.next().id == f"{topic.id[:12]}=0:0,1:1"


@pytest.mark.parametrize("path", ["/api/stream", "/api/records"])
def test_topics_have_as_many_partitions_together_as_one_may(front: Front, path: str) -> None:
    front.store.create_topic("wide", partitions=1024, sync="none")
    assert front.client.head("/api/stream?topics=wide").status_code == 200
    front.store.create_topic("narrow")
    answer = front.client.get(path, params={"topics": "*"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert "the 2 topics that match have 1,025 partitions" in answer.json()["message"]


def test_a_stream_ends_when_more_topics_come_than_may_be(front: Front) -> None:
    with front.stream("/api/stream?topics=*") as events:
        front.store.create_topic("narrow")
        front.store.create_topic("wide", partitions=1024, sync="none")
        said = events.next()
    assert (said.type, json.loads(said.data)["code"]) == ("jjq-end", "invalid_request")


def test_streams_of_several_topics_are_counted_with_the_others(serve: Fronting) -> None:
    front = serve(max_subscriptions=1)
    front.store.create_topic("t")
    with front.stream("/api/stream?topics=*") as events:
        for path in ("/api/topics/t/stream", "/api/stream?topics=t"):
            assert front.code("GET", path) == (429, "too_many_requests")
        assert listening(front.store) == 1
        front.store.topic("t").push(b"x")
        assert values(events, 1) == ["x"]


# --- who may ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def locked(tmp_path: Path, serve: Fronting) -> tuple[Front, dict[str, Any]]:
    """Its front, and the headers of a token that reads `mine*`."""
    with jjq.open(tmp_path / "store") as store:
        store.create_topic("mine").push(b"1")
        store.create_topic("secret").push(b"2")
    token, _ = TokenFile(tokens_in(tmp_path / "store")).create("reader", read=("mine*",), write=("secret",))
    return serve(heartbeat_s=0.1), {"headers": {"authorization": f"Bearer {token}"}}


@pytest.mark.parametrize("path", ["/api/stream", "/api/records"])
def test_a_name_that_may_not_be_read_is_refused(locked: tuple[Front, dict[str, Any]], path: str) -> None:
    front, token = locked
    for topics in ("secret", "mine,secret", "mine*,not-there"):
        assert front.code("GET", path, params={"topics": topics}, **token) == (403, "forbidden")
    assert front.code("GET", path, params={"topics": "mine"}) == (401, "unauthorized")


def test_of_a_pattern_come_the_topics_that_may_be_read(locked: tuple[Front, dict[str, Any]]) -> None:
    front, token = locked
    with front.stream("/api/stream?topics=*&start=earliest", **token) as events:
        assert values(events, 1) == ["1"]  # among topics there is no order
        front.store.topic("secret").push(b"3")
        front.store.create_topic("secret.too").push(b"4")
        front.store.create_topic("mine.too").push(b"5")
        assert values(events, 1) == ["5"]
        assert front.store.topic("secret").id[:12] not in events.last_id
    found = front.json("GET", "/api/records?topics=*", **token)
    assert sorted(each["value"] for each in found["records"]) == ["1", "5"]
    assert len(found["next"].split(";")) == 2


def test_what_goes_on_ends_when_the_token_is_revoked(locked: tuple[Front, dict[str, Any]]) -> None:
    front, token = locked
    start = front.json("GET", "/api/records?topics=*&start=latest", **token)["next"]
    with ThreadPoolExecutor(1) as waiting, front.stream("/api/stream?topics=*", **token) as events:
        path = "/api/records"
        asked = waiting.submit(front.code, "GET", path, params={"topics": "*", "start": start, "timeout": 60}, **token)
        while listening(front.store) < 2:
            assert not asked.done()
        TokenFile(tokens_in(front.store.path)).revoke("reader")
        said = events.next()
        front.store.topic("mine").push(b"after")
        assert asked.result() == (401, "unauthorized")
    assert (said.type, json.loads(said.data)["code"]) == ("jjq-end", "unauthorized")


# --- who is reached --------------------------------------------------------------------------------------------------


def test_publishing_counts_streams_and_waits(front: Front) -> None:
    def publish(name: str) -> int:
        return int(front.json("POST", f"/api/topics/{name}/publish", content=name.encode())["receivers"])

    assert publish("news") == 0
    with ThreadPoolExecutor(1) as waiting, front.stream("/api/stream?topics=news,log.*") as events:
        assert [publish(name) for name in ("news", "log.web", "other")] == [1, 1, 0]
        assert sorted(values(events, 2)) == ["log.web", "news"]
        found = waiting.submit(page, front, "log.*", start="latest", timeout=60)
        while listening(front.store) < 2:
            assert not found.done()
        assert publish("log.web") == 2
        assert [each["value"] for each in found.result()["records"]] == ["log.web"]
    until_nobody_listens(front)
    assert publish("news") == 0
    assert list((front.store.path / "pubsub").iterdir()) == []


def test_an_ephemeral_topic_goes_with_the_stream_that_followed_it(front: Front) -> None:
    front.store.create_topic("stays")
    with front.stream("/api/stream?topics=*") as events:
        for i in range(3):
            assert front.store.publish("goes", b"%d" % i) == 1
        assert values(events, 3) == ["0", "1", "2"]
    while len(front.store.topics()) > 1:
        front.json("GET", "/api/topics")
    assert [each.name for each in front.store.topics()] == ["stays"]


def test_a_full_topic_knows_what_a_stream_has_read(front: Front) -> None:
    topic = front.store.create_topic("t", ephemeral=True, max_records=10, when_full="refuse")
    with front.stream("/api/stream?topics=*") as events:
        for i in range(50):
            topic.push(b"%d" % i)
            assert values(events, 1) == [str(i)]


def test_a_stop_tells_the_stream_and_leaves_nothing_of_it(front: Front) -> None:
    with front.stream("/api/stream?topics=*") as events:
        front.store.publish("goes", b"x")
        assert values(events, 1) == ["x"]
        front.http.stop(5.0)
        assert json.loads(events.next().data)["code"] == "stopping"
    assert list((front.store.path / "pubsub").iterdir()) == []
    assert front.store.topics() == []


def test_many_streams_share_one_feed_a_topic_and_no_thread_each(front: Front) -> None:
    for name in ("a", "b", "c"):
        front.store.create_topic(name)
    streams = 20
    ready, got = threading.Barrier(streams + 1), []

    def follow() -> None:
        with front.stream("/api/stream?topics=*") as events:
            events.take(1)
            ready.wait(60)
            got.append(events.next().id)

    followers = [threading.Thread(target=follow) for _ in range(streams)]
    for each in followers:
        each.start()
    while listening(front.store) < streams:
        assert all(each.is_alive() for each in followers)
    front.store.topic("a").push(b"x")
    ready.wait(60)
    hub = front.http._parts.hub
    assert len(hub._feeds) == 3
    assert sum(each.name.startswith("jjq-http") for each in threading.enumerate()) <= 26
    front.store.topic("b").push(b"y")
    for each in followers:
        each.join(60)
    assert len(got) == streams
    assert len(set(got)) == 1
