"""Waiting without a thread: who is gone takes nothing more, as nobody would get it."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import jjq
from jjq.server.waiting import found_in

Result = TypeVar("Result")


class Asked:
    """What waiting asks of a request: to run calls, and to say when its client is gone."""

    def __init__(self, store: jjq.Store) -> None:
        self.store = store
        self.left = asyncio.Event()

    async def run(self, call: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.to_thread(call, *arguments)

    async def gone(self) -> None:
        await self.left.wait()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store", maintenance=False) as opened:
        yield opened


def test_a_client_that_has_gone_takes_nothing_more(store: jjq.Store) -> None:
    store.create_topic("t")
    subscriber = store.create_subscriber("t", "s")

    async def ask() -> jjq.Record | None:
        asked, loop = Asked(store), asyncio.get_running_loop()

        def leave() -> None:
            store.topic("t").push(b"x")  # of which no file that is watched tells
            asked.left.set()

        def longest() -> float:  # asked for when it is about to sleep
            loop.call_soon(leave)
            return 60.0

        return await found_in(asked, list, subscriber.pop, 60.0, longest)  # type: ignore[arg-type]

    assert asyncio.run(ask()) is None
    with contextlib.closing(subscriber):
        record = subscriber.pop()
    assert record is not None
    assert record.value == b"x"
