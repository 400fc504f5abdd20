"""Publish and subscribe: shapes, patterns, topics made later, the death of subscribers, and nothing left behind."""

import contextlib
import errno
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import jjq
from jjq import ephemeral, files, wake
from jjq.interest import Interest, glob, registry
from jjq.pubsub import PubSub
from tests.stores import open_below


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        yield opened


def drain(subscription: PubSub) -> list[dict[str, object]]:
    return list(iter(subscription.get_message, None))


def test_messages_and_confirmations_have_the_known_shape(store: jjq.Store) -> None:
    with store.pubsub() as subscription:
        assert subscription.get_message() is None
        subscription.subscribe("news", "sport")
        subscription.psubscribe("n*")
        assert store.publish("news", b"hello") == 2
        assert drain(subscription) == [
            {"type": "subscribe", "pattern": None, "channel": b"news", "data": 1},
            {"type": "subscribe", "pattern": None, "channel": b"sport", "data": 2},
            {"type": "psubscribe", "pattern": None, "channel": b"n*", "data": 3},
            {"type": "message", "pattern": None, "channel": b"news", "data": b"hello"},
            {"type": "pmessage", "pattern": b"n*", "channel": b"news", "data": b"hello"},
        ]
        subscription.unsubscribe()
        subscription.punsubscribe("n*")
        assert [(m["type"], m["data"]) for m in drain(subscription)] == [
            ("unsubscribe", 2), ("unsubscribe", 1), ("punsubscribe", 0),
        ]  # fmt: skip
        assert store.publish("news", b"nobody") == 0


def test_text_on_request_and_no_confirmations(store: jjq.Store) -> None:
    with store.pubsub(decode_responses=True, ignore_subscribe_messages=True) as subscription:
        subscription.psubscribe("*")
        store.publish("a", "ü")
        assert drain(subscription) == [{"type": "pmessage", "pattern": "*", "channel": "a", "data": "ü"}]


def test_a_topic_made_as_a_subscription_begins_to_listen_is_heard_at_once(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "_SAFETY_S", 60.0)
    with jjq.open(store.path) as other, store.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.psubscribe("log.*")
        listener = subscription._listener
        arm, sleep = listener.arm, listener.sleep
        published: list[int] = []
        woken: list[bool] = []

        def after_a_topic_was_made() -> int:
            if not other.topics():
                other.create_topic("log.a")
            return arm()

        def with_a_message_just_before(armed: int, seconds: float) -> bool:
            if not published and not listener.woken(armed):
                published.append(other.publish("log.a", b"x"))
            woken.append(sleep(armed, seconds))
            return woken[-1]

        monkeypatch.setattr(listener, "arm", after_a_topic_was_made)
        monkeypatch.setattr(listener, "sleep", with_a_message_just_before)
        message = subscription.get_message(timeout=20)
        assert published == [1]
        assert all(woken)  # none lasted until the next look
        assert message == {"type": "pmessage", "pattern": b"log.*", "channel": b"log.a", "data": b"x"}


@pytest.mark.parametrize("subscribe", [PubSub.subscribe, PubSub.psubscribe], ids=["by name", "by pattern"])
@pytest.mark.parametrize("there", [True, False], ids=["a topic", "no topic yet"])
def test_what_is_counted_as_having_reached_a_subscription_that_begins_does_reach_it(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch, subscribe: Callable[..., None], there: bool
) -> None:
    if there:
        store.create_topic("news").push(b"before")
    announce, counted = Interest.announce, []

    def and_somebody_publishes(interest: Interest, *what: Iterable[str]) -> None:
        announce(interest, *what)
        counted.append(other.publish("news", b"x"))

    monkeypatch.setattr(Interest, "announce", and_somebody_publishes)
    with jjq.open(store.path) as other, store.pubsub(ignore_subscribe_messages=True) as subscription:
        subscribe(subscription, "news")
        assert counted == [1]
        assert [message["data"] for message in drain(subscription)] == [b"x"]


def test_new_topics_of_another_process_are_heard_at_once(store: jjq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "_SAFETY_S", 3600.0)
    context = multiprocessing.get_context("spawn")
    answers, theirs = context.Pipe()
    process = context.Process(target=publish_to_new_topics, args=(store.path, theirs))
    with store.pubsub(ignore_subscribe_messages=True, decode_responses=True) as subscription:
        subscription.psubscribe("log.*")
        process.start()
        try:
            for number in range(30):
                message = subscription.get_message(timeout=120)
                assert message is not None
                assert message["channel"] == f"log.{number}"
                answers.send(None)  # the next topic is made while this side begins to wait
            process.join(30)
        finally:
            process.kill()
            process.join()


