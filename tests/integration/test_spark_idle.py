"""What a query does while there is nothing new: without a JVM, as Spark calls it."""

import threading

import pytest

import jjq
from pyspark_jjq import idling
from tests.readers import ALL, rows, stream, through_json


@pytest.fixture
def endless_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rest that nothing ends lasts longer than a test may take."""
    monkeypatch.setattr(idling, "IDLE_SHARE", 1e9)
    monkeypatch.setattr(idling, "IDLE_PAUSE_MAX_S", 3600.0)


@pytest.mark.usefixtures("endless_rests")
def test_a_query_that_rests_is_woken_by_a_push(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=2)
    reader = stream(store, startingOffsets="earliest")
    at = through_json(reader.initialOffset())
    assert reader.latestOffset(at, ALL) == at
    reader._idle.end()
    assert reader.latestOffset(at, ALL) == at  # now the files that are to be listened to are known
    for partition in (0, 1, 0):
        threading.Thread(target=topic.push, args=(b"x",), kwargs={"partition": partition}).start()
        end = at
        while end == at:  # the files that a first push makes wake it, too
            end = through_json(reader.latestOffset(at, ALL))
        assert [row["partition"] for row in rows(reader, reader.partitions(at, end))] == [partition]
        at = end
        assert reader.latestOffset(at, ALL) == at


@pytest.mark.usefixtures("endless_rests")
def test_a_push_between_a_look_and_the_rest_ends_the_rest(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push(b"before")
    reader = stream(store, startingOffsets="latest")
    at = through_json(reader.initialOffset())
    assert reader.latestOffset(at, ALL) == at
    reader._idle.end()
    assert reader.latestOffset(at, ALL) == at
    topic.push(b"x")
    assert through_json(reader.latestOffset(at, ALL)) != at
