"""`jjq topic ...`"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

import pyarrow as pa

import jjq
from jjq.cli import channels, output
from jjq.cli.arguments import (
    Commands,
    UsageError,
    add_command,
    add_group,
    add_yes,
    at_least_one,
    column,
    confirm,
    open_store,
    or_none,
    typed,
    whole,
    without_default,
)
from jjq.cli.exits import OK
from jjq.stats import Damaged, those_there
from jjq.values import size


def _waits(text: str) -> bool | list[str]:
    """Whom retention waits for."""
    if text.strip().lower() in ("all", "none"):
        return text.strip().lower() == "all"
    return [name.strip() for name in text.split(",")]


# Names of `jjq.config.TopicConfig`, what the command line takes for them, and the help.
_SETTINGS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("sync", {"choices": ["always", "interval", "none"]},
     "always: acknowledged means on disk (default); interval: a power cut may take the last --sync-interval-ms; none"),
    ("sync_interval_ms", {"type": typed(whole), "metavar": "MS"}, "for --sync interval (default: 1000)"),
    ("segment_bytes", {"type": typed(size), "metavar": "SIZE"}, "a new segment begins at this size (default: 64MB)"),
    ("segment_rows", {"type": typed(or_none(whole)), "metavar": "N"}, "or at this many records"),
    ("segment_age", {"type": typed(or_none(str)), "metavar": "TIME"},
     "or at this age (default: a day, or a seventh of the retention if that is less)"),
    ("retention", {"type": typed(or_none(str)), "metavar": "TIME"},
     "records older than this go, such as '7 days'; none keeps them for ever (default)"),
    ("retention_bytes", {"type": typed(or_none(size)), "metavar": "SIZE"},
     "the oldest records of a partition go beyond this size; none keeps them (default)"),
    ("retention_segments", {"type": typed(or_none(at_least_one)), "metavar": "N"},
     "or beyond this many segments, the active one included; none keeps them (default)"),
    ("retention_waits", {"type": typed(_waits), "metavar": "NAMES"},
     "subscribers and channels that records stay for until they are read: names with commas between, all, or none (default)"),
    ("timestamps", {"choices": ["broker", "producer"]}, "who gives records their time (default: broker)"),
    ("compression", {"choices": ["none", "lz4", "zstd"]}, "of sealed segments (default: none)"),
    ("max_record_bytes", {"type": typed(size), "metavar": "SIZE"}, "a larger record is refused (default: 64MB)"),
    ("max_batch_bytes", {"type": typed(size), "metavar": "SIZE"}, "a larger batch is refused (default: 1GB)"),
)  # fmt: skip


def add_commands(commands: Commands) -> None:
    group = add_group(commands, "topic", "make, list, describe, alter, empty and delete topics")

    parser = add_command(
        group, "create", _create, "make a topic, and the store if there is none",
        "  jjq topic create greetings\n"
        "  jjq topic create flights --partitions 4 --column carrier:string --column delay:int32 --retention '7 days'\n"
        "  jjq topic create weather --schema-from weather.csv --column visib:double",
    )  # fmt: skip
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--partitions", type=typed(at_least_one), metavar="N", help="how many it has (default: 1)")
    parser.add_argument(
        "--column", type=typed(column), action="append", default=[], metavar="NAME:TYPE",
        help="a column of the schema; repeat it for each. Types: string, binary, bool, int8 to int64, float, double, date, "
        "timestamp, timestamp_ntz, duration, decimal(p,s), list<t>, map<k,v>, struct<name:t>. Without any, records are "
        "plain values",
    )  # fmt: skip
    parser.add_argument(
        "--schema-from", type=Path, metavar="FILE",
        help="the columns of a Parquet, CSV or JSON lines file; --column changes the type of one, or adds one",
    )  # fmt: skip
    parser.add_argument(
        "--exist-ok", action="store_true", help="leave a topic that exists as it is, if it is like this"
    )
    _add_settings(parser)

    add_command(group, "list", _list, "every topic, with its size", "  jjq topic list\n  jjq topic list --json")

    parser = add_command(
        group, "describe", _describe, "settings, schema and partitions of a topic", "  jjq topic describe flights"
    )
    parser.add_argument("topic", metavar="TOPIC")

    parser = add_command(
        group, "alter", _alter, "change settings of a topic, add columns or partitions; what is not given stays, and nobody needs to restart",
        "  jjq topic alter flights --retention '30 days'\n  jjq topic alter flights --add-column gate:string\n"
        "  jjq topic alter flights --partitions 8",
    )  # fmt: skip
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--add-column", type=typed(column), action="append", default=[], metavar="NAME:TYPE",
        help="a nullable column at the end; repeat it for each",
    )  # fmt: skip
    parser.add_argument(
        "--partitions", type=typed(at_least_one), metavar="N",
        help="add partitions until there are N; keys choose among all of them from then on",
    )  # fmt: skip
    _add_settings(parser, changes=True)

    parser = add_command(
        group, "empty", _empty, "let go of every record; offsets go on, subscribers skip to there",
        "  jjq topic empty greetings --yes",
    )  # fmt: skip
    parser.add_argument("topic", metavar="TOPIC")
    add_yes(parser)

    parser = add_command(
        group,
        "delete",
        _delete,
        "delete a topic, its records, its subscribers and its channels",
        "  jjq topic delete greetings --yes",
    )
    parser.add_argument("topic", metavar="TOPIC")
    add_yes(parser)
    channels.add_topic_commands(group)


def _add_settings(parser: argparse.ArgumentParser, *, changes: bool = False) -> None:
    for name, options, text in _SETTINGS:
        parser.add_argument(
            f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, help=without_default(text) if changes else text, **options
        )  # fmt: skip


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(arguments, name) for name, _, _ in _SETTINGS if hasattr(arguments, name)}
    if given.get("compression") == "none":
        given["compression"] = None
    return given


def _create(arguments: argparse.Namespace) -> int:
    schema = _schema(arguments)
    with open_store(arguments, create=True) as store:
        make = functools.partial(
            store.create_topic, arguments.topic, partitions=arguments.partitions, schema=schema, **_settings(arguments)
        )
        try:
            topic, what = make(), "created"
        except jjq.TopicExists:
            if not arguments.exist_ok:
                raise
            topic, what = make(exist_ok=True), "is there already"
        _answer(arguments, topic, what)
    return OK


def _schema(arguments: argparse.Namespace) -> pa.Schema | None:
    fields: dict[str, pa.Field] = {}
    if arguments.schema_from is not None:
        from jjq.cli.inputs import schema_of

        found = schema_of(arguments.schema_from)
        twice = next((name for name in found.names if found.names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"{arguments.schema_from} has two columns {twice!r}; rename one")
        fields = {field.name: field for field in found}
    names = [field.name for field in arguments.column]
    if len(set(names)) != len(names):
        raise UsageError(f"a column is given twice: {', '.join(names)}")
    for field in arguments.column:
        fields[field.name] = field
    for field in fields.values():
        if pa.types.is_null(field.type):
            raise UsageError(
                f"column {field.name!r} of {arguments.schema_from} has no value that would tell its type; "
                f"add --column {field.name}:TYPE"
            )
    return pa.schema(list(fields.values())) if fields else None


def _answer(arguments: argparse.Namespace, topic: jjq.Topic, what: str) -> None:
    if arguments.json:
        output.document(_described(topic))
    else:
        config = topic.config.to_dict()
        settings = f"sync {config['sync']}, kept {_kept(config)}"
        print(
            f"topic {topic.name} {what}: {output.count(topic.partitions, 'partition')}, {_columns(topic)}; {settings}"
        )


def _columns(topic: jjq.Topic) -> str:
    return "plain values" if topic.schema is None else ", ".join(f"{f.name} {f.type}" for f in topic.schema)


def _list(arguments: argparse.Namespace) -> int:
    damaged: Damaged = []
    with open_store(arguments) as store:
        found = those_there(store.topics(), _described, damaged)
    if arguments.json:
        output.document(found)
        return output.left_out(damaged, as_json=True)
    output.table(
        ("TOPIC", "PARTITIONS", "RECORDS", "SIZE", "COLUMNS", "SYNC", "KEPT"),
        [
            (
                each["name"], len(each["partitions"]), output.number(each["records"]), output.size(each["bytes"]),
                "-" if each["schema"] is None else len(each["schema"]), each["config"]["sync"], _kept(each["config"]),
            )
            for each in found
        ],
        "" if damaged else output.none_of("topics", None, "`jjq topic create TOPIC`"),
    )  # fmt: skip
    return output.left_out(damaged, as_json=False)


def _described(topic: jjq.Topic) -> dict[str, Any]:
    return output.with_instants(topic.describe(), "created_at")


def _kept(config: dict[str, Any]) -> str:
    limits = []
    if config["retention_us"] is not None:
        limits.append(output.span(config["retention_us"] / 1_000_000))
    if config["retention_bytes"] is not None:
        limits.append(f"{output.size(config['retention_bytes'])} a partition")
    if config["retention_segments"] is not None:
        limits.append(f"{output.count(config['retention_segments'], 'segment')} a partition")
    waits = config["retention_waits"]
    until = f", and until read by {'all' if waits is True else ', '.join(waits)}" if waits and limits else ""
    return " or ".join(limits) + until or "for ever"


def _describe(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        found = _described(store.topic(arguments.topic))
        subscribers = [each.name for each in store.subscribers(arguments.topic)]
        channels = [each.name for each in store.channels(arguments.topic)]
    if arguments.json:
        output.document({**found, "subscribers": subscribers, "channels": channels})
        return 0
    config = found["config"]
    output.pairs(
        [
            ("topic", found["name"]), ("id", found["id"]), ("made", found["created_at"]),
            ("records", output.number(found["records"])), ("size", output.size(found["bytes"])),
            ("sync", config["sync"] + (f" {config['sync_interval_ms']} ms" if config["sync"] == "interval" else "")),
            ("timestamps", config["timestamps"]), ("kept", _kept(config)), ("compression", config["compression"]),
            ("segments", _segment_limits(config)), ("subscribers", ", ".join(subscribers) or None),
            ("channels", ", ".join(channels) or None),
            ("schema", "plain values" if found["schema"] is None else f"version {found['schema_version']}"),
            *((f"  {name}", kind) for name, kind in (found["schema"] or {}).items()),
        ]
    )  # fmt: skip
    print()
    output.table(
        ("PARTITION", "START", "END", "RECORDS", "SIZE", "SEGMENTS", "TO COMPACT", "LINEAGE"),
        [
            (
                each["partition"], each["start"], each["end"], output.number(each["records"]), output.size(each["bytes"]),
                each["segments"], each["to_compact"], each["lineage"],
            )
            for each in found["partitions"]
        ],
    )  # fmt: skip
    return OK


def _segment_limits(config: dict[str, Any]) -> str:
    limits = [output.size(config["segment_bytes"])]
    if config["segment_rows"] is not None:
        limits.append(output.count(config["segment_rows"], "record"))
    if config["segment_age_us"] is not None:
        limits.append(output.span(config["segment_age_us"] / 1_000_000))
    return "up to " + " or ".join(limits)


def _alter(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    if not settings and not arguments.add_column and arguments.partitions is None:
        raise UsageError("nothing to alter: give a setting, --add-column or --partitions")
    columns = pa.schema(arguments.add_column) if arguments.add_column else None
    with open_store(arguments) as store:
        before = _what_alters(store.topic(arguments.topic))
        topic = store.alter_topic(arguments.topic, partitions=arguments.partitions, add_columns=columns, **settings)
        _answer(arguments, topic, "altered" if _what_alters(topic) != before else "is so already, nothing was changed")
    return OK


def _what_alters(topic: jjq.Topic) -> object:
    return topic.partitions, topic.schema, topic.config


def _empty(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        topic = store.topic(arguments.topic)
        records = topic.describe()["records"]
        confirm(arguments, f"Topic {topic.name} has {output.count(records, 'record')}, which will be gone.")
        topic.empty()
    _done(
        arguments,
        {"topic": topic.name, "records": records},
        f"topic {topic.name} emptied of {output.count(records, 'record')}",
    )
    return OK


def _delete(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        topic = store.topic(arguments.topic)
        damaged: Damaged = []
        records = next(iter(those_there([topic], lambda each: each.describe()["records"], damaged)), None)
        held = "damaged records, which nobody can count" if records is None else output.count(records, "record")
        subscribers = [each.name for each in store.subscribers(topic.name)]
        channels = [each.name for each in store.channels(topic.name)]
        what = f"{held}, {output.count(len(subscribers), 'subscriber')} and {output.count(len(channels), 'channel')}"
        confirm(arguments, f"Topic {topic.name} has {what}, which will be gone.")
        store.delete_topic(topic.name)
    _done(
        arguments,
        {"topic": topic.name, "records": records, "subscribers": subscribers, "channels": channels},
        f"topic {topic.name} deleted, with {what}",
    )
    return OK


def _done(arguments: argparse.Namespace, value: dict[str, Any], text: str) -> None:
    if arguments.json:
        output.document(value)
    else:
        print(text)
