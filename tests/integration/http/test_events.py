"""The event bus: posted, followed, resumed, filtered; and nothing that a sender writes can forge what a client reads."""

import base64
import contextlib
import json
import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pyarrow as pa
import pytest

from jjq import files
from jjq.server.event_ids import event_id
from tests.fronts import Front, Fronting
from tests.stores import roll


def rows(front: Front) -> list[tuple[str, bytes]]:
    table = front.store.topic("events").read().read_all()
    return list(zip(table.column("type").to_pylist(), table.column("body").to_pylist(), strict=True))


# --- posting ---------------------------------------------------------------------------------------------------------


def test_a_posted_event_is_stored_as_it_is_and_answered_with_its_id(front: Front) -> None:
    body = 'first\r\nsecond "ü" \0 end '
    found = uuid.UUID(front.event("order.created", body.encode()))
    assert found.version == 6
    assert rows(front) == [("order.created", body.encode())]
    topic = front.store.topic("events")
    assert topic.partitions == 1
    assert topic.schema is not None
    assert topic.schema.names == ["type", "body"]
    front.event("empty", b"")
    assert rows(front)[1] == ("empty", b"")


def test_an_event_is_durable_when_it_is_answered(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    front.event("t", b"the topic is there")

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "datasync", fail)
    assert front.code("POST", "/api/events?type=t", content=b"x") == (503, "store_error")
    monkeypatch.undo()
    front.event("t", b"y")
    assert [body for _, body in rows(front)] == [b"the topic is there", b"y"]


def test_ids_sort_by_arrival_when_the_clock_goes_back(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_700_000_000_000_000]
    monkeypatch.setattr("jjq.log.partition.now_us", lambda: clock[0])
    ids = []
    for step in (0, 5, -3_600_000_000, 1, -7, 10_000_000_000):
        clock[0] += step
        ids.append(front.event(f"type {step}", b"x"))
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("query", "body", "code"),
    [
        ("", b"x", "invalid_request"),
        ("type=", b"x", "invalid_request"),
        ("type=a%0Ab", b"x", "invalid_request"),
        ("type=a%0Db", b"x", "invalid_request"),
        ("type=a%00b", b"x", "invalid_request"),
        ("type=a%C2%85b", b"x", "invalid_request"),
        ("type=%FF", b"x", "invalid_request"),
        ("type=a&type=b", b"x", "invalid_request"),
        ("type=a&typ=b", b"x", "invalid_request"),
        ("type=a&encoding=gzip", b"x", "invalid_request"),
        ("type=" + "x" * 1001, b"x", "invalid_request"),
        ("type=a", b"\xff\xfe", "invalid_request"),
    ],
)
def test_what_cannot_be_an_event_is_refused_and_not_stored(front: Front, query: str, body: bytes, code: str) -> None:
    assert front.code("POST", f"/api/events?{query}", content=body) == (400, code)
    assert front.store.topics() == []


def test_too_large_an_event_is_refused(serve: Fronting) -> None:
    front = serve(max_record_bytes=2000, max_request_bytes=3000)
    assert front.code("POST", "/api/events?type=t", content=b"x" * 2001) == (413, "record_too_large")
    assert front.code("POST", "/api/events?type=t", content=b"x" * 3001) == (413, "request_too_large")

    def pieces() -> Any:
        yield from [b"x" * 1000] * 4

    assert front.code("POST", "/api/events?type=t", content=pieces()) == (413, "request_too_large")
    front.event("t", b"x" * 2000)


def test_a_topic_of_another_kind_is_no_topic_of_events(front: Front) -> None:
    front.store.create_topic("events")
    assert front.code("POST", "/api/events?type=t", content=b"x") == (400, "invalid_argument")
    assert front.code("GET", "/api/events") == (400, "invalid_argument")


def test_an_event_goes_into_the_topic_that_was_made_again(front: Front) -> None:
    front.event("t", b"before")
    front.store.delete_topic("events")
    front.event("t", b"after")
    assert rows(front) == [("t", b"after")]


