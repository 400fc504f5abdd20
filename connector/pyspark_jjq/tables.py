"""Tables of Spark's catalog: `CREATE TABLE flights USING jjq OPTIONS (path '…', topic 'flights')`.

Spark passes a table's options to a Python source once: when the table is made without columns, and the source is asked
for them. A read of the table comes without, and so does a write; only the schema comes every time. So the options are
noted in the metadata of the table's first column.

A note is enough for a read. It is not for a write: the columns of a frame that was read from one table carry its note
into any other, where nothing tells a frame's columns from a table's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jjq.errors import InvalidArgument
from pyspark_jjq.choice import OPTIONS as CHOICE
from pyspark_jjq.options import SHAPE, SINK_OPTIONS, SOURCE_OPTIONS, local

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NOTE = "jjq.options"
_KNOWN = frozenset(option.name.lower() for option in (*SOURCE_OPTIONS, *SINK_OPTIONS))
_MADE_BY = (
    'Of a table Spark keeps the options only if it was made by CREATE TABLE flights USING jjq OPTIONS (path "/data/jjq", '
    'topic "flights"), without columns, and not by saveAsTable or AS SELECT'
)


def is_definition(options: Mapping[str, str]) -> bool:
    """Whether these are the properties of a table that is being made, and not the options of a read."""
    return options.get("provider", "").lower() == "jjq"


def defined(options: Mapping[str, str]) -> dict[str, str]:
    """The options in the properties of a table: those of OPTIONS, LOCATION as path, and TBLPROPERTIES with their names."""
    given = {name.removeprefix("option."): value for name, value in options.items() if name.startswith("option.")}
    given |= {name: value for name, value in options.items() if name.lower() in _KNOWN}
    location = local(given.get("path", ""))
    if location:  # whole, as a table may be read from elsewhere than it was made
        given["path"] = location if "://" in location else os.path.abspath(location)
    if any(name.lower() == "token" for name in given):
        raise InvalidArgument(
            "token is not for tables: whoever may look at the table in Spark's catalog could read it; read "
            'what needs one as a DataFrame, with .option("token", …)'
        )
    if any(name.lower() == "pushdownpredicate" for name in given):
        raise InvalidArgument(
            "pushDownPredicate is not for tables: Spark keeps one plan of a table for a whole query, and where that reads it "
            "twice, both reads would get the rows of one filter; load a DataFrame for each filter instead"
        )
    return given


def note(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema with a table's options noted in it."""
    from pyspark.sql.types import StructField, StructType

    first, *others = schema.fields
    text = json.dumps(dict(options), sort_keys=True)
    return StructType([StructField(first.name, first.dataType, first.nullable, {NOTE: text}), *others])


def _noted(schema: StructType) -> dict[str, str] | None:
    for field in schema.fields:
        if NOTE in field.metadata:
            found: dict[str, str] = json.loads(field.metadata[NOTE])
            return found
    return None


def to_read(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The options of a read: those it comes with, and of a table also those that are noted.

    Options that name a store stand alone. Raises InvalidArgument where there are none at all.
    """
    if options.get("path") or options.get("broker"):
        return options
    noted = _noted(schema)
    if noted is None:
        raise InvalidArgument(
            'no store is named: write .option("path", "/data/jjq"), the directory of the store, and a topic. '
            f"{_MADE_BY}; make it so, or name them where it is read, FROM flights WITH (path '/data/jjq', topic 'flights')"
        )
    # Which columns it has, its schema says: some may have been added since.
    dropped = {name.lower() for name in SHAPE}
    choice = {name.lower() for name in CHOICE}
    if any(name.lower() in choice for name in options):
        dropped |= choice
    return {name: value for name, value in noted.items() if name.lower() not in dropped} | dict(options)


def to_write(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The options of a write, which must name the store. Raises InvalidArgument that says how, where they do not."""
    if any(name.lower() in ("path", "broker", "topic") or name.lower().startswith("kafka.") for name in options):
        return options  # if it is not enough, they are told what else
    noted = _noted(schema) or {}
    path, topic = _quoted(noted.get("path", "/data/jjq")), _quoted(noted.get("topic", "flights"))
    raise InvalidArgument(
        'no store is named: write .option("path", "/data/jjq"), the directory of the store. Into a table of Spark\'s '
        f"catalog: INSERT INTO … WITH (path {path}, topic {topic}) …, since Spark passes no options of a table to a write; "
        "instead of insertInto, toTable and CREATE TABLE … AS SELECT: "
        f'.format("jjq").option("topic", {topic}) and .mode("append").save({path}) or .start({path})'
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
