"""What stands between jjq and the disk in these tests: it fails, fills up, dies or takes notes.

Everything jjq does to the disk goes through the functions of `jjq.files` and through the transactions of the SQLite
driver, so both are replaced while a block runs. What SQLite does inside a transaction is SQLite's to keep whole; here a
transaction is one step that happens or does not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jjq import files
from jjq.catalog.sqlite import SqliteDriver

# What each function of jjq.files does to the disk. `plain` ones need no wrapping: they call others, or change nothing.
KINDS = {
    "create": "create", "open_rw": "open", "open_ro": "open", "open_lock": "open", "close": "close",
    "pwrite": "write", "pwrite_all": "write", "datasync": "sync", "sync_dir": "sync_dir", "make_dirs": "make_dirs",
    "replace": "replace", "unlink": "unlink", "remove_dir": "remove_dir", "pread": "read",
}  # fmt: skip
PLAIN = {"size", "write_small", "lock", "unlock", "translated", "translate", "space_left"}
# The steps of a catalog transaction: failing at `begin` or `commit` undoes it, at `committed` it is done but not known.
CATALOG = ("begin", "commit", "committed")
CHANGES = ("create", "open", "write", "sync", "sync_dir", "make_dirs", "replace", "unlink", "remove_dir", *CATALOG)


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing asked of the disk. `target` is what a rename makes; `durable` is for transactions."""

    kind: str
    path: Path
    data: bytes = b""
    position: int = 0
    target: Path | None = None
    durable: bool = False

    def __repr__(self) -> str:
        more = f" {len(self.data)} bytes at {self.position}" if self.kind == "write" else ""
        return f"<{self.kind} {self.path.name}{more}>"


class Disk:
    """Passes everything on while its block runs. Subclasses raise in `step`, or cut writes short in `lets_through`."""

    def __init__(self) -> None:
        self._real: dict[str, Any] = {}
        self._paths: dict[int, Path] = {}
        self.on = True

    # --- what subclasses decide --------------------------------------------------------------------------------------

    def step(self, operation: Operation) -> None:
        """Called before an operation, which does not happen if this raises."""

    def lets_through(self, operation: Operation) -> int:
        """How many bytes of a write reach the file; fewer than all of them is followed by `failure`."""
        return len(operation.data)

    def done(self, operation: Operation) -> None:
        """Called after an operation has happened."""

    def failure(self, operation: Operation) -> OSError:
        return OSError(errno.EIO, os.strerror(errno.EIO), str(operation.path))

    # --- the wrapping ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        for name in KINDS:
            self._real[name] = getattr(files, name)
            setattr(files, name, getattr(self, f"_{name}"))
        self._real_write = SqliteDriver.write
        disk = self

        @contextlib.contextmanager
        def write(driver: SqliteDriver, *, durable: bool) -> Iterator[Any]:
            with disk._transaction(driver, durable) as transaction:
                yield transaction

        SqliteDriver.write = write  # type: ignore[method-assign]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, real in self._real.items():
            setattr(files, name, real)
        SqliteDriver.write = self._real_write  # type: ignore[method-assign]

    def _do(self, operation: Operation, real: Callable[[], Any]) -> Any:
        if not self.on:
            return real()
        self.step(operation)
        result = real()
        self.done(operation)
        return result

    def _opened(self, name: str, kind: str, path: Path, *arguments: Any) -> int:
        fd: int = self._do(Operation(kind, path), lambda: self._real[name](path, *arguments))
        self._paths[fd] = path
        return fd

    def _create(self, path: Path) -> int:
        return self._opened("create", "create", path)

    def _open_rw(self, path: Path) -> int:
        return self._opened("open_rw", "open", path)

    def _open_ro(self, path: Path) -> int:
        return self._opened("open_ro", "open", path)

    def _open_lock(self, path: Path, read_only: bool = False) -> int:
        made = not path.exists()
        return self._opened("open_lock", "create" if made else "open", path, read_only)

    def _close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        self._real["close"](fd)

    def _path(self, fd: int) -> Path:
        return self._paths.get(fd) or Path(os.readlink(f"/proc/self/fd/{fd}"))

    def _pwrite(self, fd: int, data: Any, position: int) -> None:
        self._write(fd, bytes(data), position)

    def _pwrite_all(self, fd: int, buffers: Iterable[Any], position: int) -> None:
        self._write(fd, b"".join(bytes(each) for each in buffers), position)

    def _write(self, fd: int, data: bytes, position: int) -> None:
        operation = Operation("write", self._path(fd), data, position)
        if not self.on:
            self._real["pwrite"](fd, data, position)
            return
        self.step(operation)
        allowed = self.lets_through(operation)
        if allowed:
            self._real["pwrite"](fd, data[:allowed], position)
            self.done(Operation("write", operation.path, data[:allowed], position))
        if allowed < len(data):
            raise self.failure(operation)

    def _pread(self, fd: int, length: int, position: int) -> bytes:
        operation = Operation("read", self._path(fd), position=position)
        data: bytes = self._do(operation, lambda: self._real["pread"](fd, length, position))
        return data

    def _datasync(self, fd: int) -> None:
        self._do(Operation("sync", self._path(fd)), lambda: self._real["datasync"](fd))

    def _sync_dir(self, path: Path) -> None:
        self._do(Operation("sync_dir", path), lambda: self._real["sync_dir"](path))

    def _make_dirs(self, path: Path) -> None:
        self._do(Operation("make_dirs", path), lambda: self._real["make_dirs"](path))

    def _replace(self, source: Path, target: Path) -> None:
        self._do(Operation("replace", source, target=target), lambda: self._real["replace"](source, target))

    def _unlink(self, path: Path) -> None:
        self._do(Operation("unlink", path), lambda: self._real["unlink"](path))

    def _remove_dir(self, path: Path) -> None:
        self._do(Operation("remove_dir", path), lambda: self._real["remove_dir"](path))

    @contextlib.contextmanager
    def _transaction(self, driver: SqliteDriver, durable: bool) -> Iterator[Any]:
        if not self.on:
            with self._real_write(driver, durable=durable) as transaction:
                yield transaction
            return
        with driver._translated():
            self._catalog_step("begin", driver, durable)
        with self._real_write(driver, durable=durable) as transaction:
            yield transaction
            self._catalog_step("commit", driver, durable)
        self.committed(driver, durable)
        with driver._translated():
            self._catalog_step("committed", driver, durable)

    def _catalog_step(self, kind: str, driver: SqliteDriver, durable: bool) -> None:
        try:
            self.step(Operation(kind, driver.path, durable=durable))
        except OSError as error:
            words = "database or disk is full" if error.errno == errno.ENOSPC else "disk I/O error"
            raise sqlite3.OperationalError(words) from error

    def committed(self, driver: SqliteDriver, durable: bool) -> None:
        """Called after a transaction has been committed."""


