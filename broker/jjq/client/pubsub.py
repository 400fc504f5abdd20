"""A subscription behind a broker. Confirmations are made here; messages wait in the broker until they are asked for."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from jjq.client.handle import RemoteHandle
from jjq.errors import InvalidArgument
from jjq.hints import keywords_of
from jjq.interest import check_pattern, glob
from jjq.model import check_name
from jjq.pubsub import Message, PubSub
from jjq.values import counted, flag, timeout_s

if TYPE_CHECKING:
    from jjq.client.store import RemoteStore


@keywords_of("__init__")
class RemotePubSub(RemoteHandle, PubSub):
    """See `jjq.pubsub.PubSub`. A broker that was started anew is told again to what it is; messages of between are missed, as
    by a process that was."""

    def __init__(
        self, store: RemoteStore, *, decode_responses: bool = False, ignore_subscribe_messages: bool = False
    ) -> None:
        super().__init__(store)
        self._decode = flag(decode_responses, "decode_responses")
        self._quiet = flag(ignore_subscribe_messages, "ignore_subscribe_messages")
        self._interest: tuple[list[str], list[str]] = ([], [])
        self._id: str | None = None
        self._waiting: deque[Message] = deque()
        self._mutex = threading.RLock()
        self.dropped = 0

    def __repr__(self) -> str:
        names, patterns = self._interest
        held = f"{counted(len(names), 'name')}, {counted(len(patterns), 'pattern')}"
        return f"<PubSub {'closed' if self._closed else held}>"

    @property
    def id(self) -> str | None:
        return self._id

    @property
    def subscribed(self) -> bool:
        return any(self._interest)

    def _about(self) -> dict[str, Any]:
        return {"interest": self._interest}

    def _closed_message(self) -> str:
        return "the subscription was closed; make another with store.pubsub()"

    # --- subscribing -------------------------------------------------------------------------------------------------

    def subscribe(self, *names: str) -> None:
        if not names:
            raise InvalidArgument("subscribe to at least one name; psubscribe('*') takes all")
        for name in [check_name(name, "topic") for name in names]:
            self._change("subscribe", name)

    def psubscribe(self, *patterns: str) -> None:
        if not patterns:
            raise InvalidArgument("psubscribe to at least one pattern; '*' takes all")
        for pattern in patterns:
            glob(check_pattern(pattern))
            self._change("psubscribe", pattern)

    def unsubscribe(self, *names: str) -> None:
        for name in names or tuple(self._interest[0]) or ("",):
            self._change("unsubscribe", name)

    def punsubscribe(self, *patterns: str) -> None:
        for pattern in patterns or tuple(self._interest[1]) or ("",):
            self._change("punsubscribe", pattern)

    def _change(self, kind: str, name: str) -> None:
        with self._mutex:
            self._id, *interest = self._act("change_subscription", kind=kind, names=[name])
            self._interest = (interest[0], interest[1])
            if not self._quiet:
                count = len(interest[0]) + len(interest[1])
                self._waiting.append(
                    {"type": kind, "pattern": None, "channel": self._text(name) if name else None, "data": count}
                )

    # --- messages ----------------------------------------------------------------------------------------------------

    def get_message(self, timeout: float | None = 0.0) -> Message | None:
        seconds = timeout_s(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            wait = self._remote.connection.wait_s(left)
            found = self._ask(wait)
            if found is not None or (left is not None and left <= wait):
                return found

    def _ask(self, wait: float) -> Message | None:
        with self._mutex:
            self._check_open()
            if self._waiting:
                return self._waiting.popleft()
        told = self._act("get_message", wait, timeout=wait)
        self.dropped = max(self.dropped, told["dropped"])
        message: Message | None = told["message"]
        if message is None:
            return None
        return {
            "type": message["type"], "pattern": None if message["pattern"] is None else self._said(message["pattern"]),
            "channel": self._said(message["channel"]), "data": self._data(message["data"]),
        }  # fmt: skip

    def _said(self, name: bytes) -> str | bytes:
        return name.decode() if self._decode else name

    def listen(self) -> Iterator[Message]:
        while self.subscribed or self._waiting:
            message = self.get_message(timeout=None)
            if message is not None:
                yield message

    async def _listen_async(self) -> AsyncIterator[Message]:
        while self.subscribed or self._waiting:
            if not self._waiting:
                await self._wait_once(self._ask_ahead)
            with self._mutex:
                found = self._waiting.popleft() if self._waiting else None
            if found is not None:
                yield found

    def _ask_ahead(self, wait: float) -> None:
        found = self._ask(wait)
        if found is not None:
            with self._mutex:
                self._waiting.append(found)

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        super().close()
        self._interest = ([], [])
        self._waiting.clear()
