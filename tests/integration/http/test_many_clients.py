"""Hundreds of clients of one stream, of whom some never read: the others get everything, and memory stays as it is."""

import asyncio
import contextlib
import socket
import time
from pathlib import Path

import httpx
import pytest

import jjq
from jjq.server.events import SCHEMA
from jjq.server.feeds import Chunk
from tests.brokers import serving
from tests.stores import assert_whole

CLIENTS, DEAF = 450, 50
EVENTS, WARM = 700, 100
BODY = b"x" * 1000
MOST_GROWTH = 40 << 20
REQUEST = b"GET /api/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


def anonymous_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


async def reader(port: int, ready: asyncio.Semaphore, marks: list[int]) -> list[bytes]:
    """The ids of all events, in order; `marks` counts who has had how many."""
    incoming, outgoing = await asyncio.open_connection("127.0.0.1", port)
    outgoing.write(REQUEST)
    await incoming.readuntil(b": jjq\n\n")
    ready.release()
    ids: list[bytes] = []
    rest = b""
    while len(ids) < EVENTS:
        data = await incoming.read(1 << 16)
        assert data, "the broker has cut off a client that reads"
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"id: "):
                ids.append(line)
                marks[len(ids)] += 1
    outgoing.close()
    return ids


def ask(sock: socket.socket, port: int) -> None:
    """Begins the stream, of which nothing is read."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", port))
    sock.sendall(REQUEST)


async def clients(port: int, push: jjq.Topic, pid: int) -> tuple[list[list[bytes]], list[int]]:
    ready, marks = asyncio.Semaphore(0), [0] * (EVENTS + 1)
    readers = [asyncio.ensure_future(reader(port, ready, marks)) for _ in range(CLIENTS)]
    for _ in range(CLIENTS):
        await ready.acquire()
    memory = []
    for first, last in ((0, WARM), (WARM, EVENTS)):
        for _ in range(first, last):
            await asyncio.to_thread(push.push, {"type": "t", "body": BODY})
        while marks[last] < CLIENTS:
            await asyncio.sleep(0.05)
            for each in readers:
                if each.done():
                    each.result()
        memory.append(anonymous_bytes(pid))
    return await asyncio.gather(*readers), memory


def slow_clients(http: httpx.Client) -> int:
    lines = http.get("/metrics").text.splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("jjq_http_slow_clients_total "))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_those_who_never_read_cost_nothing_and_hold_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with jjq.open(path) as store:
        topic = store.create_topic("events", schema=SCHEMA, sync="none")
        with (
            serving(path, "--no-flight", "--buffer-bytes", "64KB", "--heartbeat-s", "300") as broker,
            httpx.Client(base_url=broker.http, timeout=60) as http,
            contextlib.ExitStack() as deaf,
        ):
            port = int(broker.http.rpartition(":")[2])
            for _ in range(DEAF):
                ask(deaf.enter_context(socket.socket()), port)
            got, (warm, end) = asyncio.run(clients(port, topic, broker.process.pid))
            assert all(each == got[0] for each in got)
            assert got[0] == sorted(got[0])
            assert end - warm < MOST_GROWTH, f"{warm >> 20} MiB became {end >> 20} MiB"
            # Whoever reads what was before, as on a busy machine, has a minute to take something.
            deadline = time.monotonic() + 300
            while (cut := slow_clients(http)) < DEAF:
                assert time.monotonic() < deadline, f"{cut} of {DEAF} are cut off"
            assert cut == DEAF
            deaf.close()
            assert broker.stop() == 0
    assert_whole(path)


def test_a_piece_that_many_come_to_from_elsewhere_is_not_kept_for_each() -> None:
    frames = [b"data: %d\n\n" % i for i in range(1000)]
    piece = Chunk(0, 0, 1000, list(range(1000)), frames, None)
    for other in range(100):  # each stands elsewhere in partition 1, which is in its ids
        joined = piece.joined(0, None, {0: 0, 1: other})
        assert joined.startswith(b"id: 0:1,1:%d\ndata: 0\n\n" % other)
        assert piece.joined(0, None, {0: 0, 1: other}) == joined
    assert sum(map(len, piece._joined.values())) <= 4 * piece.size
    assert piece.joined(0, None, {0: 0, 1: 0}) is piece.joined(0, None, {0: 0, 1: 0})
