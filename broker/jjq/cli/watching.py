"""`jjq stats` and `jjq top`"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

import jjq
from jjq.cli import output
from jjq.cli.arguments import Commands, add_command, open_store, seconds_between, typed
from jjq.cli.overview import lines, with_rates

INTERVAL_S = 2.0
# The other screen without a cursor, and back; home; the rest of a line, and of the screen.
_ENTER, _LEAVE = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\033[H", "\033[K", "\033[J"


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands, "stats", _stats, "topics, subscribers, channels and subscriptions in numbers, and what maintenance did",
        "  jjq stats\n  jjq stats flights --json",
    )  # fmt: skip
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="this topic only")

    parser = add_command(
        commands, "top", _top, "the same, live, with what happens a second; q ends it",
        "  jjq top\n  jjq top flights --interval 0.5\n  jjq top --once --json",
    )  # fmt: skip
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="this topic only")
    parser.add_argument(
        "--interval", type=typed(seconds_between(0.05, 3600)), default=INTERVAL_S, metavar="SECONDS",
        help=f"between two looks (default: {INTERVAL_S:g})",
    )  # fmt: skip
    parser.add_argument("--once", action="store_true", help="print once, after one interval, and end")


def _stats(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        found = store.stats(arguments.topic)
    if arguments.json:
        output.document(output.with_instants(found, "at"))
    else:
        print("\n".join(lines(found)))
    return output.left_out(found["damaged"], as_json=arguments.json)


def _top(arguments: argparse.Namespace) -> int:
    live = not arguments.once and not arguments.json and sys.stdin.isatty() and sys.stdout.isatty()
    with open_store(arguments, patient=not arguments.once, quiet=True) as store:
        if live:
            with _screen():
                last = _watch(store, arguments)
            return output.left_out(last["damaged"], as_json=False)
        return _print(store, arguments)


def _looks(store: jjq.Store, topic: str | None) -> Iterator[dict[str, Any]]:
    """What there is, with rates since the look before."""
    before = None
    while True:
        now = store.stats(topic)
        yield with_rates(now, before)
        before = now


def _print(store: jjq.Store, arguments: argparse.Namespace) -> int:
    """For a program, a file or a pipe: again and again, one after the other, from the second look on."""
    looks = _looks(store, arguments.topic)
    next(looks)
    while True:
        time.sleep(arguments.interval)
        found = next(looks)
        if arguments.json:
            print(
                json.dumps(output.jsonable(output.with_instants(found, "at")), ensure_ascii=False, allow_nan=False),
                flush=True,
            )
        else:
            print("\n".join(lines(found, busiest_first=True)), flush=True)
        code = output.left_out(found["damaged"], as_json=arguments.json)
        if arguments.once:
            return code
        if not arguments.json:
            print(flush=True)


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """A screen of its own, and keys as they are pressed; everything as before afterwards."""
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        print(_ENTER, end="", flush=True)
        yield
    finally:
        print(_LEAVE, end="", flush=True)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _watch(store: jjq.Store, arguments: argparse.Namespace) -> dict[str, Any]:
    """Until it is ended; the last look."""
    looks = _looks(store, arguments.topic)
    while True:
        found = next(looks)
        damaged = output.damaged_lines(found["damaged"])
        shown = [f"every {arguments.interval:g} s; q ends", *damaged, "", *lines(found, busiest_first=True)]
        print(frame(shown, *shutil.get_terminal_size()), end="", flush=True)
        until = time.monotonic() + arguments.interval
        while (left := until - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left)[0]:
                key = sys.stdin.read(1)
                if key in ("q", "Q", ""):  # empty: the terminal has gone
                    return found


def frame(shown: list[str], columns: int, rows: int) -> str:
    """Lines drawn over those before, cut to the terminal; no line ends the last row, which would scroll."""
    fitting = [line[:columns] for line in shown[:rows]]
    return _HOME + "\n".join(line + _CLEAR_LINE for line in fitting) + _CLEAR_REST
