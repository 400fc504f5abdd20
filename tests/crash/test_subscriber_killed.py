"""Consumers killed with SIGKILL: the lock is free, what they committed stays, what they did not comes again."""

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import jjq

RECORDS = 300


def consume(path: Path, mine: Connection, commit: bool) -> None:
    """Polls (and commits) once for each word it is sent, and reports the offsets."""
    with jjq.open(path) as store:
        subscriber = store.subscriber("s")
        while mine.recv() == "go on":
            records = subscriber.poll(10)
            if commit:
                subscriber.commit()
            mine.send([record.offset for record in records])


def pop_for_ever(path: Path, mine: Connection) -> None:
    with jjq.open(path) as store:
        subscriber = store.subscriber("s")
        while (record := subscriber.pop()) is not None:
            mine.send(record.offset)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with jjq.open(tmp_path / "store") as opened:
        opened.create_topic("t", sync="none").push_many([b"%d" % i for i in range(RECORDS)])
        opened.create_subscriber("t", "s")
        yield opened


@pytest.mark.parametrize("commit", [True, False])
def test_a_consumer_killed_between_polls_frees_the_subscriber_and_loses_nothing(store: jjq.Store, commit: bool) -> None:
    context = multiprocessing.get_context("spawn")
    committed = 0
    for _ in range(3):
        theirs, mine = context.Pipe()
        child = context.Process(target=consume, args=(store.path, mine, commit))
        child.start()
        mine.close()
        expected = committed
        for _ in range(4):
            theirs.send("go on")
            assert theirs.recv() == list(range(expected, expected + 10))
            expected += 10
        with pytest.raises(jjq.SubscriberBusy):
            store.subscriber("s").poll()
        child.kill()
        child.join()
        committed = expected if commit else committed
        assert store.subscriber("s").positions() == {0: committed}
    with store.subscriber("s") as after:
        assert [record.offset for record in after.poll(RECORDS)] == list(range(committed, RECORDS))


def test_a_process_killed_while_it_pops_takes_at_most_the_record_in_its_hand(store: jjq.Store) -> None:
    context = multiprocessing.get_context("spawn")
    seen: list[int] = []
    for _ in range(4):
        theirs, mine = context.Pipe()
        child = context.Process(target=pop_for_ever, args=(store.path, mine))
        child.start()
        mine.close()
        seen += [theirs.recv() for _ in range(20)]
        child.kill()
        child.join()
        try:
            while True:
                seen.append(theirs.recv())
        except EOFError:
            pass
        position = store.subscriber("s").positions()[0]
        assert seen == sorted(set(seen))
        # The one between its move of the cursor and its report is the only one that nobody reports.
        missing = set(range(position)) - set(seen)
        assert len(missing) <= 1
        seen = list(range(position))
    rest = store.subscriber("s")
    while (record := rest.pop()) is not None:
        seen.append(record.offset)
    assert seen == list(range(RECORDS))
