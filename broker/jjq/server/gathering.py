"""Pushes of many requests as few: what has queued for a topic while one write was under way goes in with the next, as one
batch with one sync. No request has a thread; a topic that is pushed to has one for as long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from jjq.errors import JjqError
from jjq.model import Position

_MOST_ROWS = 10_000  # of one batch
_MOST_BYTES = 8 << 20
_THREADS = 16  # topics that are written to at the same time


class Item(NamedTuple):
    """A record that a request pushes: the value and headers as `push_many` takes them, and its size."""

    value: Any
    key: bytes | None
    headers: Any
    size: int


Push = Callable[[str, Sequence[Item]], Sequence[Position]]
_Waiting = tuple[Item, "asyncio.Future[Position]"]


class Gathering:
    """Used from one event loop. `push` writes items to the topic of a name, all or none of them."""

    def __init__(self, push: Push) -> None:
        self._push = push
        self._mutex = threading.Lock()
        self._queues: dict[str, list[_Waiting]] = {}  # of topics that a thread writes to
        self.writing = 0  # records that are being written
        self._threads = ThreadPoolExecutor(_THREADS, "jjq-http-push")

    async def push(self, topic: str, item: Item) -> Position:
        """Where the record went, when it is as durable as its topic says."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Position] = loop.create_future()
        with self._mutex:
            queue = self._queues.get(topic)
            begun = queue is not None
            if queue is None:
                queue = self._queues[topic] = []
            queue.append((item, future))
        if not begun:
            self._threads.submit(self._write, topic, loop)
        return await future

    def close(self) -> None:
        """Returns when what was pushed is written."""
        self._threads.shutdown()

    def _write(self, topic: str, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._mutex:
                queue = self._queues[topic]
                if not queue:
                    del self._queues[topic]
                    return
                count = _as_many_as_fit(queue)
                taken = queue[:count]
                del queue[:count]
                self.writing += count
            done = self._written(topic, taken)
            with self._mutex:
                self.writing -= count
            try:
                loop.call_soon_threadsafe(_tell, done)
            except RuntimeError:  # the loop is closed: nobody waits
                return

    def _written(self, topic: str, taken: Sequence[_Waiting]) -> list[tuple[asyncio.Future[Position], Any]]:
        try:
            found: Sequence[Any] = self._push(topic, [item for item, _ in taken])
        except JjqError as error:
            if len(taken) > 1 and not error.retryable:
                # One of them may be at fault, and the others are not to suffer for it.
                return [told for each in taken for told in self._written(topic, [each])]
            found = [error] * len(taken)
        except Exception as error:  # noqa: BLE001 - every request must hear of it
            found = [error] * len(taken)
        return [(future, result) for (_, future), result in zip(taken, found, strict=True)]


def _as_many_as_fit(queue: Sequence[_Waiting]) -> int:
    size = 0
    for count, (item, _) in enumerate(queue):
        size += item.size
        if count and (size > _MOST_BYTES or count >= _MOST_ROWS):
            return count
    return len(queue)


def _tell(done: Sequence[tuple[asyncio.Future[Position], Any]]) -> None:
    for future, result in done:
        if future.done():  # its request was given up
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
