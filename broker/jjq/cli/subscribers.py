"""`jjq subscriber ...`, `jjq pop` and `jjq peek`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import jjq
from jjq.cli import output
from jjq.cli.arguments import (
    START_HELP,
    Commands,
    UsageError,
    add_command,
    add_group,
    add_yes,
    at_least_one,
    confirm,
    open_store,
    or_none,
    seconds,
    start,
    typed,
    waits,
)
from jjq.cli.exits import NOTHING, OK
from jjq.cli.records import add_output, writer_for
from jjq.clock import is_unit
from jjq.model import PartitionLag
from jjq.stats import Damaged, those_there


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands, "pop", _pop, "take the next record of a subscriber, durably",
        "  jjq pop billing\n  jjq pop billing -n 100 --json\n  while jjq pop billing --timeout none; do :; done",
    )  # fmt: skip
    parser.add_argument("subscriber", metavar="SUBSCRIBER")
    parser.add_argument(
        "-n", "--count", type=typed(at_least_one), default=1, metavar="N", help="so many records (default: 1)"
    )
    _add_timeout(parser)
    add_output(parser)

    parser = add_command(
        commands, "peek", _peek, "show the record that the next pop takes; moves nothing", "  jjq peek billing --json"
    )
    parser.add_argument("subscriber", metavar="SUBSCRIBER")
    _add_timeout(parser)
    add_output(parser)

    group = add_group(commands, "subscriber", "durable cursors: make, list, show, seek and delete them")
    parser = add_command(
        group, "create", _create, "make a subscriber of a topic; without a name it gets one",
        "  jjq subscriber create flights billing\n  jjq subscriber create flights --start '-1 hour' --on-data-loss skip",
    )  # fmt: skip
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("name", metavar="NAME", nargs="?")
    parser.add_argument(
        "--start", type=typed(start), default="earliest", metavar="START", help=f"{START_HELP}. Default: earliest"
    )
    parser.add_argument(
        "--on-data-loss", choices=["error", "skip"],
        help="what happens when retention removed records unread (default: error); damage is an error until `jjq repair`",
    )  # fmt: skip
    parser.add_argument(
        "--exist-ok",
        action="store_true",
        help="leave a subscriber that exists as it is, if its --on-data-loss is like this",
    )

    parser = add_command(
        group, "list", _list, "every subscriber, with how far it is behind", "  jjq subscriber list --topic flights"
    )
    parser.add_argument("--topic", metavar="TOPIC", help="of this topic only")

    parser = add_command(
        group, "show", _show, "position and lag of a subscriber, by partition", "  jjq subscriber show billing"
    )
    parser.add_argument("subscriber", metavar="SUBSCRIBER")

    parser = add_command(
        group, "seek", _seek, "move the cursor of a subscriber that nobody polls",
        "  jjq subscriber seek billing earliest\n  jjq subscriber seek billing -100\n  jjq subscriber seek billing 0=5,1=latest",
    )  # fmt: skip
    parser.add_argument("subscriber", metavar="SUBSCRIBER")
    parser.add_argument("start", type=typed(start), metavar="START", help=START_HELP)

    parser = add_command(
        group, "delete", _delete, "delete a subscriber; records stay", "  jjq subscriber delete billing --yes"
    )
    parser.add_argument("subscriber", metavar="SUBSCRIBER")
    add_yes(parser)


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=typed(or_none(seconds)), default=0.0, metavar="SECONDS",
        help="how long to wait for a record; none waits for ever (default: 0). Exit code 4 when none came",
    )  # fmt: skip


def _pop(arguments: argparse.Namespace) -> int:
    patient = waits(arguments.timeout)
    with open_store(arguments, patient=patient) as store, store.subscriber(arguments.subscriber) as subscriber:
        writer = writer_for(arguments)
        for number in range(arguments.count):
            record = subscriber.pop(timeout=arguments.timeout)
            if record is None:
                writer.flush()
                return NOTHING if number == 0 else OK
            writer.write(record)
            if arguments.count == 1 or arguments.timeout != 0:
                writer.flush()
        writer.flush()
    return OK


def _peek(arguments: argparse.Namespace) -> int:
    patient = waits(arguments.timeout)
    with open_store(arguments, patient=patient) as store, store.subscriber(arguments.subscriber) as subscriber:
        record = subscriber.peek(timeout=arguments.timeout)
        if record is None:
            return NOTHING
        writer = writer_for(arguments)
        writer.write(record)
        writer.flush()
    return OK


def _create(arguments: argparse.Namespace) -> int:
    if arguments.name is not None and isinstance(arguments.start, int) and is_unit(arguments.name):
        raise UsageError(
            f"is this the start '{arguments.start} {arguments.name}'? A time of two words is quoted; a subscriber with the name "
            f"of a unit is made without a number as its start"
        )
    with open_store(arguments) as store:
        made = store.create_subscriber(
            arguments.topic, arguments.name, start=arguments.start, on_data_loss=arguments.on_data_loss,
            exist_ok=arguments.exist_ok,
        )  # fmt: skip
        if arguments.json:
            output.document(_facts(made, made.lag()))
        else:
            print(made.name if arguments.name is None else f"subscriber {made.name} of topic {made.topic.name}")
    return OK


def _facts(subscriber: jjq.Subscriber, lag: Sequence[PartitionLag]) -> dict[str, Any]:
    known = [each.seconds for each in lag if each.seconds is not None]
    return {
        "name": subscriber.name, "id": subscriber.id, "topic": subscriber.topic.name,
        "on_data_loss": subscriber.on_data_loss, "created_at": output.instant(subscriber.created_at),
        "records": sum(each.records for each in lag), "bytes": sum(each.bytes for each in lag),
        "seconds": max(known, default=None), "lost": sum(each.lost for each in lag),
        "partitions": [asdict(each) for each in lag],
    }  # fmt: skip


def _list(arguments: argparse.Namespace) -> int:
    damaged: Damaged = []
    with open_store(arguments) as store:
        found = those_there(store.subscribers(arguments.topic), lambda each: _facts(each, each.lag()), damaged)
    if arguments.json:
        output.document(found)
        return output.left_out(damaged, as_json=True)
    output.table(
        ("SUBSCRIBER", "TOPIC", "BEHIND", "SIZE", "OLDEST", "LOST", "MADE"),
        [
            (
                each["name"], each["topic"], output.number(each["records"]), output.size(each["bytes"]),
                output.span(each["seconds"]) if each["records"] else "-", output.number(each["lost"]),
                each["created_at"],
            )
            for each in found
        ],
        "" if damaged else output.none_of("subscribers", arguments.topic, "`jjq subscriber create TOPIC NAME`"),
    )  # fmt: skip
    return output.left_out(damaged, as_json=False)


def _show(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        facts = _facts(found := store.subscriber(arguments.subscriber), found.lag())
    if arguments.json:
        output.document(facts)
        return 0
    output.pairs(
        [
            ("subscriber", facts["name"]), ("id", facts["id"]), ("topic", facts["topic"]), ("made", facts["created_at"]),
            ("on data loss", facts["on_data_loss"]), ("behind", output.count(facts["records"], "record")),
        ]
    )  # fmt: skip
    print()
    output.table(
        ("PARTITION", "POSITION", "END", "BEHIND", "SIZE", "OLDEST", "LOST"),
        [
            (
                each["partition"], each["position"], each["end"], output.number(each["records"]),
                output.size(each["bytes"]), output.span(each["seconds"]) if each["records"] else "-",
                output.number(each["lost"]),
            )
            for each in facts["partitions"]
        ],
    )  # fmt: skip
    return OK


def _seek(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store, store.subscriber(arguments.subscriber) as found:
        found.seek(arguments.start)
        facts = _facts(found, found.lag())
    if arguments.json:
        output.document(facts)
    else:
        print(f"subscriber {facts['name']} moved; {output.count(facts['records'], 'record')} to read")
    return OK


def _delete(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        found = store.subscriber(arguments.subscriber)
        confirm(arguments, f"Subscriber {found.name} of topic {found.topic.name} will be gone.")
        store.delete_subscriber(found.name)
    if arguments.json:
        output.document({"name": found.name, "id": found.id, "topic": found.topic.name})
    else:
        print(f"subscriber {found.name} deleted")
    return OK
