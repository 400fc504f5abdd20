"""Subscribers and channels over HTTP."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jjq.server import http_channels, http_subscribers
from tests.fronts import Front


def test_a_subscriber_is_made_popped_peeked_moved_and_deleted(front: Front) -> None:
    front.store.create_topic("t").push_many([b"%d" % i for i in range(10)])
    made = front.json("POST", "/api/subscribers", status=201, json={"topic": "t", "name": "billing", "start": 2})
    assert (made["name"], made["topic"], made["positions"], made["lag"][0]["records"]) == ("billing", "t", {"0": 2}, 8)
    path = "/api/subscribers/billing"
    assert [each["value"] for each in front.json("GET", f"{path}/peek")["records"]] == ["2"]
    assert [each["value"] for each in front.json("POST", f"{path}/pop")["records"]] == ["2"]
    assert [each["offset"] for each in front.json("POST", f"{path}/pop?max=100")["records"]] == list(range(3, 10))
    assert front.json("POST", f"{path}/pop")["records"] == []
    assert front.json("POST", f"{path}/seek", json={"start": {"0": 9}})["positions"] == {"0": 9}
    assert front.json("POST", f"{path}/seek", json={"start": "earliest"})["positions"] == {"0": 0}
    assert [each["name"] for each in front.json("GET", "/api/subscribers?topic=t")["subscribers"]] == ["billing"]
    assert front.code("POST", "/api/subscribers", json={"topic": "t", "name": "billing"}) == (409, "subscriber_exists")
    front.json("DELETE", path, status=204)
    assert front.code("GET", path) == (404, "subscriber_not_found")
    assert front.code("POST", "/api/subscribers", json={"topic": "x"}) == (404, "topic_not_found")


def test_a_pop_waits_for_a_record_and_each_goes_to_one(front: Front) -> None:
    front.store.create_topic("t")
    front.json("POST", "/api/subscribers", status=201, json={"topic": "t", "name": "s"})
    with ThreadPoolExecutor(20) as poppers:
        popped = [poppers.submit(front.json, "POST", "/api/subscribers/s/pop?timeout=60") for _ in range(20)]
        front.store.topic("t").push_many([b"%d" % i for i in range(20)])
        values = [each["value"] for one in popped for each in one.result()["records"]]
    assert sorted(map(int, values)) == list(range(20))


def test_who_waits_hears_that_the_topic_is_deleted(front: Front) -> None:
    front.store.create_topic("t")
    front.json("POST", "/api/subscribers", status=201, json={"topic": "t", "name": "s"})
    with ThreadPoolExecutor(1) as popper:
        popped = popper.submit(front.client.post, "/api/subscribers/s/pop?timeout=60")
        pause = threading.Event()
        while not front.http._parts.counters.running["pop_records"]:
            pause.wait(0.005)
        front.store.delete_topic("t")
        assert popped.result().json()["code"] in ("topic_deleted", "subscriber_not_found")


def test_a_channel_is_made_with_settings_and_changed(front: Front) -> None:
    path = "/api/topics/orders/channels/workers"
    made = front.json("PUT", path, json={"max_attempts": 2, "ack_timeout": 5})
    assert (made["name"], made["topic"], made["max_attempts"], made["ack_timeout"]) == ("workers", "orders", 2, 5.0)
    assert front.json("PUT", path, json={"max_attempts": None})["max_attempts"] is None
    assert front.json("GET", path)["counts"]["depth"] == 0
    assert front.json("PUT", path)["max_attempts"] is None  # without a body nothing is changed
    assert [each["name"] for each in front.json("GET", "/api/channels")["channels"]] == ["workers"]
    front.json("DELETE", path, status=204)
    assert front.code("GET", path) == (404, "channel_not_found")


def test_records_are_received_acknowledged_requeued_and_touched(front: Front) -> None:
    front.store.create_topic("t").push_many([b"%d" % i for i in range(5)])
    path = "/api/topics/t/channels/c"
    front.json("PUT", path, json={})
    got = front.json("POST", f"{path}/receive?max=3")["deliveries"]
    assert [(each["record"]["value"], each["attempts"]) for each in got] == [("0", 1), ("1", 1), ("2", 1)]
    ids = [each["id"] for each in got]
    assert front.json("POST", f"{path}/ack", json={"deliveries": ids[:1]}) == {"settled": 1}
    assert front.json("POST", f"{path}/touch", json={"deliveries": ids[1:]}) == {"settled": 2}
    assert front.json("POST", f"{path}/requeue", json={"deliveries": ids[1:2], "delay": 0}) == {"settled": 1}
    assert front.code("POST", f"{path}/ack", json={"deliveries": [ids[0], ids[2]]}) == (409, "delivery_expired")
    counts = front.json("GET", path)["counts"]
    assert (counts["acked"], counts["requeued"], counts["in_flight"], counts["depth"]) == (2, 1, 0, 3)
    again = front.json("POST", f"{path}/receive?max=10&timeout=60")["deliveries"]
    assert [(each["record"]["value"], each["attempts"]) for each in again] == [("1", 2), ("3", 1), ("4", 1)]


def test_a_consumer_has_at_most_so_many_in_hand(front: Front) -> None:
    front.store.create_topic("t").push_many([b"x"] * 10)
    path = "/api/topics/t/channels/c"
    front.json("PUT", path, json={})
    assert len(front.json("POST", f"{path}/receive?max=10&consumer=a&max_in_flight=4")["deliveries"]) == 4
    assert front.json("POST", f"{path}/receive?max=10&consumer=a")["deliveries"] == []
    assert len(front.json("POST", f"{path}/receive?max=10&consumer=b")["deliveries"]) == 6


def test_of_two_deliveries_of_a_record_only_the_earlier_one_is_no_longer_in_hand(front: Front) -> None:
    front.store.create_topic("t").push(b"first")
    path = "/api/topics/t/channels/c"
    front.json("PUT", path, json={"ack_timeout": 0.05})
    ids = [
        each["id"]
        for attempt in (1, 2)
        for each in front.json("POST", f"{path}/receive?timeout=60")["deliveries"]
        if each["attempts"] == attempt
    ]
    assert len(ids) == 2
    answer = front.client.post(f"{path}/ack", json={"deliveries": ids})
    assert answer.json()["message"].startswith("1 of 2 deliveries")
    assert front.json("GET", path)["counts"]["acked"] == 1


def test_what_one_consumer_has_no_more_does_not_keep_anothers_from_being_settled(front: Front) -> None:
    topic, path = front.store.create_topic("t"), "/api/topics/t/channels/c"
    front.json("PUT", path, json={})
    topic.push(b"first")
    ids = [each["id"] for each in front.json("POST", f"{path}/receive?consumer=a")["deliveries"]]
    front.json("POST", f"{path}/empty", status=204)
    topic.push_many([b"second", b"third"])
    ids += [each["id"] for each in front.json("POST", f"{path}/receive?consumer=b&max=2")["deliveries"]]
    assert len(ids) == 3
    answer = front.client.post(f"{path}/ack", json={"deliveries": ids})
    assert (answer.status_code, answer.json()["code"]) == (409, "delivery_expired")
    assert answer.json()["message"].startswith("1 of 3 deliveries is not in hand: ")
    counts = front.json("GET", path)["counts"]
    assert (counts["acked"], counts["in_flight"], counts["depth"]) == (2, 0, 0)


def test_dead_letters_are_given_back(front: Front) -> None:
    front.store.create_topic("t").push(b"poison")
    path = "/api/topics/t/channels/c"
    front.json("PUT", path, json={"max_attempts": 1})
    (got,) = front.json("POST", f"{path}/receive")["deliveries"]
    front.json("POST", f"{path}/requeue", json={"deliveries": [got["id"]], "reason": "no"})
    assert front.json("GET", path)["counts"]["dead"] == 1
    assert front.json("POST", f"{path}/revive") == {"revived": 1}
    (got,) = front.json("POST", f"{path}/receive?timeout=60")["deliveries"]
    assert got["record"]["value"] == "poison"


def test_what_a_broker_had_in_hand_goes_to_others_when_it_stops(front: Front) -> None:
    front.store.create_topic("t").push(b"x")
    path = "/api/topics/t/channels/c"
    front.json("PUT", path, json={})
    assert len(front.json("POST", f"{path}/receive")["deliveries"]) == 1
    front.client.close()
    front.http.stop(5.0)
    with front.store.channel("t", "c") as channel:
        (delivery,) = channel.receive()
        assert delivery.record.value == b"x"
        delivery.ack()


@pytest.mark.parametrize("path", ["receive", "ack", "pause", "revive"])
def test_a_channel_that_is_not_there_is_named(front: Front, path: str) -> None:
    front.store.create_topic("t")
    body = {"deliveries": ["x"]} if path == "ack" else None
    code = front.code("POST", f"/api/topics/t/channels/none/{path}", json=body)
    assert code == ((409, "delivery_expired") if path == "ack" else (404, "channel_not_found"))


def test_a_channel_made_again_under_its_name_is_another(front: Front) -> None:
    front.store.create_topic("t").push(b"x")
    path = "/api/topics/t/channels/c"
    for _ in range(3):
        front.json("PUT", path, json={})
        assert len(front.json("POST", f"{path}/receive")["deliveries"]) == 1
        front.json("DELETE", path, status=204)


@pytest.mark.parametrize("kind", ["subscribers", "channels"])
def test_lists_leave_out_what_is_deleted_while_they_are_made(
    front: Front, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    front.store.create_topic("t")
    for name in ("a", "b"):
        front.store.create_subscriber("t", name).close()
        front.store.channel("t", name, create=True).close()
    module = {"subscribers": http_subscribers, "channels": http_channels}[kind]
    describe = module._described

    def last(each: Any) -> dict[str, Any]:
        if each.name == "a":
            front.store.delete_subscriber("b")
            front.store.delete_channel("t", "b")
        return describe(each)

    monkeypatch.setattr(module, "_described", last)
    assert [each["name"] for each in front.json("GET", f"/api/{kind}")[kind]] == ["a"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("subscribers", ["a"], "the body must be an object, not ['a']"),
        ("subscribers/s/commit", {"next": 4}, "'next' of the body must be a text, not 4"),
        ("subscribers/s/commit", None, "the body lacks 'next'; it takes next"),
        ("topics/t/channels/c/ack", {"deliveries": [1]}, "item 0 of 'deliveries' of the body must be a text, not 1"),
    ],
)
def test_what_is_wrong_in_a_body_is_said_in_words(front: Front, path: str, body: Any, said: str) -> None:
    front.json("POST", "/api/topics", status=201, json={"name": "t"})
    front.json("POST", "/api/subscribers", status=201, json={"topic": "t", "name": "s"})
    front.json("PUT", "/api/topics/t/channels/c")
    assert front.json("POST", f"/api/{path}", status=400, json=body)["message"].startswith(said)


def test_errors_say_what_to_request_and_not_what_to_call_in_python(front: Front) -> None:
    bounds = {"segment_rows": 1, "retention_segments": 1}
    front.json("POST", "/api/topics", status=201, json={"name": "t", "schema": {"a": "int32"}, **bounds})
    made = {"topic": "t", "name": "s"}
    front.json("POST", "/api/subscribers", status=201, json=made)
    for a in range(3):
        front.json("POST", "/api/topics/t/records", json={"value": {"a": a}})
    while front.store.topic("t").offsets()[0].start < 2:
        front.store.maintain()  # or the broker, which is at it by itself
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/api/topics", {"name": "t"}), ("POST", "/api/subscribers", made), ("GET", "/api/topics/t/channels/c", None),
        ("POST", "/api/topics/t/records", {"value": {"b": 1}}), ("POST", "/api/subscribers/s/pop", None),
        ("POST", "/api/topics", {"name": "t", "exist_ok": True, "sync": "none"}),
        ("POST", "/api/topics", {"name": "t", "exist_ok": True, "schema": {"a": "int32", "b": "int32"}}),
        ("GET", "/api/subscribers/t", None),
    ]  # fmt: skip
    said = [front.client.request(method, path, json=body).json()["message"] for method, path, body in asked]
    assert said[0].endswith('; with "exist_ok": true it is used as it is')
    assert said[1].endswith("already")
    assert said[2].endswith("make it by PUT /api/topics/TOPIC/channels/CHANNEL")
    assert said[3].endswith('Add one by PATCH /api/topics/TOPIC with {"add_columns": {NAME: TYPE}}')
    assert 'POST /api/subscribers/s/seek with {"start": {"0": 2}} goes on from there' in said[4]
    assert said[5].endswith("or change it by PATCH /api/topics/TOPIC")
    assert said[6].endswith('added by PATCH /api/topics/TOPIC with {"add_columns": {NAME: TYPE}}')
    assert said[7].endswith("that is a topic; make a subscriber of it by POST /api/subscribers")
    assert not [each for each in said if "store." in each or "=True" in each or "alter_topic" in each]
