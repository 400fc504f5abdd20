"""How the columns of a DataFrame become the records of a topic.

A topic without a schema takes Kafka's columns: value, and key, headers, partition, topic, timestamp where they are
there. A topic with a schema takes columns by name.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
    UserDefinedType,
)

from jjq.errors import Forbidden, InvalidArgument, SchemaMismatch, StoreNotFound, TopicNotFound
from jjq.model import check_name
from jjq.schema import check_schema, no_column
from pyspark_jjq.options import SinkOptions
from pyspark_jjq.stores import Place, find_topic, open_store
from pyspark_jjq.words import nearest

if TYPE_CHECKING:
    import pyarrow as pa

    from jjq import Store, Topic

log = logging.getLogger("jjq.spark")

KAFKA_COLUMNS = ("value", "key", "headers", "partition", "topic", "timestamp")
# Columns that a read of Kafka or of a topic gives and that mean nothing in a write.
READ_ONLY_COLUMNS = ("offset", "timestampType")
_BYTES = (StringType, BinaryType)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)


def destination(options: SinkOptions, schema: StructType, *, streaming: bool) -> Destination:
    """Where rows of `schema` go, checked before any task runs; makes the topic if it is missing and may be made.

    A stream asks with each micro-batch. So there may be more partitions than it asks for, as some were added since, and its
    topic is made by its tasks, which know whether they are of the first one.

    Raises InvalidArgument or SchemaMismatch where the columns do not fit, TopicNotFound where the topic is missing.
    """
    names = schema.fieldNames()
    if not names:
        raise InvalidArgument("the DataFrame has no columns, so its rows would be lost; select at least one")
    if len(set(names)) != len(names):
        raise InvalidArgument(f"columns have the same name: {', '.join(names)}; rename or drop all but one")
    _check_types(schema, _NOT_IN_ARROW)
    target = _destination(options, schema, streaming)
    if target.new and not streaming:
        target.make()
    return replace(target, place=Place.of(options.path))


def _destination(options: SinkOptions, schema: StructType, streaming: bool) -> Destination:
    store = _store(options)
    if options.topic is None:
        return _rows_with_topics(options, schema, new=store is None)
    if store is None or (topic := _topic(store, options.topic, options)) is None:
        return _new_topic(options, schema, options.topic)
    _check_partitions(topic, options.partitions, streaming or options.batch_id is not None)
    if topic.schema is None:
        return _kafka_rows(options, schema, f"topic {topic.name!r}")
    return OwnColumns(options, schema, _fit(store, topic, schema, options))


def _store(options: SinkOptions) -> Store | None:
    """The store, or None where there is none and it may be made."""
    try:
        return open_store(options.path)
    except StoreNotFound:
        if options.create_topic:
            return None
        raise


def _topic(store: Store, name: str, options: SinkOptions) -> Topic | None:
    """The topic, or None where there is none and it may be made."""
    return find_topic(store, name) if options.create_topic else store.topic(name)  # which names the nearest one


def _rows_with_topics(options: SinkOptions, schema: StructType, *, new: bool) -> Destination:
    _check_case(schema)
    if "topic" not in schema.fieldNames():
        raise InvalidArgument(
            'the write names no topic: add .option("topic", "flights"), or a string column topic; '
            "in SQL INSERT INTO … WITH (path '/data/jjq', topic 'flights')"
        )
    _check_kafka_columns(schema)
    _no_key_column(options, "rows with a topic column have the column key")
    return KafkaRows(options, schema, new=new)


def _kafka_rows(options: SinkOptions, schema: StructType, whose: str, *, new: bool = False) -> Destination:
    if options.merge_schema:
        raise InvalidArgument(f"mergeSchema is for topics with a schema, and {whose} has none; remove it")
    _check_case(schema)
    _check_kafka_columns(schema)
    _no_key_column(options, f"{whose} has no schema, so its key is the column key")
    return KafkaRows(options, schema, new=new)


def _new_topic(options: SinkOptions, schema: StructType, name: str) -> Destination:
    """A topic that is to be made, after checking that it can be."""
    check_name(name, "topic")
    if looks_like_kafka(schema):
        return _kafka_rows(options, schema, f"topic {name!r}, made with Kafka's columns,", new=True)
    _check_names(schema.fieldNames())
    columns = check_schema(_own_columns(schema))
    _check_key(options, columns)
    return OwnColumns(options, schema, columns, new=True)


def _check_names(names: Sequence[str]) -> None:
    bad = [name for name in names if name.startswith("_")]
    if bad:
        raise InvalidArgument(
            f"columns of a topic do not begin with _: drop or rename {', '.join(bad)} "
            "(a read with the option metadata adds such columns)"
        )


def _check_partitions(topic: Topic, wanted: int | None, streaming: bool) -> None:
    if wanted is None or wanted == topic.partitions or (streaming and wanted < topic.partitions):
        return
    more = ", or add some with alter_topic" if wanted > topic.partitions else ""
    raise InvalidArgument(
        f"partitions is {wanted}, and topic {topic.name!r} has {topic.partitions}; remove the option to write to it as it is{more}"
    )


def looks_like_kafka(schema: StructType) -> bool:
    """Whether a missing topic is made without a schema: a string or binary `value`, and else only Kafka's columns."""
    types = {field.name: field.dataType for field in schema.fields}
    return isinstance(types.get("value"), _BYTES) and types.keys() <= {*KAFKA_COLUMNS, *READ_ONLY_COLUMNS}


