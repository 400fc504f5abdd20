"""Types of a DataFrame's columns that cannot be written: refused before a task runs, with what to write instead."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
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
from jjq.errors import SchemaMismatch
from pyspark_jjq.columns import destination
from pyspark_jjq.options import parse_sink
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


def into(store: jjq.Store, topic: str, schema: StructType) -> None:
    destination(parse_sink({"path": str(store.path), "topic": topic}), schema, streaming=False)


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


def test_a_column_that_is_not_written_is_refused_where_spark_cannot_hand_it_over(store: jjq.Store) -> None:
    store.create_topic("values")
    beside = StructType([StructField("value", StringType()), StructField("x", VariantType())])
    into(store, "values", beside)
    beside = StructType([StructField("value", StringType()), StructField("x", CalendarIntervalType())])
    with pytest.raises(SchemaMismatch, match="'x' is interval"):
        into(store, "values", beside)


def test_a_duration_is_written_as_one(store: jjq.Store) -> None:
    into(store, "new", StructType([StructField("x", DayTimeIntervalType())]))
    assert store.topic("new").schema == pa.schema([("x", pa.duration("us"))])
