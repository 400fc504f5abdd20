"""The stores that the contract holds for. A backend joins by one more name and one more branch."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jjq

BACKENDS = ("embedded",)


@pytest.fixture(params=BACKENDS)
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], jjq.Store]]:
    """Opens the same store once more, as another caller would; all are closed at the end."""
    opened: list[jjq.Store] = []

    def connect() -> jjq.Store:
        opened.append(jjq.open(tmp_path / "store"))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


@pytest.fixture
def store(reopen: Callable[[], jjq.Store]) -> jjq.Store:
    return reopen()
