"""Fronts for the tests of this directory; each store is verified when its test is over."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fronts import Front, Fronting, fronting
from tests.stores import assert_whole


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Fronting]:
    """Makes fronts, with settings."""
    stores = []
    with contextlib.ExitStack() as opened:

        def make(name: str = "store", **settings: Any) -> Front:
            stores.append(tmp_path / name)
            return opened.enter_context(fronting(tmp_path / name, **settings))

        yield make
    for path in stores:
        assert_whole(path)


@pytest.fixture
def front(serve: Fronting) -> Front:
    return serve()
