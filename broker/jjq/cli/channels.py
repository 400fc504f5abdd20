"""`jjq channel ...`, and `jjq topic pause` and `unpause`"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import jjq
from jjq.cli import output
from jjq.cli.arguments import (
    START_HELP,
    Commands,
    Parser,
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
    without_default,
)
from jjq.cli.exits import NOTHING, OK
from jjq.cli.records import add_output, writer_for
from jjq.clock import parse_duration, written_duration
from jjq.errors import InvalidArgument, JjqError
from jjq.stats import Damaged, those_there
from jjq.values import shown

_AT_ONCE = 100
# (option, argparse's arguments, help); those that are given are passed on under these names
_SETTINGS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("max_attempts", {"type": typed(or_none(at_least_one)), "metavar": "N"},
     "after so many deliveries a record goes to the dead-letter topic; none: never (default: 5)"),
    ("ack_timeout", {"type": typed(lambda text: parse_duration(text, "--ack-timeout") and text), "metavar": "TIME"},
     "how long a consumer may take for a record (default: 60 s)"),
    ("dead_letter", {"metavar": "TOPIC"}, "the dead-letter topic (default: TOPIC.NAME.dead)"),
)  # fmt: skip


def add_commands(commands: Commands) -> None:
    group = add_group(commands, "channel", "consumers that share a topic's records: make, list, show, receive, pause")
    parser = _add(
        group, "create", _create, "make a channel of a topic",
        "  jjq channel create orders billing --max-attempts 3 --ack-timeout '5 min'\n"
        "  jjq channel create orders audit --start latest --ordered",
    )  # fmt: skip
    parser.add_argument("--start", type=typed(start), metavar="START", help=f"{START_HELP}. Default: earliest")
    parser.add_argument("--ordered", action="store_true", help="records with the same key one after the other's end")
    _add_settings(parser)
    parser.add_argument(
        "--exist-ok", action="store_true", help="leave a channel that exists as it is, if it is like this"
    )

    parser = _add(
        group, "alter", _alter, "change settings of a channel, for all its consumers; what is not given stays",
        "  jjq channel alter orders billing --max-attempts none",
    )  # fmt: skip
    _add_settings(parser, changes=True)

    parser = add_command(
        group, "list", _list, "every channel, with what waits in it", "  jjq channel list --topic orders"
    )
    parser.add_argument("--topic", metavar="TOPIC", help="of this topic only")

    _add(group, "show", _show, "counts, settings and consumers of a channel", "  jjq channel show orders billing")

    parser = _add(
        group, "receive", _receive, "print records as one more consumer, and acknowledge them when they are printed",
        "  jjq channel receive orders billing\n  jjq channel receive orders billing -n 100 --timeout 5 --json\n"
        "  jjq channel receive orders billing --no-ack",
    )  # fmt: skip
    parser.add_argument(
        "-n", "--count", type=typed(at_least_one), default=1, metavar="N", help="so many records (default: 1)"
    )
    parser.add_argument(
        "--timeout", type=typed(or_none(seconds)), default=0.0, metavar="SECONDS",
        help="how long to wait for a record; none waits for ever (default: 0). Exit code 4 when none came",
    )  # fmt: skip
    parser.add_argument(
        "--no-ack", action="store_true", help="give them back at the end: a look, which counts as an attempt"
    )
    add_output(parser)

    _add(group, "pause", _pause, "deliver nothing until unpause", "  jjq channel pause orders billing")
    _add(group, "unpause", _unpause, "deliver again", "  jjq channel unpause orders billing")
    parser = _add(
        group, "empty", _empty, "skip everything pushed up to now", "  jjq channel empty orders billing --yes"
    )
    add_yes(parser)
    _add(
        group, "revive", _revive, "give dead letters back to their channel, for new attempts",
        "  jjq channel revive orders billing",
    )  # fmt: skip
    parser = _add(
        group, "delete", _delete, "delete a channel; records stay", "  jjq channel delete orders billing --yes"
    )
    add_yes(parser)


def add_topic_commands(group: Commands) -> None:
    parser = add_command(
        group, "pause", _pause_topic, "stop deliveries of all channels of a topic; pushing goes on",
        "  jjq topic pause orders",
    )  # fmt: skip
    parser.add_argument("topic", metavar="TOPIC")
    parser = add_command(
        group, "unpause", _unpause_topic, "let all channels of a topic deliver again", "  jjq topic unpause orders"
    )
    parser.add_argument("topic", metavar="TOPIC")


def _add(group: Commands, name: str, run: Callable[[argparse.Namespace], int], summary: str, examples: str) -> Parser:
    parser = add_command(group, name, run, summary, examples)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("name", metavar="NAME")
    return parser


def _add_settings(parser: argparse.ArgumentParser, *, changes: bool = False) -> None:
    for name, options, text in _SETTINGS:
        parser.add_argument(
            f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, help=without_default(text) if changes else text, **options
        )  # fmt: skip


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name, _, _ in _SETTINGS if hasattr(arguments, name)}


class ChannelExists(JjqError):
    """There is one of that name already."""

    code = "channel_exists"


# --- making and showing ----------------------------------------------------------------------------------------------


def _create(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        known = next((each for each in store.channels(arguments.topic) if each.name == arguments.name), None)
        if known is not None and not arguments.exist_ok:
            raise ChannelExists(
                f"topic {arguments.topic!r} has a channel {arguments.name!r} already; "
                f"add --exist-ok to leave it as it is, or use `jjq channel alter`"
            )
        settings = _settings(arguments)
        if known is None:
            channel = store.channel(
                arguments.topic,
                arguments.name,
                create=True,
                start=arguments.start,
                ordered=arguments.ordered,
                **settings,
            )
            _answer(arguments, channel, "created")
        else:
            _check_same(known, {**settings, **({"ordered": True} if arguments.ordered else {})})
            _answer(arguments, known, "is there")
    return OK


def _check_same(channel: jjq.Channel, settings: dict[str, Any]) -> None:
    """Whether a channel is what it was asked to be, but for where it began."""
    for name, wanted in settings.items():
        has = getattr(channel, name)
        if name == "ack_timeout":
            wanted = written_duration(parse_duration(wanted, name) or 0)
            has = written_duration(round(has * 1_000_000))
        if wanted != has:
            change = "" if name == "ordered" else ", or change it with `jjq channel alter`"
            raise InvalidArgument(
                f"{name}: {_written(name, wanted)} was asked for, and channel {channel.name!r} of topic {channel.topic.name!r} has "
                f"{_written(name, has)}; leave it out to use the channel as it is{change}"
            )


def _written(name: str, value: Any) -> str:
    return "none" if value is None else str(value) if name in ("ack_timeout", "ordered") else shown(value)


def _alter(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    if not settings:
        raise UsageError("nothing to alter: give a setting")
    with open_store(arguments) as store:
        _answer(arguments, store.channel(arguments.topic, arguments.name, **settings), "altered")
    return OK


def _answer(arguments: argparse.Namespace, channel: jjq.Channel, what: str) -> None:
    if arguments.json:
        output.document(_facts(channel))
    else:
        print(f"channel {channel.name} of topic {channel.topic.name} {what}")


def _facts(channel: jjq.Channel) -> dict[str, Any]:
    return {
        "name": channel.name, "id": channel.id, "topic": channel.topic.name, "paused": channel.paused,
        "topic_paused": channel.topic.paused, "max_attempts": channel.max_attempts, "ack_timeout": channel.ack_timeout,
        "ordered": channel.ordered, "dead_letter": channel.dead_letter,
        "created_at": output.instant(channel.created_at), **asdict(channel.counts()),
        "consumers": [
            {**asdict(each), "started_at": output.instant(each.started_at)} for each in channel.consumers()
        ],
    }  # fmt: skip


def _list(arguments: argparse.Namespace) -> int:
    damaged: Damaged = []
    with open_store(arguments) as store:
        found = those_there(store.channels(arguments.topic), _facts, damaged)
    if arguments.json:
        output.document(found)
        return output.left_out(damaged, as_json=True)
    output.table(
        ("TOPIC", "CHANNEL", "WAITING", "IN HAND", "DEFERRED", "ACKED", "REQUEUED", "TIMED OUT", "DEAD", "CONSUMERS", "STATE"),
        [
            (
                each["topic"], each["name"],
                *(output.number(each[name]) for name in ("depth", "in_flight", "deferred", "acked", "requeued", "timed_out", "dead")),
                len(each["consumers"]), _state(each),
            )
            for each in found
        ],
        "" if damaged else output.none_of("channels", arguments.topic, "`jjq channel create TOPIC NAME`"),
    )  # fmt: skip
    return output.left_out(damaged, as_json=False)


def _state(facts: dict[str, Any]) -> str:
    return "paused" if facts["paused"] else "topic paused" if facts["topic_paused"] else "open"


def _show(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        facts = _facts(store.channel(arguments.topic, arguments.name))
    if arguments.json:
        output.document(facts)
        return OK
    attempts = facts["max_attempts"]
    output.pairs(
        [
            ("channel", facts["name"]), ("id", facts["id"]), ("topic", facts["topic"]), ("made", facts["created_at"]),
            ("state", _state(facts)), ("attempts", "no limit" if attempts is None else f"up to {attempts}"),
            ("ack timeout", output.span(facts["ack_timeout"])), ("ordered by key", "yes" if facts["ordered"] else "no"),
            ("dead letters", facts["dead_letter"]), ("waiting", output.number(facts["depth"])),
            ("in hand", output.number(facts["in_flight"])),
            *((name.replace("_", " "), output.number(facts[name])) for name in (
                "deferred", "delivered", "acked", "requeued", "timed_out", "returned", "dead", "lost")),
        ]
    )  # fmt: skip
    if facts["consumers"]:
        print()
        output.table(
            ("CONSUMER", "HOST", "PROCESS", "SINCE", "IN HAND"),
            [(e["id"], e["host"], e["pid"], e["started_at"], e["in_flight"]) for e in facts["consumers"]],
        )
    return OK


# --- consuming -------------------------------------------------------------------------------------------------------


def _receive(arguments: argparse.Namespace) -> int:
    left = arguments.count
    room = arguments.count  # so that all of them can be in hand
    with (
        open_store(arguments, patient=waits(arguments.timeout)) as store,
        store.channel(arguments.topic, arguments.name, max_in_flight=room) as channel,
    ):
        if channel.paused or channel.topic.paused:
            what = f"channel {channel.name}" if channel.paused else f"topic {channel.topic.name}"
            words = "channel unpause TOPIC NAME" if channel.paused else "topic unpause TOPIC"
            print(f"jjq: {what} is paused and delivers nothing; `jjq {words}` lets it go on", file=sys.stderr)
        writer = writer_for(arguments)
        kept: list[jjq.Delivery] = []
        while left:
            # What was not acknowledged stays in hand until the end, or it would come again and again.
            got = channel.receive(min(left, _AT_ONCE), arguments.timeout)
            if not got:
                break
            left -= len(got)
            for delivery in got:
                writer.write(delivery.record)
            writer.flush()
            if arguments.no_ack:
                kept += got
            else:
                channel.ack_many(got)
        channel.requeue_many(kept)
    return NOTHING if left == arguments.count else OK


# --- the channel itself ----------------------------------------------------------------------------------------------


def _pause(arguments: argparse.Namespace) -> int:
    return _change(arguments, lambda channel: channel.pause(), "paused")


def _unpause(arguments: argparse.Namespace) -> int:
    return _change(arguments, lambda channel: channel.unpause(), "unpaused")


def _change(arguments: argparse.Namespace, act: Callable[[jjq.Channel], None], what: str) -> int:
    with open_store(arguments) as store:
        channel = store.channel(arguments.topic, arguments.name)
        act(channel)
        _answer(arguments, channel, what)
    return OK


def _empty(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        channel = store.channel(arguments.topic, arguments.name)
        confirm(
            arguments, f"Channel {channel.name} will not deliver what was pushed up to now: {_what_waits(channel)}."
        )
        channel.empty()
        _answer(arguments, channel, "emptied")
    return OK


def _what_waits(channel: jjq.Channel) -> str:
    counts = channel.counts()
    return output.count(counts.depth + counts.in_flight + counts.deferred, "record")


def _revive(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        channel = store.channel(arguments.topic, arguments.name)
        count = channel.revive()
        if arguments.json:
            output.document({**_facts(channel), "revived": count})
        else:
            print(f"channel {channel.name} of topic {channel.topic.name} got {output.count(count, 'dead letter')} back")
    return OK


def _delete(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        channel = store.channel(arguments.topic, arguments.name)
        confirm(
            arguments, f"Channel {channel.name} of topic {channel.topic.name} waits to deliver {_what_waits(channel)}."
        )
        facts = _facts(channel)
        store.delete_channel(arguments.topic, arguments.name)
    if arguments.json:
        output.document(facts)
    else:
        print(f"channel {facts['name']} of topic {facts['topic']} deleted")
    return OK


def _pause_topic(arguments: argparse.Namespace) -> int:
    return _change_topic(arguments, lambda topic: topic.pause(), "paused")


def _unpause_topic(arguments: argparse.Namespace) -> int:
    return _change_topic(arguments, lambda topic: topic.unpause(), "unpaused")


def _change_topic(arguments: argparse.Namespace, act: Callable[[jjq.Topic], None], what: str) -> int:
    with open_store(arguments) as store:
        topic = store.topic(arguments.topic)
        act(topic)
        if arguments.json:
            output.document({"name": topic.name, "paused": topic.paused})
        else:
            print(f"topic {topic.name} {what}")
    return OK
