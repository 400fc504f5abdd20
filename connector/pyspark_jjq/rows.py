"""What a topic's records look like in Spark, and how the engine's batches take that shape.

A topic without a schema reads as Kafka's source reads: key, value, topic, partition, offset, timestamp, timestampType,
and headers on request. A topic with a schema reads as its own columns, and metadata columns on request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from jjq.errors import InvalidArgument
from pyspark_jjq.options import SHAPE, SourceOptions
from pyspark_jjq.words import nearest

if TYPE_CHECKING:
    import pyarrow as pa

    from jjq import Topic

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

# The columns of Spark's Kafka source with their types, and where the engine has each of them.
KAFKA_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}
_KAFKA_TO_ENGINE = {
    "key": "_key",
    "topic": "_topic",
    "partition": "_partition",
    "offset": "_offset",
    "timestamp": "_timestamp",
    "headers": "_headers",
}
METADATA_TYPES: dict[str, DataType] = {
    "_topic": StringType(),
    "_partition": IntegerType(),
    "_offset": LongType(),
    "_timestamp": TimestampType(),
    "_key": BinaryType(),
    "_headers": HEADERS,
}

# Kafka's numbers for who sets the timestamp: CreateTime and LogAppendTime.
TIMESTAMP_TYPES = {"producer": 0, "broker": 1}


def spark_schema(topics: Sequence[Topic], options: SourceOptions) -> StructType:
    """The schema a read has, with the options `columns`, `metadata` and `includeHeaders` applied.

    Raises InvalidArgument where the topics cannot be read together or an option names what is not there.
    """
    available = _available(topics)
    whose = _name(topics)
    if not topics or topics[0].schema is None:
        if options.metadata:
            has = f"{whose} has none" if topics else f"there is none yet that matches {options.choice}"
            raise InvalidArgument(
                f"metadata is for topics with a schema: {has}, and rows without one hold "
                "topic, partition, offset, timestamp and key already; remove the option"
            )
        names = options.columns or tuple(name for name in KAFKA_TYPES if name != "headers")
        added = ("headers",) if options.include_headers and "headers" not in names else ()
    else:
        names = options.columns or tuple(name for name in available if name not in METADATA_TYPES)
        wanted = (*options.metadata, *(("_headers",) if options.include_headers else ()))
        added = tuple(name for name in dict.fromkeys(wanted) if name not in names)
    for name in names:
        if name not in available:
            raise InvalidArgument(
                f"columns names {name!r}, and {whose} has no such column; {nearest(name, list(available))}"
            )
    return StructType([StructField(name, available[name]) for name in (*names, *added)])


def _available(topics: Sequence[Topic]) -> dict[str, DataType]:
    """Every column that the topics can be read as, with its type; Kafka's where a pattern matches none yet."""
    if not topics:
        return KAFKA_TYPES
    first = topics[0]
    for other in topics[1:]:
        if (first.schema is None) != (other.schema is None):
            with_schema, without = (other, first) if first.schema is None else (first, other)
            raise InvalidArgument(
                f"topic {with_schema.name!r} has a schema and {without.name!r} has none, "
                "so their rows differ; read them as two DataFrames"
            )
        if first.schema is not None and not first.schema.equals(other.schema):
            raise InvalidArgument(
                f"topics {first.name!r} and {other.name!r} have different schemas; read them as two DataFrames"
            )
    return _columns_of(first)


def _columns_of(topic: Topic) -> dict[str, DataType]:
    if topic.schema is None:
        return KAFKA_TYPES
    return {field.name: from_arrow_type(field.type) for field in topic.schema} | METADATA_TYPES


def _name(topics: Sequence[Topic]) -> str:
    return f"topic {topics[0].name!r}" if topics else "a topic without a schema"


