"""Brokers as processes, for tests: `jjq serve` on free ports, killed at the latest when the test ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jjq
from jjq.server.settings import tokens_in
from jjq.server.tokens import TokenFile

COMMAND = Path(sys.executable).with_name("jjq")
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "COVERAGE_PROCESS_START")


@dataclass
class Served:
    """A running broker: where it listens, and what it has said."""

    process: subprocess.Popen[bytes]
    log_path: Path
    store: Path
    flight: str
    http: str
    ready: dict[str, Any] = field(repr=False)

    @property
    def port(self) -> int:
        """Of Flight."""
        return int(self.flight.rpartition(":")[2])

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Asks it to end, and waits until it has; its exit code."""
        self.process.send_signal(by)
        return self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def log(self) -> list[dict[str, Any]]:
        """What it has logged; every line is JSON, or this raises."""
        return [json.loads(line) for line in self.log_path.read_text(encoding="utf-8").splitlines()]


def environment(**more: str) -> dict[str, str]:
    """The variables of a broker: none that this test's own environment says of jjq."""
    return {name: os.environ[name] for name in KEPT if name in os.environ} | {"PYTHONWARNINGS": "error"} | more


@contextlib.contextmanager
def serving(store: Path, *options: str | Path, through: Sequence[str] = (), **variables: str) -> Iterator[Served]:
    """A broker that is ready; what options say comes before the free ports and loopback that it gets without them.
    `through` is a command that starts it."""
    log_path = store.with_name(f"{store.name}-broker-{os.urandom(4).hex()}.log")
    log_path.parent.mkdir(parents=True, exist_ok=True)
    given = ["--store", store, "--flight-port", "0", "--http-port", "0", "--json", *options]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*through, COMMAND, "serve", *map(str, given)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
            env=environment(**variables),
        )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"the broker ended with {process.wait()}: {log_path.read_text()}"
        ready = json.loads(line)
        yield Served(process, log_path, store, ready["flight"] or "", ready["http"] or "", ready)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def half_a_request(broker: Served) -> socket.socket:
    """One by HTTP whose body does not come, though the broker waits for it when this returns."""
    half = socket.create_connection(("127.0.0.1", int(broker.http.rpartition(":")[2])))
    half.sendall(
        b"POST /api/events?type=x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n"
    )
    assert half.recv(100).startswith(b"HTTP/1.1 100 ")
    return half


def refused(store: Path, *options: str | Path, **variables: str) -> tuple[int, str]:
    """The exit code of a broker that does not start, and what it said."""
    done = subprocess.run(
        [COMMAND, "serve", "--store", store, "--flight-port", "0", "--http-port", "0", *map(str, options)],
        stdin=subprocess.DEVNULL, capture_output=True, env=environment(**variables),
    )  # fmt: skip
    assert done.stdout == b""
    return done.returncode, done.stderr.decode()


def post_event(broker: Served, body: bytes, token: str | None = None, context: ssl.SSLContext | None = None) -> Any:
    request = urllib.request.Request(f"{broker.http}/api/events?type=test", data=body, method="POST")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, context=context) as answer:
        return json.loads(answer.read())


def token_of(store: Path, name: str, **rights: str) -> str:
    jjq.open(store, maintenance=False).close()
    secret, _ = TokenFile(tokens_in(store)).create(name, **{action: (globs,) for action, globs in rights.items()})
    return secret
