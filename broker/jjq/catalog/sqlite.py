"""The SQLite driver: one file in the store, many processes.

Writers queue on `catalog.lock` before they begin: SQLite's own busy handler polls, which among eight processes costs
a hundred milliseconds at the 99th percentile. Reads fetch everything and end at once, so that no reader keeps the
write-ahead log from being checkpointed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from jjq import files
from jjq.errors import StoreClosed, StoreError, StoreFormat, StoreReadOnly
from jjq.values import living

_BUSY_S = 30.0
Row = tuple[Any, ...]

_drivers: weakref.WeakSet[SqliteDriver] = weakref.WeakSet()
_stopped = threading.local()  # `drivers` that wait for this thread's fork
_orphans: list[Any] = []  # temporary directories of a parent


def _load_queries() -> dict[str, str]:
    """The statements of every queries*.sql, by name."""
    found: dict[str, str] = {}
    for entry in resources.files("jjq.catalog").iterdir():
        if entry.name.startswith("queries") and entry.name.endswith(".sql"):
            parts = re.split(r"^-- name: (\w+)\n", entry.read_text(encoding="utf-8"), flags=re.MULTILINE)
            found.update((name, body.strip()) for name, body in zip(parts[1::2], parts[2::2], strict=True))
    return found


QUERIES = _load_queries()


def migrations() -> list[tuple[int, str]]:
    """(number, SQL) of each migration, in order."""
    entries = resources.files("jjq.catalog").joinpath("migrations").iterdir()
    return sorted((int(e.name[:4]), e.read_text(encoding="utf-8")) for e in entries if e.name.endswith(".sql"))


@contextlib.contextmanager
def _closed_if_failed(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A connection that is to be made ready for use; where it cannot be, it is not left open until its error is forgotten."""
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


class Transaction:
    """Runs named queries inside one transaction. Raises StoreError where that is over."""

    def __init__(self, driver: SqliteDriver, connection: sqlite3.Connection) -> None:
        self._driver, self._connection = driver, connection

    def run(self, name: str, /, **values: Any) -> int:
        """Executes; returns the number of rows changed."""
        return self.connection.execute(QUERIES[name], values).rowcount

    def run_many(self, name: str, values: Iterable[dict[str, Any]], /) -> None:
        """Executes once for each set of values."""
        self.connection.executemany(QUERIES[name], values)

    def rows(self, name: str, /, **values: Any) -> list[Row]:
        return self.connection.execute(QUERIES[name], values).fetchall()

    @property
    def connection(self) -> sqlite3.Connection:
        if self._driver._transaction is not self:  # else its statements would each be a transaction of their own
            raise StoreError(
                f"a transaction of {self._driver.path} was ended by another use of it in the same thread, and nothing of it was done; try again"
            )
        return self._connection

    def row(self, name: str, /, **values: Any) -> Row | None:
        found = self.rows(name, **values)
        return found[0] if found else None


