"""The broker's certificate: checked before a port opens, and for HTTP read anew when its files change. gRPC, which carries Flight,
takes one when it starts and no other."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl

from jjq import files
from jjq.errors import InvalidArgument, JjqError
from jjq.server.settings import ServerSettings

_LOOK_S = 1.0

log = logging.getLogger("jjq.server")


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """What HTTP listens with; None without TLS. Raises InvalidArgument, which names the file, for certificates and keys that are
    none or do not fit."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    for path in (settings.tls_cert, settings.tls_key, settings.tls_client_ca):
        if path is not None:
            with files.translated("read", path):
                files.read(path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidArgument(
            f"{settings.tls_cert} and {settings.tls_key} are no certificate and its key in PEM, without a password: {error}"
        ) from error
    try:
        if settings.tls_client_ca is not None:
            context.load_verify_locations(settings.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except ssl.SSLError as error:
        raise InvalidArgument(f"{settings.tls_client_ca} holds no certificates in PEM: {error}") from error
    return context


def _no_password() -> str:
    raise ValueError("the key has a password, and nobody is there to type it")


async def keep_fresh(context: ssl.SSLContext, settings: ServerSettings) -> None:
    """Has new connections get the certificate that is in the files, for ever. Files that cannot be used change nothing, and are
    said once."""
    assert settings.tls_cert is not None
    assert settings.tls_key is not None
    used = seen = _signature(settings)
    while True:
        await asyncio.sleep(_LOOK_S)
        before, seen = seen, _signature(settings)
        if (
            seen == used or seen != before
        ):  # both files are written, one after the other: until neither changes any more
            continue
        used = seen
        try:
            # A context that took a certificate and then not its key would have none, so another one tries it.
            tls_context(settings)
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
        except (JjqError, OSError) as error:
            log.error("the certificate was changed and cannot be used; that from before stays: %s", error)  # noqa: TRY400
        else:
            log.info(
                "the certificate was changed: new connections by HTTP get it, Flight when the broker is started anew"
            )


def _signature(settings: ServerSettings) -> object:
    """Another one when a file was changed."""
    found = []
    for path in (settings.tls_cert, settings.tls_key):
        try:
            stat = os.stat(path) if path is not None else None
        except OSError:
            stat = None
        found.append(None if stat is None else (stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return found
