"""What a channel promises, whatever serves the store; `tests/unit/test_channel*.py` have the rest, with a clock of their own."""

from collections.abc import Callable

import pytest

import jjq
from jjq.clock import now_us

Reopen = Callable[[], jjq.Store]


@pytest.fixture
def topic(store: jjq.Store) -> jjq.Topic:
    topic = store.create_topic("letters", sync="none")
    topic.push_many([b"a", b"b", b"c", b"d"], headers=[{"n": b"1"}, None, None, None])
    return topic


@pytest.fixture
def channel(store: jjq.Store, topic: jjq.Topic) -> jjq.Channel:
    return store.channel("letters", "work", create=True)


def values(deliveries: list[jjq.Delivery]) -> list[bytes]:
    return [each.record.value for each in deliveries]


def test_it_has_what_it_was_made_with(store: jjq.Store, topic: jjq.Topic) -> None:
    made = store.channel(
        "letters", "w", create=True, start=2, max_attempts=None, ack_timeout="5 s", ordered=True, dead_letter="gone",
        max_in_flight=7,
    )  # fmt: skip
    assert (made.name, made.topic.name, made.max_attempts, made.ack_timeout) == ("w", "letters", None, 5.0)
    assert (made.ordered, made.dead_letter, made.max_in_flight) == (True, "gone", 7)
    assert repr(made) == "<Channel 'w' of topic 'letters' open>"
    assert values(made.receive(10)) == [b"c", b"d"]
    changed = store.channel("letters", "w", max_attempts=3)
    assert (changed.id, changed.max_attempts, changed.ack_timeout, changed.created_at) == (
        made.id,
        3,
        5.0,
        made.created_at,
    )
    store.channel("letters", "v", create=True)
    assert [(each.topic.name, each.name) for each in store.channels("letters")] == [("letters", "v"), ("letters", "w")]


def test_records_come_whole_and_are_shared_among_consumers(
    store: jjq.Store, channel: jjq.Channel, reopen: Reopen
) -> None:
    other = reopen().channel("letters", "work")
    mine, theirs = channel.receive(2), other.receive(10)
    assert (values(mine), values(theirs)) == ([b"a", b"b"], [b"c", b"d"])
    assert (mine[0].record.headers, mine[0].record.offset, mine[0].attempts) == ([("n", b"1")], 0, 1)
    assert sorted(each.in_flight for each in channel.consumers()) == [2, 2]
    channel.ack_many(mine)
    other.ack_many(theirs)
    counts = channel.counts()
    assert (counts.acked, counts.depth, counts.in_flight, counts.delivered) == (4, 0, 0, 4)


def test_deliveries_of_several_consumers_are_settled_together(store: jjq.Store, channel: jjq.Channel) -> None:
    other = store.channel("letters", "work")
    channel.ack_many([*channel.receive(2), *other.receive(2)])
    counts = channel.counts()
    assert (counts.acked, counts.depth, counts.in_flight) == (4, 0, 0)


def test_settling_twice_is_quiet_in_the_same_way_only(channel: jjq.Channel) -> None:
    a, b = channel.receive(2)
    a.ack()
    a.ack()
    with pytest.raises(jjq.InvalidArgument, match="cannot be requeued"):
        a.requeue()
    b.touch()
    b.requeue(reason="not now")
    b.requeue()
    with pytest.raises(jjq.InvalidArgument, match="cannot be acknowledged"):
        channel.ack_many([b])
    assert [(each.record.value, each.attempts) for each in channel.receive(1)] == [(b"b", 2)]
    assert "attempt 1, acknowledged" in repr(a)


def test_a_delivery_that_timed_out_is_another_consumers(store: jjq.Store, topic: jjq.Topic, reopen: Reopen) -> None:
    first = store.channel("letters", "work", create=True, ack_timeout=0.05)
    late = first.receive(4)
    other = reopen().channel("letters", "work")
    again = other.receive(4, timeout=60)
    assert again[0].attempts == 2
    with pytest.raises(jjq.DeliveryExpired) as caught:
        first.ack_many(late)
    assert "they timed out and were delivered again, to this consumer or another" in str(caught.value)
    assert (0, 0) in caught.value.expired
    assert late[0]._settled == "expired"


