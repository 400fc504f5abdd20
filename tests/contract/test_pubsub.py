"""What publishing and subscribing promise, whatever serves the store; `tests/unit/test_pubsub.py` has the rest."""

from collections.abc import Callable
from typing import Any

import pytest

import jjq

Reopen = Callable[[], jjq.Store]


def test_messages_and_confirmations_have_the_shape_of_redis(store: jjq.Store, reopen: Reopen) -> None:
    with store.pubsub() as subscription:
        subscription.subscribe("news", "sports")
        subscription.psubscribe("n*")
        confirmed = [subscription.get_message() for _ in range(3)]
        assert confirmed == [
            {"type": "subscribe", "pattern": None, "channel": b"news", "data": 1},
            {"type": "subscribe", "pattern": None, "channel": b"sports", "data": 2},
            {"type": "psubscribe", "pattern": None, "channel": b"n*", "data": 3},
        ]
        assert subscription.id is not None
        assert repr(subscription) == "<PubSub 2 names, 1 pattern>"
        other = reopen()
        assert (other.publish("news", b"1"), other.publish("sports", "2"), other.publish("else", b"3")) == (2, 1, 0)
        assert [subscription.get_message(timeout=60) for _ in range(3)] in (
            [named(b"news", b"1"), matched(b"n*", b"news", b"1"), named(b"sports", b"2")],
            [named(b"sports", b"2"), named(b"news", b"1"), matched(b"n*", b"news", b"1")],
        )
        assert subscription.get_message() is None


def named(channel: bytes, data: bytes) -> dict[str, Any]:
    return {"type": "message", "pattern": None, "channel": channel, "data": data}


def matched(pattern: bytes, channel: bytes, data: bytes) -> dict[str, Any]:
    return {"type": "pmessage", "pattern": pattern, "channel": channel, "data": data}


def test_texts_where_they_are_wanted_and_no_confirmations(store: jjq.Store) -> None:
    with store.pubsub(decode_responses=True, ignore_subscribe_messages=True) as subscription:
        subscription.psubscribe("log.*")
        store.publish("log.a", "ü")
        assert subscription.get_message(timeout=60) == {
            "type": "pmessage", "pattern": "log.*", "channel": "log.a", "data": "ü",
        }  # fmt: skip


def test_unsubscribing_ends_it_and_listening_ends_with_it(store: jjq.Store) -> None:
    with store.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe("a", "b")
        subscription.unsubscribe("a")
        assert (store.publish("a", b"x"), store.publish("b", b"y")) == (0, 1)
        for message in subscription.listen():
            assert message["data"] == b"y"
            subscription.unsubscribe()
        assert not subscription.subscribed
        assert subscription.id is None


def test_who_listens_is_counted_until_it_ends(store: jjq.Store, reopen: Reopen) -> None:
    first, second = store.pubsub(), reopen().pubsub()
    first.subscribe("a", "b")
    second.subscribe("a")
    second.psubscribe("x*")
    assert store.pubsub_channels() == ["a", "b"]
    assert store.pubsub_channels("b*") == ["b"]
    assert store.pubsub_numsub("a", "b", "c") == {"a": 2, "b": 1, "c": 0}
    assert store.pubsub_numpat() == 1
    second.close()
    second.close()
    assert (store.pubsub_numsub("a"), store.pubsub_numpat()) == ({"a": 1}, 0)
    with pytest.raises(jjq.StoreClosed, match="subscription was closed"):
        second.get_message()
    first.close()
    assert store.pubsub_channels() == []


def test_bad_names_and_patterns_are_refused(store: jjq.Store) -> None:
    subscription = store.pubsub()
    for use in (subscription.subscribe, subscription.psubscribe):
        with pytest.raises(jjq.InvalidArgument):
            use()
    with pytest.raises(jjq.InvalidName):
        subscription.subscribe("a b")
    for pattern in ("", "a\n", 7):
        with pytest.raises(jjq.InvalidArgument):
            subscription.psubscribe(pattern)  # type: ignore[arg-type]
    with pytest.raises(jjq.InvalidName):
        store.publish("../x", b"")
    assert (subscription.id, subscription.subscribed) == (None, False)
