"""Settings of a broker: values, validated once, with units in their names. A flag comes before the environment, that before
the file, that before the default."""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jjq import files, layout
from jjq.errors import InvalidArgument
from jjq.hints import meant
from jjq.model import check_name
from jjq.values import MOST, between, shown, size, whole, without_home

PREFIX = "JJQ_"
LOG_LEVELS = ("debug", "info", "warning", "error")
# Of the environment, read by other parts of jjq and by its tests.
_NOT_SETTINGS = re.compile(r"JJQ_(CONFIG|BROKER|TOKEN|TLS_CA|CLIENT_CERT|CLIENT_KEY|DEBUG|BENCH.*|TEST.*)")
# What Kubernetes puts there for a service named jjq, with its value: JJQ_PORT is a URL, so JJQ_PORT=8080 is somebody's mistake.
_SERVICE_LINK = re.compile(
    r"JJQ_(.*_)?(SERVICE_(HOST|PORT)(_.*)?=.*|PORT_\d+_(TCP|UDP|SCTP)(_.*)?=.*|PORT=(tcp|udp|sctp)://.*)", re.DOTALL
)


def setting(default: Any, about: str) -> Any:
    """A field; `about` is what the command's help, conf/jjq.toml and the documentation say of it."""
    return dataclasses.field(default=default, metadata={"about": about})


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """What a broker does; `None` for a limit means that there is none."""

    store: Path = dataclasses.field(metadata={"about": "the directory that is served, made if missing"})
    auto_create: bool = setting(True, "make topics on first use")
    host: str = setting("127.0.0.1", "the address to listen on; 0.0.0.0 is every one of this machine")
    flight: bool = setting(True, "serve Arrow Flight, which jjq.connect, --broker and Spark use")
    flight_port: int = setting(4750, "the port of Arrow Flight; 0 is any free one")
    http: bool = setting(True, "serve HTTP and the page; needs the packages of the extra `server`")
    http_port: int = setting(4751, "the port of HTTP; 0 is any free one")
    tls_cert: Path | None = setting(
        None, "a PEM file with the certificate, for both ports, and those that vouch for it"
    )
    tls_key: Path | None = setting(None, "a PEM file with its key")
    tls_client_ca: Path | None = setting(
        None, "a PEM file: clients must show a certificate that one of these has signed"
    )
    tokens: Path | None = setting(
        None,
        "the file of `jjq token`, which asks every request for one; none: tokens.json in the store, if it is there",
    )
    allow_insecure: bool = setting(False, "listen to other machines without TLS or without tokens")
    hot_bytes: int = setting(256 << 20, "how much of the segments near subscribers is kept in memory, at most")
    max_request_bytes: int = setting(
        64 << 20, "a larger request is refused: the body of one by HTTP, a message by Flight"
    )
    max_record_bytes: int = setting(16 << 20, "a larger record is refused, also where its topic would take it")
    max_object_bytes: int = setting(4 << 30, "a larger big object is refused, on both ports")
    max_connections: int = setting(
        2000, "more connections by HTTP at a time are refused, and more clients by Flight or streams on which they send"
    )
    max_subscriptions: int = setting(2000, "more clients that are sent what comes are refused, on both ports together")
    buffer_bytes: int = setting(
        4 << 20, "what may wait for one HTTP connection; a slower one is closed, and can resume"
    )
    token_records_per_s: int | None = setting(None, "pushes of a token that has no rate of its own; more are refused")
    token_bytes_per_s: int | None = setting(None, "the same in bytes")
    heartbeat_s: float = setting(15.0, "how often an idle stream of HTTP shows that it lives")
    stop_grace_s: float = setting(10.0, "how long requests may take to end when the broker stops")
    events_topic: str = setting("events", "the topic of /api/events")
    events_segments: int | None = setting(None, "how many of its segments are kept when /api/events makes it")
    events_segment_bytes: int = setting(64 << 20, "and how large they become")
    origins: tuple[str, ...] = setting((), "other sites whose pages may use HTTP from a browser, as https://host:port")
    audit_log: Path | None = setting(None, "a file for actions of administrators; none: among the other messages")
    log_level: str = setting("info", "debug, info, warning or error")

    def __post_init__(self) -> None:
        for each in ("flight_port", "http_port"):
            whole(getattr(self, each), each, 0, 65535)
        for each in ("max_request_bytes", "max_record_bytes", "max_object_bytes", "buffer_bytes"):
            whole(getattr(self, each), each, 1024, 1 << 40)
        whole(self.hot_bytes, "hot_bytes")
        whole(self.events_segment_bytes, "events_segment_bytes", 4096, 1 << 40)
        for each in ("max_connections", "max_subscriptions"):
            whole(getattr(self, each), each, 1)
        for each in ("token_records_per_s", "token_bytes_per_s", "events_segments"):
            if getattr(self, each) is not None:
                whole(getattr(self, each), each, 1)
        between(self.heartbeat_s, "heartbeat_s", 0.05, 3600)
        between(self.stop_grace_s, "stop_grace_s", 0, 86400)
        check_name(self.events_topic, "topic")
        if self.log_level not in LOG_LEVELS:
            raise InvalidArgument(f"log_level must be one of {', '.join(LOG_LEVELS)}, not {shown(self.log_level)}")
        if not self.host:
            raise InvalidArgument("host must be an address to listen on, such as 127.0.0.1 or 0.0.0.0")
        if not (self.flight or self.http):
            raise InvalidArgument("there is nothing to serve: flight and http are both off")
        if self.flight and self.http and self.flight_port == self.http_port != 0:
            raise InvalidArgument(f"flight_port and http_port are both {self.http_port}: each needs one of its own")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidArgument("tls_cert and tls_key go together: a certificate, and its key")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidArgument(
                "tls_client_ca needs tls_cert and tls_key: only with TLS can clients show certificates"
            )
        for origin in self.origins:
            if not re.fullmatch(r"https?://[^/\s]+", origin):
                raise InvalidArgument(f"origins are written https://host:port, without a path; not {shown(origin)}")

    @property
    def tls(self) -> bool:
        return self.tls_cert is not None

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def tokens_file(self) -> Path:
        """Where the tokens are, or will be."""
        return tokens_in(self.store) if self.tokens is None else self.tokens


