"""The HTTP side of a broker: a server in a thread of its own, on one event loop, over a store that others use too."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn

from jjq.server.certificates import keep_fresh, tls_context
from jjq.server.counters import Requests
from jjq.server.gathering import Gathering
from jjq.server.guard import Guard
from jjq.server.health import Health
from jjq.server.http_app import App
from jjq.server.http_channels import Consumers
from jjq.server.http_protocol import Connection, accept_tls
from jjq.server.http_pushing import push_gathered
from jjq.server.http_requests import Parts
from jjq.server.http_stats import Counters
from jjq.server.settings import ServerSettings
from jjq.server.sse import Hub
from jjq.store import Store

_CALLS = 24  # blocking calls at a time; what is waited for has no thread
_SEARCHES = 4
_BACKLOG = 1024
_KEEP_ALIVE_S = 75
_UNSENT_BYTES = 128 << 10

log = logging.getLogger("jjq.server.http")


class HttpFront:
    """See `docs/http.md` for what it serves. Started once, stopped once."""

    def __init__(
        self, store: Store, settings: ServerSettings, guard: Guard, ended: Callable[[], object] = lambda: None,
        flight: Requests | None = None,
    ) -> None:  # fmt: skip
        """`ended` is called when it ends though nobody has stopped it. `flight`: what the Flight front of the same store counts."""
        self._flight = flight
        self._store, self._settings, self._guard, self._ended = store, settings, guard, ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None
        self._parts: Parts | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._stopping = False
        self._beside: list[asyncio.Future[None]] = []  # what goes on beside the server, with TLS

    def start(self) -> int:
        """Binds and serves; returns the port. Raises OSError when it cannot listen, InvalidArgument for a certificate that is
        none."""
        listening = self._bind()
        port = int(listening.getsockname()[1])
        try:
            context = tls_context(self._settings)
        except BaseException:
            listening.close()
            raise
        self._thread = threading.Thread(target=self._run, args=(listening, context), name="jjq-http", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return port

    def stop(self, grace: float) -> None:
        """Takes nothing new, tells streams to come back later, lets what runs end within `grace` seconds, then closes."""
        thread, server, loop, parts = self._thread, self._server, self._loop, self._parts
        if thread is None or server is None or loop is None or parts is None:
            return
        self._thread, self._stopping = None, True
        # uvicorn takes whole seconds, and 0 for none at all.
        server.config.timeout_graceful_shutdown = max(1, round(grace))

        def begin() -> None:
            parts.stopping.set()
            server.should_exit = True
            self._end_beside()

        with contextlib.suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(begin)
        thread.join()

    def _bind(self) -> socket.socket:
        host, port = self._settings.host, self._settings.http_port
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            # Connections have it from here. What a client does not take waits in its outbox, which is counted, and not in
            # megabytes of the kernel's.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        return listening

    def _run(self, listening: socket.socket, context: ssl.SSLContext | None) -> None:
        try:
            with asyncio.Runner(loop_factory=_new_loop) as runner:
                try:
                    runner.run(self._serve(listening, context))
                finally:  # at once: to tidy up may hang where something has failed
                    if self._ready.is_set() and not self._stopping:
                        self._ended()
        except BaseException as error:
            if self._ready.is_set():
                log.exception("the HTTP server ended")
            else:
                self._failure = error
        finally:
            listening.close()
            self._ready.set()

    async def _serve(self, listening: socket.socket, context: ssl.SSLContext | None) -> None:
        loop = self._loop = asyncio.get_running_loop()
        calls = ThreadPoolExecutor(_CALLS, "jjq-http-call")
        loop.set_default_executor(calls)
        parts = self._parts = self._new_parts(calls)
        connection = type(
            "Connection", (Connection,),
            {"most_connections": self._settings.max_connections, "counters": parts.counters, "lingering": set()},
        )  # fmt: skip
        config = uvicorn.Config(
            App(parts), http=connection, ws="none", lifespan="off", log_config=None, log_level="error", access_log=False,
            server_header=False, proxy_headers=False, timeout_keep_alive=_KEEP_ALIVE_S, backlog=_BACKLOG,
        )  # fmt: skip
        server = self._server = uvicorn.Server(config)
        starting = asyncio.ensure_future(server.serve(sockets=[listening] if context is None else []))
        while not server.started and not starting.done():
            await asyncio.sleep(0.005)
        if context is not None:
            connect = functools.partial(connection, config=config, server_state=server.server_state, app_state={})
            accepting = accept_tls(listening, context, connect, self._settings.max_connections, parts.counters)
            self._beside = [asyncio.ensure_future(each) for each in (accepting, keep_fresh(context, self._settings))]
            # Without them nobody comes in any more, or soon: whoever watches this broker is to start it again.
            for each in self._beside:
                each.add_done_callback(lambda _: setattr(server, "should_exit", True))
        self._ready.set()
        try:
            await starting
        finally:
            self._end_beside()
            await self._end(parts)

    def _end_beside(self) -> None:
        for each in self._beside:
            each.cancel()

    async def _end(self, parts: Parts) -> None:
        parts.stopping.set()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, parts.gathering.close)
        await loop.run_in_executor(None, parts.consumers.close)

    def _new_parts(self, calls: ThreadPoolExecutor) -> Parts:
        parts: Parts

        def push(topic: str, items: Any) -> Any:
            return push_gathered(parts, topic, items)

        parts = Parts(
            store=self._store, settings=self._settings, guard=self._guard, calls=calls, gathering=Gathering(push),
            hub=Hub(lambda: parts), consumers=Consumers(self._store), health=Health(self._store), counters=Counters(),
            stopping=asyncio.Event(), searches=asyncio.Semaphore(_SEARCHES), flight=self._flight,
        )  # fmt: skip
        return parts


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # where it has no wheel
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
