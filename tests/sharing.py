"""Runs of pytest that share the tests: each test is run by the one that takes it first, and all end when none is left.

A plugin: `pytest -p tests.sharing --share DIRECTORY`, in each of the runs, with the same tests; see `__main__.py`. One that goes
through the files from the last to the first meets the other somewhere in between, so that none waits long for the other.
"""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sharing")
    group.addoption(
        "--share", type=Path, required=True, help="a directory, empty at first, of all runs that share tests"
    )
    group.addoption("--from-the-end", action="store_true", help="the last file first")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """As pytest's own, but for where the tests come from."""
    if session.testsfailed or session.config.option.collectonly:
        return None
    files = [list(items) for _, items in groupby(session.items, key=lambda item: item.path)]
    if session.config.option.from_the_end:
        files.reverse()
    mine = taken(chain.from_iterable(files), session.config.option.share)
    item = next(mine, None)
    while item is not None:
        following = next(mine, None)  # taken before this one is run, as it decides which fixtures stay
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def taken(items: Iterable[pytest.Item], share: Path) -> Iterator[pytest.Item]:
    for item in items:
        try:
            (share / hashlib.sha256(item.nodeid.encode()).hexdigest()).touch(exist_ok=False)
        except FileExistsError:
            continue
        yield item
