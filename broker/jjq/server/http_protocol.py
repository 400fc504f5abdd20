"""What the HTTP server lacks: bounds on headers, on connections that say nothing and on those that have yet to agree on TLS, a
way to end a connection that is not read, and refusals that are JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger("jjq.server.http")

HEADER_BYTES = 64 << 10  # of a request: the line, and all headers
_HEADERS_S = 30.0  # in which they are to come
_HANDSHAKE_S = 10.0  # in which a connection is to be encrypted
_ACCEPT_AGAIN_S = 1.0  # after an error that is not the client's: there are too many open files
_CLOSE_S = 5.0  # in which a client may read why its stream ends, or, where the broker does, take the end of its answer
_STALLED_S = 90.0  # a client that takes nothing of an answer for as long is no client any more; streams say so before
_LINGER_S = 1.0  # in which one that is refused may send the rest of its request, and read the answer
_MOST_LINGERING = 100


def refusal(status: int, code: str, message: str) -> bytes:
    """A whole answer, for where there is no request to answer in the usual way."""
    body = json.dumps({"code": code, "message": message, "retryable": status == 503}).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


async def accept_tls(
    listening: socket.socket, context: ssl.SSLContext, connect: Callable[[], Connection], most: int, counters: Any
) -> None:
    """Takes connections and makes those that agree on TLS a `Connection`, until it is cancelled. Up to `most` have yet to agree:
    where asyncio listens with TLS, nobody can know how many these are."""
    loop = asyncio.get_running_loop()
    listening.setblocking(False)
    begun: set[asyncio.Task[None]] = set()

    async def agree(client: socket.socket) -> None:
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Not ssl_shutdown_timeout: in that time, too, the rest of an answer is to be taken, by slow clients as well.
            await loop.connect_accepted_socket(connect, client, ssl=context, ssl_handshake_timeout=_HANDSHAKE_S)
        except OSError:  # it is too late, or is no TLS that fits
            client.close()

    try:
        while True:
            try:
                client, _ = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                log.warning("no connection can be taken: %s", error)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            if len(begun) < most:
                task = loop.create_task(agree(client))
                begun.add(task)
                task.add_done_callback(begun.discard)
            else:
                counters.refused_connections += 1
                client.close()
            await asyncio.sleep(0)  # however many come, the others go on
    finally:
        listening.close()
        for each in begun:
            each.cancel()


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    # Set in the subclass that a front makes.
    most_connections: int
    counters: Any
    lingering: set[Connection]  # those that are refused and not yet closed

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._encrypted = transport.get_extra_info("sslcontext") is not None
        self._head_bytes = 0
        self._alarm: asyncio.TimerHandle | None = self.loop.call_later(_HEADERS_S, self._too_slow)
        self._stall: asyncio.TimerHandle | None = None
        if len(self.connections) - len(self.lingering) > self.most_connections:
            self.counters.refused_connections += 1
            self._end_with(
                refusal(503, "too_many_connections", "the broker has as many connections as it takes (max_connections)")
            )

    def shutdown(self) -> None:
        """The server stops. By TLS a client that is idle says goodbye when it comes to use the connection, which may be never."""
        super().shutdown()
        if self._encrypted and self._is_idle():
            self.loop.call_later(_CLOSE_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._hush()
        self._end_stall()
        self.lingering.discard(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_stall()

    def _watch(self, unread: int) -> None:
        self._stall = self.loop.call_later(_STALLED_S, self._look_whether_it_reads, unread)

    def _look_whether_it_reads(self, unread: int) -> None:
        """An answer waits for its client in memory, also when the connection is to close behind it."""
        left = self.transport.get_write_buffer_size()
        if left < unread:
            self._watch(left)
            return
        self.counters.slow_clients += 1
        log.warning("a client is cut off: it took nothing of an answer, of which %d bytes are left", left)
        self.transport.abort()

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self in self.lingering:
            return
        if self._alarm is None and self._is_idle():
            self._alarm = self.loop.call_later(_HEADERS_S, self._too_slow)
        # The parser keeps headers until they are whole, also those behind a body, and of a request behind one that is being
        # answered. So whatever comes between two bodies is counted here.
        while data and not self.transport.is_closing() and self not in self.lingering:
            room = HEADER_BYTES - self._head_bytes
            if room == 0:
                self._refuse(431, "the request's line and headers have more than 64 KiB")
                return
            piece, data = (data, b"") if len(data) <= room else (data[:room], data[room:])
            self._head_bytes += len(piece)
            super().data_received(piece)

    def _is_idle(self) -> bool:
        cycle: Any = self.cycle  # None before the first request, whatever its type says
        return cycle is None or bool(cycle.response_complete)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._hush()
        self._head_bytes = 0
        self.scope["extensions"] = {"jjq.connection": self}  # type: ignore[dict-item]
        try:
            super().on_headers_complete()
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, TypeError, AttributeError):
            self._refuse(400, "the address in the request cannot be understood")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request")

    def _refuse(self, status: int, message: str) -> None:
        if not self.transport.is_closing() and self not in self.lingering:
            self._end_with(refusal(status, "invalid_request", message))

    def _end_with(self, answer: bytes) -> None:
        """The last answer of a connection, of which more may come: to close at once would reset it, and the client might lose
        the answer to that. While a request before it is being answered there is no other way."""
        self._hush()
        self.transport.write(answer)
        if self._is_idle() and len(self.lingering) < _MOST_LINGERING:
            self.lingering.add(self)
            if self._encrypted:
                self.transport.close()  # waits for the client's goodbye
            else:
                self.transport.write_eof()
            self.loop.call_later(_LINGER_S, self.transport.abort)
        elif self._encrypted and self._is_idle():
            self.transport.abort()
        else:
            self.transport.close()

    def _too_slow(self) -> None:
        self._alarm = None
        self.transport.abort()

    def _hush(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def write_now(self, data: bytes) -> bool:
        """Writes a piece of an answer that is being streamed, if the client takes it at once: False where it has to wait, or
        is gone, and nothing was written."""
        cycle, transport = self.cycle, self.transport
        if self.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding or transport.is_closing():
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def end_stream(self, last: bytes) -> None:
        """Ends an answer that is being streamed and not read: `last` is its last piece, which the client gets if it reads on
        within a few seconds."""
        self.cycle.response_complete = True
        if self.transport.is_closing():
            return
        with contextlib.suppress(RuntimeError):
            self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))
        self.transport.close()
        self.loop.call_later(_CLOSE_S, self.transport.abort)
