"""HTTP has what the Python interface has: a table of both, which nothing is missing from; and what no other file tests."""

import inspect
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq.pubsub import PubSub
from jjq.server.http_app import all_operations
from jjq.server.http_operations import ARROW
from tests.fronts import Front

OPERATIONS = {f"{each.method} {each.path}" for each in all_operations()}
TOPIC, SUBSCRIBER, CHANNEL = (
    "/api/topics/{topic}",
    "/api/subscribers/{subscriber}",
    "/api/topics/{topic}/channels/{channel}",
)
BY_HTTP = {
    "Store": {
        "create_topic": "POST /api/topics", "topic": f"GET {TOPIC}", "topics": "GET /api/topics", "offsets": "GET /api/topics",
        "alter_topic": f"PATCH {TOPIC}", "delete_topic": f"DELETE {TOPIC}", "pause_topic": f"POST {TOPIC}/pause",
        "empty_topic": f"POST {TOPIC}/empty", "create_subscriber": "POST /api/subscribers",
        "subscriber": f"GET {SUBSCRIBER}", "subscribers": "GET /api/subscribers", "delete_subscriber": f"DELETE {SUBSCRIBER}",
        "channel": f"PUT {CHANNEL}", "channels": "GET /api/channels", "delete_channel": f"DELETE {CHANNEL}",
        "read_slices": f"GET {TOPIC}/records", "follow": f"GET {TOPIC}/stream", "stage": f"POST {TOPIC}/stage",
        "commit": "POST /api/commit", "discard": "POST /api/discard", "list_objects": "GET /api/objects",
        "open_object": f"GET {TOPIC}/partitions/{{partition}}/records/{{offset}}/object", "publish": f"POST {TOPIC}/publish",
        "pubsub": "GET /api/stream", "pubsub_channels": "GET /api/stats", "pubsub_numsub": "GET /api/stats",
        "pubsub_numpat": "GET /api/stats",
        "writers": "GET /api/writers", "reset_writer": "DELETE /api/writers/{writer}", "maintain": "POST /api/maintain",
        "stats": "GET /api/stats", "verify": "POST /api/verify",
    },
    "Topic": {
        "push": f"POST {TOPIC}/records", "push_many": f"POST {TOPIC}/records", "push_table": f"POST {TOPIC}/records",
        "push_file": f"POST {TOPIC}/objects", "offsets": f"GET {TOPIC}/offsets", "offset_for_timestamp": f"GET {TOPIC}/offsets",
        "resolve": f"GET {TOPIC}/offsets", "read": f"GET {TOPIC}/records", "to_pandas": f"GET {TOPIC}/records",
        "records": f"GET {TOPIC}/records", "segments": f"GET {TOPIC}/segments", "describe": f"GET {TOPIC}",
        "empty": f"POST {TOPIC}/empty", "pause": f"POST {TOPIC}/pause", "unpause": f"POST {TOPIC}/unpause",
    },
    "Subscriber": {
        "pop": f"POST {SUBSCRIBER}/pop", "peek": f"GET {SUBSCRIBER}/peek", "poll": f"GET {SUBSCRIBER}/poll",
        "commit": f"POST {SUBSCRIBER}/commit", "seek": f"POST {SUBSCRIBER}/seek", "positions": f"GET {SUBSCRIBER}",
        "lag": f"GET {SUBSCRIBER}",
    },
    "PubSub": {
        "subscribe": "GET /api/stream", "psubscribe": "GET /api/stream", "get_message": "GET /api/records",
        "listen": "GET /api/stream",
    },
    "Channel": {
        "receive": f"POST {CHANNEL}/receive", "ack_many": f"POST {CHANNEL}/ack", "requeue_many": f"POST {CHANNEL}/requeue",
        "touch_many": f"POST {CHANNEL}/touch", "pause": f"POST {CHANNEL}/pause", "unpause": f"POST {CHANNEL}/unpause",
        "empty": f"POST {CHANNEL}/empty", "revive": f"POST {CHANNEL}/revive", "counts": f"GET {CHANNEL}",
        "consumers": f"GET {CHANNEL}",
    },
}  # fmt: skip
# What a handle in the caller's process is for, and HTTP has no handles.
OF_A_HANDLE = {
    "Store": {"close", "producer"},
    "Topic": {"refresh", "plan"},
    "Subscriber": {"sleep", "wakeup", "close"},
    "PubSub": {"unsubscribe", "punsubscribe", "close"},
    "Channel": {"close"},
}
DOCS = [Path(__file__).resolve().parents[3] / "docs" / name for name in ("python.md", "channels.md")]


