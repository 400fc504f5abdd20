"""Certificates for tests, made with the openssl command: an authority, a server on this machine, a client."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Certificates(NamedTuple):
    """PEM files."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def made_in(directory: Path) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command to make certificates with")
    directory.mkdir()
    _openssl(
        directory, "req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=authority",
        "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
    )  # fmt: skip
    for name, uses in (("server", "serverAuth"), ("client", "clientAuth")):
        _openssl(directory, "req", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (directory / f"{name}.ext").write_text(
            f"basicConstraints=CA:FALSE\nsubjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage={uses}\n"
        )
        _openssl(
            directory, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-out", f"{name}.crt", "-extfile", f"{name}.ext",
        )  # fmt: skip
    files = ("ca.crt", "server.crt", "server.key", "client.crt", "client.key")
    return Certificates(*(directory / name for name in files))


def _openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)
