"""Types of a DataFrame's columns that cannot be written: refused before a task runs, with what to write instead."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    CharType,
    DataType,
    DayTimeIntervalType,
    GeographyType,
    GeometryType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimeType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

import jjq
from jjq.errors import InvalidArgument, JjqError, SchemaMismatch, StoreNotFound, TopicNotFound
from pyspark_jjq.columns import Destination, destination
from pyspark_jjq.options import parse_sink
from pyspark_jjq.writer import BatchWriter, topic_of_stream
from tests.readers import close_stores

REFUSED: list[tuple[DataType, str]] = [
    (
        YearMonthIntervalType(),
        "'x' is interval year to month, which topics do not have; cast it to string, or write a number",
    ),
    (YearMonthIntervalType(1, 1), "'x' is interval month, .* cast it to string or int"),
    (CalendarIntervalType(), "'x' is interval, .* cast it to string"),
    (ArrayType(YearMonthIntervalType(0, 0)), "'x' holds interval year, "),
    (VariantType(), "'x' is variant, .* write to_json of it"),
    (StructType([StructField("inside", VariantType())]), "'x' holds variant, "),
    (GeometryType(0), r"'x' is geometry\(0\), .* st_asbinary"),
    (GeographyType(4326), r"'x' is geography\(4326\), .* st_asbinary"),
    (TimeType(), r"'x' is time\(6\), .* cast it to string"),
    (MapType(StringType(), TimeType()), r"'x' holds time\(6\), "),
    (NullType(), "'x' is void, .* cast it to the type that it is to have"),
    (CharType(3), r"'x' is char\(3\), .* cast it to string"),
    (VarcharType(3), r"'x' is varchar\(3\), .* cast it to string"),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as made:
        yield made
    close_stores()


def into(store: jjq.Store, topic: str, schema: StructType, **options: str) -> None:
    destination(parse_sink({"path": str(store.path), "topic": topic} | options), schema, streaming=False)


@pytest.mark.parametrize(("kind", "says"), REFUSED, ids=str)
def test_a_type_that_topics_do_not_have_is_refused_with_what_to_write(
    store: jjq.Store, kind: DataType, says: str
) -> None:
    store.create_topic("there", schema=pa.schema([("x", pa.int64())]))
    schema = StructType([StructField("x", kind)])
    for topic in ("there", "new"):
        with pytest.raises(SchemaMismatch, match=says):
            into(store, topic, schema)
    assert [topic.name for topic in store.topics()] == ["there"]


def test_columns_that_a_topic_without_a_schema_has_no_place_for_are_refused(store: jjq.Store) -> None:
    store.create_topic("values")
    fields = [StructField(name, StringType()) for name in ("value", "carrier", "offset", "delay")]
    for options in ({"topic": "values"}, {}):
        given = [*fields, StructField("topic", StringType())]
        with pytest.raises(
            SchemaMismatch, match=r"no place for carrier, delay: put .* into value, as by to_json.*drop the rest"
        ):
            destination(parse_sink({"path": str(store.path)} | options), StructType(given), streaming=False)
    into(store, "values", StructType([fields[0], fields[2]]))  # what a read of a topic has beside


def test_a_column_that_is_not_written_is_refused_where_spark_cannot_hand_it_over(store: jjq.Store) -> None:
    store.create_topic("values")
    beside = StructType([StructField("value", StringType()), StructField("x", CalendarIntervalType())])
    with pytest.raises(SchemaMismatch, match="'x' is interval"):
        into(store, "values", beside)


def test_a_duration_is_written_as_one(store: jjq.Store) -> None:
    into(store, "new", StructType([StructField("x", DayTimeIntervalType())]))
    assert store.topic("new").schema == pa.schema([("x", pa.duration("us"))])


TEXT = StructField("text", StringType())


@pytest.mark.parametrize(
    ("fields", "options", "says"),
    [
        ([], {}, "has no columns, so its rows would be lost; select at least one"),
        ([TEXT, StructField("Text", StringType())], {}, "columns 'text' and 'Text' have the same name .* rename one"),
        (
            [StructField("s", StructType([TEXT, TEXT]))],
            {},
            "column 's' has fields of the same name: text, text; rename",
        ),
        ([TEXT], {"keyColumn": "TEXT"}, "keyColumn names 'TEXT'; did you mean text"),
        ([StructField("s", ArrayType(StringType()))], {"keyColumn": "s"}, "'s', which is list<.*>, and a key is one"),
        (
            [StructField("s", StructType([TEXT]))],
            {"keyColumn": "s"},
            "'s', which is struct<.*>, and a key is one value",
        ),
        ([StructField("value", StringType())], {"keyColumn": "value"}, "keyColumn is for topics with a schema"),
        ([StructField("value", StringType())], {"mergeSchema": "true"}, "mergeSchema is for topics with a schema"),
        ([TEXT], {"topic": "a b"}, "cannot name a topic"),
    ],
)
def test_what_cannot_be_written_makes_neither_topic_nor_store(
    tmp_path: Path, fields: list[StructField], options: dict[str, str], says: str
) -> None:
    path = tmp_path / "store"
    for streaming in (False, True):
        with pytest.raises(InvalidArgument, match=says):
            destination(
                parse_sink({"path": str(path), "topic": "t"} | options), StructType(fields), streaming=streaming
            )
    assert not path.exists()


def test_metadata_of_a_read_is_not_to_be_added_to_the_topic(store: jjq.Store) -> None:
    store.create_topic("t", schema=pa.schema([("text", pa.string())]))
    for options in ({}, {"mergeSchema": "true"}):
        with pytest.raises(
            InvalidArgument, match=r"do not begin with _: drop or rename _key \(a read with the option metadata"
        ):
            into(store, "t", StructType([TEXT, StructField("_key", StringType())]), **options)


def test_a_key_of_many_values_is_refused_before_a_task_runs(store: jjq.Store) -> None:
    store.create_topic("t", schema=pa.schema([("s", pa.list_(pa.string()))]))
    with pytest.raises(SchemaMismatch, match="a key is one value; name a column of text"):
        into(store, "t", StructType([StructField("s", ArrayType(StringType()))]), keyColumn="s")


@pytest.mark.parametrize("name", ["KEY", "Headers", "Partition", "Topic", "TIMESTAMP", "Value"])
def test_a_column_of_kafkas_in_another_spelling_is_not_left_out(store: jjq.Store, name: str) -> None:
    store.create_topic("t")
    fields = [StructField(name, StringType())]
    fields += [] if name == "Value" else [StructField("value", StringType())]
    for options in ({"topic": "t"}, {}):
        with pytest.raises(
            SchemaMismatch, match=f"'{name}' would not be written: .* '{name.lower()}', in this spelling"
        ):
            destination(parse_sink({"path": str(store.path)} | options), StructType(fields), streaming=False)


# --- topics of streams


def of_stream(path: Path, **options: str) -> Destination:
    schema = StructType(
        [TEXT] if "topic" in options else [StructField(name, StringType()) for name in ("topic", "value")]
    )
    return destination(parse_sink({"path": str(path)} | options), schema, streaming=True)


def test_the_first_micro_batch_makes_the_topic_and_the_store(tmp_path: Path) -> None:
    path = tmp_path / "store"
    target = of_stream(path, topic="t", partitions="3")
    assert not path.exists()
    for _ in range(2):  # two tasks, or one that runs again
        made = topic_of_stream(target, 0).topic("t")
        assert (made.partitions, made.schema) == (3, pa.schema([("text", pa.string())]))
    assert of_stream(tmp_path / "other").new
    topic_of_stream(of_stream(tmp_path / "other"), 0)
    assert not of_stream(tmp_path / "other").new
    close_stores()


def test_no_other_micro_batch_makes_what_was_deleted(store: jjq.Store, tmp_path: Path) -> None:
    target = of_stream(store.path, topic="t")
    topic_of_stream(target, 0)
    store.delete_topic("t")
    for each in (target, of_stream(store.path, topic="t")):
        with pytest.raises(
            TopicNotFound, match=r"no topic 't' .* this is number 7: .* one that is gone.* make it .*`jjq topic create`"
        ):
            topic_of_stream(each, 7)
    assert store.topics() == []
    store.create_topic("t", partitions=2)
    assert topic_of_stream(target, 7).topic("t").partitions == 2
    for options in ({"topic": "t"}, {}):
        with pytest.raises(StoreNotFound, match="this is number 7"):
            topic_of_stream(of_stream(tmp_path / "unmounted", **options), 7)
    assert not (tmp_path / "unmounted").exists()


def test_a_first_micro_batch_that_was_committed_makes_nothing_when_it_runs_again(store: jjq.Store) -> None:
    """Its rows would be counted as there, in a topic that has none."""
    target = of_stream(store.path, topic="t")
    topic_of_stream(target, 0, "w", "a query")
    store.commit([], writer_id="w", batch_id=0, query_id="a query")
    store.delete_topic("t")
    with pytest.raises(TopicNotFound, match=r"first micro-batch, and that was committed: .* one that is gone"):
        topic_of_stream(target, 0, "w", "a query")
    assert store.topics() == []
    topic_of_stream(target, 0, "w", "another one")
    assert [each.name for each in store.topics()] == ["t"]


@pytest.mark.parametrize("there", ["the disk", "the store"])
@pytest.mark.parametrize("instead", ["nothing", "another"])
def test_a_task_that_does_not_see_the_place_of_the_driver_makes_no_store(
    there: str, instead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    path = disk / "a" / "store"
    disk.mkdir()
    if there == "the store":
        jjq.open(path).close()
    targets = [of_stream(path, topic="t"), of_stream(path)]
    seen = path if there == "the store" else disk
    seen.rename(tmp_path / "elsewhere")
    if instead == "another":
        seen.mkdir()
    for target in targets:
        with pytest.raises(
            StoreNotFound, match=r"does not see .*/disk/a/store as the driver does.*\.option\(\"broker\", "
        ):
            topic_of_stream(target, 0)
    assert not (path / "jjq.json").exists()
    monkeypatch.chdir(tmp_path)
    relative = of_stream(Path("store"), topic="t")
    monkeypatch.chdir(tmp_path.parent)  # as Spark's workers may be in another directory
    with pytest.raises(StoreNotFound, match=r"does not see .*/store as the driver does: .* name it by its whole path"):
        topic_of_stream(relative, 0)
    assert not Path("store").exists()
    close_stores()


def test_a_task_of_a_batch_write_says_that_it_does_not_see_the_store(store: jjq.Store, tmp_path: Path) -> None:
    writer = BatchWriter({"path": str(store.path), "topic": "t"}, StructType([TEXT]), overwrite=False)
    store.path.rename(tmp_path / "elsewhere")
    context = TaskContext._getOrCreate()
    try:
        context._localProperties = {}
        with pytest.raises(StoreNotFound, match=r"does not see .*/store as the driver does"):
            writer.write(iter([pa.record_batch({"text": ["x"]})]))
    finally:
        TaskContext._setTaskContext(None)
    assert not store.path.exists()


def test_a_stream_that_may_make_nothing_says_so_before_a_task_runs(store: jjq.Store, tmp_path: Path) -> None:
    refused: list[tuple[Path, type[JjqError]]] = [(store.path, TopicNotFound), (tmp_path / "none", StoreNotFound)]
    for path, error in refused:
        with pytest.raises(error):
            of_stream(path, topic="t", createTopic="false")
