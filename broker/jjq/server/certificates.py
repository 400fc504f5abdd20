"""The broker's certificate: checked before a port opens, and for HTTP read anew when its files change. gRPC, which carries Flight,
takes one when it starts and no other."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from jjq import files
from jjq.errors import InvalidArgument, JjqError
from jjq.server.settings import ServerSettings

_LOOK_S = 1.0
_SOON = timedelta(days=14)
_HAS_PASSWORD = "the key has a password"  # noqa: S105 - no password
_FIRST = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME = 0xA0, 0x17  # tags in DER

log = logging.getLogger("jjq.server")


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """What HTTP listens with; None without TLS. Raises InvalidArgument, which names the file, for certificates and keys that are
    none or do not fit."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        if (path := getattr(settings, name)) is not None:
            _check_file(name, path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidArgument(_why(settings.tls_cert, settings.tls_key, error)) from error
    try:
        if settings.tls_client_ca is not None:
            context.load_verify_locations(settings.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except ssl.SSLError as error:
        raise InvalidArgument(f"{settings.tls_client_ca} holds no certificates in PEM: {error}") from error
    return context


def _no_password() -> str:
    raise ValueError(_HAS_PASSWORD)


def _check_file(name: str, path: Path) -> None:
    """That it can be read, and is what it should be as far as its first line says. Raises InvalidArgument."""
    try:
        found = files.read(path)
    except OSError as error:
        raise InvalidArgument(
            f"{name} {path} cannot be read: {error.strerror or error}; it must be a file that the broker's user may read"
        ) from error
    what = "PRIVATE KEY" if name == "tls_key" else "CERTIFICATE"
    if f"{what}-----".encode() not in found:
        raise InvalidArgument(f"{name} {path} holds no {what.lower()} in PEM: there is no line -----BEGIN {what}-----")


def _why(cert: Path, key: Path, error: Exception) -> str:
    """What is wrong with a certificate and its key, and what to do."""
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"the key in {key} is not that of the certificate in {cert}: give the key that the certificate was made with, and the "
            f"broker's own certificate first in its file, before those that vouch for it"
        )
    if str(error) == _HAS_PASSWORD:
        return f"the key in {key} has a password, and nobody is there to type it: take it off with openssl pkey -in {key} -out FILE"
    return f"{cert} and {key} are no certificate and its key in PEM: {error}"


def warn_of_age(settings: ServerSettings, now: datetime | None = None) -> None:
    """Says of a certificate that clients do not take it, or soon will not."""
    path = settings.tls_cert
    found = None if path is None else _validity(path)
    if found is None:
        return
    (begins, ends), now = found, now or datetime.now(UTC)
    if now < begins:
        log.warning("the certificate in %s is good from %s on: until then clients refuse it", path, begins)
    elif ends <= now:
        log.warning("the certificate in %s expired at %s: clients refuse it; put a new one there", path, ends)
    elif ends <= now + _SOON:
        log.warning(
            "the certificate in %s expires at %s: put a new one there, and for Flight start the broker anew", path, ends
        )


def _validity(cert: Path) -> tuple[datetime, datetime] | None:
    """From when to when the first certificate of a file is good, which Python's ssl says only of those it trusts; None where that
    cannot be told."""
    try:
        match = _FIRST.search(cert.read_bytes())
        if match is None:
            return None
        # RFC 5280: version, serial number, algorithm, issuer, and how long it is good. Version may be left out.
        signed = _elements(_elements(_elements(ssl.PEM_cert_to_DER_cert(match.group().decode()))[0][1])[0][1])
        begins, ends = _elements(signed[4 if signed[0][0] == _VERSION else 3][1])
        return _time(*begins), _time(*ends)
    except (OSError, ValueError, IndexError):
        return None


def _elements(data: bytes) -> list[tuple[int, bytes]]:
    """Elements in DER, each as its tag and what it has."""
    found, at = [], 0
    while at < len(data):
        length, start = data[at + 1], at + 2
        if length > 127:  # so many bytes of length follow
            start += length - 128
            length = int.from_bytes(data[at + 2 : start], "big")
        found.append((data[at], data[start : start + length]))
        at = start + length
    return found


def _time(tag: int, text: bytes) -> datetime:
    year = "%y" if tag == _UTC_TIME else "%Y"
    return datetime.strptime(text.decode("ascii"), f"{year}%m%d%H%M%SZ").replace(tzinfo=UTC)


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
            warn_of_age(settings)
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
