"""A broker's life: the store and its fronts are opened, it says that it is ready, waits for a signal, and stops."""

from __future__ import annotations

import contextlib
import errno
import importlib
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from jjq.errors import InvalidArgument, JjqError
from jjq.server.certificates import tls_context, warn_of_age
from jjq.server.counters import Requests
from jjq.server.guard import Guard
from jjq.server.settings import ServerSettings
from jjq.store import Store, open_store

log = logging.getLogger("jjq.server")

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_GIVE_UP = 0  # no signal has this number
_ARENA_MAX = -8  # of glibc's malloc.h
_STOP_EXTRA_S = 5.0  # beyond the grace, for what a front does when that is over
_MOST_FILES = 65536  # as conf/jjq.service has it
_OTHER_FILES = 500  # of segments and locks
# Of each front its class, in the module of its name, and what it needs. Imported when it is served: HTTP's packages are
# an extra, and either takes its time.
_FRONTS = {
    "flight": ("FlightFront", "a pyarrow with Flight"),
    "http": ("HttpFront", "the packages of the extra `server`: pip install 'jjq[server]', from a checkout '.[server]'"),
}


class Front(Protocol):
    """One way into a store over the network."""

    def start(self) -> int:
        """Binds, and serves from now on in threads of its own; returns the port. Raises OSError, InvalidArgument. When it ends
        without having been stopped, it calls what it was made with for that."""

    def stop(self, grace: float) -> None:
        """Takes nothing new, gives what runs `grace` seconds to end, tells clients that are sent what comes, closes."""


NewFront = Callable[[Store, ServerSettings, Guard, Callable[[], object], Requests | None], Front]


@dataclass(frozen=True)
class Addresses:
    """Where a broker listens; None: that front is off."""

    flight: str | None
    http: str | None