class Counting(Disk):
    """Counts the operations of some kinds, and keeps their list."""

    def __init__(self, kinds: Iterable[str] = CHANGES) -> None:
        super().__init__()
        self.kinds = frozenset(kinds)
        self.seen: list[Operation] = []

    def step(self, operation: Operation) -> None:
        if operation.kind in self.kinds:
            self.seen.append(operation)
            self.reached(operation)

    def reached(self, operation: Operation) -> None:
        """Called for each counted operation; `self.seen` ends with it."""


class Failing(Counting):
    """Makes the `number`-th operation (from 1) of some kinds fail, with `for_good` all after it too.

    `part` is how much of a failing write reaches the file. `synced` has the bytes of each file (by name) that are known
    to be on disk; then a failing sync loses the rest, as the kernel does when it drops pages that it could not write.
    """

    def __init__(
        self, number: int, kinds: Iterable[str] = CHANGES, *, code: int = errno.EIO, part: float = 0.0,
        for_good: bool = False, synced: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(kinds)
        self.number, self.code, self.part, self.for_good = number, code, part, for_good
        self.synced = None if synced is None else dict(synced)
        self.failed: Operation | None = None

    def failure(self, operation: Operation) -> OSError:
        return OSError(self.code, os.strerror(self.code), str(operation.path))

    def _fails(self, operation: Operation) -> bool:
        due = len(self.seen) == self.number if self.failed is None else self.for_good
        if operation.kind not in self.kinds or not due:
            return False
        self.failed = self.failed or operation
        return True

    def reached(self, operation: Operation) -> None:
        if not (operation.kind == "write" and self.part) and self._fails(operation):
            if operation.kind == "sync" and self.synced is not None:
                kept = self.synced.get(operation.path.name, 0)
                with operation.path.open("r+b") as file:
                    file.seek(kept)
                    file.write(bytes(operation.path.stat().st_size - kept))
            raise self.failure(operation)

    def lets_through(self, operation: Operation) -> int:
        if self.part and self._fails(operation):
            return int(len(operation.data) * self.part)
        return len(operation.data)

    def done(self, operation: Operation) -> None:
        if operation.kind == "sync" and self.synced is not None:
            self.synced[operation.path.name] = operation.path.stat().st_size


class Syncs(Disk):
    """Notes how many bytes of each file, by its name, have been synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: dict[str, int] = {}

    def done(self, operation: Operation) -> None:
        if operation.kind == "sync":
            self.synced[operation.path.name] = operation.path.stat().st_size


class Filling(Disk):
    """A disk with `room` bytes left: a write that does not fit is cut short, and nothing new can be made without room."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.refused = 0

    def failure(self, operation: Operation) -> OSError:
        self.refused += 1
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(operation.path))

    def step(self, operation: Operation) -> None:
        if operation.kind in ("create", "make_dirs", "begin") and self.room <= 0:
            raise self.failure(operation)

    def lets_through(self, operation: Operation) -> int:
        try:
            before = operation.path.stat().st_size
        except FileNotFoundError:
            before = 0
        start = max(before, operation.position)
        growth = max(0, operation.position + len(operation.data) - start)
        granted = min(growth, max(0, self.room))
        self.room -= granted
        return len(operation.data) - (growth - granted)

    def free(self, room: int = 1 << 40) -> None:
        self.room = room


