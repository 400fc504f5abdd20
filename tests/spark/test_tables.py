"""Topics as tables of Spark's catalog, as far as its API goes; and where it ends, what to write instead."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

import jjq
from tests.spark.test_source import values
from tests.stores import assert_whole

FLIGHTS = pa.schema([("carrier", pa.string()), ("delay", pa.int32())])


def forget_tables(spark: SparkSession) -> None:
    for table in spark.catalog.listTables():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.name}")


@pytest.fixture
def store(spark: SparkSession, tmp_path: Path) -> Iterator[jjq.Store]:
    # A space and a percent sign, since Spark makes a URI of a table's location.
    with jjq.open(tmp_path / "my 100% store") as opened:
        opened.create_topic("flights", schema=FLIGHTS).push_many(
            [{"carrier": "AA", "delay": 4}, {"carrier": "UA", "delay": 31}]
        )
        forget_tables(spark)
        yield opened
        forget_tables(spark)
        assert_whole(opened)


def options(store: jjq.Store, **more: str) -> str:
    given = {"path": str(store.path), "topic": "flights", **more}
    return ", ".join(f"{name} '{value}'" for name, value in given.items())


def delays(spark: SparkSession, sql: str = "SELECT delay FROM flights") -> list[int]:
    return sorted(row.delay for row in spark.sql(sql).collect())


def rows(store: jjq.Store, topic: str = "flights") -> list[tuple[str, int]]:
    return [(row["carrier"], row["delay"]) for row in store.topic(topic).read().read_all().to_pylist()]


# --- reading


def test_a_table_made_with_options_is_read_and_sees_what_is_pushed_later(spark: SparkSession, store: jjq.Store) -> None:
    spark.sql(f"CREATE TABLE flights USING jjq OPTIONS ({options(store)})")
    assert_df_equality(
        spark.sql("SELECT carrier, avg(delay) AS late FROM flights GROUP BY carrier ORDER BY carrier"),
        spark.createDataFrame([("AA", 4.0), ("UA", 31.0)], "carrier string, late double"),
        ignore_metadata=True,
    )
    store.topic("flights").push({"carrier": "B6", "delay": 20})
    assert delays(spark) == [4, 20, 31]
    assert sorted(row.delay for row in spark.table("flights").collect()) == [4, 20, 31]


@pytest.mark.parametrize(
    "how",
    [
        "CREATE TABLE flights USING jjq OPTIONS (topic 'flights') LOCATION '{path}' COMMENT 'departures'",
        "CREATE TABLE flights USING jjq LOCATION '{path}' TBLPROPERTIES (topic = 'flights', owner_team = 'ops')",
        "CREATE TABLE flights (carrier STRING, delay INT) USING jjq",
    ],
)
def test_options_may_stand_elsewhere_or_come_with_the_read(spark: SparkSession, store: jjq.Store, how: str) -> None:
    spark.sql(how.format(path=store.path))
    with_options = f"SELECT delay FROM flights WITH ({options(store)})"
    assert delays(spark, with_options) == [4, 31]
    if "LOCATION" in how:
        assert delays(spark) == [4, 31]


def test_options_of_a_table_hold_and_a_read_may_have_its_own(spark: SparkSession, store: jjq.Store) -> None:
    store.create_topic("later", schema=FLIGHTS).push({"carrier": "DL", "delay": 7})
    with_offset = options(store, metadata="_offset", startingOffsets='{"flights":{"0":1}}')
    spark.sql(f"CREATE TABLE flights USING jjq OPTIONS ({with_offset})")
    assert [tuple(row) for row in spark.sql("SELECT * FROM flights").collect()] == [("UA", 31, 1)]
    assert delays(spark, "SELECT delay FROM flights WITH (startingOffsets 'earliest')") == [4, 31]
    both = "SELECT delay FROM flights WITH (subscribe 'flights,later', startingOffsets 'earliest')"
    assert delays(spark, both) == [4, 7, 31]


def test_a_table_is_a_stream_too(spark: SparkSession, store: jjq.Store, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE flights USING jjq OPTIONS ({options(store, startingOffsets='earliest')})")
    seen: list[list[int]] = []
    for _ in range(2):
        query = (
            spark.readStream.option("maxOffsetsPerTrigger", 2)
            .table("flights")
            .writeStream.foreachBatch(lambda frame, _: seen.append([row.delay for row in frame.collect()]))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        store.topic("flights").push({"carrier": "B6", "delay": 20})
    assert [delay for batch in seen for delay in batch] == [4, 31, 20]


def test_a_column_that_is_added_to_the_topic_may_be_added_to_the_table(spark: SparkSession, store: jjq.Store) -> None:
    spark.sql(f"CREATE TABLE flights USING jjq OPTIONS ({options(store)})")
    store.alter_topic("flights", add_columns=pa.schema([("origin", pa.string())]))
    assert delays(spark) == [4, 31]
    spark.sql("ALTER TABLE flights ADD COLUMNS (origin STRING)")
    store.topic("flights").push({"carrier": "B6", "delay": 20, "origin": "JFK"})
    assert spark.sql("SELECT origin FROM flights WHERE delay = 20").first().origin == "JFK"  # type: ignore[union-attr]


def test_a_table_without_options_says_how_to_make_it(spark: SparkSession, store: jjq.Store) -> None:
    spark.sql(f"CREATE TABLE flights (carrier STRING, delay INT) USING jjq OPTIONS ({options(store)})")
    with pytest.raises(AnalysisException, match=r"CREATE TABLE flights USING jjq OPTIONS \(path .*without columns"):
        delays(spark)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("topic 'flihgts'", "TopicNotFound: .*flights"),
        ("topic 'flights', startingOffset 'earliest'", "did you mean startingOffsets"),
        ("path '/nowhere'", "no topic is named"),
    ],
)
def test_a_table_that_could_not_be_read_is_not_made(
    spark: SparkSession, store: jjq.Store, given: str, says: str
) -> None:
    given = given if "path" in given else f"path '{store.path}', {given}"
    with pytest.raises(AnalysisException, match=says):
        spark.sql(f"CREATE TABLE flights USING jjq OPTIONS ({given})")
    assert spark.catalog.listTables() == []


def test_dropping_a_table_keeps_the_topic(spark: SparkSession, store: jjq.Store) -> None:
    spark.sql(f"CREATE TABLE flights USING jjq OPTIONS ({options(store)})")
    spark.sql("DROP TABLE flights")
    assert_whole(store)
    assert len(rows(store)) == 2


# --- writing


def test_insert_into_a_table_names_the_topic(spark: SparkSession, store: jjq.Store) -> None:
    spark.sql(f"CREATE TABLE flights USING jjq OPTIONS ({options(store)})")
    spark.sql(f"INSERT INTO flights WITH ({options(store)}) VALUES ('B6', 20)")
    spark.sql(f"CREATE TEMPORARY VIEW earlier USING jjq OPTIONS ({options(store)})")
    itself = (
        "flights" if spark.version >= "4.3" else "earlier"
    )  # Spark 4.2 loses the clause where it reads the same table
    spark.sql(f"INSERT INTO flights WITH ({options(store)}) (delay, carrier) SELECT delay + 1, 'DL' FROM {itself}")
    by_name = (
        f"INSERT INTO flights WITH ({options(store, writerId='loader', batchId='1')}) BY NAME SELECT 'WN' AS carrier"
    )
    spark.sql(by_name)
    spark.sql(by_name)
    assert sorted(rows(store), key=str) == sorted(
        [("AA", 4), ("UA", 31), ("B6", 20), ("DL", 5), ("DL", 32), ("DL", 21), ("WN", None)], key=str
    )


def test_insert_without_options_quotes_what_to_write_and_writes_nothing(spark: SparkSession, store: jjq.Store) -> None:
    spark.sql(f"CREATE TABLE flights USING jjq OPTIONS ({options(store)})")
    with pytest.raises(AnalysisException) as caught:
        spark.sql("INSERT INTO flights VALUES ('B6', 20)")
    assert f"INSERT INTO … WITH ({options(store)}) …" in str(caught.value)
    assert len(rows(store)) == 2


def test_rows_of_one_table_never_go_into_it_instead_of_another(spark: SparkSession, store: jjq.Store) -> None:
    store.create_topic("other", schema=FLIGHTS)
    spark.sql(f"CREATE TABLE flights USING jjq OPTIONS ({options(store)})")
    spark.sql(f"CREATE TABLE other USING jjq OPTIONS ({options(store, topic='other')})")
    frame = spark.table("flights")
    for write in (
        lambda: frame.write.insertInto("other"),
        lambda: frame.writeTo("other").append(),
        lambda: frame.write.format("jjq").mode("append").saveAsTable("other"),
    ):
        with pytest.raises(AnalysisException, match="no store is named"):
            write()
    frame.write.format("jjq").mode("append").option("topic", "other").save(str(store.path))
    assert rows(store) == rows(store, "other")


def test_a_stream_into_a_table_says_what_to_write(spark: SparkSession, store: jjq.Store, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE flights USING jjq OPTIONS ({options(store)})")
    writing = spark.readStream.table("flights").writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises((AnalysisException, StreamingQueryException), match=r"instead of insertInto, toTable"):
        writing.trigger(availableNow=True).toTable("flights").awaitTermination()
    assert len(rows(store)) == 2


def test_save_as_table_writes_and_its_table_is_read_by_naming_the_topic(spark: SparkSession, store: jjq.Store) -> None:
    frame = spark.createDataFrame([("B6", 20)], "carrier string, delay int")
    frame.write.format("jjq").options(path=str(store.path), topic="late").saveAsTable("late")
    assert rows(store, "late") == [("B6", 20)]
    with pytest.raises(AnalysisException, match="not by saveAsTable"):
        delays(spark, "SELECT delay FROM late")
    assert delays(spark, f"SELECT delay FROM late WITH ({options(store, topic='late')})") == [20]


def test_create_table_as_select_says_what_to_write_and_makes_nothing(spark: SparkSession, store: jjq.Store) -> None:
    with pytest.raises(AnalysisException, match=r"CREATE TABLE … AS SELECT: \.format\("):
        spark.sql(f"CREATE TABLE late USING jjq OPTIONS ({options(store, topic='late')}) AS SELECT 'B6' AS carrier")
    assert spark.catalog.listTables() == []
    assert [topic.name for topic in store.topics()] == ["flights"]


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("INSERT OVERWRITE flights WITH ({options}) VALUES ('B6', 20)", "overwriting would take .*INSERT INTO in SQL"),
        ("INSERT OVERWRITE flights VALUES ('B6', 20)", "overwriting would take .*INSERT INTO in SQL"),
        ("TRUNCATE TABLE flights", "does not support truncates"),
        ("DELETE FROM flights WHERE delay = 4", "does not support deletes"),
        ("UPDATE flights SET delay = 0", "UPDATE"),
        ("SELECT * FROM jjq.`{path}`", "jjq"),
    ],
)
def test_a_topic_only_grows_whatever_sql_says(spark: SparkSession, store: jjq.Store, sql: str, says: str) -> None:
    spark.sql(f"CREATE TABLE flights USING jjq OPTIONS ({options(store)})")
    with pytest.raises(Exception, match=says):
        spark.sql(sql.format(options=options(store), path=store.path))
    assert len(rows(store)) == 2


# --- topics without a schema, and temporary views


def test_a_topic_without_a_schema_is_a_table_of_kafkas_rows(spark: SparkSession, store: jjq.Store) -> None:
    topic = store.create_topic("raw")
    topic.push(b"a", key=b"k")
    spark.sql(f"CREATE TABLE raw USING jjq OPTIONS ({options(store, topic='raw')})")
    spark.sql(f"CREATE TEMPORARY VIEW earlier USING jjq OPTIONS ({options(store, topic='raw')})")
    spark.sql(f"INSERT INTO raw WITH ({options(store, topic='raw')}) (key, value) SELECT value, key FROM earlier")
    assert values([spark.sql("SELECT value FROM raw ORDER BY offset").collect()]) == [[b"a", b"k"]]
    assert topic.read(metadata=["_key"]).read_all().column("_key").to_pylist() == [b"k", b"a"]


def test_a_temporary_view_keeps_its_options_for_reads_and_inserts(spark: SparkSession, store: jjq.Store) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW flights USING jjq OPTIONS ({options(store)})")
    spark.sql("INSERT INTO flights VALUES ('B6', 20)")
    spark.sql("INSERT INTO flights (delay) VALUES (1)")
    assert delays(spark) == [1, 4, 20, 31]  # planned now, at its first use
    assert rows(store) == [("AA", 4), ("UA", 31), ("B6", 20), (None, 1)]
