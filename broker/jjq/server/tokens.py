"""Tokens: who may ask a broker for what. A file keeps what they may, and hashes of them; a broker sees when it changes.

The file is one JSON document, replaced as a whole, and readable by nobody else. A token is 32 random bytes, so a plain SHA-256
of it cannot be turned back by guessing, as that of a password could.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from jjq import files
from jjq.clock import now_us
from jjq.errors import InvalidArgument, JjqError
from jjq.interest import glob
from jjq.model import check_name
from jjq.values import MOST, shown, whole

ACTIONS = ("read", "write", "admin")
TOKEN_PREFIX = "jjq_"  # noqa: S105 - by which a token is known where it does not belong, in a log or a repository
_BYTES = 32
_VERSION = 1


class TokenNotFound(JjqError):
    code = "token_not_found"


class TokenExists(JjqError):
    code = "token_exists"


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """What one token may. `read`, `write` and `admin` are patterns of topics' names; times are in microseconds."""

    name: str
    hash: str = field(repr=False)
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    records_per_s: int | None = None
    bytes_per_s: int | None = None
    created_at: int = 0
    expires_at: int | None = None
    rotated_at: int | None = None
    previous_hash: str | None = field(default=None, repr=False)  # which is good until then
    previous_until: int = 0

    def __post_init__(self) -> None:
        check_name(self.name, "token")
        for action in ACTIONS:
            object.__setattr__(self, action, _patterns(action, getattr(self, action)))
        for limit in ("records_per_s", "bytes_per_s"):
            if getattr(self, limit) is not None:
                whole(getattr(self, limit), limit, 1)
        hashes: tuple[object, ...] = (self.hash, self.previous_hash)  # as they stood in the file
        for each in hashes:
            if each is not None and (not isinstance(each, str) or len(each) != 64):
                raise InvalidArgument(f"token {self.name} has no SHA-256 as its hash")
        for moment in ("created_at", "expires_at", "rotated_at", "previous_until"):
            if getattr(self, moment) is not None:
                whole(getattr(self, moment), moment)

    def expired(self, now: int) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def to_dict(self) -> dict[str, Any]:
        """What may be shown of it: nothing that it could be guessed from."""
        found = asdict(self)
        del found["hash"], found["previous_hash"]
        return found


def _patterns(action: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) and each for each in value):
        raise InvalidArgument(f"{action} must be patterns of topics' names, such as 'orders.*', not {shown(value)}")
    for each in value:
        glob(each)
    return tuple(value)


def hashed(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def _new() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(_BYTES)


class TokenFile:
    """The tokens in a file. Any number of commands may change it at once; each change is whole."""

    def __init__(self, path: Path, *, clock: Callable[[], int] = now_us) -> None:
        self.path = path
        self._name = str(path)  # asked for at every request, and a path takes twice as long
        self._clock = clock

    def __repr__(self) -> str:
        return f"<TokenFile {self.path}>"

    def signature(self) -> tuple[int, int, int] | None:
        """Another one when the file was changed; None: there is none."""
        try:
            found = os.stat(self._name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def tokens(self) -> list[Token]:
        """All of them, by name; none where there is no file. Raises InvalidArgument for what is no file of tokens."""
        try:
            with files.reading(self.path):
                data = files.read(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            body = json.loads(data)
            if not isinstance(body, dict) or body.get("version") != _VERSION:
                raise InvalidArgument(f"version {_VERSION} is needed")
            known = {each.name for each in fields(Token)}
            found = [Token(**{key: value for key, value in each.items() if key in known}) for each in body["tokens"]]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidArgument(f"{self.path} is no file of tokens of this version: {error}") from error
        return sorted(found, key=lambda each: each.name)

    def create(
        self, name: str, *, read: tuple[str, ...] = (), write: tuple[str, ...] = (), admin: tuple[str, ...] = (),
        expires_in_us: int | None = None, records_per_s: int | None = None, bytes_per_s: int | None = None,
    ) -> tuple[str, Token]:  # fmt: skip
        """A new token, and what is kept of it. Raises TokenExists, InvalidName, InvalidArgument."""
        secret, now = _new(), self._clock()
        if not (read or write or admin):
            raise InvalidArgument(f"token {shown(name)} may do nothing: give it topics to read, write or admin")
        made = Token(
            name=name, hash=hashed(secret), read=read, write=write, admin=admin, created_at=now,
            expires_at=None if expires_in_us is None else min(now + expires_in_us, MOST),
            records_per_s=records_per_s, bytes_per_s=bytes_per_s,
        )  # fmt: skip
        with self._changing() as tokens:
            if name in tokens:
                raise TokenExists(f"there is a token {name!r} in {self.path} already; rotate or revoke it")
            tokens[name] = made
        return secret, made

    def rotate(self, name: str, *, keep_us: int = 0) -> tuple[str, Token]:
        """A new token in the place of an old one, which is good for `keep_us` more."""
        secret, now = _new(), self._clock()
        with self._changing() as tokens:
            old = self._find(tokens, name)
            tokens[name] = replace(
                old, hash=hashed(secret), rotated_at=now, previous_hash=old.hash if keep_us else None,
                previous_until=min(now + keep_us, MOST) if keep_us else 0,
            )  # fmt: skip
            return secret, tokens[name]

    def revoke(self, name: str) -> Token:
        """Ends a token at once."""
        with self._changing() as tokens:
            gone = self._find(tokens, name)
            del tokens[name]
        return gone

    def _find(self, tokens: Mapping[str, Token], name: str) -> Token:
        if name not in tokens:
            there = ", ".join(sorted(tokens)[:5]) or "none"
            raise TokenNotFound(f"there is no token {name!r} in {self.path}; there are: {there}")
        return tokens[name]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Token]]:
        """The tokens by name, written back when the block ends well."""
        directory = self.path.absolute().parent
        with files.translated("change", self.path):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            files.lock(fd)
            tokens = {each.name: each for each in self.tokens()}
            yield tokens
            body = {"version": _VERSION, "tokens": [asdict(tokens[name]) for name in sorted(tokens)]}
            with files.translated("write", self.path):
                files.write_small(self.path, json.dumps(body, indent=1).encode(), mode=0o600)
        finally:
            files.close(fd)