class Dying(Counting):
    """Ends the process, as SIGKILL would, before the `number`-th operation, or half-way through it where it is a write."""

    def __init__(self, number: int, kinds: Iterable[str] = CHANGES, *, part: float = 0.0) -> None:
        super().__init__(kinds)
        self.number, self.part = number, part

    def reached(self, operation: Operation) -> None:
        if len(self.seen) == self.number and not (operation.kind == "write" and self.part):
            os._exit(9)

    def done(self, operation: Operation) -> None:
        if operation.kind == "write" and self.part and len(self.seen) == self.number:
            os._exit(9)

    def lets_through(self, operation: Operation) -> int:
        whole = len(operation.data)
        return int(whole * self.part) if self.part and len(self.seen) == self.number else whole


# --- power cuts ------------------------------------------------------------------------------------------------------

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

    def mark(self, note: Any) -> None:
        self.events.append(Event("mark", note=note))

    def _opened(self, name: str, kind: str, path: Path, *arguments: Any) -> int:
        fd = super()._opened(name, kind, path, *arguments)
        if kind == "create":
            self.events.append(Event("create", self._number(path), self._numbers[path.parent], path.name))
        self._by_fd[fd] = self._numbers.get(path, 0)
        return fd

    def _write(self, fd: int, data: bytes, position: int) -> None:
        super()._write(fd, data, position)
        self.events.append(Event("write", self._by_fd[fd], data=data, position=position))

    def _datasync(self, fd: int) -> None:
        super()._datasync(fd)
        self.events.append(Event("sync", self._by_fd[fd]))

    def _sync_dir(self, path: Path) -> None:
        super()._sync_dir(path)
        if path in self._numbers:
            self.events.append(Event("sync_dir", self._numbers[path]))

    def _make_dirs(self, path: Path) -> None:
        missing = []
        while not path.exists():
            missing.append(path)
            path = path.parent
        super()._make_dirs(missing[0] if missing else path)
        for each in reversed(missing):
            self.events.append(Event("mkdir", self._number(each), self._numbers[each.parent], each.name))

    def _replace(self, source: Path, target: Path) -> None:
        super()._replace(source, target)
        inode = self._numbers[target] = self._numbers.pop(source)
        self.events.append(Event("replace", inode, self._numbers[source.parent], source.name, target=target.name))

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


def after_power_cut(events: list[Event], chance: Chance, target: Path) -> None:
    """Makes in `target` what a power cut after these events leaves of the recorded root."""
    nodes: dict[int, _File | _Directory] = {1: _Directory()}
    for event in events:
        node = nodes.get(event.inode)
        if event.kind in ("create", "mkdir"):
            nodes[event.inode] = _Directory() if event.kind == "mkdir" else _File()
        if event.kind in ("create", "mkdir", "replace", "unlink"):
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
    _make(nodes, 1, chance, target)


def _entries(directory: _Directory, chance: Chance) -> dict[str, int]:
    entries = dict(directory.synced)
    for kind, name, new_name, inode in directory.changes:
        if not chance.keeps():
            continue
        if kind in ("create", "mkdir"):
            entries[name] = inode
        elif kind == "unlink":
            entries.pop(name, None)
        else:
            # A rename is one act of the journal: both of its names change, or none does.
            entries.pop(name, None)
            entries[new_name] = inode
    return entries


def _make(nodes: dict[int, _File | _Directory], inode: int, chance: Chance, target: Path) -> None:
    node = nodes[inode]
    if isinstance(node, _File):
        target.write_bytes(chance.content(node.synced, node.writes))
        return
    target.mkdir()
    for name, child in _entries(node, chance).items():
        _make(nodes, child, chance, target / name)
    if node.catalogs:
        image = node.catalogs[chance.catalog(len(node.catalogs) - 1)]
        (target / "catalog.db").write_bytes(image)
