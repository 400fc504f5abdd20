"""`Store.stats`: what each number counts, and that it goes on counting what is gone."""

import contextlib
import errno
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq import background
from jjq.clock import now_us
from jjq.files import translate
from jjq.maintenance import Maintenance
from jjq.stats import those_there
from tests.stores import assert_whole, roll, without_active_file


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store", maintenance=False) as opened:
        yield opened
        assert_whole(opened)


def topic(store: jjq.Store, name: str = "t") -> dict[str, Any]:
    (found,) = [each for each in store.stats()["topics"] if each["name"] == name]
    return found


def test_an_empty_store_has_nothing_to_count(store: jjq.Store) -> None:
    found = store.stats()
    assert {name: found[name] for name in ("topics", "subscribers", "channels", "subscriptions", "maintenance", "damaged")} == {
        "topics": [], "subscribers": [], "channels": [], "subscriptions": [], "maintenance": None, "damaged": [],
    }  # fmt: skip
    assert found["store"]["id"] == store.id
    assert found["store"]["disk_free_bytes"] > 0


def test_records_and_bytes_ever_pushed_stay_counted_when_they_are_gone(store: jjq.Store) -> None:
    made = store.create_topic("t", partitions=2, retention=timedelta(days=1))
    for partition in range(2):
        made.push_many([b"x" * 100] * 50, partition=partition)
        roll(store, "t", partition)
    made.push_table(pa.table({"value": [b"y" * 100] * 30}), writer_id="w", batch_id=1)
    made.push(b"last", partition=1)
    before = topic(store)
    assert (before["records"], before["pushed_records"]) == (131, 131)
    assert before["bytes"] == before["pushed_bytes"] > 13_000
    store.maintain()
    compacted = topic(store)
    assert compacted["pushed_bytes"] >= before["pushed_bytes"]
    assert (compacted["segments"]["rolled"], compacted["segments"]["sealed"] > 0) == (0, True)
    with Maintenance(store, now=now_us() + 3 * 86_400_000_000) as work:
        work.run()
    after = topic(store)
    assert (after["records"], after["pushed_records"]) == (0, 131)
    assert after["bytes"] < before["bytes"]
    assert after["pushed_bytes"] >= before["pushed_bytes"]
    made.empty()
    assert topic(store)["pushed_bytes"] == after["pushed_bytes"]


def test_segments_are_counted_by_state(store: jjq.Store) -> None:
    made = store.create_topic("t")
    assert topic(store)["segments"] == {"active": 0, "rolled": 0, "sealed": 0, "lost": 0}
    made.push(b"a")
    roll(store, "t")
    assert topic(store)["segments"] == {"active": 1, "rolled": 1, "sealed": 0, "lost": 0}
    store.maintain()
    made.push(b"b")
    assert topic(store)["segments"] == {"active": 1, "rolled": 0, "sealed": 1, "lost": 0}


def test_the_rate_is_of_the_last_minute_and_unknown_where_timestamps_are_the_producers(store: jjq.Store) -> None:
    store.create_topic("t").push_many([b"x"] * 120)
    store.create_topic("p", timestamps="producer").push(b"x", timestamp=1)
    assert topic(store)["records_per_s"] == 2.0
    assert topic(store, "p")["records_per_s"] is None


def test_a_subscriber_is_shown_with_what_it_has_yet_to_read(store: jjq.Store) -> None:
    made = store.create_topic("t", partitions=2)
    made.push_many([b"x" * 100] * 10, partition=0)
    made.push_many([b"x" * 100] * 4, partition=1)
    store.create_subscriber("t", "s", start={0: 3}).pop()
    (found,) = store.stats()["subscribers"]
    assert (found["name"], found["topic"], found["lost"]) == ("s", "t", 0)
    assert found["records"] == 7 + 4 - 1
    assert found["bytes"] > 1000
    assert found["seconds"] >= 0
    assert sum(found["positions"].values()) == 4


def test_a_channel_is_shown_with_its_counts_and_consumers(store: jjq.Store) -> None:
    store.create_topic("t").push_many([b"x"] * 10)
    work = store.channel("t", "work", create=True)
    first, second, *_ = work.receive(4)
    first.ack()
    second.requeue(delay=3600)
    (found,) = store.stats("t")["channels"]
    expected = {"name": "work", "topic": "t", "paused": False, "depth": 6, "in_flight": 2, "deferred": 1, "requeued": 1}
    assert found | expected | {"acked": 1, "timed_out": 0} == found
    assert [each["in_flight"] for each in found["consumers"]] == [2]


def test_subscriptions_and_drops_of_ephemeral_topics_are_shown(store: jjq.Store) -> None:
    with store.pubsub() as subscription:
        subscription.subscribe("news")
        subscription.psubscribe("log.*", "n*")
        store.create_topic("news", ephemeral=True, max_records=10)
        for _ in range(45):
            store.publish("news", b"x")
        found = store.stats()
        assert found["subscriptions"] == [{"names": ["news"], "patterns": ["log.*", "n*"]}]
        assert found["topics"][0]["ephemeral"]
        assert found["topics"][0]["dropped"] >= 30
        assert store.stats("news")["subscriptions"] == found["subscriptions"]


