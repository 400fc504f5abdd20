"""The Flight front: a store over Arrow Flight. Every request is taken apart, is one call of the store, and its answer packed.

`flight_calls.py`, `flight_staging.py`, `flight_planning.py`, `flight_consuming.py`, `flight_channels.py` and `flight_objects.py`
have the actions, `flight_streams.py` what is read and written as batches, `flight_sessions.py` what is kept for a client.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from jjq import wire
from jjq.errors import Forbidden, InvalidArgument, JjqError, RecordTooLarge, StoreClosed, Unauthorized
from jjq.log.format import tight
from jjq.server import (
    flight_channels,  # noqa: F401 - its actions register themselves, as those of the others
    flight_consuming,  # noqa: F401
    flight_objects,
    flight_planning,  # noqa: F401
)
from jjq.server.counters import Requests
from jjq.server.flight_calls import ACTIONS, Call, Served, arguments, report, run
from jjq.server.flight_sessions import refuse_unknown
from jjq.server.flight_streams import plan_read, put, read
from jjq.server.guard import Guard
from jjq.server.settings import ServerSettings
from jjq.stats import those_there
from jjq.store import Store
from jjq.values import shown

_TOKEN = "token"  # noqa: S105 - the name of the middleware that carries it
_KINDS = {Unauthorized: flight.FlightUnauthenticatedError, Forbidden: flight.FlightUnauthorizedError}
_CUT_S = 5.0  # what requests take to end once their connections are cut
# An error in one of these goes to the client as pyarrow writes it, with a traceback and paths of this machine, whatever kind of
# error it is. So they are refused before they are begun.
_NOT_SERVED = {
    flight.FlightMethod.GET_SCHEMA: "ask GetFlightInfo, whose answer has the schema",
    flight.FlightMethod.DO_EXCHANGE: "there is no DoExchange here; ListActions names what there is",
}
log = logging.getLogger("jjq.server")


class FlightFront:
    """Serves a store over Flight until it is stopped."""

    def __init__(
        self, store: Store, settings: ServerSettings, guard: Guard, ended: Callable[[], object] = lambda: None,
        flight: Requests | None = None,
    ) -> None:  # fmt: skip
        """`ended` is called when it ends though nobody has stopped it. `flight` counts its requests."""
        self._requests = flight or Requests()
        self._store, self._settings, self._guard, self._ended = store, settings, guard, ended
        self._served: Served | None = None
        self._server: _Server | None = None

    def __repr__(self) -> str:
        return f"<FlightFront {'off' if self._server is None else f'on port {self._server.port}'}>"

    def start(self) -> int:
        """Binds and serves, in threads of its own; the port listened on. Raises OSError when it cannot listen."""
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        tls: dict[str, Any] = {}
        if settings.tls_cert is not None and settings.tls_key is not None:
            tls["tls_certificates"] = [(settings.tls_cert.read_bytes(), settings.tls_key.read_bytes())]
            if settings.tls_client_ca is not None:
                tls |= {"verify_client": True, "root_certificates": settings.tls_client_ca.read_bytes()}
        served = Served(self._store, settings, self._guard, self._requests)
        try:
            self._server = _Server(f"grpc{'+tls' if tls else ''}://{host}:{settings.flight_port}", served, tls)
        except (pa.ArrowException, OSError) as error:
            served.sessions.close()
            _check_free(settings.host, settings.flight_port)
            raise OSError(str(error)) from error
        self._served = served
        threading.Thread(target=self._watch, args=(self._server,), name="jjq-flight-watch", daemon=True).start()
        return int(self._server.port)

    def _watch(self, server: _Server) -> None:
        server.wait()
        if self._server is server:
            log.error("the Flight server ended")
            self._ended()

    def stop(self, grace: float) -> None:
        """Takes nothing new; what waits is told to come again, what runs has `grace` seconds. A second stop is quiet."""
        server, self._server = self._server, None
        if server is None or self._served is None:
            return
        self._served.stopping = True
        self._served.sessions.close()
        # It returns when the last request has ended, and one of a client that says nothing never does.
        port = int(server.port)
        ending = threading.Thread(target=server.shutdown, name="jjq-flight-stop", daemon=True)
        ending.start()
        ending.join(grace)
        if ending.is_alive():
            log.warning("some Flight clients did not end within %.1f s; they are cut off", grace)
            _cut_off(port)
            ending.join(_CUT_S)


def _check_free(host: str, port: int) -> None:
    """Raises OSError for what keeps anybody from listening there: gRPC says only that it could not."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    socket.create_server((host, port), family=family).close()


def _cut_off(port: int) -> None:
    """Ends the connections to a port of this process. pyarrow's server has no way to do that, and this process could not even
    end while one is open."""
    with contextlib.suppress(FileNotFoundError):  # no procfs
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                if not stat.S_ISSOCK(os.fstat(number).st_mode):
                    continue
                with socket.socket(fileno=os.dup(number)) as found:
                    if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] == port:
                        found.getpeername()  # raises for the one that listens
                        found.shutdown(socket.SHUT_RDWR)


def _answer(error: Exception) -> str:
    """As what a request that failed counts."""
    if isinstance(error, JjqError):
        return error.code
    if isinstance(error, flight.FlightCancelledError):
        return "cancelled"
    return "unavailable" if isinstance(error, flight.FlightError) else "internal"


class _TokenOf(flight.ServerMiddleware):  # type: ignore[misc] # pyarrow has no types
    def __init__(self, token: str | None) -> None:
        self.token = token