def test_many_posts_at_once_share_a_sync(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    front.event("t", b"the topic is there")
    syncs, first, go_on = [], threading.Event(), threading.Event()
    datasync = files.datasync

    def slow(fd: int) -> None:
        syncs.append(fd)
        first.set()
        assert go_on.wait(60)
        datasync(fd)

    monkeypatch.setattr(files, "datasync", slow)
    gathering = front.http._parts.gathering
    with ThreadPoolExecutor(50) as posters:
        posted = [posters.submit(front.event, "t", b"%d" % i) for i in range(50)]
        assert first.wait(60)
        waiting = threading.Event()
        while gathering.pending < 50:
            waiting.wait(0.005)
        go_on.set()
        ids = [each.result() for each in posted]
    assert len(set(ids)) == 50
    assert sorted(body for _, body in rows(front)[1:]) == sorted(b"%d" % i for i in range(50))
    # One for what came first, the others for what had queued: with its index a write is synced once or twice.
    assert len(syncs) <= 6


# --- following -------------------------------------------------------------------------------------------------------


def test_events_are_followed_from_now_on(front: Front) -> None:
    front.event("before", b"x")
    with front.stream("/api/events") as events:
        posted = front.event("order.created", b'{"n": 1}')
        found = events.next()
        assert (found.id, found.type, found.data) == (posted, "order.created", '{"n": 1}')
        assert [name for name, _ in found.fields] == ["id", "event", "data"]


def test_one_who_follows_does_not_wait_when_there_is_no_topic_yet(front: Front) -> None:
    with front.stream("/api/events") as events:
        posted = front.event("first", b"x")
        assert events.next().id == posted


def test_following_begins_anywhere(front: Front) -> None:
    ids = [front.event("t", b"%d" % i) for i in range(10)]
    cases = {
        "earliest": 0, "0": 0, "3": 3, "-2": 8, ids[4]: 4, "2020-01-01T00:00:00Z": 0, "-10 minutes": 0,
    }  # fmt: skip
    for start, first in cases.items():
        with front.stream("/api/events", params={"start": start}) as events:
            assert [each.id for each in events.take(10 - first)] == ids[first:]
    for wrong in ("11", "yesterday", "2020-01-01T00:00:00", ""):
        assert front.code("GET", "/api/events", params={"start": wrong})[0] == 400


def test_the_last_id_goes_on_after_it_and_comes_before_a_start(front: Front) -> None:
    ids = [front.event("t", b"%d" % i) for i in range(10)]
    for i in range(10):
        with front.stream("/api/events?start=earliest", headers={"Last-Event-ID": ids[i]}) as events:
            posted = front.event("t", b"new")
            ids.append(posted)
            assert [each.id for each in events.take(len(ids) - i - 1)] == ids[i + 1 :]
    with front.stream("/api/events?start=earliest", headers={"Last-Event-ID": ""}) as events:
        assert events.next().id == ids[0]


def test_the_last_id_may_be_one_that_retention_removed(serve: Fronting) -> None:
    front = serve(events_segment_bytes=4096, events_segments=2)
    ids = [front.event("t", b"%02d" % i + b"x" * 500) for i in range(60)]
    roll(front.store, "events")
    front.store.maintain(grace_us=0)
    start = front.store.topic("events").offsets()[0].start
    assert 0 < start < 60
    for last in (ids[0], ids[start - 1]):
        with front.stream("/api/events", headers={"Last-Event-ID": last}) as events:
            assert [each.id for each in events.take(60 - start)] == ids[start:]
    with front.stream("/api/events", params={"start": "earliest"}) as events:
        assert events.next().id == ids[start]


def test_the_last_id_may_lie_between_two_or_beyond_them(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_700_000_000_000_000]
    monkeypatch.setattr("jjq.log.partition.now_us", lambda: clock[0])
    ids, times = [], []
    for step in (0, 0, 10, 10, 0, 100):
        clock[0] += step
        ids.append(front.event("t", b"x"))
        times.append(clock[0])
    chance = random.Random(7)
    for _ in range(100):
        at = chance.choice(times) + chance.choice((-11, -1, 0, 1, 5))
        last = event_id(at, 0, chance.choice((0, 1, 2, 3, 4, 5, 6, 100)))
        wanted = [each for each in ids if each > last]
        with front.stream("/api/events", headers={"Last-Event-ID": last}) as events:
            clock[0] += 1
            ids.append(front.event("t", b"last"))
            assert [each.id for each in events.take(len(wanted) + 1)] == [*wanted, ids[-1]]


@pytest.mark.parametrize("before", [0, 3])
def test_one_who_is_cut_off_before_the_first_event_misses_none(front: Front, before: int) -> None:
    for _ in range(before):
        front.event("t", b"before")
    with front.stream("/api/events") as events:
        begun = events.last_id
    ids = [front.event("t", b"%d" % i) for i in range(3)]
    with front.stream("/api/events", headers={"Last-Event-ID": begun}) as events:
        assert [each.id for each in events.take(3)] == ids
    with front.stream("/api/events?start=earliest") as events:
        begun = events.last_id
    with front.stream("/api/events", headers={"Last-Event-ID": begun}) as events:
        assert [each.id for each in events.take(before + 3)][before:] == ids


@pytest.mark.parametrize("wrong", ["17", "x", str(uuid.UUID(int=7, version=4))])
def test_what_is_no_id_is_refused(front: Front, wrong: str) -> None:
    assert front.code("GET", "/api/events", headers={"Last-Event-ID": wrong}) == (400, "invalid_request")


def test_a_pattern_is_searched_for_in_types(front: Front) -> None:
    for kind in ("order.created", "order.paid", "user.created", "ORDER"):
        front.event(kind, kind.encode())
    for pattern, wanted in {
        "created": ["order.created", "user.created"], "^order": ["order.created", "order.paid"],
        "(?i)order": ["order.created", "order.paid", "ORDER"], "r.*d$": ["order.created", "order.paid", "user.created"],
        "^paid": [],
    }.items():  # fmt: skip
        # What ends the stream's history matches, too, so that nothing before it was left out.
        with front.stream("/api/events", params={"start": "0", "typeMatcher": f"{pattern}|^end$"}) as events:
            front.event("end", b"end")
            assert [each.data for each in events.take(len(wanted) + 1) if each.type != "end"][: len(wanted)] == wanted


def test_a_filter_holds_for_history_and_for_what_comes(front: Front) -> None:
    topic_rows = [{"type": "rare" if i % 1000 == 7 else "often", "body": b"%d" % i} for i in range(10_000)]
    front.event("often", b"the topic is there")
    front.store.topic("events").push_many(topic_rows)
    with front.stream("/api/events", params={"start": "0", "typeMatcher": "^rare$"}) as events:
        assert [int(each.data) for each in events.take(10)] == [i for i in range(10_000) if i % 1000 == 7]
        for i in range(20):
            front.event("rare" if i % 5 == 0 else "often", b"live %d" % i)
        assert [each.data for each in events.take(4)] == ["live 0", "live 5", "live 10", "live 15"]


@pytest.mark.parametrize("pattern", ["(", "a{2000}", "(?=x)", r"\1", "x" * 1001, "((a{100}){100}){100}"])
def test_what_is_no_pattern_is_refused(front: Front, pattern: str) -> None:
    assert front.code("GET", "/api/events", params={"typeMatcher": pattern}) == (400, "invalid_request")


def test_no_pattern_hangs_the_broker(front: Front) -> None:
    front.event("a" * 900 + "!", b"x")
    with front.stream("/api/events", params={"start": "0", "typeMatcher": "^(a|aa|a*)*$|^end$"}) as events:
        front.event("end", b"y")
        assert events.next().type == "end"


def test_history_and_what_comes_meet_with_nothing_missed_and_nothing_twice(front: Front) -> None:
    front.event("t", b"0")
    stop = threading.Event()
    posted = [0]

    def post() -> None:
        with httpx.Client(base_url=front.url, timeout=60) as client:
            while not stop.is_set():
                posted[0] += 1
                client.post("/api/events?type=t", content=b"%d" % posted[0])

    front.store.topic("events").push_many([{"type": "t", "body": b"old"}] * 3000)
    poster = threading.Thread(target=post)
    poster.start()
    try:
        for _ in range(5):
            with front.stream("/api/events?start=earliest") as events:
                found = [each.data for each in events.take(3001 + posted[0] + 50)]
            numbers = [int(each) for each in found[3001:]]
            assert numbers == list(range(1, len(numbers) + 1))
    finally:
        stop.set()
        poster.join()


def test_a_heartbeat_comes_while_there_is_nothing(serve: Fronting) -> None:
    front = serve(heartbeat_s=0.05)
    with front.stream("/api/events") as events:
        for _ in range(3):
            assert events.block() == []
        assert events.comments[1:] == ["heartbeat"] * 3
        posted = front.event("t", b"x")
        assert events.next().id == posted


# --- what is in them -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    ["", "plain", "two\nlines", "ends\n", "\n", "\n\n", " space before", "id: 7", "a\nid: 7\nevent: x\ndata: y\n\nb", ":c",
     "\ufeffbom", "ü \u2028 \u2029 \x85 \x0b \x0c \0 end"],
)  # fmt: skip
def test_a_body_comes_as_it_went_in(front: Front, body: str) -> None:
    posted = front.event("t", body.encode())
    with front.stream("/api/events?start=earliest") as events:
        found = events.next()
    assert (found.id, found.type, found.data) == (posted, "t", body)


