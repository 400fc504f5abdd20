"""A TCP proxy that does to connections what networks do: cuts them, lets them hang, refuses new ones, holds bytes back."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

_CHUNK = 64 << 10


class Proxy:
    """Stands between clients and a broker; `port` is where clients connect, `target` the broker's port now."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._mutex = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        # Cleared: nothing is passed on, and nobody is told.
        self._requests, self._answers = threading.Event(), threading.Event()
        self.flow()
        self._closed = False
        self.connections = 0  # so far
        self.passed = 0  # bytes so far, both ways
        self.cut_after: int | None = None  # cuts everything once so many more bytes have passed
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"jjq://127.0.0.1:{self.port}"

    def _start(self, run: object, *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            for each in (client, broker):  # small messages are not to wait for one another, as gRPC does not let them
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._mutex:
                self.connections += 1
                self._sockets |= {client, broker}
            self._start(self._pump, client, broker, self._requests)
            self._start(self._pump, broker, client, self._answers)

    def _pump(self, source: socket.socket, sink: socket.socket, flows: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                flows.wait()
                with self._mutex:
                    self.passed += len(data)
                    cut = self.cut_after is not None and (left := self.cut_after - len(data)) <= 0
                    if self.cut_after is not None:
                        self.cut_after = None if cut else left
                if cut:  # amid a message
                    sink.sendall(data[: len(data) // 2])
                    self.cut()
                    return
                sink.sendall(data)
        self._end(source, sink)

    def _end(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with self._mutex:
                self._sockets.discard(each)
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def cut(self) -> None:
        """Ends every connection there is, amid whatever it carries."""
        with self._mutex:
            sockets = list(self._sockets)
        self._end(*sockets)

    def hang(self, *, answers_only: bool = False) -> None:
        """Half-open: from now on nothing comes through, and nobody is told. With `answers_only` requests do."""
        self._answers.clear()
        if not answers_only:
            self._requests.clear()

    def flow(self) -> None:
        self._requests.set()
        self._answers.set()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.flow()
        self.cut()
        for each in self._threads:
            each.join(30)


@contextlib.contextmanager
def proxy(target: int) -> Iterator[Proxy]:
    made = Proxy(target)
    try:
        yield made
    finally:
        made.close()