class _Tokens(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Takes the token from a call's headers. Whose it is, is asked where errors can be answered in full."""

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> _TokenOf:
        if info.method in _NOT_SERVED:
            raise flight.FlightServerError(_NOT_SERVED[info.method])
        given = next(iter(headers.get(wire.TOKEN_HEADER, [])), "")
        text = given.decode(errors="replace") if isinstance(given, bytes) else str(given)
        return _TokenOf(text.removeprefix("Bearer ").strip() or None)


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, location: str, served: Served, tls: dict[str, Any]) -> None:
        self._served = served
        super().__init__(location, middleware={_TOKEN: _Tokens()}, **tls)

    def _call(self, context: flight.ServerCallContext) -> Call:
        if self._served.stopping:
            raise flight.FlightUnavailableError("the broker is stopping")
        token = context.get_middleware(_TOKEN)
        return Call(self._served, self._served.guard.caller(None if token is None else token.token))

    @contextlib.contextmanager
    def _counted(self, operation: str) -> Iterator[None]:
        """`_translated`, for a request that counts as one of this operation."""
        began = time.perf_counter()
        requests, answer = self._served.requests, "cancelled"  # as where a client takes no more of an answer
        requests.begin(operation)
        try:
            with self._translated():
                try:
                    yield
                    answer = "ok"
                except Exception as error:
                    answer = _answer(error)
                    raise
        finally:
            requests.end(operation, answer, time.perf_counter() - began)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors as Flight's, with what is known of them as JSON: never a traceback, nor a path of this machine."""
        try:
            yield
        except JjqError as error:
            if self._served.stopping and isinstance(error, StoreClosed):
                raise flight.FlightUnavailableError("the broker is stopping") from None
            packed = report(error, self._served)
            kind = _KINDS.get(type(error), flight.FlightServerError)
            raise kind(packed["message"], extra_info=wire.encode(packed)) from None
        except flight.FlightError:
            raise
        except Exception:
            log.exception("a request by Flight failed")
            said = JjqError("the broker failed at this, for a reason that its log tells")
            raise flight.FlightInternalError(said.message, extra_info=wire.encode(report(said, self._served))) from None

    # --- what Flight asks --------------------------------------------------------------------------------------------

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        with self._counted(action.type if action.type in ACTIONS else "unknown"):
            call = self._call(context)
            self._check_size(action.body.size)
            body = wire.decode(action.body) if action.body.size else {}
            try:
                return [flight.Result(wire.encode(self._act(call, action.type, body)))]
            except Exception as error:
                call.caller.failed(error)
                raise

    def _check_size(self, size: int) -> None:
        """Before a request is taken apart."""
        most = self._served.settings.max_request_bytes
        if size > most:
            raise RecordTooLarge(f"the request has {size:,} bytes, the broker takes up to {most:,} (max_request_bytes)")

    def _act(self, call: Call, name: str, body: Any) -> Any:
        """The body is the action's arguments, or `args` with `session`, `id` of the request and the like beside them."""
        if not isinstance(body, dict):
            raise InvalidArgument(f"the body of {name} is an object, not {shown(body)}")
        if "args" not in body:
            return run(name, call, body)
        session = body.get("session")
        if session is None:
            return run(name, call, body["args"])
        if not isinstance(session, str):
            raise InvalidArgument("session is a text of the client's own, as random as can be")
        sessions = self._served.sessions
        call.session = sessions.get(session, call.caller.name)
        if name == "close_session":
            return run(name, call, body["args"])
        with call.session:
            if body.get("id") is None:
                return run(name, call, body["args"])
            instead = refuse_unknown if body.get("once") else None
            return sessions.once(call.session, body, lambda: run(name, call, body["args"]), instead)

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        with self._counted("list_actions"):
            self._call(context)
            return [
                (name, f"({', '.join(arguments(each))}) {' '.join((each.__doc__ or '').split())}".strip())
                for name, each in ACTIONS.items()
            ]

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        with self._counted("list_flights"):
            call = self._call(context)
            found = [each for each in call.store.topics() if call.can("read", each.name)]
            return iter(
                # Flight has no place to say what is damaged; who asks for that topic by name hears it.
                those_there(found, lambda each: self._info(call, flight.FlightDescriptor.for_path(each.name)), [])
            )

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with self._counted("get_flight_info"):
            call = self._call(context)
            self._check_size(len(descriptor.command or b""))
            return self._info(call, descriptor)

    def _info(self, call: Call, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        schema, ticket = plan_read(call, descriptor)
        rows = sum(each.end - each.start for each in ticket.ranges)
        # No location: it is to be had where it was asked for.
        return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket.pack(), [])], rows, -1)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        with self._counted("do_get"):
            call = self._call(context)
            self._check_size(len(ticket.ticket))
            about = wire.decode(ticket.ticket)
            if isinstance(about, dict) and about.keys() == {"object"}:
                schema, batches = flight_objects.read(call, about["object"])
            else:
                schema, batches = read(call, wire.Ticket.unpack(ticket.ticket))
            return flight.GeneratorStream(schema, self._each(batches))

    def _each(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._counted("do_get_batches"):
            yield from map(tight, batches)

    def do_put(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader, writer: flight.FlightMetadataWriter,
    ) -> None:  # fmt: skip
        with self._counted("do_put"):
            call = self._call(context)
            self._check_size(len(descriptor.command or b""))
            with call.served.sending():
                put(call, descriptor, reader, writer)
