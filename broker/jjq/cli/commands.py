"""All commands."""

from __future__ import annotations

import argparse

from jjq.cli import (
    care,
    channels,
    messages,
    pushing,
    segments,
    serving,
    subscribers,
    tailing,
    tokens,
    topics,
    trials,
    watching,
    writers,
)
from jjq.cli.arguments import Parser, add_common


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import jjq

        print(f"jjq {jjq.__version__}")
        parser.exit()


def build_parser() -> Parser:
    parser = Parser(
        prog="jjq",
        description="A message log that is also a table: topics of records in a directory, for any number of processes.",
        epilog="`jjq COMMAND --help` explains a command, with examples.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    parser.set_defaults(json=False)
    add_common(parser)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (
        topics,
        pushing,
        tailing,
        subscribers,
        channels,
        messages,
        segments,
        writers,
        watching,
        care,
        trials,
        serving,
        tokens,
    ):
        module.add_commands(commands)
    return parser
