"""NATS JetStream as a peer: a server of its own with the defaults, and a client in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

STREAM = "measured"


@contextlib.contextmanager
def nats_publish(place: Path) -> Iterator[tuple[Callable[[bytes, int], None] | None, str]]:
    """What publishes a value so many times, each when the one before is acknowledged; or why there is none."""
    try:
        import nats
    except ImportError:
        yield None, "nats-py is not installed"
        return
    program = shutil.which("nats-server")
    if program is None:
        yield None, "nats-server is not installed"
        return
    ports = place / "ports"
    ports.mkdir()
    server = subprocess.Popen(
        [program, "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(place / "nats"), "--ports_file_dir", str(ports)],
        stderr=subprocess.DEVNULL,
    )
    with asyncio.Runner() as runner:
        try:
            client = runner.run(nats.connect(_address(server, ports)))
            stream = client.jetstream()
            runner.run(stream.add_stream(name=STREAM, subjects=[STREAM]))

            async def publish(value: bytes, count: int) -> None:
                for _ in range(count):
                    await stream.publish(STREAM, value)

            yield lambda value, count: runner.run(publish(value, count)), ""
            runner.run(client.close())
        finally:
            server.terminate()
            server.wait()


def _address(server: subprocess.Popen[bytes], ports: Path) -> str:
    until = time.monotonic() + 30
    while True:
        for path in ports.iterdir():
            with contextlib.suppress(ValueError):  # not yet written as a whole
                return str(json.loads(path.read_bytes())["nats"][0])
        if time.monotonic() > until or server.poll() is not None:
            raise RuntimeError("nats-server does not say where it listens")
        time.sleep(0.01)
