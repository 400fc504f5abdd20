"""What handles of things behind a broker have in common: a number by which the broker knows its own of them, and an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
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

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._remote.connection.tell("close_handle", handle=self._handle)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(self._closed_message())
        self._remote.check_open()