@dataclass(frozen=True)
class Rows:
    """How records become rows of one Spark schema. Crosses to the executors, so it holds values only."""

    schema: StructType
    columns: tuple[str, ...]
    metadata: tuple[str, ...]
    kafka: bool  # the rows of topics without a schema

    @classmethod
    def of(cls, topics: Sequence[Topic], schema: StructType, options: SourceOptions) -> Rows:
        """Raises InvalidArgument where `schema`, which a user may give with `.schema(…)`, does not fit the topics or the options.

        Where a pattern matches none yet, it says what topics to come must have.
        """
        names = schema.fieldNames()
        if not names:
            raise InvalidArgument("the schema of the read has no columns; name at least one, or leave the schema out")
        if len(set(names)) < len(names):
            raise InvalidArgument(
                f"the schema of the read has columns of the same name: {', '.join(names)}; drop all but one"
            )
        for field in schema.fields:
            if not field.nullable:  # Spark believes it: it would leave out filters, and give 0 for a null
                raise InvalidArgument(
                    f"the schema of the read says NOT NULL of column {field.name!r}, which may be null, as every column of a topic "
                    "may; declare it without, or leave the schema out"
                )
        if topics:
            kafka = topics[0].schema is None
            _check(schema, _available(topics), _name(topics))
        else:
            kafka = all(field.dataType == KAFKA_TYPES.get(field.name) for field in schema.fields)
        _check_options(names, options, "headers" if kafka else "_headers")
        if not kafka:
            columns = tuple(name for name in names if name not in METADATA_TYPES)
            return cls(schema, columns, tuple(name for name in names if name in METADATA_TYPES), False)
        metadata = tuple(_KAFKA_TO_ENGINE[name] for name in names if name in _KAFKA_TO_ENGINE)
        columns = ("value",) if "value" in names else ()
        # The engine has no timestampType: where that is all, something else must come with the rows, or there are none.
        return cls(schema, columns, metadata if metadata or columns else ("_offset",), True)

    def check(self, topic: Topic) -> None:
        """Raises InvalidArgument where the records of a topic, which came after the read was begun, have other rows."""
        if self.kafka != (topic.schema is None):
            has, wanted = ("a schema", "rows without one") if self.kafka else ("no schema", "its topics' columns")
            raise InvalidArgument(
                f"topic {topic.name!r} has {has}, and this query reads {wanted}; "
                "narrow what it reads, and read such topics with another query"
            )
        _check(self.schema, _columns_of(topic), f"topic {topic.name!r}")

    @property
    def has_timestamp_type(self) -> bool:
        return self.kafka and "timestampType" in self.schema.fieldNames()

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """What Spark compares the first batch with: it must be equal in order, names, types and nullability."""
        return to_arrow_schema(self.schema, timezone="UTC")

    @cached_property
    def _sources(self) -> tuple[int | None, ...]:
        """For each column of the row its place in the engine's batch, None for timestampType."""
        places = {name: place for place, name in enumerate((*self.columns, *self.metadata))}
        return tuple(
            places.get(_KAFKA_TO_ENGINE.get(name, name) if self.kafka else name) for name in self.schema.fieldNames()
        )

    def shape(self, batch: pa.RecordBatch, timestamp_type: int) -> pa.RecordBatch:
        """The engine's batch of records of a topic as Spark takes it. `timestamp_type` is the topic's, as Kafka's number.

        Nothing is copied, unless a type has another spelling than Spark's.
        """
        import pyarrow as pa

        columns = batch.columns
        arrays = [
            self._timestamp_types(timestamp_type, batch.num_rows) if place is None else columns[place]
            for place in self._sources
        ]
        # Casts what has another type, and loses nothing: a topic keeps no time that is finer than Spark's microseconds.
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def _timestamp_types(self, timestamp_type: int, rows: int) -> pa.Array:
        import pyarrow as pa

        kept = self._kept.get(timestamp_type)
        if kept is None or len(kept) < rows:
            kept = self._kept[timestamp_type] = pa.repeat(pa.scalar(timestamp_type, pa.int32()), rows)
        return kept.slice(0, rows)

    @cached_property
    def _kept(self) -> dict[int, pa.Array]:
        return {}

    def __getstate__(self) -> dict[str, object]:
        return {name: self.__dict__[name] for name in ("schema", "columns", "metadata", "kafka")}


def _check_options(names: Sequence[str], options: SourceOptions, headers: str) -> None:
    """Spark reads the schema that it was given, whatever the options say, so both must say the same."""
    asked = dict.fromkeys(
        (*(options.columns or names), *options.metadata, *((headers,) if options.include_headers else ()))
    )
    if set(asked) != set(names):
        raise InvalidArgument(
            f"the schema of the read has {', '.join(names)}, and by the options {' and '.join(SHAPE)} it would be "
            f"{', '.join(asked)}; choose columns by the one or by the other"
        )


def _check(schema: StructType, available: Mapping[str, DataType], whose: str) -> None:
    for field in schema.fields:
        if field.name not in available:
            raise InvalidArgument(
                f"the schema of the read has column {field.name!r}, which {whose} does not have; "
                f"{nearest(field.name, list(available))}"
            )
        if field.dataType != available[field.name]:
            if field.dataType.simpleString() == available[field.name].simpleString():
                raise InvalidArgument(
                    f"the schema of the read says of what is in column {field.name!r} that it is never null, and it may be; "
                    "declare it without, or leave the schema out"
                )
            raise InvalidArgument(
                f"column {field.name!r} of {whose} is {available[field.name].simpleString()}, "
                f"not {field.dataType.simpleString()}; leave the schema out and cast afterwards"
            )
