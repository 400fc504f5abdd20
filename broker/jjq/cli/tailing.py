"""`jjq tail`"""

from __future__ import annotations

import argparse
import functools
import heapq
import sys
from collections import deque
from collections.abc import Iterable, Iterator

import jjq
from jjq.cli import output
from jjq.cli.arguments import (
    START_HELP,
    Commands,
    UsageError,
    add_command,
    not_negative,
    open_store,
    start,
    typed,
    whole,
)
from jjq.cli.exits import OK
from jjq.cli.records import add_output, writer_for
from jjq.model import Record
from jjq.records import METADATA, to_records
from jjq.skipping import ON_DATA_LOSS, plan_before_loss, plan_past, read_past, resolve_past
from jjq.start import check_order

_LAST = 10
_CHUNK = 1000


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands, "tail", _tail, "show records of a topic: the last, from any start, or each new one as it comes",
        "  jjq tail flights                              # the last 10\n"
        "  jjq tail flights -n 1000 --columns carrier,delay --output table\n"
        "  jjq tail flights --start '-10 minutes' --follow --json\n"
        "  jjq tail flights --start 0=100,1=latest --end 2013-02-01T00:00:00Z\n"
        "  jjq tail flights --start earliest | jjq push copy --format json",
    )  # fmt: skip
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--start", type=typed(start), metavar="START", help=f"{START_HELP}. Default: the last -n records"
    )
    parser.add_argument(
        "--end", type=typed(start), metavar="END", help="where to stop, exclusive; in the same forms (default: latest)"
    )
    parser.add_argument(
        "-n", "--count", type=typed(not_negative), metavar="N",
        help=f"so many records: the last (default: {_LAST}; 0 with --follow, for none of them), or with --start the first",
    )  # fmt: skip
    parser.add_argument("--follow", "-f", action="store_true", help="go on with each new record until interrupted")
    parser.add_argument("--columns", metavar="NAMES", help="only these columns, with commas between them")
    parser.add_argument("--partition", type=typed(whole), metavar="N", help="only this partition")
    parser.add_argument(
        "--on-data-loss", choices=ON_DATA_LOSS, default="error",
        help="what happens where records are gone or damaged: error (default), or skip, which names them on standard error",
    )  # fmt: skip
    add_output(parser)


def _tail(arguments: argparse.Namespace) -> int:
    if arguments.follow and arguments.end is not None:
        raise UsageError("--follow has no end; leave --end away")
    if arguments.count == 0 and (not arguments.follow or arguments.start is not None):
        raise UsageError("-n 0 is for --follow without --start, which then shows only what comes")
    with open_store(arguments, stays=arguments.follow) as store:
        topic = store.topic(arguments.topic)
        columns = None if arguments.columns is None else [name.strip() for name in arguments.columns.split(",")]
        topic.select(columns)
        left = arguments.count if arguments.start is not None else None
        writer, shown = writer_for(arguments), False
        for records in _chunks(arguments, store, topic, columns):
            for record in records if left is None else records[:left]:
                writer.write(record)
            writer.flush()
            shown = shown or bool(records)
            if left is not None and (left := left - len(records)) <= 0:
                break
    # Records may lie amid what is skipped, so none to show is all that is known.
    if not (shown or arguments.follow or arguments.json or arguments.output == "json"):
        print(f"jjq: topic {output.plain(topic.name)} has no records to show{_instead(arguments)}", file=sys.stderr)
    return OK


def _instead(arguments: argparse.Namespace) -> str:
    among = "" if arguments.partition is None else f" in partition {arguments.partition}"
    if arguments.start is None and arguments.end is None:
        return f"{among}; --follow waits for new ones"
    return f"{among} there; `jjq topic describe {output.plain(arguments.topic)}` says where they are"


def _chunks(
    arguments: argparse.Namespace, store: jjq.Store, topic: jjq.Topic, columns: list[str] | None
) -> Iterator[list[Record]]:  # fmt: skip
    """What is there, then, if it is to be followed, what comes."""
    chosen = range(topic.partitions) if arguments.partition is None else [topic.check_partition(arguments.partition)]
    if arguments.start is not None and arguments.end is not None:
        check_order(arguments.start, arguments.end, topic.partitions, chosen)
    fails = arguments.on_data_loss == "error"
    resolve = functools.partial(topic.resolve if fails else functools.partial(resolve_past, topic), partitions=chosen)
    # Where they end is known only of active files that can be read, and without it nobody could follow them.
    lineages = {each.partition: each.lineage for each in topic.offsets()} if arguments.follow else {}
    ends = resolve("latest" if arguments.end is None else arguments.end, end=True)
    count = _LAST if arguments.count is None else arguments.count
    earliest = resolve("earliest")
    starts = resolve(arguments.start) if arguments.start is not None else None
    streams = []
    for partition in chosen:
        end = ends[partition]
        first = max(earliest[partition], end - count) if starts is None else starts[partition]
        streams.append(_read(store, topic, columns, partition, first, max(first, end), arguments.on_data_loss))
    # Each partition keeps its order; among them the earlier record is first.
    merged = heapq.merge(*streams, key=lambda record: (record.timestamp, record.partition, record.offset))
    yield from _in_chunks(merged if starts is not None else deque(merged, maxlen=count))
    if arguments.follow:
        places = {partition: (ends[partition], lineages[partition]) for partition in chosen}
        yield from store.follow(topic, places, columns, new_partitions=arguments.partition is None)


def _read(
    store: jjq.Store, topic: jjq.Topic, columns: list[str] | None, partition: int, start: int, end: int, on_data_loss: str
) -> Iterator[Record]:  # fmt: skip
    read = functools.partial(store.read_slices, columns=columns, metadata=METADATA)
    lost = None
    if on_data_loss == "error":
        slices, lost = plan_before_loss(topic, partition, start, end)
        batches = read(slices)
    else:
        batches = read_past(topic, plan_past(topic, partition, start, end), read)
    for batch in batches:
        yield from to_records(topic.name, batch, raw=topic.schema is None and columns is None)
    if lost is not None:
        raise lost


def _in_chunks(records: Iterable[Record]) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    try:
        for record in records:
            chunk.append(record)
            if len(chunk) == _CHUNK:
                yield chunk
                chunk = []
    except jjq.JjqError:
        yield chunk  # what lies before it
        raise
    yield chunk