def test_closing_gives_back_what_was_in_hand(store: jjq.Store, channel: jjq.Channel, reopen: Reopen) -> None:
    other = reopen().channel("letters", "work")
    held = channel.receive(4)
    assert other.receive() == []
    channel.close()
    channel.close()
    assert values(other.receive(4, timeout=60)) == [b"a", b"b", b"c", b"d"]
    for use in (channel.receive, channel.counts, held[0].ack):
        with pytest.raises(jjq.StoreClosed, match="'work' was closed"):
            use()


def test_it_has_at_most_so_many_in_hand(store: jjq.Store, topic: jjq.Topic) -> None:
    channel = store.channel("letters", "work", create=True, max_in_flight=3)
    held = channel.receive(10)
    assert (len(held), channel.receive(10)) == (3, [])
    held[0].ack()
    assert values(channel.receive(10)) == [b"d"]


def test_after_its_last_attempt_a_record_is_dead_and_can_be_revived(store: jjq.Store, topic: jjq.Topic) -> None:
    channel = store.channel("letters", "work", create=True, max_attempts=1)
    for each in channel.receive(4):
        each.requeue(reason=f"no {each.record.value.decode()}")
    assert (channel.receive(4), channel.counts().dead) == ([], 4)
    dead = store.topic(channel.dead_letter).read().read_all().column("value").to_pylist()
    assert sorted(dead) == [b"a", b"b", b"c", b"d"]
    assert channel.revive() == 4
    assert len(channel.receive(10, timeout=60)) == 4


def test_a_pause_holds_for_everybody(store: jjq.Store, topic: jjq.Topic, channel: jjq.Channel, reopen: Reopen) -> None:
    other = reopen()
    other.channel("letters", "work").pause()
    assert (channel.paused, channel.receive()) == (True, [])
    channel.unpause()
    other.topic("letters").pause()
    assert (topic.paused, channel.receive()) == (True, [])
    topic.unpause()
    assert values(channel.receive()) == [b"a"]


def test_emptying_skips_what_was_pushed(topic: jjq.Topic, channel: jjq.Channel) -> None:
    (held,) = channel.receive()
    channel.empty()
    with pytest.raises(
        jjq.DeliveryExpired, match=r"^the delivery of channel 'work' had expired: it timed out .* was emptied"
    ):
        held.ack()
    topic.push(b"e")
    assert values(channel.receive(10)) == [b"e"]


def test_a_deferred_record_comes_in_its_time(topic: jjq.Topic, channel: jjq.Channel) -> None:
    channel.ack_many(channel.receive(4))
    topic.push(b"in an hour", delay=3600)
    topic.push(b"now")
    assert values(channel.receive(2)) == [b"now"]
    topic.push(b"soon", delay=0.05)
    [soon] = channel.receive(2, timeout=60)
    assert soon.record.value == b"soon"
    assert int(dict(soon.record.headers or ())["jjq-not-before"] or 0) <= now_us()


@pytest.mark.parametrize("gone", ["channel", "topic"])
def test_what_is_deleted_is_gone_for_who_has_it(
    store: jjq.Store, channel: jjq.Channel, reopen: Reopen, gone: str
) -> None:
    (held,) = channel.receive()
    other = reopen()
    if gone == "channel":
        other.delete_channel("letters", "work")
    else:
        other.delete_topic("letters")
    error = jjq.ChannelNotFound if gone == "channel" else jjq.TopicDeleted
    for use in (channel.receive, held.ack, channel.counts):
        with pytest.raises(error):
            use()


def test_an_unknown_one_is_answered_with_the_nearest(store: jjq.Store, channel: jjq.Channel) -> None:
    with pytest.raises(jjq.ChannelNotFound, match="did you mean 'work'"):
        store.channel("letters", "wrok")
    with pytest.raises(jjq.TopicNotFound, match="did you mean 'letters'"):
        store.channel("leters", "work")
    with pytest.raises(jjq.InvalidArgument, match="ordered"):
        store.channel("letters", "work", ordered=True)
