"""The connection to a broker: requests, the answers and errors to them, and making it again when it is lost."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import re
import socket
import ssl
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from jjq import wire
from jjq.client import StateCallback
from jjq.errors import BrokerUnavailable, InvalidArgument, JjqError, StoreClosed
from jjq.values import between, shown

Answer = TypeVar("Answer")
_URL = re.compile(r"(jjq(?:\+tls)?)://(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::([0-9]{1,5}))?/?")

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
ANSWER_S = 60.0  # what an action may take, beside waiting for records
_MARGIN_S = 15.0  # what one that waits may take longer
_PING_S = 7.0  # a broker takes a client that says nothing for 30 s for dead
_PING_ANSWER_S = 5.0
_ASK_S = 2.0  # what who was met in the place of a broker may take to answer
_MOST_WAITING = 100  # requests without an answer that the next one names
_WAIT_S = 5.0  # one request waits so long at most; the next goes on
_WAIT_MAIN_S = 1.0  # in the main thread less: a signal is only heard between two requests
_NO_FLIGHT = "this is no Flight port: `jjq serve` says which one is, jjq://host:4750 unless told otherwise"
_SILENT = ("before receiving SETTINGS frame", "Endpoint closing")
_GUESSES = {  # by whether the address is one with TLS
    False: "is `jjq serve` running there? With TLS it would be jjq+tls://",
    True: "is `jjq serve` running there? It may ask for a certificate of the client's",
}
_NO_FORKS = (
    "gRPC does not survive a fork: start processes that connect with multiprocessing's spawn or forkserver, or connect in the "
    "children only"
)
_connected_in: int | None = None  # the process that connected first
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()
log = logging.getLogger("jjq.client")


def _check_not_forked() -> None:
    """Raises InvalidArgument in a forked child of a process that has connected, where every call would wait for ever."""
    global _connected_in
    if _connected_in is None:
        _connected_in = os.getpid()
    elif _connected_in != os.getpid():
        raise InvalidArgument(f"this process was forked from one that was connected to a broker, and {_NO_FORKS}")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker is."""

    host: str
    port: int
    tls: bool

    @classmethod
    def parse(cls, url: object) -> Address:
        match = _URL.fullmatch(url) if isinstance(url, str) else None
        if match is None or int(match.group(3) or wire.PORT) > 65535:
            raise InvalidArgument(
                f"a broker is named as jjq://host:port, or jjq+tls://host:port, not {shown(url)}; the port is {wire.PORT} unless "
                "`jjq serve` says another, and never that of HTTP"
            )
        return cls(match.group(2), int(match.group(3) or wire.PORT), match.group(1) == "jjq+tls")

    def __str__(self) -> str:
        return f"jjq{'+tls' if self.tls else ''}://{self.host}:{self.port}"


class _Number:
    """A request's number, in a `with` block; `done`: below it all answers have come."""

    __slots__ = ("_connection", "done", "id")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> _Number:
        connection = self._connection
        with connection._mutex:
            self.id = next(connection._numbers)
            connection._outstanding[self.id] = None
            self.done = next(iter(connection._outstanding))
        return self

    def __exit__(self, *_: object) -> None:
        with self._connection._mutex:
            del self._connection._outstanding[self.id]


def _plain(token: object) -> str:
    """A token without the white space around it, such as the newline at the end of a file; raises InvalidArgument, which
    does not show it. To gRPC a header with anything but visible ASCII is a fault of the connection."""
    if not isinstance(token, str):
        raise InvalidArgument(f"token is a str, not {type(token).__name__}")
    found = token.strip()
    if not re.fullmatch("[!-~]*", found):
        raise InvalidArgument(
            "token has characters that no token has: give what `jjq token create` printed, nothing else"
        )
    return found


