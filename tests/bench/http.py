"""The HTTP front: posting events beside the same server storing nothing; events to many clients; a filter in history."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import jjq
from jjq.clock import now_us
from jjq.model import Position
from jjq.server.events import SCHEMA
from jjq.server.guard import Guard
from jjq.server.http import HttpFront
from jjq.server.settings import ServerSettings
from tests.bench.run import Run, percentile, seconds
from tests.bench.table import Row, at_least, at_most

CONNECTIONS = 64
BODY = b'{"order": 12345678, "state": "paid", "by": "somebody"}'.ljust(100)
CLIENTS, A_SECOND = 500, 200
RARE = 100  # one event of so many


@contextlib.contextmanager
def served(directory: Path, **settings: Any) -> Iterator[tuple[HttpFront, jjq.Store, int]]:
    chosen = ServerSettings(store=directory, flight=False, http_port=0, **settings)
    with jjq.open(directory, maintenance=False) as store:
        front = HttpFront(store, chosen, Guard(chosen))
        port = front.start()
        try:
            yield front, store, port
        finally:
            front.stop(1.0)


class _StoresNothing:
    """Answers at once, where the front would gather and write."""

    async def push(self, topic: str, item: object) -> Position:
        return Position(0, 0, now_us())

    def close(self) -> None: ...


# --- the client's side, in a process of its own ---------------------------------------------------------------------


def in_a_process(target: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(target, arguments)


class _Poster(asyncio.Protocol):
    """Posts, and posts again when the answer has come."""

    def __init__(self, request: bytes, left: list[int], done: asyncio.Future[None]) -> None:
        self._request, self._left, self._done = request, left, done
        self._got = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        if self._left[0] > 0:
            self._left[0] -= 1
            self._transport.write(self._request)
        else:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._got.endswith(b"}"):
            if not self._got.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(self._got.decode())
            self._got = b""
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        self._left[1] -= 1
        if not self._left[1] and not self._done.done():
            self._done.set_result(None)


def post(port: int, count: int) -> float:
    """Seconds for so many posts over the connections."""
    request = (
        f"POST /api/events?type=order.paid HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
        + BODY
    )

    async def run() -> float:
        loop = asyncio.get_running_loop()
        left, done = [count, CONNECTIONS], loop.create_future()
        began = time.perf_counter()
        for _ in range(CONNECTIONS):
            await loop.create_connection(lambda: _Poster(request, left, done), "127.0.0.1", port)
        await done
        return time.perf_counter() - began

    import uvloop

    return uvloop.run(run())


def posting(run: Run) -> list[Row]:
    count = run.amount(20_000, 200)
    with run.place() as place, served(place / "ours") as (_, _, ours), served(place / "bare") as (bare, _, theirs):
        assert bare._parts is not None
        bare._parts.gathering = _StoresNothing()  # type: ignore[assignment]
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            figures = run.interleave(
                {
                    "ours": lambda: count / pool.apply(post, (ours, count)),
                    "bare": lambda: count / pool.apply(post, (theirs, count)),
                }
            )
    return [
        Row(
            f"POST /api/events of 100 B, always, {CONNECTIONS} connections", "the same server, storing nothing", "/s",
            figures["ours"], figures["bare"], at_least(0.7),
        )
    ]  # fmt: skip


class _Listener(asyncio.Protocol):
    """Reads events, whose data begin with the time at which they were pushed."""

    def __init__(self, port: int, begun: Callable[[], None], got: Callable[[float], None]) -> None:
        self._port, self._begun, self._got = port, begun, got
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(b"GET /api/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        if self._begun is not None and b"retry: " in data:
            self._begun()
            self._begun = None  # type: ignore[assignment]
        now = time.time()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                self._got(now - float(line[6:23]))


def listen(port: int, clients: int, events: int, ready: Any) -> list[float]:
    """Seconds from an event's push to a client's having it, for a sample of them."""

    async def run() -> list[float]:
        loop = asyncio.get_running_loop()
        waits: list[float] = []
        left, done = [clients, clients * events], loop.create_future()

        def begun() -> None:
            left[0] -= 1
            if not left[0]:
                ready.set()

        def got(seconds: float) -> None:
            waits.append(seconds)
            left[1] -= 1
            if not left[1]:
                done.set_result(None)

        opened = [
            (await loop.create_connection(lambda: _Listener(port, begun, got), "127.0.0.1", port))[0]
            for _ in range(clients)
        ]
        await done
        for transport in opened:
            transport.close()
        return [percentile(waits, 99)]

    import uvloop

    return uvloop.run(run())


def following(run: Run) -> list[Row]:
    clients, events = run.amount(CLIENTS, 5), run.amount(10 * A_SECOND, 20)
    with run.place() as place, served(place / "store") as (_, store, port):
        topic = store.create_topic("events", schema=SCHEMA, sync="interval")
        topic.push({"type": "t", "body": BODY})  # the first one imports pandas, where that is installed
        context = multiprocessing.get_context("spawn")
        with context.Manager() as manager, context.Pool(1) as pool:
            ready = manager.Event()
            waits = pool.apply_async(listen, (port, clients, events, ready))
            while not ready.wait(0.1):
                if waits.ready():
                    waits.get()
            began = time.time()
            for i in range(events):
                time.sleep(max(0.0, began + i / A_SECOND - time.time()))
                topic.push({"type": "t", "body": b"%017.6f " % time.time() + BODY})
            figures = waits.get()
    return [
        Row(
            f"{clients} clients of /api/events, {A_SECOND} events a second each, p99", "a quarter of a second", "s",
            figures, [0.25], at_most(1.0),
        )
    ]  # fmt: skip


def read(port: int, path: str, count: int) -> None:
    """Until so many events have come."""

    async def run() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        seen, tail = 0, b""
        while seen < count:
            data = await reader.read(1 << 20)
            assert data
            seen += (tail + data).count(b"\ndata: ") - tail.count(b"\ndata: ")
            tail = data[-6:]
        writer.close()

    import uvloop

    uvloop.run(run())


def filtering(run: Run) -> list[Row]:
    count = run.amount(10_000_000, 10_000)
    with run.place() as place, served(place / "store") as (_, store, port):
        topic = store.create_topic("events", schema=SCHEMA, sync="none")
        at_once = min(count, 500_000)
        kinds = pa.array(["rare" if i % RARE == 0 else f"often.{i % 7}" for i in range(at_once)])
        bodies = pa.array([os.urandom(50).hex().encode()] * at_once, pa.binary())
        for _ in range(count // at_once):
            topic.push_table(pa.table({"type": kinds, "body": bodies}))
        store.maintain()
        with multiprocessing.get_context("spawn").Pool(1) as pool:

            def measure(path: str, events: int) -> float:
                return seconds(lambda: pool.apply(read, (port, path, events)))

            figures = run.interleave(
                {
                    "all": lambda: measure("/api/events?start=earliest", count),
                    "rare": lambda: measure("/api/events?start=earliest&typeMatcher=^rare$", count // RARE),
                },
                rounds=3,
            )
    return [
        Row(
            f"/api/events of {count:,} events, no filter", f"a filter for a type that is 1 in {RARE}", "s",
            figures["all"], figures["rare"], at_least(20),
        )
    ]  # fmt: skip


BENCHMARKS = {"http-post": posting, "http-clients": following, "http-filter": filtering}
