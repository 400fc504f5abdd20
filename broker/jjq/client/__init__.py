"""Connecting to a broker: a store, and all that is got from it, over the network."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from jjq.hints import keywords

if TYPE_CHECKING:
    from jjq.store import Store

StateCallback = Callable[[str], object]


@keywords("jjq.connect")
def connect(
    url: str, *, token: str | None = None, tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None, tls_key: str | os.PathLike[str] | None = None,
    retry_s: float = 30.0, on_state: StateCallback | None = None,
) -> Store:  # fmt: skip
    """The store that a broker serves at `jjq://host:port` (or `jjq+tls://`); used like one that `jjq.open` gives.

    A connection that is lost is made again, after growing pauses; a call that meets that goes on trying for `retry_s`
    seconds, and then raises BrokerUnavailable. `on_state` is called with `connected`, `reconnecting` and `closed`, from
    whichever thread finds out. `tls_ca` is a PEM file with the certificates to trust instead of the system's, `tls_cert` and
    `tls_key` one's own, where the broker asks for it.
    Raises InvalidArgument, BrokerUnavailable, Unauthorized.
    """
    # gRPC would write lines of its own on the standard error; what there is to say, errors and our logger say.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from jjq.client.store import RemoteStore  # only here: Flight takes its time to be imported

    return RemoteStore(
        url, token=token, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, retry_s=retry_s, on_state=on_state
    )