class Connection:
    """One client's way to a broker; safe among threads."""

    def __init__(
        self, address: Address, *, token: str | None, tls_ca: str | os.PathLike[str] | None,
        tls_cert: str | os.PathLike[str] | None, tls_key: str | os.PathLike[str] | None, retry_s: float,
        on_state: StateCallback | None,
    ) -> None:  # fmt: skip
        _check_not_forked()
        self.address = address
        self._retry_s = between(retry_s, "retry_s", 0, 1e9)
        self._on_state = on_state
        self._headers = [] if token is None else [(wire.TOKEN_HEADER.encode(), f"Bearer {_plain(token)}".encode())]
        self._options = _client_options(address, tls_ca, tls_cert, tls_key)
        self.session = uuid.uuid4().hex
        self.broker = ""  # which one it was that answered last: one that is started anew has another name
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._flight: flight.FlightClient | None = None
        self._state = ""
        self.ping_now = False
        self._closed = threading.Event()
        self._numbers = itertools.count(1)
        self._outstanding: dict[int, None] = {}  # in their order, which is that of the numbers
        self.idle: list[Callable[[], None]] = []  # called now and then: to let go of what is not used
        self.forked: list[Callable[[], None]] = []  # called in a forked child
        _connections.add(self)

    def __repr__(self) -> str:
        return f"<Connection to {self.address} {self._state or 'not yet made'}>"

    # --- requests ----------------------------------------------------------------------------------------------------

    def ask(self, name: str, /, *, answer_s: float = ANSWER_S, **args: Any) -> Any:
        """An action that changes nothing, so it may be asked any number of times."""
        return self._act(name, {"args": args}, answer_s)

    def act(
        self, name: str, /, *, wait_s: float = 0.0, answer_s: float = ANSWER_S, once: bool = False, **args: Any
    ) -> Any:
        """An action of this session: done once, however often its answer has to be asked for. `wait_s` is what it may wait for
        records.

        A broker that was started anew does not know what the one before did. Then the action is done there, or with `once`
        BrokerUnavailable is raised.
        """
        with self.numbered() as number:
            about: dict[str, Any] = {
                "session": self.session,
                "broker": self.broker,
                "id": number.id,
                "done": number.done,
            }
            if len(waiting := list(self._outstanding)) <= _MOST_WAITING:
                about["waiting"] = waiting  # while one waits long, the broker is not to keep what all others got
            return self._act(name, {"args": args, "once": once, **about}, wait_s + _MARGIN_S if wait_s else answer_s)

    def tell(self, name: str, /, **args: Any) -> None:
        """An action that a broker which cannot be reached does by itself when it has not heard from us for a while."""
        with self._mutex:
            client = self._flight
        if client is not None and not self.closed and os.getpid() == self._pid:
            self._tell_broker(client, name, args)

    def _tell_broker(self, client: flight.FlightClient, name: str, args: dict[str, Any]) -> None:
        body = wire.encode({"args": args, "session": self.session})
        with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
            list(client.do_action(flight.Action(name, body), self.options(_PING_ANSWER_S)))

    def numbered(self) -> _Number:
        """What a request of this session is numbered by while its answer is awaited."""
        return _Number(self)

    def _act(self, name: str, body: dict[str, Any], timeout: float) -> Any:
        plain, again = wire.encode(body), wire.encode({**body, "again": True})

        def act(client: flight.FlightClient, repeated: bool) -> Any:
            action = flight.Action(name, again if repeated else plain)
            results = list(client.do_action(action, self.options(timeout)))
            return wire.decode(results[0].body)

        return self.persist(act, safe="session" not in body)

    def wait_s(self, left: float | None) -> float:
        """How long one request waits of what is left to wait."""
        most = _WAIT_MAIN_S if threading.current_thread() is threading.main_thread() else _WAIT_S
        return most if left is None else min(most, left)

    def options(self, timeout: float | None = None) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=timeout, headers=self._headers)

    # --- persistence -------------------------------------------------------------------------------------------------

    def persist(self, act: Callable[[flight.FlightClient, bool], Answer], *, safe: bool = True) -> Answer:
        """What `act` gives, which is called again (and told so) when the connection was lost amid it. `safe`: it changes
        nothing, so it does not matter whether it was done."""
        deadline: float | None = None
        pause, repeated = _FIRST_PAUSE_S, False
        while True:
            client = self._get()
            try:
                answer = act(client, repeated)
                self._tell("connected")
                return answer
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                known = known_error(error)
                if known is not None:
                    self._tell("connected")
                    raise known from None
                trouble = error
            self.lose(client)
            self.check_open()
            if isinstance(trouble, pa.ArrowNotImplementedError):
                raise BrokerUnavailable(f"what listens at {self.address} is no jjq broker") from trouble
            now = time.monotonic()
            hint = _hint(trouble, self.address)
            if deadline is None:
                deadline = now + self._retry_s
                hint = hint or ("" if self.broker else _met_tls(trouble, self.address))
                now = time.monotonic()
            if now + pause > deadline or (hint and not self.broker):  # which was never reached, and never will
                unknown = "" if safe else "; what was asked may be done or not"
                raise BrokerUnavailable(
                    f"the broker at {self.address} cannot be reached ({_reason(trouble)}){unknown}; "
                    f"{hint or _GUESSES[self.address.tls]}",
                    outcome="not done" if safe else "unknown",
                ) from trouble
            log.info("the connection to %s is lost (%s); trying again in %.2f s", self.address, _reason(trouble), pause)
            self._closed.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - so that clients do not come all at once
            pause, repeated = min(2 * pause, _LONGEST_PAUSE_S), True

    def _get(self) -> flight.FlightClient:
        self.check_open()
        with self._mutex:
            if self._flight is None:
                self._flight = flight.FlightClient(self._location(), **self._options)
            return self._flight

    def _location(self) -> str:
        return f"grpc{'+tls' if self.address.tls else ''}://{self.address.host}:{self.address.port}"

    def lose(self, client: flight.FlightClient) -> None:
        """This client's connection does not work: the next request makes another."""
        with self._mutex:
            if self._flight is not client:
                return
            self._flight = None
        self._tell("reconnecting")

    def _tell(self, state: str) -> None:
        if self._state == state:
            return
        with self._mutex:
            if self._state in (state, "closed"):
                return
            if self._state == "reconnecting" and state == "connected":
                self.ping_now = True
            self._state = state
        if self._on_state is not None:
            try:
                self._on_state(state)
            except Exception:
                log.exception("on_state of a connection failed")

    # --- life --------------------------------------------------------------------------------------------------------

    def _after_fork(self) -> None:
        self._mutex = threading.Lock()
        client, self._flight = self._flight, None
        never_end(client)
        for each in self.forked:
            each()

    def start(self) -> None:
        """Shows from now on that this client lives, and sees when the broker does not."""
        threading.Thread(
            target=_keep_alive, args=(weakref.ref(self), self._closed), name="jjq-alive", daemon=True
        ).start()

    def ping(self) -> None:
        for each in self.idle:
            each()
        with self._mutex:
            client = self._flight
        if client is None:
            with contextlib.suppress(JjqError):
                client = self._get()
        if client is None:
            return
        body = wire.encode({"args": {}, "session": self.session})
        try:
            (told,) = client.do_action(flight.Action("ping", body), self.options(_PING_ANSWER_S))
            self.broker = wire.decode(told.body)["broker"]
            self._tell("connected")
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            if known_error(error) is None:
                self.lose(client)

    def check_open(self) -> None:
        if self._closed.is_set():
            raise StoreClosed(f"the connection to {self.address} was closed; connect again with jjq.connect")
        if os.getpid() != self._pid:
            raise StoreClosed(f"the connection to {self.address} is the parent process's; {_NO_FORKS}")

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Tells the broker, if it can be reached, and ends. Quiet when repeated."""
        with self._mutex:
            if self._closed.is_set():
                return
            self._closed.set()
            client, self._flight = self._flight, None
        if client is not None and os.getpid() == self._pid:
            self._tell_broker(client, "close_session", {})
        self._tell("closed")


def answer_to(
    client: flight.FlightClient, descriptor: flight.FlightDescriptor, schema: pa.Schema, options: flight.FlightCallOptions,
    send: Callable[[flight.FlightStreamWriter], object],
) -> pa.Buffer:  # fmt: skip
    """The broker's one answer to a stream, which `send` writes."""
    streams: list[tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]] = []
    try:
        # In one call, so that an interrupt as it begins finds it kept.
        streams.extend(map(client.do_put, (descriptor,), (schema,), (options,)))
        writer, reader = streams[0]
        send(writer)
        writer.done_writing()
        told = reader.read()
    except (flight.FlightError, pa.ArrowException, OSError):
        for writer, _ in streams:
            writer.close()  # which says what it was, where that is known
        raise
    except BaseException:
        # Of who has what is sent, or an interrupt: the broker is not to wait for more of it as long as somebody keeps this error, and a
        # stream that ends without being closed has Arrow write of it to the terminal.
        with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
            for writer, _ in streams:
                writer.close()
        raise
    writer.close()
    if told is None:
        raise flight.FlightUnavailableError("the broker ended the stream")
    return told