@pytest.mark.parametrize("name", BY_HTTP)
def test_each_method_that_is_documented_has_its_operation(name: str) -> None:
    text = "".join(each.read_text() for each in DOCS)
    methods = {each for each, _ in inspect.getmembers(getattr(jjq, name, PubSub), callable) if not each.startswith("_")}
    assert set(BY_HTTP[name]) <= methods
    assert set(BY_HTTP[name].values()) <= OPERATIONS
    documented = {each for each in methods if f".{each}(" in text}
    assert documented
    assert documented <= set(BY_HTTP[name]) | OF_A_HANDLE[name]


def test_a_poll_moves_nothing_until_it_is_committed(front: Front) -> None:
    front.store.create_topic("t").push_many([b"%d" % i for i in range(200)])
    front.store.create_subscriber("t", "s").close()
    path = "/api/subscribers/s"

    def values(found: dict[str, Any]) -> list[int]:
        return [int(each["value"]) for each in found["records"]]

    first = front.json("GET", f"{path}/poll?max=100")
    assert values(first) == list(range(100))
    assert values(front.json("GET", f"{path}/poll?max=3")) == [0, 1, 2]
    second = front.json("GET", f"{path}/poll", params={"after": first["next"]})
    assert values(second) == list(range(100, 200))
    assert front.json("GET", path)["positions"] == {"0": 0}
    assert front.json("POST", f"{path}/commit", json={"next": first["next"]})["positions"] == {"0": 100}
    assert values(front.json("GET", f"{path}/poll?max=1")) == [100]
    assert front.json("POST", f"{path}/commit", json={"next": second["next"]})["positions"] == {"0": 200}
    assert front.json("POST", f"{path}/commit", json={"next": first["next"]})["positions"] == {"0": 200}  # never back
    last = front.json("GET", f"{path}/poll")
    assert (last["records"], last["next"]) == ([], second["next"])


def test_a_poll_is_for_one_at_a_time_and_a_next_is_of_an_answer(front: Front) -> None:
    front.store.create_topic("t").push(b"x")
    with front.store.create_subscriber("t", "s") as held:
        held.poll()
        assert front.code("GET", "/api/subscribers/s/poll") == (409, "subscriber_busy")
    for wrong in ("0:2:0", "1:0:0", "0:0:9", "x", "0:0", "0:0:0,", "٣:0:0"):
        assert front.code("POST", "/api/subscribers/s/commit", json={"next": wrong}) == (400, "invalid_request")
        assert front.code("GET", "/api/subscribers/s/poll", params={"after": wrong}) == (400, "invalid_request")
    assert front.json("GET", "/api/subscribers/s")["positions"] == {"0": 0}


def test_a_poll_has_up_to_max_bytes_and_goes_on_behind_them(front: Front) -> None:
    front.store.create_topic("t").push_many([b"x" * 100] * 5)
    front.store.create_subscriber("t", "s").close()
    path = "/api/subscribers/s/poll"

    def polled(**given: str) -> tuple[list[int], str]:
        found = front.json("GET", path, params=given)
        return [each["offset"] for each in found["records"]], found["next"]

    assert polled(max_bytes="1") == ([0], "0:1:0")
    assert polled(max_bytes="250") == ([0, 1], "0:2:0")
    assert polled(max_bytes="250", after="0:2:0") == ([2, 3], "0:4:0")
    assert polled(max_bytes="1KB", after="0:2:0") == polled(max_bytes="1GB", after="0:2:0") == ([2, 3, 4], "0:5:0")
    assert front.json("POST", "/api/subscribers/s/commit", json={"next": "0:4:0"})["positions"] == {"0": 4}
    assert polled(max_bytes="1 MiB") == ([4], "0:5:0")
    for wrong in ("0", "-1", "1.5.2", "many", ""):
        assert front.code("GET", path, params={"max_bytes": wrong}) == (400, "invalid_argument")