class Broker:
    """A store that is being served; `with` starts and stops it."""

    def __init__(self, settings: ServerSettings, ended: Callable[[], object] = lambda: None) -> None:
        """`ended` is called, in any thread, when a front has ended by itself: nobody can get at the store through it any more."""
        self.settings, self._ended = settings, ended
        self._store: Store | None = None
        self._fronts: list[Front] = []

    def start(self) -> Addresses:
        """Opens everything, or nothing. Raises InvalidArgument for settings that cannot be served, and what opening the
        store and listening raise."""
        settings = self.settings
        guard = Guard(settings)
        check_exposure(settings, guard.needs_tokens)
        tls_context(settings)
        warn_of_age(settings)
        kinds = front_kinds(settings)
        self._store = open_store(
            settings.store.absolute(), hot_bytes=settings.hot_bytes, create_topics=settings.auto_create
        )
        flight = Requests() if settings.flight else None
        try:
            ports = {
                name: self._start(kind(self._store, settings, guard, self._ended, flight), name)
                for name, kind in kinds.items()
            }
        except BaseException:
            self.stop()  # whoever has come in meanwhile ends as at any stop; nobody has, as a rule
            raise
        found = Addresses(
            flight=_url("jjq+tls" if settings.tls else "jjq", settings.host, ports.get("flight")),
            http=_url("https" if settings.tls else "http", settings.host, ports.get("http")),
        )
        said = {
            "flight": found.flight,
            "http": found.http,
            "store": str(self._store.path),
            "tokens": guard.needs_tokens,
        }
        log.info("ready", extra={"fields": said})
        if not settings.on_loopback and not (settings.tls and guard.needs_tokens):
            log.warning("other machines can reach this broker without TLS or without tokens, as allow_insecure says")
        if self._store.read_only:
            log.warning(
                "this process may not write to %s: what changes something is refused. Give its user the directory and all that is in it "
                "(chown -R), or start it as the user they belong to", self._store.path,
            )  # fmt: skip
        return found

    def _start(self, front: Front, name: str) -> int:
        try:
            port = front.start()
        except OSError as error:
            wanted = getattr(self.settings, f"{name}_port")
            why = (error.strerror or str(error)).partition(" (while")[0]  # Python says once more where that was
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                hint = "--host takes an address of this machine"
            elif error.errno == errno.EACCES:
                hint = f"give another --{name}-port: those below 1024 are root's"
            else:
                hint = f"give another --{name}-port, or end what listens there"
            raise InvalidArgument(
                f"cannot listen on {self.settings.host}:{wanted} for {name}: {why}; {hint}"
            ) from error
        self._fronts.append(front)
        return port

    def stop(self) -> None:
        """Ends requests within `stop_grace_s`, closes the store. A second stop is quiet."""
        within = self.settings.stop_grace_s
        fronts, self._fronts = self._fronts, []
        threads = [threading.Thread(target=_stop, args=(each, within), name="jjq-stop", daemon=True) for each in fronts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(within + _STOP_EXTRA_S)
            if thread.is_alive():
                log.error("a front does not stop; the store is closed under it")
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()


def _stop(front: Front, grace: float) -> None:
    try:
        front.stop(grace)
    except Exception:
        log.exception("a front did not stop as it should")  # the store is closed all the same


def serve(settings: ServerSettings, ready: Callable[[Addresses], None]) -> None:
    """Serves until SIGTERM or SIGINT; `ready` is called once with where. For the main thread.

    A second signal ends the process at once, which loses nothing that was acknowledged. Raises JjqError when a front ended by
    itself: whoever supervises the process is to start it again.
    """
    allow_files(settings)
    _share_arenas()
    with _Signals() as signals:
        broker = Broker(settings, signals.give_up)
        addresses = broker.start()
        try:
            ready(addresses)
            notify("READY=1")
            caught = signals.wait()
            if caught is None:
                raise JjqError("a part of the broker ended by itself; its log says why. Start it again")
            log.info("stopping", extra={"fields": {"signal": caught.name}})
            notify("STOPPING=1")
        finally:
            broker.stop()
        log.info("stopped")


def allow_files(settings: ServerSettings) -> None:
    """Lets this process have as many files open as it may: what it begins with is often 1024, and each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft != resource.RLIM_INFINITY and soft < settings.max_connections + _OTHER_FILES:
        log.warning(
            "this process may have %d files open, too few for max_connections (%d) and the segments; raise `ulimit -n`",
            soft, settings.max_connections,
        )  # fmt: skip


def _share_arenas() -> None:
    """Has glibc's malloc keep two heaps for all threads, and not one or more for each: every batch that comes by Flight is of some
    thread of gRPC's, and each heap would keep what its largest ones took."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)


class _Signals:
    """Waits for a signal that asks to stop; one that came before is not lost.

    By handlers: to block signals and ask for them would take all threads, and numpy has made some before jjq is called.
    """

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._fd_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {each: signal.signal(each, lambda *_: None) for each in _STOP_SIGNALS}
        return self

    def wait(self) -> signal.Signals | None:
        """The signal, None after `give_up`; the next one does what SIGTERM would have done without this."""
        while (caught := os.read(self._read, 1)[0]) not in (*_STOP_SIGNALS, _GIVE_UP):
            pass
        for each in _STOP_SIGNALS:
            signal.signal(each, self._before[signal.SIGTERM])  # of SIGINT Python would make an exception
        return None if caught == _GIVE_UP else signal.Signals(caught)

    def give_up(self) -> None:
        """Ends the wait though there was no signal; from any thread."""
        with contextlib.suppress(BlockingIOError):  # it is full of what ends the wait
            os.write(self._write, bytes([_GIVE_UP]))

    def __exit__(self, *_: object) -> None:
        for each, before in self._before.items():
            signal.signal(each, before)
        signal.set_wakeup_fd(self._fd_before)
        os.close(self._read)
        os.close(self._write)


def check_exposure(settings: ServerSettings, has_tokens: bool) -> None:
    """Raises InvalidArgument for a broker that other machines could use without TLS or without tokens, unless told to."""
    if settings.tokens is not None and not has_tokens:
        raise InvalidArgument(
            f"there are no tokens in {settings.tokens}; make one with `jjq token create NAME --tokens {settings.tokens}`"
        )
    if settings.on_loopback or settings.allow_insecure:
        return
    missing = []
    if not settings.tls:
        missing.append("there is no TLS (--tls-cert and --tls-key)")
    if not has_tokens:
        missing.append("there are no tokens (`jjq token create`)")
    if missing:
        raise InvalidArgument(
            f"{settings.host} can be reached from other machines, and {' and '.join(missing)}; add that, or say --allow-insecure"
        )


def front_kinds(settings: ServerSettings) -> dict[str, NewFront]:
    """The fronts that settings ask for; raises InvalidArgument for one whose packages are not installed."""
    # Whoever connects without TLS, or with none that fits, would have gRPC write lines that are not JSON.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    found: dict[str, NewFront] = {}
    for name, (class_name, needs) in _FRONTS.items():
        if getattr(settings, name):
            try:
                module = importlib.import_module(f"jjq.server.{name}")
            except ModuleNotFoundError as error:
                raise InvalidArgument(
                    f"{name} needs {needs} (there is no {error.name}); or leave it out with --no-{name}"
                ) from error
            found[name] = getattr(module, class_name)
    return found


def _url(scheme: str, host: str, port: int | None) -> str | None:
    if port is None:
        return None
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def notify(state: str) -> None:
    """Tells systemd, where it started this process and asked to be told (Type=notify)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.connect("\0" + address[1:] if address.startswith("@") else address)
        to.sendall(state.encode())
