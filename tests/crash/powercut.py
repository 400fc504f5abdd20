"""A power cut, simulated: what was done to the disk is recorded, and made again without what had not been synced.

A killed process proves no fsync, since the page cache outlives it. So every change is noted, and for a cut after any of
them directories are built in which what was not synced is gone, there, zeros, or there in part and in another order.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jjq.catalog.sqlite import SqliteDriver
from tests.crash.faults import Disk

BLOCK = 512  # what a disk writes at once: of a longer write any of its blocks may be there


@dataclass(slots=True)
class Event:
    """What a recorder noted: an operation on file number `inode`, a catalog as it was after a commit, or a mark."""

    kind: str
    inode: int = 0
    parent: int = 0
    name: str = ""
    data: bytes = b""
    position: int = 0
    target: str = ""
    durable: bool = False
    note: Any = None


class Recorder(Disk):
    """Notes every change under `root`, which has to survive as it is now, and every commit of its catalogs.

    `mark` puts the caller's own notes between them: what was acknowledged when.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.events: list[Event] = []
        self._numbers: dict[Path, int] = {}
        self._by_fd: dict[int, int] = {}
        self._next = 1
        self._number(root)
        for path in sorted(root.rglob("*")):
            if path.name.startswith("catalog.db"):
                if path.name == "catalog.db":
                    self._catalog(path.parent, sqlite_image(path), durable=True)
                continue
            kind = "mkdir" if path.is_dir() else "create"
            inode = self._number(path)
            self.events.append(Event(kind, inode, self._numbers[path.parent], path.name))
            if path.is_file():
                self.events.append(Event("write", inode, data=path.read_bytes()))
                self.events.append(Event("sync", inode))
        for path in [root, *(each for each in root.rglob("*") if each.is_dir())]:
            self.events.append(Event("sync_dir", self._numbers[path]))
        self.first = len(self.events)  # where what is recorded begins; before it is what was there

    def _number(self, path: Path) -> int:
        self._numbers[path] = number = self._next
        self._next += 1
        return number

    def number_of(self, path: Path) -> int:
        """The `inode` of events of what has this name now."""
        return self._numbers[path]

    def mark(self, note: Any) -> None:
        self.events.append(Event("mark", note=note))

    def _opened(self, name: str, kind: str, path: Path, *arguments: Any) -> int:
        fd = super()._opened(name, kind, path, *arguments)
        if kind == "create":
            self.events.append(Event("create", self._number(path), self._numbers[path.parent], path.name))
        elif path not in self._numbers and path.parent in self._numbers:  # made by SQLite
            self.events.append(Event("create", self._number(path), self._numbers[path.parent], path.name))
            self.events.append(Event("write", self._numbers[path], data=path.read_bytes()))
        self._by_fd[fd] = self._numbers.get(path, 0)
        return fd

    def _write(self, fd: int, data: bytes, position: int, least: int | None = None) -> int:
        written = super()._write(fd, data, position, least)
        self.events.append(Event("write", self._by_fd[fd], data=data, position=position))
        return written

    def _datasync(self, fd: int) -> None:
        super()._datasync(fd)
        self.events.append(Event("sync", self._by_fd[fd]))

    def _sync_dir(self, path: Path) -> None:
        super()._sync_dir(path)
        if path in self._numbers:
            self.events.append(Event("sync_dir", self._numbers[path]))

    def _make_dirs(self, path: Path, within: Path | None = None) -> None:
        missing = []
        while not path.exists():
            missing.append(path)
            path = path.parent
        super()._make_dirs(missing[0] if missing else path, within)
        for each in reversed(missing):
            self.events.append(Event("mkdir", self._number(each), self._numbers[each.parent], each.name))

    def _replace(self, source: Path, target: Path) -> None:
        super()._replace(source, target)
        inode = self._numbers[target] = self._numbers.pop(source)
        if source.parent == target.parent:
            self.events.append(Event("replace", inode, self._numbers[source.parent], source.name, target=target.name))
            return
        # Each directory has its own part of it, which is there when that one is synced.
        self.events.append(Event("link", inode, self._numbers[target.parent], target.name))
        self.events.append(Event("unlink", inode, self._numbers[source.parent], source.name))

    def _unlink(self, path: Path) -> None:
        there = path.exists()
        super()._unlink(path)
        if there:
            self.events.append(Event("unlink", self._numbers.pop(path), self._numbers[path.parent], path.name))

    def _remove_dir(self, path: Path) -> None:
        super()._remove_dir(path)
        self.events.append(Event("unlink", self._numbers.pop(path), self._numbers[path.parent], path.name))

    def committed(self, driver: SqliteDriver, durable: bool) -> None:
        assert driver._connection is not None
        self._catalog(driver.path.parent, driver._connection.serialize(), durable)

    def _catalog(self, directory: Path, image: bytes, durable: bool) -> None:
        self.events.append(Event("catalog", self._numbers[directory], data=image, durable=durable))


def sqlite_image(path: Path) -> bytes:
    connection = sqlite3.connect(path)
    try:
        return connection.serialize()
    finally:
        connection.close()


