"""Records that go before a query has read them, while it runs and while it is stopped: said or fatal, never both ways,
never twice, and the query ends."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

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
    while store.maintain(grace_us=0).busy:
        pass
    if store.topic("t").offsets()[0].start <= 2:
        # The process that plans the query has its turns, too, and on a slow machine it has merged the segments: then only
        # all of them can go.
        store.topic("t").empty()
    [held] = store.topic("t").offsets()
    assert 2 < held.start <= held.end == 8
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

CHOICES = [
    pytest.param({"subscribe": "t"}, id="named"),
    # Without the engine of Spark, test_spark_stream.py has patterns among what is always run.
    pytest.param({"assign": '{"t":[0]}'}, id="assigned", marks=pytest.mark.soak),
    pytest.param({"subscribePattern": "t.*"}, id="pattern", marks=pytest.mark.soak),
]


class Query:
    """Reads the topic two records at a time and keeps what it has read, in order."""

    def __init__(self, spark: SparkSession, store: jjq.Store, tmp_path: Path, **what: str) -> None:
        """`what` it reads: topic t by its name, unless this says otherwise."""
        self.spark, self.store, self.checkpoint = spark, store, str(tmp_path / "checkpoint")
        self.what = what or {"subscribe": "t"}
        self.seen: list[str] = []

    def run(self, then: Callable[[], None] | None = None, **options: object) -> None:
        """Under AvailableNow to its end; `then` happens once, when the first micro-batch is read."""
        pending = [then] if then else []

        def keep(batch: DataFrame, _: int) -> None:
            self.seen += [bytes(row.value).decode() for row in batch.orderBy("offset").collect()]
            while pending:
                pending.pop()()

        given = {**self.what, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 2, **options}
        frame = self.spark.readStream.format("jjq").options(**given).load(str(self.store.path))  # type: ignore[arg-type]
        writing = frame.writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        query = writing.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(PATIENCE_S), "it is stuck"
        finally:
            query.stop()


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
@pytest.mark.parametrize("what", CHOICES)
@pytest.mark.parametrize(("happens", "says"), CASES)
def test_loss_while_a_query_runs(
    spark: SparkSession,
    store: jjq.Store,
    tmp_path: Path,
    happens: Happens,
    says: str,
    what: dict[str, str],
    strict: bool,
) -> None:
    query, left = Query(spark, store, tmp_path, **what), list[str]()
    if strict:
        with pytest.raises(StreamingQueryException, match=says):
            query.run(lambda: left.extend(happens(store)))
        assert query.seen == ["0", "1"]
        return
    query.run(lambda: left.extend(happens(store)), failOnDataLoss=False)
    if happens is not delete:  # what comes after the query's end was fixed is for its next run
        query.run(failOnDataLoss=False)
    assert query.seen == ["0", "1", *left]


@pytest.mark.parametrize("what", CHOICES)
@pytest.mark.parametrize(("happens", "says"), CASES)
def test_loss_while_a_query_is_stopped(
    spark: SparkSession, store: jjq.Store, tmp_path: Path, happens: Happens, says: str, what: dict[str, str]
) -> None:
    query = Query(spark, store, tmp_path, **what)
    query.run(endingOffsets='{"t":{"0":2}}')
    left = happens(store)
    # A topic that is named and not there cannot be read, whatever failOnDataLoss says; one of a pattern is passed over.
    named = "subscribePattern" not in what
    with pytest.raises(Exception, match="TopicNotFound" if happens is delete and named else says):
        query.run()
    assert query.seen == ["0", "1"]
    if happens is delete:
        query.what = {"subscribePattern": "t.*"}
        query.run(failOnDataLoss=False)
        store.create_topic("t").push(b"again")
        left = ["again"]
    for _ in range(2):
        query.run(failOnDataLoss=False)
    assert query.seen == ["0", "1", *left]


def grow(store: jjq.Store) -> None:
    topic = store.alter_topic("t", partitions=3)
    for partition in range(3):
        topic.push(b"to %d" % partition, partition=partition)


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
@pytest.mark.parametrize("what", CHOICES)
def test_partitions_that_are_added_are_no_loss_and_read_where_they_are_chosen(
    spark: SparkSession, store: jjq.Store, tmp_path: Path, what: dict[str, str], running: bool
) -> None:
    query = Query(spark, store, tmp_path, **what)
    if running:
        query.run(lambda: grow(store))
    else:
        query.run(endingOffsets='{"t":{"0":2}}')
        grow(store)
    for _ in range(2):
        query.run()
    added = [] if "assign" in what else ["to 1", "to 2"]
    assert sorted(query.seen) == sorted([*"01234567", "to 0", *added])
    if "assign" in what:
        query.what = {"assign": '{"t":[1,0]}'}
        query.run()
        assert query.seen[-1] == "to 1"
        assert len(query.seen) == 10


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_an_assigned_partition_that_is_not_in_the_topic_made_again_is_refused_and_one_that_is_there_is_read(
    spark: SparkSession, store: jjq.Store, tmp_path: Path, running: bool, strict: bool
) -> None:
    grow(store)
    query = Query(spark, store, tmp_path, assign='{"t":[0,2]}')
    refused = pytest.raises(Exception, match=r"assign names partition 2 of topic 't', which has 0 to 0")
    if running:
        with refused:
            query.run(lambda: recreate(store) and None, failOnDataLoss=strict)
    else:
        query.run(endingOffsets='{"t":{"0":2,"2":0}}')
        recreate(store)
        with refused:
            query.run(failOnDataLoss=strict)
    seen = list(query.seen)
    query.what = {"assign": '{"t":[0]}'}
    if strict:
        with pytest.raises(Exception, match="deleted and made again"):
            query.run()
        assert query.seen == seen
    for _ in range(2):
        query.run(failOnDataLoss=False)
    assert query.seen == [*seen, "new", "newer"]


def test_a_query_that_goes_on_reads_what_topics_have_that_go_and_come_under_its_pattern(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    seen: list[str] = []
    given = {"subscribePattern": "t.*", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    frame = spark.readStream.format("jjq").options(**given).load(str(store.path))

    def keep(batch: DataFrame, _: int) -> None:
        seen.extend(bytes(row.value).decode() for row in batch.orderBy("topic", "partition", "offset").collect())

    def start() -> StreamingQuery:
        return frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "goes-on")).start()

    wanted = list("01234567")
    query = start()
    try:
        for turn in range(6):
            query.processAllAvailable()
            assert seen == wanted
            topic = store.create_topic(f"t{turn}", partitions=2)
            topic.push_many([b"%d first" % turn], partition=1)
            if turn % 2:
                store.delete_topic(f"t{turn - 1}")
                store.create_topic(f"t{turn - 1}", partitions=1 + turn % 3).push(b"%d again" % turn)
                wanted += [f"{turn} again"]
            if turn == 3:  # it comes and goes while nobody looks
                query.stop()
                store.delete_topic("t1")
                store.create_topic("t1").push(b"t1 again")
                wanted += ["t1 again"]
                query = start()
            wanted += [f"{turn} first"]
            topic = store.alter_topic(f"t{turn}", partitions=3)
            topic.push(b"%d added" % turn, partition=2)
            wanted += [f"{turn} added"]
            query.processAllAvailable()
            assert sorted(seen) == sorted(wanted)
            wanted = list(seen)
    finally:
        query.stop()