def test_of_one_topic_only_what_belongs_to_it(store: jjq.Store) -> None:
    for name in ("a", "b"):
        store.create_topic(name).push(b"x")
        store.create_subscriber(name, f"s-{name}")
        store.channel(name, "c", create=True)
    found = store.stats("b")
    assert [each["name"] for each in found["topics"]] == ["b"]
    assert [each["name"] for each in found["subscribers"]] == ["s-b"]
    assert [each["topic"] for each in found["channels"]] == ["b"]
    with pytest.raises(jjq.TopicNotFound):
        store.stats("c")


def test_the_hot_store_and_the_last_turn_of_maintenance_are_part_of_it(store: jjq.Store) -> None:
    store.create_topic("t").push_many([b"x"] * 10)
    subscriber = store.create_subscriber("t", "s")
    subscriber.pop()
    caretaker = background.Caretaker(store)
    assert caretaker.turn(store)
    caretaker.stop()
    found = store.stats()
    assert [each["for"] for each in found["hot"]["segments"]] == [["s"]]
    assert found["maintenance"]["pid"] > 0


def test_a_store_that_cannot_be_written_has_them_too(store: jjq.Store) -> None:
    store.create_topic("t").push_many([b"x"] * 10)
    store.create_subscriber("t", "s")
    with jjq.open(store.path, read_only=True) as shut:
        found = shut.stats()
    assert (found["topics"][0]["records"], found["subscribers"][0]["records"]) == (10, 10)


def test_a_store_from_before_bytes_were_counted_begins_with_what_it_has(store: jjq.Store) -> None:
    store.create_topic("t").push(b"x" * 1000)
    roll(store, "t")
    known = topic(store)["pushed_bytes"]
    topic_id = store.topic("t").id
    with store.catalog.driver.write(durable=True) as tx:
        tx.run("drop_pushed", topic_id=topic_id)
    assert topic(store)["pushed_bytes"] == known


def test_what_is_damaged_is_named_and_hides_nothing_else(store: jjq.Store) -> None:
    """Also for who opens the store when the file is gone already; and where the disk refuses, in the place of a missing file."""
    for name in ("bad", "good"):
        store.create_topic(name).push_many([b"x"] * 3)
        store.create_subscriber(name, f"{name}-reader")
        store.channel(name, "work", create=True)
    of = store.topic("bad").id

    def assert_damaged(found: dict[str, Any], error: str) -> None:
        assert [each["name"] for each in found["topics"]] == ["good"]
        assert [each["name"] for each in found["subscribers"]] == ["good-reader"]
        assert "good" in [each["topic"] for each in found["channels"]]
        named = [(each["topic"], each["what"], each["name"]) for each in found["damaged"]]
        assert named[:2] == [("bad", "topic", "bad"), ("bad", "subscriber", "bad-reader")]
        assert all(error in each["error"] for each in found["damaged"])
        # A channel whose counts need no file is there.
        assert named[2:] == [("bad", "channel", "work")] * (len(found["channels"]) == 1)

    with without_active_file(store.path, of):
        assert_damaged(store.stats(), "run `jjq repair`")
        assert store.stats("bad")["damaged"] == store.stats()["damaged"]
        assert store.stats("good")["damaged"] == []
        with jjq.open(store.path, read_only=True) as other:
            assert_damaged(other.stats(), "run `jjq repair`")
    with no_directory(store.path / "topics" / of / "0"):
        assert_damaged(store.stats(), "a file lies where a directory belongs")
    assert store.stats()["damaged"] == []


@contextlib.contextmanager
def no_directory(path: Path) -> Iterator[None]:
    aside = path.rename(path.parents[2].parent / "aside")
    path.touch()
    yield
    path.unlink()
    aside.rename(path)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_what_is_wrong_with_the_store_or_the_process_is_an_error(store: jjq.Store, code: int) -> None:
    made = store.create_topic("t")
    path = store.path / "catalog.db" if code == errno.EIO else made.directory(0) / "x.arrows"

    def describe(topic: jjq.Topic) -> None:
        raise translate(OSError(code, os.strerror(code)), "read", path)

    with pytest.raises(jjq.StoreError):
        those_there([made], describe, [])


def test_what_is_deleted_while_it_is_listed_is_left_out(store: jjq.Store) -> None:
    """Whether it is looked at by its handle or, as Flight does, by its name."""
    listed = [store.create_topic("gone"), store.create_topic("there")]
    store.delete_topic("gone")
    damaged: list[dict[str, Any]] = []
    assert [each["name"] for each in those_there(listed, lambda each: each.describe(), damaged)] == ["there"]
    assert [each["name"] for each in those_there(listed, lambda each: store.topic(each.name).describe(), damaged)] == [
        "there"
    ]
    assert damaged == []
