"""Records that go before a query has read them, while it runs and while it is stopped: said or fatal, never both ways,
never twice, and the query ends.

Each cause and each way to go on is here once; the rest, which differs in the readers alone, is a soak here, and is always run
without the engine of Spark, in tests/integration/test_spark_loss.py.
"""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import jjq
from tests import losses
from tests.losses import ASSIGNED, NAMED, PATTERN, SAYS, Happens, Query, fill, grow
from tests.stores import assert_whole

PATIENCE_S = 240  # for a query that must end
CHOICES = {"named": NAMED, "assigned": ASSIGNED, "pattern": PATTERN}
RUNNING = {"running": True, "stopped": False}
STRICT = {"strict": True, "lenient": False}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store", maintenance=False) as opened:
        fill(opened)
        yield opened
        assert_whole(opened)


class SparkQuery(Query):
    """Through Spark, with a checkpoint."""

    fails_with = StreamingQueryException

    def __init__(self, spark: SparkSession, store: jjq.Store, what: dict[str, str]) -> None:
        super().__init__(store, what)
        self.spark, self.checkpoint = spark, str(store.path.with_name("checkpoint"))

    def run(self, then: Callable[[], object] | None = None, **options: Any) -> None:
        pending = [then] if then else []

        def keep(batch: DataFrame, _: int) -> None:
            self.seen += [bytes(row.value).decode() for row in batch.orderBy("offset").collect()]
            while pending:
                pending.pop()()

        frame = self.spark.readStream.format("jjq").options(**self.options(options)).load(str(self.store.path))
        writing = frame.writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        query = writing.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(PATIENCE_S), "it is stuck"
        finally:
            query.stop()


def cases(always: set[tuple[Any, ...]], *each: dict[str, Any]) -> list[Any]:
    """All combinations of the values under their names; those not `always` run are a soak."""
    return [
        pytest.param(
            *(values[name] for values, name in zip(each, names, strict=True)),
            id="-".join(names),
            marks=() if names in always else pytest.mark.soak,
        )
        for names in product(*each)
    ]


CAUSES = {happens.__name__: happens for happens in SAYS}
WHILE_IT_RUNS = {("expire", "named", "strict"), ("recreate", "named", "lenient"), ("delete", "pattern", "lenient")}


@pytest.mark.parametrize(("happens", "what", "strict"), cases(WHILE_IT_RUNS, CAUSES, CHOICES, STRICT))
def test_loss_while_a_query_runs(
    spark: SparkSession, store: jjq.Store, happens: Happens, what: dict[str, str], strict: bool
) -> None:
    losses.loss_while_it_runs(SparkQuery(spark, store, what), happens, strict)


@pytest.mark.parametrize(("happens", "what"), cases({("empty", "assigned"), ("delete", "named")}, CAUSES, CHOICES))
def test_loss_while_a_query_is_stopped(
    spark: SparkSession, store: jjq.Store, happens: Happens, what: dict[str, str]
) -> None:
    losses.loss_while_it_is_stopped(SparkQuery(spark, store, what), happens)


@pytest.mark.parametrize(("what", "running"), cases({("named", "running")}, CHOICES, RUNNING))
def test_partitions_that_are_added_are_no_loss_and_read_where_they_are_chosen(
    spark: SparkSession, store: jjq.Store, what: dict[str, str], running: bool
) -> None:
    losses.partitions_that_are_added(SparkQuery(spark, store, what), running)


@pytest.mark.parametrize(("running", "strict"), cases({("running", "lenient")}, RUNNING, STRICT))
def test_an_assigned_partition_that_is_not_in_the_topic_made_again_is_refused_and_one_that_is_there_is_read(
    spark: SparkSession, store: jjq.Store, running: bool, strict: bool
) -> None:
    grow(store)
    query = SparkQuery(spark, store, {"assign": '{"t":[0,2]}'})
    losses.assigned_and_not_in_the_topic_made_again(query, running, strict)


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
        for turn in range(4):
            query.processAllAvailable()
            assert seen == wanted
            topic = store.create_topic(f"t{turn}", partitions=2)
            topic.push_many([b"%d first" % turn], partition=1)
            if turn % 2:
                store.delete_topic(f"t{turn - 1}")
                store.create_topic(f"t{turn - 1}", partitions=1 + turn % 3).push(b"%d again" % turn)
                wanted += [f"{turn} again"]
            if turn == 2:  # it comes and goes while nobody looks
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
