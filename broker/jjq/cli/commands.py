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
from jjq.cli.arguments import Parser, add_common, add_subcommands

# As they stand in the help, and in docs/cli.md.
_GROUPS = (
    ("topics and records", (topics, pushing, tailing)),
    ("consumers", (subscribers, channels, messages)),
    ("what there is, and what goes on", (segments, writers, watching)),
    ("care and trials", (care, trials)),
    ("the broker", (serving, tokens)),
)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import jjq

        print(f"jjq {jjq.__version__}")
        parser.exit()


def build_parser() -> Parser:
    parser = Parser(
        prog="jjq",
        usage="jjq [--store DIR | --broker URL] [--json] COMMAND ...",
        description="A message log that is also a table: topics of records in a directory, for any number of processes.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    parser.set_defaults(json=False)
    add_common(parser)
    commands = add_subcommands(parser)
    commands.help = argparse.SUPPRESS  # argparse would list all in one row; they stand below, by what they are for
    listed: list[str] = []
    for title, modules in _GROUPS:
        before = len(commands._choices_actions)
        for module in modules:
            module.add_commands(commands)
        listed += [f"{title}:", *(f"  {each.dest:12}{each.help}" for each in commands._choices_actions[before:]), ""]
    parser.epilog = "\n".join(
        (*listed, "`jjq COMMAND --help` (or `jjq help COMMAND`) explains a command, with examples.")
    )
    return parser