FIELDS = {field.name: field for field in dataclasses.fields(ServerSettings)}


def is_size(name: str) -> bool:
    """Whether a setting counts bytes, and so takes 64MB."""
    return name.endswith(("_bytes", "_bytes_per_s"))


def tokens_in(store: Path) -> Path:
    """Where a store's tokens are unless a setting says otherwise."""
    return store / layout.TOKENS


def load(
    flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ, config: Path | None = None,
    *, store: Path = Path("jjq-data"),
) -> ServerSettings:  # fmt: skip
    """The settings that flags, `JJQ_...`, and a TOML file give; `store` where none of them names it.

    Raises InvalidArgument, which says where the wrong value or the unknown name stands.
    """
    found: dict[str, Any] = {"store": store}
    if config is not None:
        found |= _from_file(config)
    found |= from_environment(environment)
    for name, value in flags.items():
        found[name] = parse(name, value, f"--{name.replace('_', '-')}")
    return ServerSettings(**found)


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or _NOT_SETTINGS.fullmatch(variable):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in FIELDS:
            found[name] = parse(name, value, variable)
        elif not _SERVICE_LINK.fullmatch(f"{variable}={value}"):
            raise InvalidArgument(f"the environment has {variable}, which is no setting{_nearest(name, PREFIX)}")
    return found


def _from_file(path: Path) -> dict[str, Any]:
    try:
        with files.translated("read", path):
            text = files.read(path).decode()
        given = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} is no TOML: {error}") from error
    found = {}
    for name, value in given.items():
        if name not in FIELDS:
            raise InvalidArgument(f"{path} has {name!r}, which is no setting{_nearest(name)}")
        value = parse(name, value, f"{path}, {name}")
        # The directory in which a service is started is nobody's choice, the file's is.
        found[name] = path.absolute().parent / value if isinstance(value, Path) else value
    return found


def _nearest(name: str, prefix: str = "") -> str:
    found = [prefix + each.upper() if prefix else each for each in meant(name, FIELDS)]
    return f"; did you mean {' or '.join(found)}?" if found else "; `jjq serve --help` has all of them"


def parse(name: str, value: Any, where: str) -> Any:
    """A setting's value from a flag, the environment (both text) or TOML; raises InvalidArgument that names `where`."""
    kind = str(FIELDS[name].type)
    optional = kind.endswith(" | None")
    if optional and (value is None or value == "none"):
        return None
    kind = kind.removesuffix(" | None")
    try:
        return _PARSERS["size" if is_size(name) else kind](value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error.message}") from error


def _path(value: Any) -> Path:
    return Path(without_home(str(value) if isinstance(value, Path) else _text(value)))


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidArgument(f"a text is needed, not {shown(value)}")
    return value


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "yes", "on", "1", "false", "no", "off", "0"):
        return value.lower() in ("true", "yes", "on", "1")
    raise InvalidArgument(f"true or false is needed, not {shown(value)}")


def _whole(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value):
        value = int(value)
    return whole(value, "it", 0, MOST)


def _size(value: Any) -> int:
    return size(value) if isinstance(value, str) else _whole(value)


def _number(value: Any) -> float:
    try:
        value = float(value) if isinstance(value, str) else value
    except ValueError:
        value = math.nan
    return float(between(value, "it", 0, math.inf))


def _texts(value: Any) -> tuple[str, ...]:
    """A list, or text with commas between."""
    if isinstance(value, str):
        return tuple(each.strip() for each in value.split(",") if each.strip())
    if not isinstance(value, (list, tuple)):
        raise InvalidArgument(f"a list is needed, not {shown(value)}")
    return tuple(_text(each) for each in value)


_PARSERS = {
    "Path": _path, "str": _text, "bool": _flag, "int": _whole, "size": _size, "float": _number,
    "tuple[str, ...]": _texts,
}  # fmt: skip
