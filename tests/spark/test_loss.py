"""Records that go before a query has read them, while it runs and while it is stopped: said or fatal, never both ways,
never twice, and the query ends."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import jjq
from tests.stores import assert_whole, roll

PATIENCE_S = 90  # for a query that must end


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    """With a topic of the records 0 to 7, two a segment."""
    with jjq.open(tmp_path / "store", maintenance=False) as opened:
        topic = opened.create_topic("t", segment_rows=2)
        for first in (0, 2, 4, 6):
            topic.push_many([b"%d" % first, b"%d" % (first + 1)])
            roll(opened, "t")
        yield opened
        assert_whole(opened)


# What happens to the topic when 0 and 1 are read; each returns what there is to read then.


def expire(store: jjq.Store) -> list[str]:
    store.alter_topic("t", retention_segments=2)
    store.maintain(grace_us=0)
    [held] = store.topic("t").offsets()
    assert 2 < held.start < held.end == 8
    return [str(offset) for offset in range(held.start, held.end)]


def empty(store: jjq.Store) -> list[str]:
    store.topic("t").empty()
    store.topic("t").push(b"after")
    return ["after"]


def delete(store: jjq.Store) -> list[str]:
    store.delete_topic("t")
    return []


def recreate(store: jjq.Store) -> list[str]:
    store.delete_topic("t")
    store.create_topic("t").push_many([b"new", b"newer"])
    return ["new", "newer"]


CASES = [
    pytest.param(expire, "DataLoss", id="retention"),
    pytest.param(empty, "DataLoss", id="emptied"),
    pytest.param(delete, "it was deleted", id="deleted"),
    pytest.param(recreate, "deleted and made again", id="recreated"),
]
Happens = Callable[[jjq.Store], list[str]]


class Query:
    """Reads the topic two records at a time and keeps what it has read, in order."""

    def __init__(self, spark: SparkSession, store: jjq.Store, tmp_path: Path) -> None:
        self.spark, self.store, self.checkpoint = spark, store, str(tmp_path / "checkpoint")
        self.seen: list[str] = []

    def run(self, then: Callable[[], None] | None = None, **options: object) -> None:
        """Under AvailableNow to its end; `then` happens once, when the first micro-batch is read."""
        pending = [then] if then else []

        def keep(batch: DataFrame, _: int) -> None:
            self.seen += [bytes(row.value).decode() for row in batch.orderBy("offset").collect()]
            while pending:
                pending.pop()()

        given = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 2} | options
        frame = self.spark.readStream.format("jjq").options(**given).load(str(self.store.path))  # type: ignore[arg-type]
        writing = frame.writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        query = writing.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(PATIENCE_S), "it is stuck"
        finally:
            query.stop()


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
@pytest.mark.parametrize(("happens", "says"), CASES)
def test_loss_while_a_query_runs(
    spark: SparkSession, store: jjq.Store, tmp_path: Path, happens: Happens, says: str, strict: bool
) -> None:
    query, left = Query(spark, store, tmp_path), list[str]()
    if strict:
        with pytest.raises(StreamingQueryException, match=says):
            query.run(lambda: left.extend(happens(store)))
        assert query.seen == ["0", "1"]
        return
    query.run(lambda: left.extend(happens(store)), failOnDataLoss=False)
    if happens is not delete:  # what comes after the query's end was fixed is for its next run
        query.run(failOnDataLoss=False)
    assert query.seen == ["0", "1", *left]


# Emptied and recreated ones are in test_source.
@pytest.mark.parametrize(("happens", "says"), [CASES[0], CASES[2]])
def test_loss_while_a_query_is_stopped(
    spark: SparkSession, store: jjq.Store, tmp_path: Path, happens: Happens, says: str
) -> None:
    query = Query(spark, store, tmp_path)
    query.run(endingOffsets='{"t":{"0":2}}')
    left = happens(store)
    # A topic that is named and not there cannot be read, whatever failOnDataLoss says; one of a pattern is passed over.
    with pytest.raises(Exception, match="TopicNotFound" if happens is delete else says):
        query.run()
    assert query.seen == ["0", "1"]
    if happens is delete:
        lenient = {"subscribe": "", "subscribePattern": "t", "failOnDataLoss": False}
        query.run(**lenient)
        store.create_topic("t").push(b"again")
        left = ["again"]
    else:
        lenient = {"failOnDataLoss": False}
    for _ in range(2):
        query.run(**lenient)
    assert query.seen == ["0", "1", *left]
