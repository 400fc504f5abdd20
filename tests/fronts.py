"""The HTTP front over a store, in this process on a free port; and a client that reads server-sent events as browsers do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import jjq
from jjq.server.guard import Guard
from jjq.server.http import HttpFront
from jjq.server.settings import ServerSettings

PATIENCE_S = 60.0  # for what must come; how long it takes is not what is tested


@dataclass
class Front:
    """A front that serves, its store, and a client of it."""

    http: HttpFront
    store: jjq.Store
    settings: ServerSettings
    port: int
    client: httpx.Client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def json(self, method: str, path: str, *, status: int = 200, **options: Any) -> Any:
        """The answer's JSON, whose status must be `status`; None without a body."""
        answer = self.client.request(method, path, **options)
        assert answer.status_code == status, f"{method} {path} -> {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def code(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        """Status and code of an answer that is an error, which is whole: a code, a message, no path and no traceback."""
        answer = self.client.request(method, path, **options)
        body = answer.json()
        assert answer.status_code >= 400, answer.text
        assert isinstance(body["message"], str)
        assert isinstance(body["retryable"], bool)
        assert str(self.store.path) not in answer.text
        assert "Traceback" not in answer.text
        return answer.status_code, body["code"]

    def event(self, kind: str, body: bytes | str, **parameters: str) -> str:
        """Posts an event; returns its id."""
        found = self.json("POST", "/api/events", params={"type": kind, **parameters}, content=body)
        assert set(found) == {"id"}
        return str(found["id"])

    @contextlib.contextmanager
    def stream(self, path: str, **options: Any) -> Iterator[Events]:
        with self.client.stream("GET", path, **options) as answer:
            if answer.status_code != 200:
                answer.read()
                raise AssertionError(f"{answer.status_code} {answer.text}")
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield Events(answer)


@dataclass
class Event:
    """What an EventSource would be told; `fields` are all fields of the block, in order, as (name, value)."""

    id: str
    type: str
    data: str
    fields: list[tuple[str, str]]


@dataclass
class Events:
    """The standard's own way to read a stream: https://html.spec.whatwg.org/multipage/server-sent-events.html"""

    answer: httpx.Response
    comments: list[str] = field(default_factory=list)
    last_id: str = ""

    def __post_init__(self) -> None:
        self._lines = _lines(self.answer.iter_bytes())
        first = dict(self.block())  # which comes when the stream has begun
        self.last_id = first.get("id", "")

    def block(self) -> list[tuple[str, str]]:
        """The fields up to the next empty line; StopIteration at the end of the stream."""
        fields = []
        while line := next(self._lines):
            if line.startswith(":"):
                self.comments.append(line[1:].removeprefix(" "))
                continue
            name, _, value = line.partition(":")
            fields.append((name, value.removeprefix(" ")))
        return fields

    def next(self) -> Event:
        """The next event that is dispatched."""
        while True:
            fields = self.block()
            data, kind = [], ""
            for name, value in fields:
                if name == "data":
                    data.append(value)
                elif name == "event":
                    kind = value
                elif name == "id" and "\0" not in value:
                    self.last_id = value
            if data:
                return Event(self.last_id, kind or "message", "\n".join(data), fields)

    def take(self, count: int) -> list[Event]:
        return [self.next() for _ in range(count)]


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """Lines as the standard ends them: by CR LF, LF or CR, and by nothing else."""
    rest = b""
    for piece in pieces:
        rest += piece
        held, rest = (rest[:-1], rest[-1:]) if rest.endswith(b"\r") else (rest, b"")  # an LF may follow
        *whole, tail = held.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest = tail + rest
        for line in whole:
            yield line.decode()


@contextlib.contextmanager
def fronting(
    path: Path, *, options: dict[str, Any] | None = None, headers: dict[str, str] | None = None, **settings: Any
) -> Iterator[Front]:
    """A front over the store at a path; `options` are the store's."""
    chosen = ServerSettings(store=path, flight=False, http_port=0, **settings)
    with jjq.open(path, maintenance=False, **(options or {})) as store:
        http = HttpFront(store, chosen, Guard(chosen))
        port = http.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, headers=headers) as client:
                yield Front(http, store, chosen, port, client)
        finally:
            http.stop(5.0)


Fronting = Callable[..., Front]