def test_every_end_of_a_line_is_one_and_forges_nothing(front: Front) -> None:
    posted = front.event("t", b"a\r\nid: 7\rretry: 9\nevent: x\r\n\r\ndata: y")
    with front.stream("/api/events?start=earliest") as events:
        found = events.next()
    assert (found.id, found.type) == (posted, "t")
    assert found.data == "a\nid: 7\nretry: 9\nevent: x\n\ndata: y"
    assert [name for name, _ in found.fields] == ["id", "event", *["data"] * 6]


def test_bytes_are_served_as_base64_and_marked(front: Front) -> None:
    front.event("image", b"\xff\x00\xfe", encoding="base64")
    front.event("text", b"said to be bytes", encoding="base64")
    assert [body for _, body in rows(front)] == [b"\xff\x00\xfe", b"said to be bytes"]
    with front.stream("/api/events?start=earliest") as events:
        for kind, body in rows(front):
            found = events.next()
            assert (found.type, base64.b64decode(found.data, validate=True)) == (kind, body)
            assert ("encoding", "base64") in found.fields
    front.event("text", b"encoding: base64\nxyz")
    with front.stream("/api/events?start=2") as events:
        assert [name for name, _ in events.next().fields] == ["id", "event", "data", "data"]


def test_events_that_others_wrote_forge_nothing_either(front: Front) -> None:
    front.event("t", b"the topic is there")
    front.store.topic("events").push_table(
        pa.table({"type": ["a\nid: 7\n", None, "b\rc\0"], "body": [b"\xff", None, b"x"]})
    )
    with front.stream("/api/events?start=1") as events:
        first, second, third = events.take(3)
    assert (first.type, first.data) == ("a\ufffdid: 7\ufffd", base64.b64encode(b"\xff").decode())
    assert (second.type, second.data) == ("message", "")
    assert third.type == "b\ufffdc\ufffd"
    assert len({first.id, second.id, third.id}) == 3