def never_end(what: object) -> None:
    """Keeps an object of gRPC's for ever: in a forked child, to end it would wait for threads that are not there."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(what))


def _after_fork_in_child() -> None:
    for each in list(_connections):
        each._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _keep_alive(connection: weakref.ref[Connection], closed: threading.Event) -> None:
    due = time.monotonic() + _PING_S
    while not closed.wait(0.5):
        found = connection()
        if found is None:
            return
        if time.monotonic() >= due or found.ping_now:
            found.ping_now = False
            found.ping()
            due = time.monotonic() + _PING_S
        else:
            for each in found.idle:
                each()
        del found


def known_error(error: Exception) -> JjqError | None:
    """What the broker said; None when it said nothing, so that the connection is to blame."""
    told = getattr(error, "extra_info", None)
    if told:
        try:
            packed = wire.decode(bytes(told))
        except InvalidArgument:
            return None
        if isinstance(packed, dict) and "code" in packed:
            return wire.unpack_error(packed)
    return None


def _reason(error: Exception) -> str:
    """The end of gRPC's long story."""
    text = " ".join(str(error).split())
    if any(each in text for each in _SILENT):
        return "what listens there says nothing"
    found = re.search(
        r"(Connection refused|Connection reset by peer|Deadline Exceeded|Socket closed|Name or service not known|"
        r"Domain name not found|DNS resolution failed|stopping|Connection timed out|wrong version number|"
        r"Failed parsing HTTP/2|"
        r"certificate verify failed.*|Peer name .* is not in peer certificate|handshake failed)",
        text,
    )
    return found.group(1) if found else text[:200]


