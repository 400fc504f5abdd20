"""Reading topics through Spark itself: rows, types, options, streams and their checkpoints."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

import jjq


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        yield opened


def read(spark: SparkSession, store: jjq.Store, topic: str = "t", **options: Any) -> DataFrame:
    return spark.read.format("jjq").options(subscribe=topic, **options).load(str(store.path))


class Stream:
    """A streaming query whose micro-batches are kept in order; `run` starts it anew from the same checkpoint."""

    def __init__(self, spark: SparkSession, store: jjq.Store, tmp_path: Path, topic: str = "t") -> None:
        self.spark, self.store, self.topic = spark, store, topic
        self.checkpoint = tmp_path / "checkpoint"
        self.batches: list[list[Row]] = []

    def start(self, **options: Any) -> StreamingQuery:
        frame = self.spark.readStream.format("jjq").options(subscribe=self.topic, **options).load(str(self.store.path))
        return (
            frame.writeStream.foreachBatch(lambda batch, _: self.batches.append(batch.collect()))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def run(self, **options: Any) -> list[list[Row]]:
        """The micro-batches with rows of one run over what is there."""
        self.batches.clear()
        self.start(**options).awaitTermination()
        return [batch for batch in self.batches if batch]


def values(batches: list[list[Row]]) -> list[list[bytes]]:
    return [[bytes(row.value) for row in batch] for batch in batches]


# --- rows


def test_a_topic_without_a_schema_reads_as_kafkas_rows(spark: SparkSession, store: jjq.Store) -> None:
    topic = store.create_topic("t", timestamps="producer")
    topic.push(b"one", key=b"k", headers={"h": b"x"}, timestamp=1_357_034_400_123_456)
    topic.push(None, key=b"", timestamp=1_357_034_401_000_000)
    topic.push(b"", headers=[("a", None), ("a", b"")], timestamp=1_357_034_402_000_000)
    found = read(spark, store, includeHeaders="true")
    assert [(f.name, f.dataType.simpleString(), f.nullable) for f in found.schema.fields] == [
        ("key", "binary", True),
        ("value", "binary", True),
        ("topic", "string", True),
        ("partition", "int", True),
        ("offset", "bigint", True),
        ("timestamp", "timestamp", True),
        ("timestampType", "int", True),
        ("headers", "array<struct<key:string,value:binary>>", True),
    ]
    when = dt.datetime(2013, 1, 1, 10, 0, 0, 123456, dt.UTC)
    expected = spark.createDataFrame(
        [
            (bytearray(b"k"), bytearray(b"one"), "t", 0, 0, when, 0, [("h", bytearray(b"x"))]),
            (bytearray(), None, "t", 0, 1, dt.datetime(2013, 1, 1, 10, 0, 1, tzinfo=dt.UTC), 0, None),
            (
                None,
                bytearray(),
                "t",
                0,
                2,
                dt.datetime(2013, 1, 1, 10, 0, 2, tzinfo=dt.UTC),
                0,
                [("a", None), ("a", bytearray())],
            ),
        ],
        found.schema,
    )
    assert_df_equality(found, expected)
    assert "headers" not in read(spark, store).columns


def test_rows_of_several_partitions_and_topics_keep_their_order(spark: SparkSession, store: jjq.Store) -> None:
    for name, partitions in (("a", 2), ("b", 1)):
        topic = store.create_topic(name, partitions=partitions)
        for p in range(partitions):
            topic.push_many([b"%d" % i for i in range(5)], partition=p)
    found = read(spark, store, "a,b").collect()
    for key in (("a", 0), ("a", 1), ("b", 0)):
        rows = [row for row in found if (row.topic, row.partition) == key]
        assert [(row.offset, bytes(row.value)) for row in rows] == [(i, b"%d" % i) for i in range(5)]
        assert {row.timestampType for row in rows} == {1}
    assert len(found) == 15


TYPES = pa.schema(
    [
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("short", pa.int16()),
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("list", pa.list_(pa.int32())),
        ("struct", pa.struct([("x", pa.int64()), ("y", pa.string())])),
        ("map", pa.map_(pa.string(), pa.int64())),
    ]
)
FULL = {
    "flag": True,
    "tiny": -128,
    "short": 32767,
    "int": -(2**31),
    "long": 2**63 - 1,
    "float": 1.5,
    "double": -2.25,
    "price": Decimal("12345678.90"),
    "text": "żółw",
    "raw": b"\x00\xff",
    "day": dt.date(2013, 1, 1),
    "at": dt.datetime(2013, 1, 1, 10, 0, 0, 5, tzinfo=dt.UTC),
    "wall": dt.datetime.fromisoformat("2013-01-01T10:00:00.000005"),
    "list": [1, None, 3],
    "struct": {"x": 1, "y": None},
    "map": {"a": 1, "b": None},
}


def test_a_topic_with_a_schema_reads_as_its_columns_with_their_types(spark: SparkSession, store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=TYPES)
    topic.push(FULL)
    topic.push(dict.fromkeys(FULL))
    found = read(spark, store)
    assert [f.dataType.simpleString() for f in found.schema.fields] == [
        *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)", "string", "binary"),
        *("date", "timestamp", "timestamp_ntz", "array<int>", "struct<x:bigint,y:string>", "map<string,bigint>"),
    ]
    full, empty = found.collect()
    expected = FULL | {"at": FULL["at"].replace(tzinfo=None), "raw": bytearray(FULL["raw"])}  # type: ignore[attr-defined]
    assert full.asDict(recursive=True) == expected
    assert empty.asDict() == dict.fromkeys(FULL)


def test_columns_and_metadata_are_read_in_the_order_asked(spark: SparkSession, store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=2, schema=pa.schema([("a", pa.int64()), ("b", pa.string())]))
    pos = topic.push({"a": 1, "b": "x"}, key=b"k", headers={"h": b"v"})
    found = read(spark, store, columns="b,a", metadata="_offset,_key,_partition,_topic,_headers,_timestamp")
    assert found.columns == ["b", "a", "_offset", "_key", "_partition", "_topic", "_headers", "_timestamp"]
    row = found.drop("_timestamp").first()
    assert row is not None
    assert tuple(row) == ("x", 1, 0, bytearray(b"k"), pos.partition, "t", [Row(key="h", value=bytearray(b"v"))])
    assert read(spark, store, includeHeaders="true").columns == ["a", "b", "_headers"]
    assert read(spark, store, columns="a").columns == ["a"]


def test_columns_choose_among_kafkas_too(spark: SparkSession, store: jjq.Store) -> None:
    store.create_topic("t").push(b"x")
    found = read(spark, store, columns="offset,value,timestampType").collect()
    assert found == [Row(offset=0, value=bytearray(b"x"), timestampType=1)]


def test_rows_from_before_a_column_was_added_have_null_there(spark: SparkSession, store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=pa.schema([("a", pa.int64())]))
    topic.push({"a": 1})
    store.alter_topic("t", add_columns=pa.schema([("b", pa.string())]))
    store.topic("t").push({"a": 2, "b": "x"})
    assert read(spark, store).collect() == [Row(a=1, b=None), Row(a=2, b="x")]


def test_an_empty_topic_gives_no_rows(spark: SparkSession, store: jjq.Store) -> None:
    store.create_topic("t", partitions=3)
    assert read(spark, store).count() == 0


def test_sql_reads_a_topic_through_a_view(spark: SparkSession, store: jjq.Store) -> None:
    store.create_topic("t").push_many([b"a", b"b"])
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING jjq OPTIONS (path '{store.path}', topic 't')")
    assert [bytes(row.value) for row in spark.sql("SELECT value FROM v WHERE offset >= 1").collect()] == [b"b"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffset": "latest"}, "did you mean startingOffsets?"),
        ({"subscribe": "flihgts"}, "flights"),
        ({"startingTimestamp": "1357034400"}, "seconds were meant?"),
        ({"startingOffsets": "soonest"}, "startingOffsets is earliest, latest or JSON"),
    ],
)
def test_an_error_of_ours_is_the_first_and_the_last_line_that_spark_shows_of_python(
    spark: SparkSession, store: jjq.Store, options: dict[str, str], says: str
) -> None:
    store.create_topic("flights")
    with pytest.raises(AnalysisException) as caught:
        spark.read.format("jjq").options(**({"subscribe": "flights"} | options)).load(str(store.path))
    lines = str(caught.value).split("SQLSTATE")[0].strip().splitlines()
    assert lines[-1].startswith("jjq.errors.")
    assert says in lines[-1]
    assert lines[0].endswith(lines[-1])


def test_a_directory_without_a_store_says_so(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match=r"jjq\.errors\.StoreNotFound: .*nothing"):
        spark.read.format("jjq").option("topic", "t").load(str(tmp_path / "nothing"))
    assert not (tmp_path / "nothing").exists()


# --- streams


def test_a_stream_goes_on_from_its_checkpoint_and_the_checkpoint_wins(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    topic = store.create_topic("t")
    topic.push_many([b"a", b"b"])
    stream = Stream(spark, store, tmp_path)
    assert values(stream.run(startingOffsets="earliest")) == [[b"a", b"b"]]
    assert stream.run(startingOffsets="earliest") == []
    topic.push(b"c")
    assert values(stream.run(startingOffsets="earliest")) == [[b"c"]]
    topic.push(b"d")
    assert values(stream.run(startingOffsets="latest")) == [[b"d"]]


def test_a_first_micro_batch_that_is_done_again_begins_where_it_did(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    """Of that one Spark has only the end in the checkpoint."""
    topic = store.create_topic("t")
    topic.push_many([b"a", b"b"])
    stream = Stream(spark, store, tmp_path)
    stream.run(startingOffsets="earliest")
    topic.push(b"c")
    for name in ("0", ".0.crc"):
        (stream.checkpoint / "commits" / name).unlink(missing_ok=True)
    assert values(stream.run(startingOffsets="latest")) == [[b"a", b"b"], [b"c"]]


def test_a_limit_cuts_available_now_into_micro_batches(spark: SparkSession, store: jjq.Store, tmp_path: Path) -> None:
    topic = store.create_topic("t", partitions=2)
    topic.push_many([b"%d" % i for i in range(8)], partition=0)
    topic.push_many([b"%d" % i for i in range(2)], partition=1)
    batches = Stream(spark, store, tmp_path).run(startingOffsets="earliest", maxOffsetsPerTrigger=4)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    for partition, count in ((0, 8), (1, 2)):
        rows = [bytes(row.value) for batch in batches for row in batch if row.partition == partition]
        assert rows == [b"%d" % i for i in range(count)]


def test_a_running_stream_sees_what_is_pushed(spark: SparkSession, store: jjq.Store, tmp_path: Path) -> None:
    topic = store.create_topic("t")
    frame = spark.readStream.format("jjq").option("topic", "t").load(str(store.path))
    seen: list[bytes] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: seen.extend(bytes(row.value) for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        for i in range(3):
            topic.push(b"%d" % i)
            query.processAllAvailable()
            assert seen == [b"%d" % n for n in range(i + 1)]
        progress = query.lastProgress
        assert progress is not None
        assert '"t": {"id"' in str(progress.sources[0].latestOffset)
    finally:
        query.stop()


def test_a_stream_reports_a_recreated_topic_or_goes_on_with_it(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    store.create_topic("t").push(b"old")
    stream = Stream(spark, store, tmp_path)
    stream.run(startingOffsets="earliest")
    store.delete_topic("t")
    store.create_topic("t").push_many([b"new", b"newer"])
    with pytest.raises(StreamingQueryException, match=r"jjq\.errors\.DataLoss: .*deleted and made again"):
        stream.run(startingOffsets="earliest")
    assert values(stream.run(failOnDataLoss="false")) == [[b"new", b"newer"]]


def test_a_stream_reports_lost_records_or_goes_on_without_them(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    topic = store.create_topic("t")
    topic.push(b"a")
    stream = Stream(spark, store, tmp_path)
    stream.run(startingOffsets="earliest")
    topic.push_many([b"lost"] * 4)
    topic.empty()
    topic.push(b"b")
    with pytest.raises(StreamingQueryException, match=r"jjq\.errors\.DataLoss: (.|\n)*failOnDataLoss"):
        stream.run()
    assert values(stream.run(failOnDataLoss="false")) == [[b"b"]]


def test_a_checkpoint_of_a_later_version_is_refused(spark: SparkSession, store: jjq.Store, tmp_path: Path) -> None:
    store.create_topic("t").push(b"a")
    stream = Stream(spark, store, tmp_path)
    stream.run(startingOffsets="earliest")
    newest = stream.checkpoint / "offsets" / "0"
    text = newest.read_text()
    assert '{"v": 1, "topics"' in text
    newest.write_text(text.replace('{"v": 1', '{"v": 2'))
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException, match="version 2, and this jjq reads up to 1"):
        stream.run()


def test_a_damaged_file_stops_the_task_that_reads_it(spark: SparkSession, store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push_many([b"value-%d" % i for i in range(100)])
    [segment] = topic.segments()
    data = bytearray(Path(segment.path).read_bytes())
    at = data.index(b"value-50")
    data[at] ^= 1
    Path(segment.path).write_bytes(data)
    with pytest.raises(Exception, match="DamagedSegment"):
        read(spark, store).collect()
