"""Who is subscribed to what, among all processes of a store: a file each, whose lock is the subscription's life."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import re
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from jjq import files
from jjq.errors import InvalidArgument
from jjq.values import shown

if TYPE_CHECKING:
    from jjq.store import Store

LOCK, NOTE = ".lock", ".json"


def check_pattern(pattern: object) -> str:
    if not isinstance(pattern, str) or not pattern.isprintable() or not pattern:
        raise InvalidArgument(f"a pattern is a str such as 'log.*', not {shown(pattern)}")
    return pattern


def glob(pattern: str) -> re.Pattern[str]:
    """Redis's patterns: `*`, `?`, `[abc]`, `[^a]`, `[a-c]`, and a backslash before what is meant literally."""
    text = re.sub(r"\\(.)", lambda m: f"[{m.group(1)}]" if m.group(1) in "*?[" else m.group(1), pattern)
    return re.compile(fnmatch.translate(text.replace("[^", "[!")))


def alive(path: Path) -> bool:
    """Whether somebody holds the lock of a file; one that nobody holds is removed."""
    try:
        fd = files.open_ro(path)
    except OSError:
        return False
    try:
        if not files.lock(fd, wait=False):
            return True
        with contextlib.suppress(OSError):
            files.unlink(path)
        return False
    finally:
        files.close(fd)


def registry(store: Store) -> Path:
    return store.path / "pubsub"


class Interest:
    """What one subscription wants, where others see it; it lives as long as the process that made it, or until `withdraw`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fd = -1
        self.id: str | None = None  # None while nothing is announced

    def announce(self, names: Iterable[str], patterns: Iterable[str]) -> None:
        """Makes it known, in the place of what was announced before."""
        directory = registry(self._store)
        with files.translated("subscribe in", directory):
            if self.id is None:
                self._store.catalog.check_named()  # before anything is made in another store
                files.make_dirs(directory, within=self._store.path)
                chosen = uuid.uuid4().hex
                self._fd = files.create(directory / f"{chosen}{LOCK}")
                files.lock(self._fd)
                self.id = chosen
            note = {"names": sorted(names), "patterns": sorted(patterns)}
            temporary = directory / f"{self.id}.new"
            temporary.write_text(json.dumps(note), encoding="utf-8")
            files.replace(temporary, directory / f"{self.id}{NOTE}")

    def withdraw(self) -> None:
        """Leaves nothing behind."""
        if self.id is not None:
            for suffix in (NOTE, LOCK):
                with contextlib.suppress(OSError):
                    files.unlink(registry(self._store) / f"{self.id}{suffix}")
            self.forget()

    def forget(self) -> None:
        """In a forked child: what was announced is the parent's."""
        fd = self._fd
        self.id, self._fd = None, -1
        if fd >= 0:
            files.close(fd)


def subscriptions(store: Store) -> list[tuple[set[str], dict[str, re.Pattern[str]]]]:
    """(names, patterns) of each live subscription; those whose process died are removed on the way."""
    found = []
    directory = registry(store)
    try:
        notes = sorted(path for path in directory.iterdir() if path.suffix == NOTE)
    except (FileNotFoundError, NotADirectoryError):
        return []
    for note in notes:
        if not alive(note.with_suffix(LOCK)):
            with contextlib.suppress(OSError):
                files.unlink(note)
            continue
        try:
            body = json.loads(note.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue  # it left, or is about to say more, right now
        found.append((set(body["names"]), {pattern: glob(pattern) for pattern in body["patterns"]}))
    return found


def reached(store: Store, name: str) -> int:
    """How many ways live subscriptions match a topic's name: by the name itself, and by each pattern."""
    return sum(
        (name in names) + sum(bool(pattern.match(name)) for pattern in patterns.values())
        for names, patterns in subscriptions(store)
    )