class SqliteDriver:
    """Connections to one catalog file for this process; safe among threads and across forks."""

    def __init__(self, path: Path, lock_path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._lock_path = lock_path
        self._mutex = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._lock_fd = -1
        self._full: bool | None = None
        self._transaction: Transaction | None = None  # that is open
        self._opened: tuple[int, int] | None = None  # which file it was, by device and number
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._closed = False
        _drivers.add(self)

    # --- reading -----------------------------------------------------------------------------------------------------

    def rows(self, name: str, /, **values: Any) -> list[Row]:
        with self._mutex, self._translated():
            return self._outside().execute(QUERIES[name], values).fetchall()

    def row(self, name: str, /, **values: Any) -> Row | None:
        found = self.rows(name, **values)
        return found[0] if found else None

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Transaction]:
        """Several reads of one state. Keep it short: it holds the write-ahead log."""
        with self._mutex, self._translated():
            connection = self._outside()
            tx = Transaction(self, connection)
            try:  # in front of the first statement: an interrupt right behind it must not leave a transaction open
                self._transaction = tx
                connection.execute("BEGIN")
                yield tx
            finally:
                if self._transaction is tx:
                    connection.rollback()
                    self._transaction = None

    # --- writing -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def write(self, *, durable: bool) -> Iterator[Transaction]:
        """One write transaction, committed at the end, rolled back on an error.

        `durable` (synchronous FULL) means on disk when it returns; otherwise a power cut may undo it, in order with all
        later ones that are not durable either.
        """
        self._check_writable()
        with self._mutex, self._translated():
            connection = self._outside()
            tx = Transaction(self, connection)
            try:  # as above
                self._transaction = tx
                self._begin_alone(connection, durable)
                connection.execute("BEGIN IMMEDIATE")
                yield tx
                tx.connection.execute("COMMIT")
            finally:
                # Only while it is the one that is open: what an interrupt left may be closed at any later time. And by functions
                # of C alone, which no interrupt comes in front of.
                if self._transaction is tx:
                    try:
                        connection.rollback()
                    finally:
                        self._transaction = None
                        files.set_lock(self._lock_fd, files.FREE)

    def run(self, name: str, /, *, durable: bool, **values: Any) -> int:
        """One statement as a transaction of its own, which costs less than `write`; returns the number of rows changed."""
        self._check_writable()
        with self._mutex, self._translated():
            connection = self._outside()
            try:  # here, and in no generator: an interrupt as that is left would keep the lock as long as its traceback
                self._begin_alone(connection, durable)
                return connection.execute(QUERIES[name], values).rowcount
            finally:
                files.set_lock(self._lock_fd, files.FREE)

    def _check_writable(self) -> None:
        if self.read_only:
            raise StoreReadOnly(f"the store at {self.path.parent} is read-only; nothing was changed")

    def _begin_alone(self, connection: sqlite3.Connection, durable: bool) -> None:
        """From here on no other thread or process writes. The caller unlocks, also where this was interrupted."""
        files.lock(self._lock_fd)
        self.check_named()
        self._sync(connection, durable)

    def _sync(self, connection: sqlite3.Connection, durable: bool) -> None:
        if self._full is not durable:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._full = durable

    def version(self) -> int:
        """The number of the last migration the file has seen."""
        with self._mutex, self._translated():
            return int(self._outside().execute("PRAGMA user_version").fetchone()[0])

    def migrate(self) -> None:
        """Brings the file to this version's schema; refuses one made by a later version."""
        steps = migrations()
        with self._mutex, self._translated():
            if self._refuse_later(self._outside()) == steps[-1][0]:
                return
        with self.write(durable=True) as tx:
            connection = tx.connection
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            for number, sql in steps:
                if number > version:
                    for statement in re.sub(r"--[^\n]*", "", sql).split(";"):
                        if statement.strip():
                            connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {number}")

    def _refuse_later(self, connection: sqlite3.Connection) -> int:
        """The file's version, if this program knows it."""
        version, known = int(connection.execute("PRAGMA user_version").fetchone()[0]), migrations()[-1][0]
        if version > known:
            raise StoreFormat(f"{self.path} has catalog version {version}, this jjq knows up to {known}; upgrade jjq")
        return version

    def table(self, name: str) -> tuple[list[str], list[Row]]:
        """Every column's name and every row of a table; none where an older catalog has no such table."""
        with self._mutex, self._translated():
            connection = self._outside()
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone():
                return [], []
            cursor = connection.execute(f'SELECT * FROM "{name}"')  # noqa: S608 - a name from our own list
            return [column[0] for column in cursor.description], cursor.fetchall()

    def fill_table(self, name: str, columns: list[str], rows: list[Row]) -> None:
        """Adds rows as `table` gave them; what is there stays."""
        if rows:
            names, marks = ", ".join(f'"{column}"' for column in columns), ", ".join("?" * len(columns))
            with self.write(durable=True) as tx:
                tx.connection.executemany(f'INSERT OR IGNORE INTO "{name}" ({names}) VALUES ({marks})', rows)  # noqa: S608 - as above

    def backup(self, target: Path) -> None:
        """A consistent copy of the catalog, also while others write."""
        with self._mutex, self._translated():
            copy = sqlite3.connect(target)
            try:
                self._outside().backup(copy)
            finally:
                copy.close()

    def problems(self) -> list[str]:
        """What SQLite's own check finds wrong with the file; empty when it is sound."""
        with self._mutex, self._translated():
            found = [str(row[0]) for row in self._outside().execute("PRAGMA integrity_check(20)").fetchall()]
        return [] if found == ["ok"] else found

    def check_named(self) -> None:
        """Raises StoreError where the catalog's file, or the whole store, was removed or replaced: nobody will ever see what is
        written to it."""
        if self._opened is None:  # a store that can only be read opens it when it is first asked
            with self._mutex, self._translated():
                self._open()
        named = self._named()
        if named == self._opened:
            return
        store = self.path.parent
        if named is not None:
            why = f"{store} is another store now than was opened, or a copy of it: it was replaced while it was open; open it again"
        elif (store / "jjq.json").exists():
            why = f"the catalog {self.path} was removed while it was open; put it back or run `jjq repair`, and open the store again"
        else:
            why = f"{store} {files.GONE}"
        raise StoreError(why, path=str(self.path), errno=errno.ENOTDIR)

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            fd, self._lock_fd = self._lock_fd, -1
            if fd >= 0:
                files.close(fd)
            if self._copy is not None:
                self._copy.cleanup()
                self._copy = None

    # --- inside ------------------------------------------------------------------------------------------------------

    def _outside(self) -> sqlite3.Connection:
        """The connection, in no transaction. One may be left of this thread, where an interrupt came as its `with` ended: as long as its
        traceback is kept, that is not closed. What is read in it would be what nobody has committed."""
        connection = self._open()
        if self._transaction is not None or connection.in_transaction:
            self._transaction = None
            connection.rollback()
            if self._lock_fd >= 0:
                files.set_lock(self._lock_fd, files.FREE)
        return connection

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._closed:
                raise StoreClosed(f"the store at {self.path.parent} was closed; open it again")
            if self._opened is not None:  # after a fork: SQLite would make a file where none is
                self.check_named()
            connection = self._connect_read_only() if self.read_only else self._connect(self.path.as_uri())
            try:
                if self.read_only:
                    self._refuse_later(connection)  # others are asked as they are opened, by `migrate`
                else:
                    if self._lock_fd < 0:
                        self._lock_fd = files.open_lock(self._lock_path)
                    # One after the other: SQLite does not wait for who makes a new file of that mode at the same time.
                    try:
                        files.lock(self._lock_fd)
                        connection.execute("PRAGMA journal_mode = WAL")
                    finally:
                        files.set_lock(self._lock_fd, files.FREE)
                    connection.execute("PRAGMA wal_autocheckpoint = 1000")
                self._opened = self._named()
                self._full = None
                self._connection = connection  # at the last: an interrupt before leaves none without its lock
            except BaseException:
                # Not by `_closed_if_failed`: an interrupt as that ended would leave a connection that is closed.
                self._connection = None
                connection.close()
                raise
        return self._connection

    def _named(self) -> tuple[int, int] | None:
        """Which file has the catalog's name now."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise files.translate(error, "look at", self.path) from error
        return found.st_dev, found.st_ino

    @staticmethod
    def _connect(uri: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        with _closed_if_failed(connection):
            connection.execute("PRAGMA cache_size = -8192")
        return connection

    def _connect_read_only(self) -> sqlite3.Connection:
        """SQLite cannot open a WAL database in a directory it may not write to, unless a writer has it open; then a copy
        in a temporary directory shows the same state."""
        try:
            with _closed_if_failed(self._connect(f"{self.path.as_uri()}?mode=ro")) as connection:
                connection.execute("SELECT COUNT(*) FROM meta").fetchone()
            return connection
        except sqlite3.OperationalError:
            self._copy = tempfile.TemporaryDirectory(prefix="jjq-catalog-")
            target = Path(self._copy.name) / self.path.name
            for suffix in ("-wal", ""):
                source = self.path.with_name(self.path.name + suffix)
                if source.exists():
                    shutil.copyfile(source, target.with_name(target.name + suffix))
            return self._connect(target.as_uri())

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            why = str(error)
            # What its processes share lies in a file beside it, for which whoever opens it first needs room.
            if "disk is full" in why or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHMSIZE:
                why = f"database or disk is full{files.FULL}"
            raise StoreError(f"the catalog {self.path} cannot be used: {why}", path=str(self.path)) from error
        except sqlite3.DatabaseError as error:
            raise StoreFormat(
                f"the catalog {self.path} is damaged ({error}); `jjq repair` rebuilds it from the segment files",
                path=str(self.path),
            ) from error
        except OSError as error:
            raise StoreError(f"cannot use {self._lock_path}: {error.strerror}", path=str(self._lock_path)) from error

    def before_fork(self) -> None:
        """Closes the connection, with the mutex held: it is opened again at the next use, on both sides.

        SQLite remembers for the whole process which locks it has on a file, and a child has none of its parent's locks. It would
        go on without any: the last one elsewhere that closes would take away the write-ahead log under it, and what the child
        writes from then on nobody would find.
        """
        connection = self._connection
        if connection is None or self._copy is not None:
            return
        self._connection = None
        with contextlib.suppress(sqlite3.Error):
            connection.close()

    def after_fork(self) -> None:
        """In a forked child: the parent's connection and lock are not ours to close, unlock or use."""
        self._mutex = threading.RLock()
        self._transaction = None
        if self._connection is not None:
            # Never closed, not even at exit: SQLite would take itself for the last user and tidy the parent's log away.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            self._connection = None
        if self._lock_fd >= 0:
            with contextlib.suppress(OSError):
                files.close(self._lock_fd)  # the parent's descriptor keeps the lock
            self._lock_fd = -1
        if self._copy is not None:
            _orphans.append(self._copy)
            self._copy._finalizer.detach()  # type: ignore[attr-defined] # the parent removes it
            self._copy = None


def _before_fork() -> None:
    """Waits until no thread is inside SQLite, and lets none in until the fork is done.

    SQLite has locks for the whole process (of its allocator, for one). A child forked while another thread holds one would
    wait for ever, since it does not have that thread. See `SqliteDriver.before_fork` for its locks on files.
    """
    _stopped.drivers = []
    for driver in living(_drivers):
        _stopped.drivers.append(driver)
        amid = driver._mutex._is_owned()  # type: ignore[attr-defined] # a signal's handler that forks while this thread is inside
        if driver._mutex.acquire(timeout=_BUSY_S) and not amid:
            driver.before_fork()


def _after_fork_in_parent() -> None:
    for driver in _stopped.drivers:
        with contextlib.suppress(RuntimeError):  # it could not be had in time
            driver._mutex.release()
    _stopped.drivers = []


def _after_fork_in_child() -> None:
    _stopped.drivers = []
    for driver in living(_drivers):
        driver.after_fork()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)  # fmt: skip