def publish_to_new_topics(path: Path, parent: Connection) -> None:
    with jjq.open(path) as store:
        for number in range(30):
            store.publish(f"log.{number}", b"x")
            parent.recv()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_leaves_its_parents_subscription_alone(store: jjq.Store) -> None:
    with store.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe("news")
        assert store.publish("news", b"1") == 1
        ready, go = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                other = store.pubsub()
                other.close()
                assert subscription.get_message() is None  # its own begins here
                os.write(ready[1], b"x")
                os.read(go[0], 1)
                code = 0 if subscription.get_message(timeout=60)["data"] == b"2" else 2
                subscription.close()
            os._exit(code)
        os.read(ready[0], 1)
        assert store.publish("news", b"2") == 2
        os.write(go[1], b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.publish("news", b"3") == 1
        assert [message["data"] for message in drain(subscription)] == [b"1", b"2", b"3"]


def test_a_subscription_that_only_a_forked_child_has_left_is_none(store: jjq.Store, tmp_path: Path) -> None:
    """Its parent is dead, and the child has never used it."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    parent = context.Process(target=subscribe_and_fork, args=(tmp_path / "store", there))
    parent.start()
    there.close()
    grandchild = here.recv()
    try:
        assert store.publish("news", b"1") == 1
        os.kill(parent.pid or 0, signal.SIGKILL)
        parent.join()
        assert store.publish("news", b"2") == 0
        assert store.pubsub_numsub("news") == {"news": 0}
    finally:
        os.kill(grandchild, signal.SIGKILL)


def subscribe_and_fork(path: Path, pipe: Connection) -> None:
    warnings.simplefilter("ignore")
    subscription = jjq.open(path).pubsub()
    subscription.subscribe("news")
    if os.fork() == 0:
        pipe.send(os.getpid())  # by itself: when it has let go of what is its parent's
    signal.pause()


def test_records_let_go_in_several_partitions_are_counted_as_dropped(store: jjq.Store) -> None:
    topic = store.create_topic("a", partitions=3)
    with store.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe("a")
        for partition in range(3):
            topic.push(b"1", partition=partition)
        topic.empty()
        assert subscription.get_message() is None
        assert subscription.dropped == 3
        topic.push(b"2", partition=2)
        assert subscription.get_message()["data"] == b"2"


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("log.*", ["log.", "log.a", "log.a.b"], ["log", "xlog.a"]),
        ("h?llo", ["hello", "hallo"], ["hllo", "heello"]),
        ("h[ae]llo", ["hello", "hallo"], ["hillo"]),
        ("h[^e]llo", ["hallo"], ["hello"]),
        ("h[a-c]llo", ["hbllo"], ["hdllo"]),
        (r"a\*b", ["a*b"], ["axb"]),
    ],
)
def test_patterns_match_as_they_do_elsewhere(pattern: str, matches: list[str], others: list[str]) -> None:
    compiled = glob(pattern)
    assert all(compiled.match(name) for name in matches)
    assert not any(compiled.match(name) for name in others)


def test_topics_made_later_are_included_from_their_first_message(store: jjq.Store) -> None:
    with store.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe("later")
        subscription.psubscribe("log.*")
        durable = store.create_topic("log.durable")
        durable.push(b"1")
        store.publish("later", b"2")
        store.publish("log.x", b"3")
        assert {m["data"] for m in drain(subscription)} == {b"1", b"2", b"3"}
        assert store.topic("later").config.ephemeral


def test_a_subscription_begins_where_the_topic_is(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push(b"before")
    with store.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe("t")
        topic.push(b"after")
        assert [m["data"] for m in drain(subscription)] == [b"after"]


def test_messages_wait_for_a_subscription_that_does_not_look(store: jjq.Store) -> None:
    with store.pubsub(ignore_subscribe_messages=True) as first, store.pubsub(ignore_subscribe_messages=True) as second:
        first.subscribe("t")
        second.subscribe("t")
        for i in range(100):
            assert store.publish("t", str(i)) == 2
        second.close()  # one leaving takes nothing from the other
        assert [m["data"] for m in drain(first)] == [str(i).encode() for i in range(100)]


def test_a_blocked_get_is_woken_by_a_publish_and_ended_by_close(store: jjq.Store) -> None:
    subscription = store.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe("t")
    got: list[object] = []
    waiter = threading.Thread(target=lambda: got.append(subscription.get_message(timeout=30)))
    waiter.start()
    store.publish("t", b"x")
    waiter.join(30)
    assert got == [{"type": "message", "pattern": None, "channel": b"t", "data": b"x"}]
    errors: list[BaseException] = []

    def wait_for_ever() -> None:
        try:
            subscription.get_message(timeout=None)
        except jjq.StoreClosed as error:
            errors.append(error)

    waiter = threading.Thread(target=wait_for_ever)
    waiter.start()
    subscription.close()
    subscription.close()
    waiter.join(30)
    assert len(errors) == 1


def test_a_clean_close_leaves_nothing(store: jjq.Store) -> None:
    subscription = store.pubsub()
    assert subscription.id is None
    assert not registry(store).exists()
    subscription.subscribe("t")
    assert subscription.id is not None
    store.publish("t", b"x")
    subscription.close()
    assert list(registry(store).iterdir()) == []
    assert store.topics() == []
    assert (store.pubsub_channels(), store.pubsub_numsub("t"), store.pubsub_numpat()) == ([], {"t": 0}, 0)


def test_what_is_subscribed_can_be_listed(store: jjq.Store) -> None:
    with store.pubsub() as a, store.pubsub() as b:
        a.subscribe("x", "y")
        b.subscribe("y")
        b.psubscribe("p*")
        a.psubscribe("p*")
        assert store.pubsub_channels() == ["x", "y"]
        assert store.pubsub_channels("x*") == ["x"]
        assert store.pubsub_numsub("x", "y", "z") == {"x": 1, "y": 2, "z": 0}
        assert store.pubsub_numpat() == 1


def _subscribe_and_hang(path: str, ready: "multiprocessing.synchronize.Event") -> None:  # type: ignore[name-defined]
    subscription = jjq.open(path).pubsub()
    subscription.subscribe("t")
    ready.set()
    subscription.get_message(timeout=None)
    signal.pause()


def test_a_subscription_whose_process_died_is_found_and_removed(store: jjq.Store) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_subscribe_and_hang, args=(str(store.path), ready))
    process.start()
    assert ready.wait(60)
    assert store.publish("t", b"alive") == 1
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert store.publish("t", b"dead") == 0
    assert [path for path in registry(store).iterdir() if path.suffix != ".lock"] == []
    assert ephemeral.reap_all(store, idle_us=0) == ["t"]


@pytest.mark.parametrize("bad", ["", "a b", "../x", "a" * 300])
def test_bad_names_are_refused(store: jjq.Store, bad: str) -> None:
    with store.pubsub() as subscription:
        with pytest.raises(jjq.InvalidName):
            subscription.subscribe(bad)
        with pytest.raises(jjq.InvalidName):
            store.publish(bad, b"")
        with pytest.raises(jjq.InvalidArgument):
            subscription.subscribe()
        with pytest.raises(jjq.InvalidArgument):
            subscription.psubscribe("")
        assert subscription.id is None


# --- ephemeral topics ----------------------------------------------------------------------------------------------------


def test_the_suffix_makes_a_topic_ephemeral_and_bounded(store: jjq.Store) -> None:
    topic = store.create_topic("t#ephemeral", max_records=100)
    assert (topic.config.ephemeral, topic.config.sync) == (True, "none")
    for i in range(1000):
        topic.push(str(i))
    bounds = topic.offsets()[0]
    assert bounds.end == 1000
    assert 100 <= bounds.end - bounds.start <= 110
    assert ephemeral.dropped(store, topic) == bounds.start
    assert topic.read().read_all().column("value").to_pylist()[-1] == b"999"


def test_a_slow_reader_of_a_bounded_topic_is_told_how_many_it_missed(store: jjq.Store) -> None:
    store.create_topic("t#ephemeral", max_records=100)
    with store.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe("t#ephemeral")
        for i in range(1000):
            store.publish("t#ephemeral", str(i))
        got = [int(m["data"]) for m in drain(subscription)]  # type: ignore[call-overload]
    assert got == list(range(1000 - len(got), 1000))
    assert subscription.dropped == 1000 - len(got)


def test_dropping_the_newest_counts_and_refusing_raises(store: jjq.Store) -> None:
    newest = store.create_topic("n#ephemeral", max_records=10, when_full="drop_newest")
    refuse = store.create_topic("r#ephemeral", max_records=10, when_full="refuse")
    with store.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe("n#ephemeral", "r#ephemeral")
        offsets = [newest.push(b"%d" % i).offset for i in range(15)]
        assert offsets == [*range(10), *[-1] * 5]
        assert ephemeral.dropped(store, newest) == 5
        for _ in range(10):
            refuse.push(b"v")
        with pytest.raises(jjq.TopicFull, match="10 of at most 10"):
            refuse.push(b"v")
        drain(subscription)
        assert newest.push(b"fits again").offset == 10
        assert refuse.push(b"fits again").offset == 10


def test_a_batch_larger_than_the_bound_never_goes_in(store: jjq.Store) -> None:
    newest = store.create_topic("n#ephemeral", partitions=2, max_records=10, when_full="drop_newest")
    refuse = store.create_topic("r#ephemeral", max_records=10, when_full="refuse")
    dropped = newest.push_many([b"v"] * 50, partition=1)
    assert len(dropped) == 50
    assert {(each.partition, each.offset) for each in dropped} == {(1, -1)}
    spread = newest.push_many([b"v"] * 50, keys=[b"%d" % i for i in range(50)])
    assert {(each.partition, each.offset) for each in spread} == {(0, -1), (1, -1)}
    with pytest.raises(jjq.RecordTooLarge, match=r"50 records never fit .* at most 10 .*push fewer at once"):
        refuse.push_many([b"v"] * 50)
    assert [each.offset for each in refuse.push_many([b"v"] * 10)] == list(range(10))
    with pytest.raises(jjq.TopicFull):
        refuse.push(b"v")


def test_a_producer_makes_no_batch_that_never_fits(store: jjq.Store) -> None:
    newest = store.create_topic("n#ephemeral", max_records=10, when_full="drop_newest")
    refuse = store.create_topic("r#ephemeral", max_records=10, when_full="refuse")
    with store.producer(linger_ms=60_000, delivery_timeout_s=0) as producer:
        dropped, refused = [[producer.push(topic.name, b"v") for _ in range(25)] for topic in (newest, refuse)]
    assert [each.result().offset for each in dropped] == [*range(10), *[-1] * 15]
    assert [each.result().offset for each in refused[:10]] == list(range(10))
    assert {type(each.exception()) for each in refused[10:]} == {jjq.TopicFull}


def test_an_ephemeral_topic_of_another_boot_is_gone(store: jjq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_topic("t#ephemeral").push(b"v")
    store.create_topic("stays").push(b"v")
    monkeypatch.setattr("jjq.store.boot_id", lambda: "another")
    with jjq.open(store.path) as rebooted:
        assert [topic.name for topic in rebooted.topics()] == ["stays"]
        assert rebooted.create_topic("t#ephemeral").offsets()[0].end == 0


def test_max_records_is_for_ephemeral_topics(store: jjq.Store) -> None:
    with pytest.raises(jjq.InvalidArgument, match="ephemeral"):
        store.create_topic("t", max_records=5)
    with pytest.raises(jjq.InvalidArgument, match="when_full"):
        store.create_topic("t#ephemeral", when_full="explode")


def test_who_comes_too_late_to_hold_a_topic_leaves_nothing(store: jjq.Store) -> None:
    topic = store.create_topic("t#ephemeral")
    store.delete_topic("t#ephemeral")
    before = open_below(store.path)
    with pytest.raises(jjq.TopicDeleted):
        ephemeral.Holder(store, topic)
    assert not ephemeral.holders_dir(store, topic.id).exists()
    assert open_below(store.path) == before


def test_who_subscribes_again_after_a_full_disk_is_counted(store: jjq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock, which says that it lives, is made at the second try."""

    def full(path: Path) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with store.pubsub(ignore_subscribe_messages=True) as subscription:
        with monkeypatch.context() as patched:
            patched.setattr(files, "create", full)
            with pytest.raises(jjq.StoreError):
                subscription.subscribe("news")
        subscription.subscribe("news")
        assert store.publish("news", b"x") == 1
        assert [each["data"] for each in drain(subscription)] == [b"x"]
