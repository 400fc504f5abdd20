"""`docs/cli.md` names every command, option and exit code, and its examples run."""

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jjq.cli import exits
from jjq.cli.commands import build_parser
from tests.examples import blocks
from tests.integration.conftest import Cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
TEXT = PAGE.read_text(encoding="utf-8")
ELSEWHERE = {  # options of other commands that a section speaks of
    "jjq push": {"--timestamps"},
    "jjq peek": {"--count"},
    "jjq subscriber show": {"--on-data-loss"},
}
EVERYWHERE = {"-h", "--help", "--store", "--broker", "--json"}


def leaves(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    groups = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not groups:
        yield path, parser
    for group in groups:
        for name, each in group.choices.items():
            yield from leaves(each, f"{path} {name}")


COMMANDS = dict(leaves(build_parser(), "jjq"))


def section(heading: str) -> str:
    match = re.search(rf"^### {re.escape(heading)}\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert match, f"docs/cli.md has no section {heading}"
    return match.group(1)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    text = section(name)
    if name == "jjq pop":  # they share a table
        text += section("jjq peek")
    usage = " ".join(
        f"[{each.metavar}]" if each.nargs == "?" else str(each.metavar)
        for each in COMMANDS[name]._actions
        if not each.option_strings
    )
    assert f"`{name} {usage}`".replace(" `", "`") in text
    for action in COMMANDS[name]._actions:
        for option in action.option_strings:
            assert option in EVERYWHERE or re.search(rf"(?<![\w-]){option}(?![\w-])", text), option
            if action.choices:
                assert all(f"{choice}" in TEXT for choice in action.choices)


def test_no_section_is_of_a_command_that_is_not() -> None:
    assert set(re.findall(r"^### (.+)$", TEXT, re.MULTILINE)) == set(COMMANDS)


def test_no_option_is_documented_that_is_not() -> None:
    known = {option for parser in COMMANDS.values() for action in parser._actions for option in action.option_strings}
    shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT))
    assert shown <= known | {"--version"}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_section_has_the_options_of_another_command(name: str) -> None:
    prose = re.sub(r"```.*?```|`jjq [^`]*`", "", section(name), flags=re.DOTALL)
    own = {option for action in COMMANDS[name]._actions for option in action.option_strings}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", prose)) - own <= ELSEWHERE.get(name, set())


def test_every_exit_code_is_documented() -> None:
    codes = [str(value) for name, value in vars(exits).items() if name.isupper()]
    assert re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE) == codes


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_in_its_help(name: str) -> None:
    text = COMMANDS[name].format_help()
    assert f"  {name}" in text.partition("examples:")[2]


@pytest.mark.embedded
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_examples_run_in_order(cli: Cli) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), cli.environment["PATH"]])
    for where, code in shell_commands():
        words = shlex.split(code, comments=True)
        if words[0] == "jjq" and not set("$|<>\n") & set(code):
            cli.run(*words[1:])
            continue
        done = subprocess.run(
            ["sh", "-euc", code], env=cli.environment | {"PATH": path}, cwd=cli.directory, capture_output=True
        )
        assert done.returncode == 0, f"line {where}: {done.stderr.decode()}"
        assert done.stderr == b"", f"line {where}"


def shell_commands() -> Iterator[tuple[int, str]]:
    """Each line of the examples and its number; those that share a variable together."""
    for block in blocks(PAGE, "sh"):
        if "=$(" in block.code:
            yield block.line, block.code
        else:
            yield from enumerate(block.code.splitlines(), block.line)
