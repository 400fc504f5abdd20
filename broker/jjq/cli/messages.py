"""`jjq publish` and `jjq subscribe`"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from jjq.cli import output
from jjq.cli.arguments import (
    Commands,
    UsageError,
    add_command,
    at_least_one,
    open_store,
    or_none,
    seconds,
    typed,
    waits,
)
from jjq.cli.exits import NOTHING, OK


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands, "publish", _publish, "send a message to whoever is subscribed now; prints how many subscriptions it reached",
        "  jjq publish news 'hello'\n  tail -f access.log | jjq publish log.web",
    )  # fmt: skip
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "value", metavar="VALUE", nargs="?", help="the message (default: each line of the standard input)"
    )

    parser = add_command(
        commands, "subscribe", _subscribe, "print messages of names and patterns as they come, until interrupted",
        "  jjq subscribe news sport\n  jjq subscribe --pattern 'log.*' --json\n  jjq subscribe news -n 1 --timeout 10",
    )  # fmt: skip
    parser.add_argument("names", metavar="NAME", nargs="*")
    parser.add_argument(
        "--pattern", action="append", default=[], metavar="GLOB",
        help="names that match, such as 'log.*'; repeat it for each. *, ? and [abc]",
    )  # fmt: skip
    parser.add_argument("-n", "--count", type=typed(at_least_one), metavar="N", help="end after so many messages")
    parser.add_argument(
        "--timeout", type=typed(or_none(seconds)), default=None, metavar="SECONDS",
        help="end when none came for so long; none waits for ever (default). Exit code 4 when none came at all",
    )  # fmt: skip


def _publish(arguments: argparse.Namespace) -> int:
    given = arguments.value
    with open_store(arguments, create_topics=True) as store:
        messages = [given.encode(errors="surrogateescape")] if given is not None else sys.stdin.buffer
        for message in messages:
            reached = store.publish(arguments.name, message if given is not None else message.rstrip(b"\r\n"))
            if arguments.json:
                print(json.dumps({"name": arguments.name, "reached": reached}), flush=True)
            else:
                print(reached, flush=True)
    return OK


def _subscribe(arguments: argparse.Namespace) -> int:
    if not arguments.names and not arguments.pattern:
        raise UsageError("name what to subscribe to, or a --pattern; --pattern '*' takes all")
    came = 0
    with (
        open_store(arguments, patient=waits(arguments.timeout)) as store,
        store.pubsub(ignore_subscribe_messages=True) as subscription,
    ):
        if arguments.names:
            subscription.subscribe(*arguments.names)
        if arguments.pattern:
            subscription.psubscribe(*arguments.pattern)
        last = time.monotonic()
        while arguments.count is None or came < arguments.count:
            left = None if arguments.timeout is None else max(0.0, last + arguments.timeout - time.monotonic())
            message = subscription.get_message(timeout=left)
            if message is None:
                break
            came += 1
            last = time.monotonic()
            _show(arguments, message)
    return OK if came else NOTHING


def _show(arguments: argparse.Namespace, message: dict[str, Any]) -> None:
    if arguments.json:
        print(json.dumps(output.jsonable(message), ensure_ascii=False), flush=True)
        return
    data = message["data"]
    shown = data.decode(errors="backslashreplace") if isinstance(data, bytes) else str(data)
    print(f"{message['channel'].decode()}  {output.plain(shown)}", flush=True)