class Chance:
    """What a power cut does to what was not synced. This one drops all of it."""

    def keeps(self) -> bool:
        """Whether one change of a directory that was not synced is there nevertheless."""
        return False

    def catalog(self, later: int) -> int:
        """How many of `later` transactions that were not durable are there."""
        return 0

    def content(self, synced: bytes, writes: list[tuple[int, bytes]]) -> bytes:
        """A file that had been synced as `synced` and written to since."""
        return synced


class KeepAll(Chance):
    """Everything got to the disk just in time."""

    def keeps(self) -> bool:
        return True

    def catalog(self, later: int) -> int:
        return later

    def content(self, synced: bytes, writes: list[tuple[int, bytes]]) -> bytes:
        return _written(synced, writes)


class Zeros(KeepAll):
    """Names and lengths got to the disk, data did not: what was not synced reads as zeros."""

    def content(self, synced: bytes, writes: list[tuple[int, bytes]]) -> bytes:
        whole = _written(synced, writes)
        return synced + bytes(max(0, len(whole) - len(synced)))


class Some(Chance):
    """Any part got to the disk in any order: directory entries, blocks and lengths each by themselves."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._likely = self._random.choice((0.2, 0.5, 0.8))

    def keeps(self) -> bool:
        return self._random.random() < self._likely

    def catalog(self, later: int) -> int:
        return self._random.randint(0, later)

    def content(self, synced: bytes, writes: list[tuple[int, bytes]]) -> bytes:
        if not writes:
            return synced
        whole = _written(synced, writes)
        lengths = sorted({len(synced), len(whole), *(min(len(whole), at + len(data)) for at, data in writes)})
        length = self._random.choice([each for each in lengths if each >= len(synced)])
        result = bytearray(synced.ljust(len(whole), b"\0"))
        for start in range(0, len(whole), BLOCK):
            if whole[start : start + BLOCK] != result[start : start + BLOCK] and self.keeps():
                result[start : start + BLOCK] = whole[start : start + BLOCK]
        return bytes(result[:length])


def _written(synced: bytes, writes: list[tuple[int, bytes]]) -> bytes:
    result = bytearray(synced)
    for at, data in writes:
        if at > len(result):
            result.extend(bytes(at - len(result)))
        result[at : at + len(data)] = data
    return bytes(result)


@dataclass(slots=True)
class _File:
    synced: bytes = b""
    writes: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class _Directory:
    synced: dict[str, int] = field(default_factory=dict)
    changes: list[tuple[str, str, str, int]] = field(default_factory=list)  # (kind, name, new name, inode)
    catalogs: list[bytes] = field(default_factory=list)  # the last durable one, then those that are not


Tree = dict[str, bytes | None]  # by path below the root: a file's content, None for a directory


def after_power_cut(events: list[Event], chance: Chance) -> Tree:
    """What a power cut after these events leaves below the recorded root."""
    nodes: dict[int, _File | _Directory] = {1: _Directory()}
    for event in events:
        node = nodes.get(event.inode)
        if event.kind in ("create", "mkdir"):
            nodes[event.inode] = _Directory() if event.kind == "mkdir" else _File()
        if event.kind in ("create", "mkdir", "link", "replace", "unlink"):
            parent = nodes[event.parent]
            assert isinstance(parent, _Directory)
            parent.changes.append((event.kind, event.name, event.target, event.inode))
        elif event.kind == "write":
            assert isinstance(node, _File)
            node.writes.append((event.position, event.data))
        elif event.kind == "sync":
            assert isinstance(node, _File)
            node.synced, node.writes = _written(node.synced, node.writes), []
        elif event.kind == "sync_dir":
            assert isinstance(node, _Directory)
            node.synced, node.changes = _entries(node, KeepAll()), []
        elif event.kind == "catalog":
            assert isinstance(node, _Directory)
            node.catalogs = [event.data] if event.durable else [*node.catalogs, event.data]
    tree: Tree = {}
    _collect(nodes, 1, chance, "", tree)
    return tree


def _entries(directory: _Directory, chance: Chance) -> dict[str, int]:
    entries = dict(directory.synced)
    for kind, name, new_name, inode in directory.changes:
        if not chance.keeps():
            continue
        if kind in ("create", "mkdir", "link"):
            entries[name] = inode
        elif kind == "unlink":
            entries.pop(name, None)
        else:
            # A rename is one act of the journal: both of its names change, or none does.
            entries.pop(name, None)
            entries[new_name] = inode
    return entries


def _collect(nodes: dict[int, _File | _Directory], inode: int, chance: Chance, path: str, tree: Tree) -> None:
    node = nodes[inode]
    if isinstance(node, _File):
        tree[path] = chance.content(node.synced, node.writes)
        return
    tree[path] = None
    for name, child in _entries(node, chance).items():
        _collect(nodes, child, chance, f"{path}/{name}", tree)
    if node.catalogs:
        tree[f"{path}/catalog.db"] = node.catalogs[chance.catalog(len(node.catalogs) - 1)]


def make(tree: Tree, root: Path) -> None:
    for path, content in tree.items():
        target = root / path.lstrip("/")
        if content is None:
            target.mkdir()
        else:
            target.write_bytes(content)