# --- when it ends ----------------------------------------------------------------------------------------------------


def test_one_who_does_not_read_is_cut_off_and_holds_up_nobody(serve: Fronting) -> None:
    front = serve(buffer_bytes=64 << 10)
    front.event("t", b"the topic is there")
    counters = front.http._parts.counters
    with front.stream("/api/events") as slow:
        with front.stream("/api/events") as quick:
            sent = []
            while not counters.slow_clients:
                sent.append(front.event("t", b"x" * 100_000))
                assert quick.next().id == sent[-1]
        assert counters.slow_clients == 1
        got = []
        with contextlib.suppress(StopIteration, httpx.RemoteProtocolError, httpx.ReadError):
            while True:
                found = slow.next()
                if found.type == "jjq-end":
                    break
                got.append(found.id)
    assert got == sent[: len(got)]
    last = got[-1] if got else "earliest"
    with front.stream("/api/events", params={"start": last}) as again:
        again.take(1)
        assert [each.id for each in again.take(len(sent) - len(got))] == sent[len(got) :]


def test_a_deleted_topic_ends_the_stream_and_says_so(front: Front) -> None:
    front.event("t", b"x")
    with front.stream("/api/events") as events:
        front.store.delete_topic("events")
        found = events.next()
        assert found.type == "jjq-end"
        assert "topic_deleted" in found.data
        with pytest.raises(StopIteration):
            events.next()


def test_a_broker_that_stops_says_so(front: Front) -> None:
    with front.stream("/api/events") as events:
        stopping = threading.Thread(target=front.http.stop, args=(5.0,))
        stopping.start()
        told = json.loads(events.next().data)
        assert (told["code"], told["retryable"]) == ("stopping", True)
        with pytest.raises(StopIteration):
            events.next()
        stopping.join()
