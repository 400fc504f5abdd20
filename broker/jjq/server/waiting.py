"""Waiting in a coroutine for what blocking calls look for: without a thread for each that waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from jjq.feed import watched
from jjq.presence import bell
from jjq.server.guard import NEEDS
from jjq.server.http_requests import Request
from jjq.topic import Topic

Found = TypeVar("Found")

_LONGEST_S = 5.0  # though nothing is told
_UNTOLD_S = 0.1  # where the kernel does not tell


async def look_until(
    request: Request, topic: Topic, look: Callable[[], Found], timeout: float, *, channel: int | None = None,
    longest: Callable[[], float] = lambda: _LONGEST_S,
) -> Found:  # fmt: skip
    """What `look` finds, as soon as that is something and at the latest after `timeout` seconds.

    `look` runs in a thread and is never cut short, so what it has taken is not lost. It looks again when a file of the
    topic (or the bell of a channel) is written; when the client has gone, or the broker stops, it takes nothing more.
    """
    found = await request.run(look)
    if found or timeout <= 0:
        return found

    def files() -> list[Path] | None:
        paths = watched(topic)
        return paths if paths is None or channel is None else [*paths, bell(request.store.path, channel)]

    def looking() -> Found:
        # It can be long since it was asked: a token that was revoked meanwhile takes nothing.
        request.caller.may(NEEDS[request.operation.action or "read"], topic.name)
        return look()

    return await found_in(request, files, looking, timeout, longest)


async def found_in(
    request: Request, files: Callable[[], list[Path] | None], look: Callable[[], Found], timeout: float,
    longest: Callable[[], float] = lambda: _LONGEST_S,
) -> Found:  # fmt: skip
    """The same, of any files."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout
    listener = request.store.listener(files)
    over = asyncio.ensure_future(request.gone())
    over.add_done_callback(lambda _: listener.wake())
    try:
        armed = await request.run(listener.arm)
        while True:
            found = await request.run(look)
            left = until - loop.time()
            if found or left <= 0 or over.done():
                return found
            pause = min(longest(), _LONGEST_S if listener.told else _UNTOLD_S, left)
            await listener.sleep_async(armed, pause)
            if over.done():
                return found
            armed = await request.run(listener.arm)
    finally:
        over.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await over
        await request.run(listener.close)
