"""Dead letters: where they go, what they say, that they get there once, and how they come back."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq import deadletter
from jjq.catalog.leases import lease_of
from tests.channels import SECOND, Clock, die, values
from tests.stores import assert_whole


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        yield opened
        assert_whole(opened)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def topic(store: jjq.Store) -> jjq.Topic:
    topic = store.create_topic("letters", sync="none")
    topic.push_many([b"a", b"b", b"c"], keys=["k", None, None], headers=[{"h": b"1"}, None, None])
    return topic


Consumer = Callable[..., jjq.Channel]


@pytest.fixture
def consumer(store: jjq.Store, topic: jjq.Topic, clock: Clock) -> Consumer:
    return lambda **settings: store.channel("letters", "work", create=True, clock=clock, **settings)


def dead(store: jjq.Store, name: str = "letters.work.dead") -> list[jjq.Record]:
    topic = store.topic(name)
    bounds = topic.offsets()[0]
    return list(topic.records(topic.plan(0, bounds.start, bounds.end)))


def facts(record: jjq.Record) -> dict[str, bytes | None]:
    return {name.removeprefix("jjq-dead-"): value for name, value in record.headers or ()}


def test_after_its_last_attempt_a_record_is_a_dead_letter(consumer: Consumer, store: jjq.Store) -> None:
    work = consumer(max_attempts=2)
    first = work.receive(1)[0]
    first.requeue()
    again = work.receive(1)[0]
    assert again.attempts == 2
    assert "letters.work.dead" not in [each.name for each in store.topics()]
    again.requeue(delay=1000, reason="no such airport")
    [letter] = dead(store)
    assert (letter.value, letter.key, letter.headers and letter.headers[0]) == (b"a", b"k", ("h", b"1"))
    said = facts(letter)
    assert said.pop("timestamp") == str(first.record.timestamp).encode()
    assert said == {
        "h": b"1", "topic": b"letters", "topic-id": work.topic.id.encode(), "partition": b"0", "offset": b"0",
        "channel": b"work", "attempts": b"2", "reason": b"no such airport",
    }  # fmt: skip
    assert (work.counts().dead, work.counts().requeued) == (1, 2)
    assert values(work.receive(10)) == [b"b", b"c"]


def test_time_that_ran_out_and_consumers_that_died_count_as_attempts(
    consumer: Consumer, store: jjq.Store, clock: Clock
) -> None:
    work, doomed = consumer(max_attempts=2, ack_timeout=10), consumer()
    work.receive(10)
    clock.advance(10)
    mine = doomed.receive(10)
    mine[2].ack()
    die(doomed)
    assert work.receive(10) == []
    assert [(each.value, facts(each)["reason"]) for each in dead(store)] == [
        (b"a", b"its consumer died"), (b"b", b"its consumer died"),
    ]  # fmt: skip
    assert (work.counts().dead, work.counts().in_flight, work.counts().depth) == (2, 0, 0)
    with pytest.raises(jjq.DeliveryExpired):
        doomed.ack_many(mine[:2])


def test_time_that_runs_out_on_the_last_attempt_makes_dead_letters(
    consumer: Consumer, store: jjq.Store, clock: Clock
) -> None:
    work = consumer(max_attempts=1, ack_timeout=10)
    mine = work.receive(2)
    clock.advance(10)
    mine[0].ack()  # late, and nobody else has it yet
    assert values(work.receive(10)) == [b"c"]
    assert [(each.value, facts(each)["reason"]) for each in dead(store)] == [(b"b", b"timed out")]
    assert (work.counts().dead, work.counts().timed_out, work.counts().acked) == (1, 1, 1)


def test_without_a_maximum_a_record_never_dies(consumer: Consumer, store: jjq.Store) -> None:
    work = consumer(max_attempts=None)
    for attempt in range(1, 50):
        [delivery] = work.receive(1)
        assert (delivery.record.value, delivery.attempts) == (b"a", attempt)
        delivery.requeue()
    assert work.counts().dead == 0


def test_dead_letters_of_many_batches_go_in_one_commit(consumer: Consumer, store: jjq.Store, clock: Clock) -> None:
    topic = store.topic("letters")
    topic.push_many([b"%d" % n for n in range(300)])
    work = consumer(max_attempts=1, ack_timeout=10, max_in_flight=10_000)
    while work.receive(7):
        pass
    clock.advance(10)
    while work.counts().depth:
        assert work.receive(100) == []
    assert [each.value for each in dead(store)] == [b"a", b"b", b"c", *(b"%d" % n for n in range(300))]
    assert len(store.topic("letters.work.dead").segments()) <= 5


def test_two_who_bury_the_same_records_bury_them_once(consumer: Consumer, store: jjq.Store, clock: Clock) -> None:
    work = consumer()
    work.requeue_many(work.receive(2), delay=5)
    rows = store.catalog.driver.rows("leases_due", channel_id=work.id, now=clock() + 5 * SECOND, most=10)
    for _ in range(2):
        leases = [lease_of(row) for row in rows]
        deadletter.bury(store, work.topic, work._row, work._state, leases, clock())
    assert [each.value for each in dead(store)] == [b"a", b"b"]
    assert work.counts().dead == 2
    assert sorted(path.suffix for path in store.topic("letters.work.dead").directory(0).iterdir()) == ["", ".arrow"]


def test_a_letter_of_a_typed_topic_keeps_its_columns_and_gets_new_ones(store: jjq.Store) -> None:
    topic = store.create_topic("flights", schema=pa.schema([("carrier", pa.string())]))
    work = store.channel("flights", "work", create=True, max_attempts=1, dead_letter="graveyard")
    topic.push({"carrier": "AA"})
    work.receive()[0].requeue()
    store.alter_topic("flights", add_columns=pa.schema([("gate", pa.string())]))
    store.topic("flights").push({"carrier": "UA", "gate": "B2"})
    work.receive()[0].requeue()
    assert [each.value for each in dead(store, "graveyard")] == [
        {"carrier": "AA", "gate": None}, {"carrier": "UA", "gate": "B2"},
    ]  # fmt: skip


def test_what_cannot_be_buried_waits_and_others_go_on(
    consumer: Consumer, store: jjq.Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_topic("letters.work.dead", schema=pa.schema([("other", pa.int32())]))
    work = consumer(max_attempts=1, ack_timeout=10)
    work.receive()[0].requeue()
    assert "cannot write its dead letters" in caplog.text
    assert values(work.receive(1)) == [b"b"]
    store.delete_topic("letters.work.dead")
    clock.advance(5)
    assert values(work.receive(10)) == [b"c"]
    clock.advance(5)
    work.receive(10)
    assert b"a" in [each.value for each in dead(store)]


def test_revived_letters_come_again_with_attempts_counted_anew(consumer: Consumer, store: jjq.Store) -> None:
    work = consumer(max_attempts=2)
    assert work.revive() == 0
    for _ in range(4):
        for delivery in work.receive(2):
            delivery.requeue(reason="down")
    assert [each.value for each in dead(store)] == [b"a", b"b", b"c"]
    assert work.receive(10) == []
    assert work.revive() == 3
    assert work.revive() == 0
    again = work.receive(10)
    assert [(each.record.value, each.record.offset, each.attempts) for each in again] == [
        (b"a", 0, 1), (b"b", 1, 1), (b"c", 2, 1),
    ]  # fmt: skip
    work.ack_many(again[:2])
    again[2].requeue()
    work.receive(10)[0].requeue()
    assert [each.value for each in dead(store)] == [b"a", b"b", b"c", b"c"]
    assert work.revive() == 1
    assert values(work.receive(10)) == [b"c"]


def test_only_letters_of_this_channel_are_revived(store: jjq.Store, topic: jjq.Topic) -> None:
    a, b = (store.channel("letters", name, create=True, max_attempts=1, dead_letter="graveyard") for name in ("a", "b"))
    a.receive(1)[0].requeue()
    for delivery in b.receive(2):
        delivery.requeue()
    store.topic("graveyard").push(b"by hand", headers={"jjq-dead-topic-id": b"x"})
    assert len(dead(store, "graveyard")) == 4
    assert (a.revive(), b.revive()) == (1, 2)
    assert values(a.receive(10)) == [b"a", b"b", b"c"]


def test_a_dead_letter_topic_that_was_made_anew_is_begun_at_its_beginning(consumer: Consumer, store: jjq.Store) -> None:
    work = consumer(max_attempts=1)
    for delivery in work.receive(2):
        delivery.requeue()
    assert work.revive() == 2
    store.delete_topic("letters.work.dead")
    work.receive(1)[0].requeue()
    assert work.revive() == 1
    assert sorted(values(work.receive(10))) == [b"a", b"b", b"c"]


def test_letters_whose_record_retention_took_stay_where_they_are(consumer: Consumer, store: jjq.Store) -> None:
    work = consumer(max_attempts=1)
    for delivery in work.receive(3):
        delivery.requeue()
    store.topic("letters").empty()
    assert work.revive() == 0
    assert len(dead(store)) == 3


def test_a_name_that_would_be_too_long_is_refused_when_the_channel_is_made(store: jjq.Store) -> None:
    store.create_topic("t" * 200)
    with pytest.raises(jjq.InvalidName):
        store.channel("t" * 200, "c" * 100, create=True)
    assert store.channel("t" * 200, "c" * 100, create=True, dead_letter="graveyard").dead_letter == "graveyard"