# Types that Spark itself cannot hand to Python, and those that topics do not have, each with what to write instead.
_NOT_IN_ARROW = {
    "interval year to month": "cast it to string, or write a number of months",
    "interval year": "cast it to string or int",
    "interval month": "cast it to string or int",
    "interval": "cast it to string",
}
_NOT_IN_TOPICS = {
    "variant": "write to_json of it",
    "geometry": "write st_asbinary of it",
    "geography": "write st_asbinary of it",
    "time": "cast it to string",
    "void": "cast it to the type that it is to have",
    "char": "cast it to string",
    "varchar": "cast it to string",
}


def _check_types(schema: StructType, refused: Mapping[str, str]) -> None:
    """Raises SchemaMismatch for the first column that is, or holds, one of these types."""
    for field in schema.fields:
        for kind in _types_in(field.dataType):
            name = kind.simpleString()
            instead = refused.get(name, refused.get(name.partition("(")[0]))
            if instead is not None:
                is_or_holds = "is" if kind is field.dataType else "holds"
                raise SchemaMismatch(f"column {field.name!r} {is_or_holds} {name}, which topics do not have; {instead}")


def _types_in(kind: DataType) -> Iterator[DataType]:
    if isinstance(kind, UserDefinedType):
        yield from _types_in(kind.sqlType())
    elif isinstance(kind, StructType):
        for field in kind.fields:
            yield from _types_in(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _types_in(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _types_in(kind.keyType)
        yield from _types_in(kind.valueType)
    else:
        yield kind


def _own_columns(schema: StructType) -> pa.Schema:
    """The columns of a frame as columns of a topic. Raises SchemaMismatch for types that those do not have."""
    _check_types(schema, _NOT_IN_TOPICS)
    try:
        return plain(to_arrow_schema(schema, timezone="UTC"))
    except PySparkException as error:  # a type of a later Spark
        raise SchemaMismatch(f"the columns cannot be written: {error.getMessage()} Cast them, or drop them") from error


def plain(schema: pa.Schema) -> pa.Schema:
    """The schema without Spark's notes, every column nullable, as columns of a topic are."""
    import pyarrow as pa

    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _check_case(schema: StructType) -> None:
    """Kafka's columns have one spelling, also for Kafka's own sink: another one would be left out, and keys lost."""
    for name in schema.fieldNames():
        if name not in KAFKA_COLUMNS and name.lower() in KAFKA_COLUMNS:
            raise SchemaMismatch(
                f"column {name!r} would not be written: topics without a schema know {name.lower()!r}, in this spelling; "
                f'rename it, as by .withColumnRenamed("{name}", "{name.lower()}"), or drop it'
            )


def _check_key(options: SinkOptions, given: pa.Schema) -> None:
    import pyarrow as pa

    if options.key_column is None:
        return
    if options.key_column not in given.names:
        raise InvalidArgument(f"keyColumn names {options.key_column!r}; {nearest(options.key_column, given.names)}")
    kind = given.field(options.key_column).type
    if pa.types.is_nested(kind):
        raise SchemaMismatch(
            f"keyColumn names {options.key_column!r}, which is {kind}, and a key is one value; name a column of text, bytes, "
            "numbers or times, such as one with to_json of it"
        )


def _no_key_column(options: SinkOptions, why: str) -> None:
    if options.key_column is not None:
        raise InvalidArgument(f"keyColumn is for topics with a schema: {why}; remove the option")


def _check_kafka_columns(schema: StructType) -> None:
    types: dict[str, DataType] = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise InvalidArgument(
            f"a topic without a schema takes a column value (string or binary), and there are: "
            f"{', '.join(types)}; for one column with the whole row write to_json(struct('*')) as value"
        )
    wanted = {
        "value": _BYTES,
        "key": _BYTES,
        "topic": (StringType,),
        "partition": _WHOLE,
        "timestamp": (TimestampType,),
    }
    for name, kinds in wanted.items():
        if name in types and not isinstance(types[name], kinds):
            words = " or ".join(kind.typeName() for kind in kinds)
            raise SchemaMismatch(f"column {name} is {types[name].simpleString()} and must be {words}; cast it")
    if "headers" in types and not _is_headers(types["headers"]):
        raise SchemaMismatch(
            f"column headers is {types['headers'].simpleString()} and must be array<struct<key:string,value:binary>>"
        )
    extra = [name for name in types if name not in (*KAFKA_COLUMNS, *READ_ONLY_COLUMNS)]
    if extra:
        raise SchemaMismatch(
            f"a topic without a schema has no place for {', '.join(extra)}: put what is to be kept into value, as by to_json(struct('*')), "
            f"and drop the rest; its columns are {', '.join(KAFKA_COLUMNS)}"
        )


def _is_headers(kind: DataType) -> bool:
    if not (isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType)):
        return False
    parts = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return parts == [("key", StringType), ("value", BinaryType)]


def _fit(store: Store, topic: Topic, schema: StructType, options: SinkOptions) -> pa.Schema:
    """The topic's schema, after checking that every column of the DataFrame fits one of its columns.

    With mergeSchema the topic gets those that it lacks; nothing is added where another column does not fit.
    """
    import pyarrow as pa

    assert topic.schema is not None
    fields = {field.name: field.type for field in topic.schema}
    given = _own_columns(schema)
    missing = [field for field in given if field.name not in fields]
    _check_names([field.name for field in missing])
    if missing and not options.merge_schema:
        lacks = no_column([field.name for field in missing], list(fields))
        raise SchemaMismatch(
            f"topic {topic.name!r} has {lacks}; its columns are {', '.join(fields)}. "
            f'Drop what it lacks, or add it to the topic with .option("mergeSchema", True) or alter_topic(add_columns=…)'
        )
    for field in given:
        if field.name in fields and not widens(field.type, fields[field.name]):
            raise SchemaMismatch(
                f"column {field.name!r} is {schema[field.name].dataType.simpleString()} and topic {topic.name!r} "
                f"has it as {fields[field.name]}; cast it"
            )
    _check_key(options, given)
    if not missing:
        return topic.schema
    grown = store.alter_topic(topic.name, add_columns=pa.schema(missing)).schema
    assert grown is not None
    return grown


def widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of `given` is one of `wanted`, spelt the same or wider."""
    import pyarrow as pa

    types = pa.types
    if given.equals(wanted):
        return True
    if types.is_signed_integer(given) and types.is_signed_integer(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    if types.is_floating(given) and types.is_floating(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    if types.is_decimal(given) and types.is_decimal(wanted):
        return bool(given.scale <= wanted.scale and given.precision - given.scale <= wanted.precision - wanted.scale)
    if types.is_timestamp(given) and types.is_timestamp(wanted):
        # A coarser one than Spark's microseconds would lose something, a finer one may not hold every time.
        return (given.tz is None) == (wanted.tz is None) and wanted.unit == "us"
    # What is inside may be declared without nulls here and never is there; names of elements mean nothing.
    if types.is_list(given) and types.is_list(wanted):
        return widens(given.value_type, wanted.value_type)
    if types.is_map(given) and types.is_map(wanted):
        return widens(given.key_type, wanted.key_type) and widens(given.item_type, wanted.item_type)
    if types.is_struct(given) and types.is_struct(wanted):
        pairs = list(zip(given, wanted, strict=False))
        return given.num_fields == wanted.num_fields and all(
            mine.name == theirs.name and widens(mine.type, theirs.type) for mine, theirs in pairs
        )
    texts = (types.is_string, types.is_large_string)
    binaries = (types.is_binary, types.is_large_binary)
    return any(
        any(is_a(given) for is_a in group) and any(is_a(wanted) for is_a in group) for group in (texts, binaries)
    )


@dataclass(frozen=True)
class Destination(abc.ABC):
    """Where the rows of a write go. Crosses to the executors."""

    options: SinkOptions
    schema: StructType
    _: KW_ONLY
    new: bool = False  # the topic, or the store for topics that rows name, was missing
    place: Place | None = None

    def check_seen(self) -> None:
        """To be called by a task first: raises StoreNotFound where it does not see what the driver sees."""
        if self.place is not None:
            self.place.check_seen(self.options.path)

    def make(self) -> Store:
        """The store, made with the topic where they are missing."""
        store = open_store(self.options.path, create=True)
        if self.options.topic is not None:
            try:
                store.create_topic(
                    self.options.topic, partitions=self.options.partitions, schema=self._columns(), exist_ok=True
                )
            except Forbidden as error:
                raise Forbidden(
                    f"{error.message}, and topic {self.options.topic!r} is missing; make it first (`jjq topic create`), or give "
                    "the token the right `admin` for it"
                ) from error
        return store

    def _columns(self) -> pa.Schema | None:
        """The schema of the topic, None where it has none."""
        return None

    @abc.abstractmethod
    def write(self, store: Store, staging: Any, batch: pa.RecordBatch) -> None:
        """Adds the rows of `batch`, at least one, to what a task has staged."""


@dataclass(frozen=True)
class OwnColumns(Destination):
    """A topic with a schema: its columns by name, those that the DataFrame has not as nulls."""

    wanted: pa.Schema

    def _columns(self) -> pa.Schema:
        return self.wanted

    def write(self, store: Store, staging: Any, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        assert self.options.topic is not None
        arrays = []
        for field in self.wanted:
            place = batch.schema.get_field_index(field.name)
            if place < 0:
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            array = batch.column(place)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        rows = pa.RecordBatch.from_arrays(arrays, schema=plain(self.wanted))
        staging.write(store.topic(self.options.topic), rows, key=self.options.key_column)


@dataclass(frozen=True)
class KafkaRows(Destination):
    """Topics without a schema: value, key, headers, partition, topic and timestamp as Spark's Kafka sink takes them."""

    def write(self, store: Store, staging: Any, batch: pa.RecordBatch) -> None:
        if self.options.topic is not None:
            self._write_topic(store.topic(self.options.topic), staging, batch)
            return
        for name, part in _by_value(batch, "topic"):
            if name is None:
                raise InvalidArgument(
                    "a row has a null topic: fill the column topic for every row, filter such rows out, "
                    'or name one topic for all with .option("topic", "flights")'
                )
            self._write_topic(self._topic(store, name), staging, part)

    def _topic(self, store: Store, name: str) -> Topic:
        topic = find_topic(store, name)
        if topic is None:
            if not self.options.create_topic:
                raise TopicNotFound(f"topic {name!r}, named by a row, does not exist, and createTopic is false")
            topic = store.create_topic(name, partitions=self.options.partitions, exist_ok=True)
        if topic.schema is not None:
            raise SchemaMismatch(
                f"topic {name!r}, named by a row, has a schema, and rows with a topic column are values without one; "
                f'write its columns with .option("topic", "{name}")'
            )
        return topic

    def _write_topic(self, topic: Topic, staging: Any, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        names = self._names
        with_partition = _by_value(batch, "partition") if "partition" in names else [(None, batch)]
        for partition, part in with_partition:
            if partition is not None and not 0 <= partition < topic.partitions:
                raise InvalidArgument(
                    f"a row names partition {partition}, and topic {topic.name!r} has 0 to {topic.partitions - 1}; "
                    "drop the column partition to let the key choose"
                )
            values = pa.RecordBatch.from_arrays([_binary(part, "value")], names=["value"])
            producers = topic.config.timestamps == "producer"
            staging.write(
                topic,
                values,
                partition=partition,
                keys=_binary(part, "key") if "key" in names else None,
                headers=part.column("headers") if "headers" in names else None,
                timestamps=part.column("timestamp") if producers and "timestamp" in names else None,
            )

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.schema.fieldNames())


def _binary(batch: pa.RecordBatch, name: str) -> pa.Array:
    import pyarrow as pa

    array = batch.column(name)
    return array if array.type == pa.binary() else array.cast(pa.binary())


def _by_value(batch: pa.RecordBatch, name: str) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """The rows of each value of a column, in their order; the whole batch, uncopied, where there is one value."""
    import pyarrow.compute as pc

    column = batch.column(name)
    values = column.unique().to_pylist()
    if len(values) == 1:
        yield values[0], batch
        return
    for value in values:
        yield value, batch.filter(pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False))
