"""What handles of things behind a broker have in common: a number by which the broker knows its own of them, and an end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from jjq.errors import StoreClosed

if TYPE_CHECKING:
    from jjq.client.store import RemoteStore


class RemoteHandle(ABC):
    """One of a `RemoteStore`. The broker makes its own at the first use, and closes it with this one, soon after this one was
    let go of, or when it has not heard from this client for a while."""

    _closed: bool

    def __init__(self, store: RemoteStore) -> None:
        self._remote = store
        self._handle = next(store.handle_numbers)
        self._closed = self._asked = False
        self._left: list[Future[None]] = []  # requests that wait, for coroutines that were cancelled

    def __del__(self) -> None:
        if getattr(self, "_asked", False) and not self._closed:
            self._remote.let_go.append(self._handle)  # who collects it is not to wait for the broker

    @abstractmethod
    def _about(self) -> dict[str, Any]:
        """What the broker needs to make its own, beside the number."""

    @abstractmethod
    def _closed_message(self) -> str:
        """What is said to who uses it when it is closed."""

    def _act(self, name: str, wait_s: float = 0.0, **args: Any) -> Any:
        self._check_open()
        self._asked = True
        try:
            given = {"handle": self._handle, **self._about(), **args}
            return self._remote.connection.act(name, wait_s=wait_s, **given)
        except StoreClosed:
            self._check_open()  # by this process: it says so in our words
            raise

    async def _wait_once(self, ask_ahead: Callable[[float], None]) -> None:
        """Has a thread ask once, and wait, for a coroutine. What it gets is ahead, for whoever comes first.

        A request whose coroutine was cancelled may be about to get what there is, so who comes next awaits that one: another
        would wait in vain.
        """
        future = self._left_behind() or self._remote.executor.submit(ask_ahead, self._remote.connection.wait_s(None))
        try:
            await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel():
                self._left.append(future)
            raise

    def _left_behind(self) -> Future[None] | None:
        while True:
            try:
                future = self._left.pop()
            except IndexError:
                return None
            if not future.done():
                return future

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._remote.connection.tell("close_handle", handle=self._handle)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(self._closed_message())
        self._remote.check_open()