def _hint(error: Exception, address: Address) -> str:
    """What to change where something listens that will never be this broker for this client; empty: it may be back soon."""
    text = str(error)
    if "certificate verify failed" in text:
        return (
            "its certificate is not one to trust here: the authority that vouches for it is tls_ca, and for the command line and "
            "Spark JJQ_TLS_CA"
        )
    if "is not in peer certificate" in text:
        return "connect by a name that its certificate has"
    if "wrong version number" in text:
        return f"it does not serve with TLS: its address would be jjq://{address.host}:{address.port}"
    if "missing selected ALPN property" in text or "Expected SETTINGS frame" in text:
        return _NO_FLIGHT
    return ""


def _met_tls(error: Exception, address: Address) -> str:
    """What to change where TLS is listened for and none came: who does ends the connection without a word, as one that stops, and has
    to be asked."""
    if address.tls or "refused" in str(error):
        return ""
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE  # it is told nothing
    asking.set_alpn_protocols(["h2"])
    try:
        where = address.host.strip("[]"), address.port
        with socket.create_connection(where, _ASK_S) as plain, asking.wrap_socket(plain) as answered:
            serves_flight = answered.selected_alpn_protocol() == "h2"
    except (OSError, ValueError):  # also what is wrong with TLS, or with the name of the host
        return ""
    if not serves_flight:
        return _NO_FLIGHT
    return f"it serves with TLS: its address would be jjq+tls://{address.host}:{address.port}"


def _client_options(
    address: Address, ca: str | os.PathLike[str] | None, cert: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
) -> dict[str, Any]:  # fmt: skip
    options: dict[str, Any] = {
        "generic_options": [
            # A connection of its own, so that one that does not work is not shared with the next.
            ("grpc.use_local_subchannel_pool", 1),
            # Behind our own pings, which are more frequent: for streams whose peer is gone without a word.
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 2_000),
            ("grpc.min_reconnect_backoff_ms", 5_000),  # for who accepts and says nothing; else it would be 20 s
        ]
    }
    if (ca is not None or cert is not None or key is not None) and not address.tls:
        raise InvalidArgument(f"certificates are for jjq+tls://{address.host}:{address.port}")
    if (cert is None) != (key is None):
        raise InvalidArgument("tls_cert and tls_key go together")
    for name, path in (("tls_root_certs", ca), ("cert_chain", cert), ("private_key", key)):
        if path is not None:
            try:
                options[name] = Path(path).read_bytes()
            except OSError as error:
                raise InvalidArgument(f"{os.fspath(path)!r} cannot be read: {error.strerror}") from error
            what = "PRIVATE KEY" if name == "private_key" else "CERTIFICATE"
            if f"{what}-----".encode() not in options[name]:
                raise InvalidArgument(f"{os.fspath(path)!r} holds no {what.lower()} in PEM")
    return options
