"""`jjq check` and `jjq bench`"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jjq.cli import output
from jjq.cli.arguments import Commands, add_command, at_least_one, open_store, seconds_between, store_path, typed
from jjq.cli.exits import DAMAGE, OK
from jjq.values import size

_STORE_HELP = "the store to try it in, in topics of its own (default: a temporary one beside where the store would be)"
_SECONDS = (0.01, 86_400.0)  # how long a trial may take


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands, "check", _check,
        "producers and consumers as processes that are killed again and again: does a stream arrive in order, whole, once?",
        "  jjq check\n  jjq check --seconds 60 --producers 4 --consumers 4\n  jjq check --store /srv/jjq --no-kills --json",
        store=_STORE_HELP, broker=False,
    )  # fmt: skip
    parser.add_argument(
        "--seconds",
        type=typed(seconds_between(*_SECONDS)),
        default=10.0,
        metavar="SECONDS",
        help="how long (default: 10)",
    )
    parser.add_argument(
        "--producers", type=typed(at_least_one), default=2, metavar="N", help="processes that push (default: 2)"
    )
    parser.add_argument(
        "--consumers", type=typed(at_least_one), default=2, metavar="N", help="processes that read (default: 2)"
    )
    parser.add_argument("--no-kills", action="store_true", help="let them live")

    parser = add_command(
        commands, "bench", _bench, "what this machine does: figures for publishing, subscribing and resuming, in seconds",
        "  jjq bench\n  jjq bench --size 1KB --seconds 3\n  jjq bench --store /srv/jjq --json",
        store=_STORE_HELP, broker=False,
    )  # fmt: skip
    parser.add_argument(
        "--size", type=typed(size), default=100, metavar="SIZE", help="of a record (default: 100 bytes)"
    )
    parser.add_argument(
        "--seconds",
        type=typed(seconds_between(*_SECONDS)),
        default=1.0,
        metavar="SECONDS",
        help="for each figure (default: 1)",
    )


@contextlib.contextmanager
def _place(arguments: argparse.Namespace) -> Iterator[Path]:
    """The store that --store names; without it, a temporary one beside where the store would be, on the disk that counts."""
    if getattr(arguments, "store", None):
        open_store(arguments).close()
        yield store_path(arguments)
        return
    beside = store_path(arguments).absolute().parent
    where = beside if os.access(beside, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="jjq-trial-", dir=where) as directory:
        yield Path(directory) / "store"


def _check(arguments: argparse.Namespace) -> int:
    from jjq.checking import check

    with _place(arguments) as path:
        report = check(
            path, seconds=arguments.seconds, producers=arguments.producers, consumers=arguments.consumers,
            kills=not arguments.no_kills,
        )  # fmt: skip
    if arguments.json:
        output.document(report.to_dict())
    else:
        print("\n".join(output.plain(line) for line in str(report).splitlines()))
    return OK if report.ok else DAMAGE


def _bench(arguments: argparse.Namespace) -> int:
    from jjq.measuring import measure

    with _place(arguments) as path:
        figures = list(measure(path, value_bytes=arguments.size, seconds=arguments.seconds))
    if arguments.json:
        output.document([each.to_dict() for each in figures])
        return OK
    output.table(
        ("WHAT", "FIGURE", "PEER", "RATIO", "PEER IS"),
        [
            (
                each.what, output.amount(each.value, each.unit),
                None if each.peer is None else output.amount(each.peer, each.unit),
                None if not each.peer else f"{each.value / each.peer:.2f}", each.peer_is,
            )
            for each in figures
        ],
    )  # fmt: skip
    return OK
