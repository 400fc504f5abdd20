"""`jjq push`"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import jjq
from jjq.cli import inputs, output
from jjq.cli.arguments import Commands, UsageError, add_command, open_store, typed, whole
from jjq.cli.exits import OK, Terminated
from jjq.cli.progress import Progress
from jjq.errors import InvalidArgument, JjqError
from jjq.headers import check_headers, headers_array
from jjq.values import size

_RATED = 1000  # records; with fewer a rate tells of the start of a process, or of who typed them


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands, "push", _push, "append records from a file or the standard input",
        "  echo hello | jjq push greetings --header source=web\n"
        "  tail -f app.log | jjq push logs\n"
        "  jjq push flights flights.csv --key carrier --null NA\n"
        "  jjq push flights more.parquet --atomic\n"
        "  jjq push flights day.jsonl --writer loader --batch 17      # once, however often it is run",
    )  # fmt: skip
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path, help="default, or -: the standard input")
    parser.add_argument(
        "--format", choices=inputs.FORMATS,
        help="lines: each line a record; json: each line a JSON document (of the topic's columns, if it has any); csv: the "
        "first line names the columns; parquet. Default: by the end of the file's name, else lines",
    )  # fmt: skip
    parser.add_argument("--key", metavar="COLUMN", help="the column (or JSON field) whose values are the records' keys")
    parser.add_argument(
        "--partition", type=typed(whole), metavar="N", help="all to this one; default: by key, else in turn"
    )
    parser.add_argument(
        "--timestamp", metavar="COLUMN", help="the column with the records' time, in a topic with --timestamps producer"
    )
    parser.add_argument(
        "--header", "-H", action="append", type=typed(_header), metavar="NAME=VALUE",
        help="a header of each record; repeat it for several. In a topic with columns it needs --atomic",
    )  # fmt: skip
    parser.add_argument("--delimiter", metavar="CHAR", help="of CSV (default: a comma; a tab, or \\t, for .tsv)")
    parser.add_argument(
        "--null", action="append", metavar="TEXT",
        help="unquoted CSV text that means null, in text columns too, as the empty field does then; repeat it for several. "
        "Default: nothing, NA and the like in columns that are no text",
    )  # fmt: skip
    parser.add_argument("--no-header", action="store_true", help="the CSV has no first line of names: columns in order")
    parser.add_argument(
        "--batch-bytes", type=typed(size), default=4 << 20, metavar="SIZE", help="pushed at once (default: 4MB)"
    )
    parser.add_argument("--atomic", action="store_true", help="all of it becomes visible at once, or nothing")
    parser.add_argument(
        "--writer", metavar="ID", help="with --batch: exactly once. A batch that was pushed before is left out"
    )
    parser.add_argument(
        "--batch", type=typed(whole), metavar="N", help="number of this writer's batch; implies --atomic"
    )


def _header(text: str) -> tuple[str, bytes | None]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise InvalidArgument(f"{text!r} is no header; write NAME=VALUE, for example source=web")
    pairs = check_headers([(name, value.encode(errors="surrogateescape"))])
    assert pairs is not None
    return pairs[0]


def _push(arguments: argparse.Namespace) -> int:
    if (arguments.writer is None) != (arguments.batch is None):
        raise UsageError("--writer and --batch go together: they say once which batch of which writer this is")
    if arguments.batch_bytes < 1:
        raise UsageError("--batch-bytes must be at least 1")
    with contextlib.ExitStack() as opened:
        opened.enter_context(_terminable())
        store = opened.enter_context(open_store(arguments, stays=True))
        topic = _topic(store, arguments)  # before the file: what is no topic may be the file
        source = opened.enter_context(inputs.Source(arguments.file))
        atomic = arguments.atomic or arguments.writer is not None
        if arguments.header and topic.schema is not None and not atomic:
            raise UsageError(f"topic {topic.name} has columns, and its records get headers all at once: add --atomic")
        tables = _tables(arguments, source, topic)
        if arguments.key is not None and topic.schema is None and _format(arguments) == "lines":
            raise UsageError("lines have no columns to take a key from; use --format json")
        with Progress(f"push {topic.name}", source.size, quiet=arguments.json) as progress:
            push = _push_atomically if atomic else _push_as_it_comes
            result = push(arguments, store, topic, source, tables, progress)
            result["seconds"] = round(progress.seconds, 3)
    if arguments.json:
        output.document(result)
    elif result["duplicate"]:
        print(f"batch {arguments.batch} of writer {arguments.writer} was pushed before; nothing was pushed")
    else:
        rate = f"{result['records'] / max(result['seconds'], 0.001):,.0f}/s, " if result["records"] >= _RATED else ""
        dropped = f", which is full and dropped {result['dropped']:,}," if result["dropped"] else ""
        print(
            f"{output.count(result['records'], 'record')} pushed to {topic.name}{dropped} in "
            f"{output.span(result['seconds'])} ({rate}{output.size(result['bytes'])})"
        )
    return OK


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """With SIGTERM as with Ctrl-C: what was staged goes, and who stopped it hears how much went in."""

    def stop(*_: object) -> None:
        raise Terminated

    # Whoever calls this from a program of theirs, in a thread or with a handler of their own, keeps what they have.
    taken = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if taken:
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        if taken:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _topic(store: jjq.Store, arguments: argparse.Namespace) -> jjq.Topic:
    name = arguments.topic
    try:
        return store.topic(name)
    except (jjq.InvalidName, jjq.TopicNotFound) as error:
        stop = "" if error.message.endswith("?") else ";"
        if os.path.isfile(name):
            topic = "TOPIC" if arguments.file is None else arguments.file
            hint = f"{name} is a file, and the topic comes before it: jjq push {topic} {name}"
        elif isinstance(error, jjq.TopicNotFound):
            hint = f"`jjq topic create {name}` makes it"
        else:
            raise
        raise type(error)(f"{error.message}{stop} {hint}") from error


def _format(arguments: argparse.Namespace) -> str:
    return inputs.format_of(arguments.file, arguments.format)


def _tables(arguments: argparse.Namespace, source: inputs.Source, topic: jjq.Topic) -> Iterator[pa.Table]:
    kind, size_ = _format(arguments), arguments.batch_bytes
    if kind == "lines":
        return inputs.read_lines(source, topic, size_)
    if kind == "json":
        key = arguments.key if topic.schema is None else None
        return inputs.read_json(source, topic, size_, key)
    if kind == "csv":
        delimiter = inputs.delimiter_of(arguments.file, arguments.delimiter)
        return inputs.read_csv(source, topic.schema, delimiter, arguments.null, not arguments.no_header, size_)
    return inputs.read_parquet(source, size_)


def _key_column(arguments: argparse.Namespace, topic: jjq.Topic) -> str | None:
    # Of JSON documents in a topic without a schema the key was taken out already.
    return None if topic.schema is None and _format(arguments) == "json" else arguments.key


def _push_as_it_comes(
    arguments: argparse.Namespace, store: jjq.Store, topic: jjq.Topic, source: inputs.Source,
    tables: Iterator[pa.Table], progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    records = dropped = unanswered = 0
    partitions: dict[int, dict[str, int]] = {}

    def pushed(partition: int) -> int:
        return partitions[partition]["records"] if partition in partitions else 0

    key, place = _key_column(arguments, topic), arguments.partition
    # Where the turns begin: not at the first partition for each of many commands that push one record.
    first = random.randrange(topic.partitions)  # noqa: S311 - nobody is to be kept from guessing it
    try:
        for table in tables:
            unanswered = len(table)
            if arguments.partition is None and arguments.key is None:
                count = topic.partitions
                place = min(range(count), key=lambda p: (pushed(p), (p - first) % count))
            if arguments.header:  # of plain values, whose table has them as a column
                table = table.append_column("headers", _headers(arguments, topic, source, table))
            positions = topic.push_table(table, key=key, partition=place, timestamp=arguments.timestamp)
            for each in positions.ranges:
                if each.start < 0:
                    dropped += each.end - each.start
                    continue
                found = partitions.setdefault(each.partition, {"records": 0, "first": each.start, "last": 0})
                found["records"] += each.end - each.start
                found["last"] = each.end - 1
            records, unanswered = records + len(table), 0
            progress.show(source.read, records)
    except KeyboardInterrupt:
        perhaps = f", perhaps {unanswered:,} more" if unanswered else ""
        print(f"jjq: stopped; {output.count(records - dropped, 'record')} went in{perhaps}", file=sys.stderr)
        raise
    except JjqError as error:
        if records:
            error.message += f"; before that, {output.count(records - dropped, 'record')} went in"
        raise
    return _result(topic, records, source, partitions, dropped=dropped)


def _push_atomically(
    arguments: argparse.Namespace, store: jjq.Store, topic: jjq.Topic, source: inputs.Source,
    tables: Iterator[pa.Table], progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    records, what = 0, "nothing went in"
    key = _key_column(arguments, topic)
    owner = None if arguments.writer is None else (arguments.writer, arguments.batch)
    try:
        with store.stage(owner=owner) as stage:
            for table in tables:
                stamps = None
                if arguments.timestamp is not None:
                    if arguments.timestamp not in table.schema.names:
                        raise UsageError(f"--timestamp {arguments.timestamp} is no column of {source.name}")
                    stamps = table.column(arguments.timestamp)
                headers = _headers(arguments, topic, source, table) if arguments.header else None
                stage.write(topic, table, partition=arguments.partition, key=key, headers=headers, timestamps=stamps)
                records += len(table)
                progress.show(source.read, records)
            staged = stage.finish()
            what = f"either all {output.count(records, 'record')} went in or none"
            done = store.commit(staged, writer_id=arguments.writer, batch_id=arguments.batch)
    except KeyboardInterrupt:
        print(f"jjq: stopped; {what}", file=sys.stderr)
        raise
    spans = done.positions.get(topic.name, {})
    partitions = {p: {"records": end - start, "first": start, "last": end - 1} for p, (start, end) in spans.items()}
    return _result(topic, 0 if done.duplicate else records, source, partitions, duplicate=done.duplicate)


def _headers(arguments: argparse.Namespace, topic: jjq.Topic, source: inputs.Source, table: pa.Table) -> pa.Array:
    """Those that are given, once for each row."""
    if topic.schema is None and "headers" in table.schema.names:
        raise UsageError(f"{source.name} has a column of headers; leave --header out")
    return headers_array([arguments.header]).take(pa.repeat(0, len(table)))


def _result(
    topic: jjq.Topic, records: int, source: inputs.Source, partitions: dict[int, dict[str, int]], *,
    dropped: int = 0, duplicate: bool = False,
) -> dict[str, Any]:  # fmt: skip
    return {
        "topic": topic.name, "records": records, "dropped": dropped, "bytes": source.read, "duplicate": duplicate,
        "partitions": {str(partition): found for partition, found in sorted(partitions.items())},
    }  # fmt: skip
