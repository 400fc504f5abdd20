"""Pushes of many requests as few: what has come for a topic while one write was under way goes in with the next, as one batch
with one sync. No request has a thread; a topic that is written to has one for as long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jjq.errors import JjqError
from jjq.model import Position

_MOST_ROWS = 10_000  # of one batch
_MOST_BYTES = 8 << 20
_THREADS = 16  # topics that are written to at the same time
_MOST_IDLE = 1000  # topics whose last batch is remembered
# Where so many push at the same time, those whose records were just written push again at once. A batch waits for them as long
# as they keep coming: two halves that take turns would cost twice the batches, and hold each other up.
_MANY = 8
_LINGER_S = 0.001
_LOOKS = 5  # and this often at most


class Item(NamedTuple):
    """A record that a request pushes: the value and headers as `push_many` takes them, and its size."""

    value: Any
    key: bytes | None
    headers: Any
    size: int


Push = Callable[[str, Sequence[Item]], Sequence[Position]]
_Waiting = tuple[Item, "asyncio.Future[Position]"]


@dataclass(slots=True)
class _Queue:
    """Of one topic. `busy` while a batch of it is being written or about to be."""

    waiting: list[_Waiting] = field(default_factory=list)
    busy: bool = False
    expected: int = 0  # records, when all who pushed lately push again
    timer: asyncio.TimerHandle | None = None  # while a batch waits for them


class Gathering:
    """Used from one event loop. `push` writes items to the topic of a name, all or none of them, in a thread."""

    def __init__(self, push: Push) -> None:
        self._push = push
        self._queues: dict[str, _Queue] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "jjq-http-push")
        self.pending = 0  # records that are not written yet

    async def push(self, topic: str, item: Item) -> Position:
        """Where the record went, when it is as durable as its topic says."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Position] = loop.create_future()
        queue = self._queues.get(topic)
        if queue is None:
            self._forget_idle()
            queue = self._queues[topic] = _Queue()
        queue.waiting.append((item, future))
        self.pending += 1
        if not queue.busy:
            self._begin(topic, queue, loop)
        elif queue.timer is not None and len(queue.waiting) >= queue.expected:
            queue.timer.cancel()
            self._hand_over(topic, queue, loop)
        return await future

    def close(self) -> None:
        """Returns when what was handed to a thread is written."""
        self._threads.shutdown()

    def _forget_idle(self) -> None:
        if len(self._queues) >= _MOST_IDLE:
            for topic in [topic for topic, queue in self._queues.items() if not queue.busy]:
                del self._queues[topic]

    def _begin(self, topic: str, queue: _Queue, loop: asyncio.AbstractEventLoop) -> None:
        """Has a batch written soon: at the earliest when all that has arrived by now has come here."""
        queue.busy = True
        if queue.expected >= _MANY and len(queue.waiting) < queue.expected:
            self._linger(topic, queue, loop, _LOOKS)
        else:
            loop.call_soon(self._hand_over, topic, queue, loop)

    def _linger(self, topic: str, queue: _Queue, loop: asyncio.AbstractEventLoop, looks: int) -> None:
        count = len(queue.waiting)

        def look() -> None:
            if looks > 1 and len(queue.waiting) > count:
                self._linger(topic, queue, loop, looks - 1)
            else:
                self._hand_over(topic, queue, loop)

        queue.timer = loop.call_later(_LINGER_S, look)

    def _hand_over(self, topic: str, queue: _Queue, loop: asyncio.AbstractEventLoop) -> None:
        queue.timer = None
        count = _as_many_as_fit(queue.waiting)
        taken = queue.waiting[:count]
        del queue.waiting[:count]
        self._threads.submit(self._write, topic, queue, taken, loop)

    def _write(self, topic: str, queue: _Queue, taken: Sequence[_Waiting], loop: asyncio.AbstractEventLoop) -> None:
        done = self._written(topic, taken)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(self._tell, topic, queue, done, loop)

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

    def _tell(
        self, topic: str, queue: _Queue, done: Sequence[tuple[asyncio.Future[Position], Any]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:  # fmt: skip
        self.pending -= len(done)
        queue.expected, queue.busy = len(done) + len(queue.waiting), False
        for future, result in done:
            if future.done():  # its request was given up
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        if queue.waiting:
            self._begin(topic, queue, loop)


def _as_many_as_fit(waiting: Sequence[_Waiting]) -> int:
    size = 0
    for count, (item, _) in enumerate(waiting):
        size += item.size
        if count and (size > _MOST_BYTES or count >= _MOST_ROWS):
            return count
    return len(waiting)
