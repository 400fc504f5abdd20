"""Settings of a broker: values, validated once, with units in their names."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from jjq.values import whole

FLIGHT_PORT = 4750
HTTP_PORT = 4751


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """What a broker does. `None` for a limit means that there is none.

    store: the directory that is served, made if missing
    host: the address to listen on, for both ports
    flight, http: whether to serve it; flight_port, http_port: where, 0 for any free port
    tls_cert, tls_key: PEM files, for both ports; with tls_client_ca clients must show a certificate that it signed
    tokens: the file of tokens; when it is there (and from when it is), every request needs one
    allow_insecure: listen on other addresses than this machine's own without TLS or without tokens
    auto_create: topics are made on first use
    hot_bytes: segments kept in memory near subscribers, at most
    max_request_bytes: an HTTP body, a Flight message; max_record_bytes: a record in it, beside the topic's own limit
    max_connections, max_subscriptions: at the same time, on each port and of both ports together
    buffer_bytes: what may wait for one connection; one that is slower is closed, and can resume
    token_records_per_s, token_bytes_per_s: of pushes, for each token that has no rate of its own
    heartbeat_s: how often an idle stream shows that it lives
    stop_grace_s: how long what runs may take to end when the broker stops
    events_topic: the topic of /api/events; events_segments, events_segment_bytes: how much of it is kept when it is made
    origins: other sites' pages that may use the HTTP interface from a browser, as https://host:port
    audit_log: a file for actions that change what is stored; None: they go where the other messages go
    log_level: debug, info, warning or error
    """

    store: Path
    host: str = "127.0.0.1"
    flight: bool = True
    flight_port: int = FLIGHT_PORT
    http: bool = True
    http_port: int = HTTP_PORT
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tokens: Path | None = None
    allow_insecure: bool = False
    auto_create: bool = True
    hot_bytes: int = 256 << 20
    max_request_bytes: int = 64 << 20
    max_record_bytes: int = 16 << 20
    max_connections: int = 2000
    max_subscriptions: int = 2000
    buffer_bytes: int = 4 << 20
    token_records_per_s: int | None = None
    token_bytes_per_s: int | None = None
    heartbeat_s: float = 15.0
    stop_grace_s: float = 10.0
    events_topic: str = "events"
    events_segments: int | None = None
    events_segment_bytes: int = 64 << 20
    origins: tuple[str, ...] = ()
    audit_log: Path | None = None
    log_level: str = "info"

    def __post_init__(self) -> None:
        for name in ("flight_port", "http_port"):
            whole(getattr(self, name), name, 0, 65535)

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
