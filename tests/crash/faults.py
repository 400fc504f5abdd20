"""What stands between jjq and the disk in these tests: it fails, fills up or dies. (What takes notes is in `powercut.py`.)

Everything jjq does to the disk goes through the functions of `jjq.files` and through the transactions of the SQLite
driver, so both are replaced while a block runs. What SQLite does inside a transaction is SQLite's to keep whole; here a
transaction is one step that happens or does not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jjq import files
from jjq.catalog.sqlite import SqliteDriver

# What each function of jjq.files does to the disk. `plain` ones need no wrapping: they call others, or change nothing.
KINDS = {
    "create": "create", "open_rw": "open", "open_ro": "open", "open_lock": "open", "close": "close",
    "pwrite": "write", "pwrite_all": "write", "datasync": "sync", "sync_dir": "sync_dir", "make_dirs": "make_dirs",
    "replace": "replace", "unlink": "unlink", "remove_dir": "remove_dir", "pread": "read", "look": "read", "set_size": "set_size",
    "begin_writing": "writeback",
}  # fmt: skip
PLAIN = {
    "size", "identity", "is_named", "link_of", "places", "read", "ring", "write_small", "move", "lock", "lock_in_turn", "try_turn", "is_held", "bytes_lock", "translated", "translate", "reading",
    "wait_written", "opened_by",
}  # fmt: skip
# The steps of a catalog transaction: failing at `begin` or `commit` undoes it, at `committed` it is done but not known.
CATALOG = ("begin", "commit", "committed")
CHANGES = (
    "create",
    "open",
    "write",
    "sync",
    "sync_dir",
    "make_dirs",
    "replace",
    "unlink",
    "remove_dir",
    "set_size",
    "writeback",
    *CATALOG,
)
# What these do is gone with the process, so to die before one of them or after it leaves the same.
TRACELESS = frozenset({"open", "sync", "sync_dir", "writeback", "begin"})
LEFT = tuple(kind for kind in CHANGES if kind not in TRACELESS)


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
        self._real_write, self._real_run = SqliteDriver.write, SqliteDriver.run
        disk = self

        @contextlib.contextmanager
        def write(driver: SqliteDriver, *, durable: bool) -> Iterator[Any]:
            with disk._transaction(driver, durable) as transaction:
                yield transaction

        def run(driver: SqliteDriver, name: str, /, *, durable: bool, **values: Any) -> int:
            return disk._statement(driver, name, durable, values)

        SqliteDriver.write = write  # type: ignore[method-assign]
        SqliteDriver.run = run  # type: ignore[method-assign]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, real in self._real.items():
            setattr(files, name, real)
        SqliteDriver.write = self._real_write  # type: ignore[method-assign]
        SqliteDriver.run = self._real_run  # type: ignore[method-assign]

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

    def _open_ro(self, path: Path | str) -> int:
        return self._opened("open_ro", "open", Path(path))

    def _open_lock(self, path: Path, read_only: bool = False) -> int:
        made = not path.exists()
        return self._opened("open_lock", "create" if made else "open", path, read_only)

    def _close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        self._real["close"](fd)

    def _path(self, fd: int) -> Path:
        return self._paths.get(fd) or Path(os.readlink(f"/proc/self/fd/{fd}"))

    def _pwrite(self, fd: int, data: Any, position: int, least: int | None = None) -> int:
        return self._write(fd, bytes(data), position, least)

    def _pwrite_all(self, fd: int, buffers: Iterable[Any], position: int) -> None:
        self._write(fd, b"".join(bytes(each) for each in buffers), position)

    def _write(self, fd: int, data: bytes, position: int, least: int | None = None) -> int:
        operation = Operation("write", self._path(fd), data, position)
        if not self.on:
            written: int = self._real["pwrite"](fd, data, position, least)
            return written
        self.step(operation)
        allowed = self.lets_through(operation)
        if allowed:
            self._real["pwrite"](fd, data[:allowed], position)
            self.done(Operation("write", operation.path, data[:allowed], position))
        if allowed < (len(data) if least is None else least):
            raise self.failure(operation)
        return allowed

    def _pread(self, fd: int, length: int, position: int) -> bytes:
        operation = Operation("read", self._path(fd), position=position)
        data: bytes = self._do(operation, lambda: self._real["pread"](fd, length, position))
        return data

    def _look(self, fd: int, length: int, position: int) -> bytes:
        operation = Operation("read", self._path(fd), position=position)
        data: bytes = self._do(operation, lambda: self._real["look"](fd, length, position))
        return data

    def _set_size(self, fd: int, length: int) -> None:
        self._do(Operation("set_size", self._path(fd), position=length), lambda: self._real["set_size"](fd, length))

    def _datasync(self, fd: int) -> None:
        self._do(Operation("sync", self._path(fd)), lambda: self._real["datasync"](fd))

    def _begin_writing(self, fd: int, position: int, length: int) -> None:
        operation = Operation("writeback", self._path(fd), position=position)
        self._do(operation, lambda: self._real["begin_writing"](fd, position, length))

    def _sync_dir(self, path: Path) -> None:
        self._do(Operation("sync_dir", path), lambda: self._real["sync_dir"](path))

    def _make_dirs(self, path: Path, within: Path | None = None) -> None:
        self._do(Operation("make_dirs", path), lambda: self._real["make_dirs"](path, within))

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

    def _statement(self, driver: SqliteDriver, name: str, durable: bool, values: dict[str, Any]) -> int:
        """A transaction of one statement, which has the same steps."""
        if not self.on:
            return self._real_run(driver, name, durable=durable, **values)
        with driver._translated():
            self._catalog_step("begin", driver, durable)
            self._catalog_step("commit", driver, durable)
        changed = self._real_run(driver, name, durable=durable, **values)
        self.committed(driver, durable)
        with driver._translated():
            self._catalog_step("committed", driver, durable)
        return changed

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

    `part` is how much of a failing write reaches the file. `synced` has what each file (by name) is known to hold
    on disk; then a failing sync loses the rest, as the kernel does when it drops pages that it could not write.
    """

    def __init__(
        self, number: int, kinds: Iterable[str] = CHANGES, *, code: int = errno.EIO, part: float = 0.0,
        for_good: bool = False, synced: dict[str, bytes] | None = None,
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
                lose(operation.path, self.synced.get(operation.path.name, b""))
            raise self.failure(operation)

    def lets_through(self, operation: Operation) -> int:
        if self.part and self._fails(operation):
            return int(len(operation.data) * self.part)
        return len(operation.data)

    def done(self, operation: Operation) -> None:
        if operation.kind == "sync" and self.synced is not None:
            self.synced[operation.path.name] = operation.path.read_bytes()


def lose(path: Path, synced: bytes) -> None:
    """Drops what was written to a file since it held `synced`, but for its length."""
    with path.open("r+b") as file:
        file.write(synced.ljust(path.stat().st_size, b"\0"))


class Syncs(Disk):
    """Notes what of each file, by its name, has been synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: dict[str, bytes] = {}

    def done(self, operation: Operation) -> None:
        if operation.kind == "sync":
            self.synced[operation.path.name] = operation.path.read_bytes()


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
    """Ends the process, as SIGKILL would, before the `number`-th operation that leaves something, or half-way
    through it where it is a write."""

    def __init__(self, number: int, kinds: Iterable[str] = LEFT, *, part: float = 0.0) -> None:
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

    def failure(self, operation: Operation) -> OSError:
        os._exit(9)  # a write that is cut: whoever asked for it may overlook that it failed