def test_an_answer_has_one_record_that_is_larger_than_others_may_be_together(front: Front) -> None:
    front.store.create_topic("t").push_many([bytes(9 << 20)] * 3 + [b"small"] * 3)
    front.store.create_subscriber("t", "s").close()
    going_on: dict[str, str] = {}
    polls = []
    while (found := front.json("GET", "/api/subscribers/s/poll", params=going_on))["records"]:
        polls.append([each["offset"] for each in found["records"]])
        going_on = {"after": found["next"]}
    read = [front.json("GET", "/api/topics/t/records", params={"start": each}) for each in ("0", "2", "3")]
    pages = [[each["offset"] for each in found["records"]] for found in read]
    pops = [front.json("POST", "/api/subscribers/s/pop?max=9")["records"] for _ in range(4)]
    assert [[each["offset"] for each in found] for found in pops] == polls == [[0], [1], [2], [3, 4, 5]]
    assert pages == [[0], [2], [3, 4, 5]]


def test_offsets_and_what_a_start_means(front: Front) -> None:
    topic = front.store.create_topic("t", partitions=2)
    topic.push_many([b"x"] * 5, partition=0)
    path = "/api/topics/t/offsets"
    assert [(each["start"], each["end"]) for each in front.json("GET", path)["partitions"]] == [(0, 5), (0, 0)]
    assert front.json("GET", f"{path}?at=-2")["at"] == {"0": 3, "1": 0}
    assert front.json("GET", path, params={"at": "0:4"})["at"] == {"0": 4, "1": 0}
    assert front.json("GET", path, params={"at": "0:4", "as_end": "true"})["at"] == {"0": 4, "1": 0}
    assert front.code("GET", f"{path}?at=9") == (400, "offset_out_of_range")


def arrow(**columns: Any) -> bytes:
    sink, table = io.BytesIO(), pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_several_topics_are_committed_at_once_and_once(front: Front) -> None:
    for name in ("a", "b"):
        front.store.create_topic(name)
    staged: list[Any] = []
    for name in ("a", "b"):
        path = f"/api/topics/{name}/stage"
        found = front.json("POST", path, content=arrow(value=[b"x", b"y"]), headers={"content-type": ARROW})
        staged += found["staged"]
    assert [front.store.topic(name).offsets()[0].end for name in ("a", "b")] == [0, 0]
    batch = {"staged": staged, "writer_id": "loader", "batch_id": 1}
    done = front.json("POST", "/api/commit", json=batch)
    assert (done["positions"], done["duplicate"]) == ({"a": {"0": [0, 2]}, "b": {"0": [0, 2]}}, False)
    again = front.json("POST", "/api/commit", json=batch)
    assert (again["positions"], again["duplicate"]) == (done["positions"], True)
    assert front.json("GET", "/api/writers")["writers"][0]["last_batch"] == 1


def test_staged_files_are_looked_at_before_they_are_believed(front: Front) -> None:
    front.store.create_topic("a")
    front.store.create_topic("b")
    kind = {"content-type": ARROW}
    (file,) = front.json("POST", "/api/topics/a/stage", content=arrow(value=[b"x"]), headers=kind)["staged"]
    wrong = [
        file | {"rows": 1000},
        file | {"crc": 1},
        file | {"partition": 7},
        file | {"topic": "b"},
        file | {"uuid": "../x"},
    ]
    for each in wrong:
        status, _ = front.code("POST", "/api/commit", json={"staged": [each]})
        assert status in (400, 409)
    assert front.code("POST", "/api/topics/a/stage", content=b"x") == (415, "unsupported_media_type")
    front.json("POST", "/api/discard", status=204, json={"staged": [file]})
    assert front.code("POST", "/api/commit", json={"staged": [file]}) == (409, "staged_file_missing")
    assert front.store.topic("a").offsets()[0].end == 0


def test_the_store_is_cared_for_and_verified(front: Front) -> None:
    front.store.create_topic("t").push_many([b"x"] * 10)
    assert front.json("POST", "/api/maintain")["errors"] == []
    found = front.client.post("/api/verify")
    assert (found.json()["ok"], found.json()["records"]) == (True, 10)
    assert str(front.store.path) not in found.text
    assert front.json("POST", "/api/verify?sample=0.5")["ok"]
    assert front.code("POST", "/api/verify?sample=2") == (400, "invalid_request")


def test_numbers_of_one_topic(front: Front) -> None:
    for name in ("a", "b"):
        front.store.create_topic(name)
        front.store.channel(name, "c", create=True).close()
    assert [each["name"] for each in front.json("GET", "/api/stats?topic=a")["topics"]] == ["a"]
    assert [each["topic"] for each in front.json("GET", "/api/channels?topic=b")["channels"]] == ["b"]
    assert front.code("GET", "/api/stats?topic=x") == (404, "topic_not_found")
