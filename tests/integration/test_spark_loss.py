"""Records that go before a query has read them, while it runs and while it is stopped: said or fatal, never both ways, never
twice, and the query ends. Each cause with each way to choose topics, strict and lenient: without a JVM, as Spark calls the
readers; tests/spark/test_loss.py has some of them through Spark itself."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jjq
from jjq.errors import DataLoss, JjqError
from tests import losses
from tests.losses import ASSIGNED, NAMED, PATTERN, SAYS, Happens, Query, fill, grow
from tests.readers import ALL, close_stores, rows, stream, through_json, values
from tests.stores import assert_whole

by_cause = pytest.mark.parametrize("happens", SAYS, ids=lambda happens: happens.__name__)
by_choice = pytest.mark.parametrize("what", [NAMED, ASSIGNED, PATTERN], ids=["named", "assigned", "pattern"])
by_state = pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
by_strictness = pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
MICRO_BATCHES = 20  # more than there can be: it is stuck


class Failed(Exception):
    """What ends a query, with the kind of the error as Spark shows it."""


class ReaderQuery(Query):
    """Each run has a reader of its own, as after a restart; what it comes to is kept where a checkpoint would be."""

    fails_with = Failed
    come_to: dict[str, Any] | None = None

    def run(self, then: Callable[[], object] | None = None, **options: Any) -> None:
        try:
            self._run([then] if then else [], self.options(options))
        except JjqError as error:
            raise Failed(f"{type(error).__name__}: {error}") from error

    def _run(self, pending: list[Callable[[], object]], options: dict[str, Any]) -> None:
        reader = stream(self.store, **options)
        reader.prepareForTriggerAvailableNow()
        if self.come_to is None:
            self.come_to = through_json(reader.initialOffset())
        for _ in range(MICRO_BATCHES):
            end = through_json(reader.latestOffset(self.come_to, reader.getDefaultReadLimit()))
            if end == self.come_to:
                return
            read = rows(reader, reader.partitions(self.come_to, end))
            self.seen += [row["value"].decode() for row in sorted(read, key=lambda row: row["offset"])]
            while pending:
                pending.pop()()
            self.come_to = end
            reader.commit(end)
        raise AssertionError("it is stuck")


@by_strictness
@by_choice
@by_cause
def test_loss_while_a_query_runs(store: jjq.Store, happens: Happens, what: dict[str, str], strict: bool) -> None:
    fill(store)
    losses.loss_while_it_runs(ReaderQuery(store, what), happens, strict)
    assert_whole(store)


@by_choice
@by_cause
def test_loss_while_a_query_is_stopped(store: jjq.Store, happens: Happens, what: dict[str, str]) -> None:
    fill(store)
    losses.loss_while_it_is_stopped(ReaderQuery(store, what), happens)
    assert_whole(store)


@by_state
@by_choice
def test_partitions_that_are_added_are_no_loss_and_read_where_they_are_chosen(
    store: jjq.Store, what: dict[str, str], running: bool
) -> None:
    fill(store)
    losses.partitions_that_are_added(ReaderQuery(store, what), running)
    assert_whole(store)


@by_strictness
@by_state
def test_an_assigned_partition_that_is_not_in_the_topic_made_again_is_refused_and_one_that_is_there_is_read(
    store: jjq.Store, running: bool, strict: bool
) -> None:
    fill(store)
    grow(store)
    losses.assigned_and_not_in_the_topic_made_again(ReaderQuery(store, {"assign": '{"t":[0,2]}'}), running, strict)
    assert_whole(store)


@by_strictness
@pytest.mark.parametrize("planned", [True, False], ids=["in a micro-batch", "between two"])
def test_an_older_copy_of_the_store_is_loss(store: jjq.Store, tmp_path: Path, planned: bool, strict: bool) -> None:
    """The copy ends earlier and is from before a partition was added; what comes then is read, in the partition of that
    number, too."""
    topic = store.create_topic("t", partitions=2)
    topic.push_many([b"0", b"1"], partition=0)
    copy = tmp_path / "copy"
    store.close()
    close_stores()
    shutil.copytree(store.path, copy)
    with jjq.open(store.path) as newer:
        grown = newer.alter_topic("t", partitions=3)
        for partition in range(3):
            grown.push_many([b"2", b"3", b"4"], partition=partition)
        before = stream(newer, startingOffsets="earliest")
        start = through_json(before.initialOffset())
        end = through_json(before.latestOffset(start, ALL))
    close_stores()
    shutil.rmtree(store.path)
    copy.rename(store.path)
    with jjq.open(store.path) as older:
        reader = stream(older, failOnDataLoss=strict)
        call = (lambda: reader.partitions(start, end)) if planned else (lambda: reader.latestOffset(end, ALL))
        if strict:
            with pytest.raises(DataLoss, match=r"older copy of the store"):
                call()
            return
        if planned:
            assert values(reader, reader.partitions(start, end)) == [b"0", b"1"]
        further = through_json(reader.latestOffset(end, ALL))
        assert values(reader, reader.partitions(end, further)) == []
        again = older.alter_topic("t", partitions=3)
        for partition in range(3):
            again.push(b"new in %d" % partition, partition=partition)
        last = through_json(reader.latestOffset(further, ALL))
        assert sorted(values(reader, reader.partitions(further, last))) == [b"new in 0", b"new in 1", b"new in 2"]
