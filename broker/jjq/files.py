"""Every operation on the disk, one function each.

All durable state goes through this module, so that a test can make each operation fail, or record them and replay
what a power cut would have left. Functions raise OSError; `translated` turns it into StoreError at the seam.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jjq.errors import StoreError

_datasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
FULL = "; free some space and try again (docs/operations.md, a full disk)"
GONE = "was removed or moved away while it was open; put it back, and open it again"
_ADVICE = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EACCES: "; this user may not: give it the permission, or run as the user the store belongs to",
    errno.EPERM: "; this user may not: give it the permission, or run as the user the store belongs to",
    errno.EISDIR: "; a directory lies where a file belongs: run `jjq repair`, which moves it to quarantine",
    errno.ENOTDIR: "; a file lies where a directory belongs: move it away, or name another place",
    errno.ESPIPE: "; it is no file: run `jjq repair`, which moves it to quarantine",
}
# Locks of Linux's on bytes that belong, like flock, to the open file; the two know nothing of each other.
WAIT, TRY, _ASK = (getattr(fcntl, f"F_OFD_{name}", 0) for name in ("SETLKW", "SETLK", "GETLK"))
TURNS = WAIT != 0  # whether the system has them
_BYTES_LOCK = struct.Struct("hhqqi4x")
SHARED, UNLOCKED = fcntl.F_RDLCK, fcntl.F_UNLCK
_NO_SUCH_CALL = (errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EPERM)  # on this file system, or in this sandbox
_IOV_MAX = 512  # POSIX promises 16, Linux and macOS take 1024


def _opened(path: str | Path, flags: int) -> int:
    """An open file. A signal that comes while the system opens it is handled as soon as that is done: what its handler raises must
    not leave a file that is open and that nobody knows of, as one that is removed would keep its place on the disk. So who opens it
    keeps it, too, before Python looks for signals."""
    found: list[int] = []
    try:
        found.extend(map(os.open, (path,), (flags | os.O_CLOEXEC,), (0o666,)))
    except BaseException:
        for fd in found:
            os.close(fd)
        raise
    return found[0]


def create(path: Path) -> int:
    """A new file for reading and writing; FileExistsError when the name is taken."""
    return _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


def open_rw(path: Path) -> int:
    return _opened(path, os.O_RDWR)


def open_ro(path: Path | str) -> int:
    # A pipe that lies where a file belongs is an error at the first read, and not something to wait for.
    return _opened(path, os.O_RDONLY | os.O_NONBLOCK)


def open_lock(path: Path, read_only: bool = False) -> int:
    """A lock file, made if missing. flock needs no write permission, so a read-only store can be locked too."""
    if read_only:
        return open_ro(path)
    return _opened(path, os.O_RDWR | os.O_CREAT)


def close(fd: int) -> None:
    os.close(fd)


# `seek(fd, 0, END)` is what `size` does, a call less where single pushes count each.
seek, END = os.lseek, os.SEEK_END


def size(fd: int) -> int:
    return seek(fd, 0, END)  # a third of the cost of fstat; nothing here reads or writes at the file's own position


def identity(fd: int) -> tuple[int, int]:
    """What no other file is as long as this one is open."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def is_named(file: tuple[int, int], path: str | Path) -> bool:
    """Whether an open file, by its identity, is what others find under its name: if not, nobody will see what is written to it."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (found.st_dev, found.st_ino) == file


def link_of(fd: int) -> str:
    """What `place` follows."""
    return f"/proc/self/fd/{fd}"


def places(links: tuple[str, ...]) -> tuple[str, ...] | None:
    """Where open files are now: elsewhere when they are moved, removed, or others get their names. None where the system does not say.

    For who asks often. Linux notes that somebody has asked for a file's times, as stat does, and gives the next write a time of its
    own, which that write's sync has to put on disk (multigrain timestamps, from 6.13 on): such syncs take half as long again.
    """
    try:
        return tuple(map(os.readlink, links))
    except OSError:
        return None


# `look(fd, length, position)` reads at most so many bytes, those that are there.
look = os.pread


def pread(fd: int, length: int, position: int) -> bytes:
    """Exactly `length` bytes, fewer only at the end of the file."""
    data = os.pread(fd, length, position)
    while len(data) < length:
        more = os.pread(fd, length - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def read(path: Path) -> bytes:
    """All bytes of a small file."""
    fd = open_ro(path)
    try:
        return pread(fd, os.fstat(fd).st_size, 0)  # of a directory, `size` may be more than can be asked for
    finally:
        close(fd)


def pwrite(fd: int, data: Any, position: int, least: int | None = None) -> int:
    """Writes all of `data` (bytes or a buffer) at `position`. Goes on after short writes, as a full disk makes them; where
    `least` bytes are enough, only up to those. Returns how many were written."""
    written = os.pwrite(fd, data, position)
    if written != len(data) and (least is None or written < least):
        view = memoryview(data).cast("B")[:least]
        _write_rest(fd, view, position, written)
        written = len(view)
    return written


def _write_rest(fd: int, view: memoryview, position: int, written: int) -> None:
    while written < len(view):
        more = os.pwrite(fd, view[written:], position + written)
        if more <= 0:
            raise OSError(errno.EIO, "the file system wrote nothing")
        written += more


def pwrite_all(fd: int, buffers: Sequence[Any], position: int) -> None:
    """Writes buffers one after the other at `position`: in one call where they are few, without joining large ones."""
    views = [memoryview(each).cast("B") for each in buffers if len(each)]
    for first in range(0, len(views), _IOV_MAX):
        group = views[first : first + _IOV_MAX]
        written = os.pwritev(fd, group, position)
        for view in group:
            if written < len(view):
                _write_rest(fd, view, position, max(0, written))
            written -= len(view)
            position += len(view)


def opened_by(path: Path) -> dict[int, str]:
    """The processes that have a file open, with their names; this one only where it has it open more than once. As far as the
    system tells this user: elsewhere than on Linux it tells nothing."""
    name, found = os.path.realpath(path), {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            links = sum(_leads_to(each.path, name) for each in os.scandir(process / "fd"))
            if links > (int(process.name) == os.getpid()):
                found[int(process.name)] = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
    return dict(sorted(found.items()))


def _leads_to(link: str, name: str) -> bool:
    try:
        return os.readlink(link) == name
    except OSError:  # closed meanwhile
        return False


def ring(path: Path) -> None:
    """Wakes who waits for a file to be written. Only a wake-up: where it fails, they look by themselves a little later."""
    with contextlib.suppress(OSError):
        fd = open_rw(path)
        try:
            pwrite(fd, b"\0", 0)
        finally:
            close(fd)


def set_size(fd: int, length: int) -> None:
    """Cuts a file, or lets it grow by zeros: which takes no room, so that it is possible on a full disk."""
    os.ftruncate(fd, length)


# `datasync(fd)` returns when the file's bytes and length are on disk. Never retried: after a failure the pages count as clean.
datasync = _datasync


@functools.cache
def _begin_writing() -> Callable[[int, int, int], int]:
    """Linux's sync_file_range, which Python does not have; nothing where the system has none. Returns an error's number, or 0."""
    import ctypes

    try:
        call = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return lambda fd, position, length: 0
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    write = 2  # SYNC_FILE_RANGE_WRITE
    return lambda fd, position, length: ctypes.get_errno() if call(fd, position, length, write) else 0


def begin_writing(fd: int, position: int, length: int) -> None:
    """Has the disk begin with bytes that a later sync is to wait for. What fails here that sync may not say again: it counts as one that
    failed."""
    code = _begin_writing()(fd, position, length)
    if code and code not in _NO_SUCH_CALL:
        raise OSError(code, os.strerror(code))


def wait_written(path: Path) -> None:
    """Waits until the disk has what the file holds now, through a description of its own: an error is not told here, but to who
    syncs through another one."""
    with contextlib.suppress(OSError):
        fd = _opened(path, os.O_RDONLY)
        try:
            _datasync(fd)
        finally:
            os.close(fd)


def sync_dir(path: Path) -> None:
    """Makes the names in a directory durable."""
    fd = _opened(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_dirs(path: Path, within: Path | None = None) -> None:
    """A directory and those above it; in a store (`within`) only where that is there: one that was moved away is not begun again, nor
    what lies in its place made one."""
    if within is not None and not (within / "jjq.json").exists():
        raise FileNotFoundError(errno.ENOENT, f"the store {GONE}", str(within))
    path.mkdir(parents=True, exist_ok=True)


def replace(source: Path, target: Path) -> None:
    os.replace(source, target)


def move(source: Path, target: Path) -> None:
    """Moves a file, or what lies in its place, also to another file system."""
    try:
        replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if source.is_symlink() or not source.is_file():
            shutil.move(source, target)
            return
        shutil.copy2(source, target)
        fd = open_rw(target)
        try:
            datasync(fd)
        finally:
            close(fd)
        unlink(source)


def unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def remove_dir(path: Path) -> None:
    path.rmdir()


def write_small(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replaces a small file atomically and durably: new file, synced, renamed over the old one, directory synced.

    `mode`: permissions other than the usual ones.
    """
    temporary = path.with_name(path.name + ".new")
    unlink(temporary)
    fd = create(temporary)
    try:
        try:
            if mode is not None:
                os.fchmod(fd, mode)
            pwrite(fd, data, 0)
            datasync(fd)
        finally:
            close(fd)
        replace(temporary, path)
    except BaseException:  # nobody would look for it
        with contextlib.suppress(OSError):
            unlink(temporary)
        raise
    sync_dir(path.parent)


def lock(fd: int, *, shared: bool = False, wait: bool = True) -> bool:
    """flock; False when it is held elsewhere and `wait` is false."""
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if wait:
        fcntl.flock(fd, operation)
        return True
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def bytes_lock(start: int, kind: int = fcntl.F_WRLCK, length: int = 1) -> bytes:
    """A lock of so many bytes of a file, or its end, as `turn` takes it."""
    return _BYTES_LOCK.pack(kind, os.SEEK_SET, start, length, 0)


_FRONT, _LEAVE_FRONT = bytes_lock(0), bytes_lock(0, UNLOCKED)
# `turn(fd, WAIT, lock)` and `turn(fd, TRY, lock)`, which raises BlockingIOError; `set_lock(fd, FREE)` unlocks. As functions of Python they
# would have a line before which an interrupt could come.
turn: Callable[[int, int, bytes], bytes] = fcntl.fcntl
set_lock = fcntl.flock
EXCLUSIVE, FREE = fcntl.LOCK_EX, fcntl.LOCK_UN


def is_held(fd: int, start: int) -> bool:
    """Whether somebody else has the lock of this byte."""
    return bool(_BYTES_LOCK.unpack(turn(fd, _ASK, bytes_lock(start)))[0] != UNLOCKED)


def lock_in_turn(fd: int) -> None:
    """flock, such that who has just let go does not have it again before one who waits.

    The kernel gives a file's lock to who asks first once it is free, which is most often the process that has let go: it
    runs already. So one waits in front, holding the turn, and the others wait for the turn: of two locks the one who runs
    can take only the first ahead of somebody. Costs two system calls; where there is no such lock it is a plain flock.
    """
    if not TURNS:
        fcntl.flock(fd, fcntl.LOCK_EX)
        return
    try:  # in front of both: an interrupt between the two must not leave a turn to somebody who never locks
        turn(fd, WAIT, _FRONT)
        fcntl.flock(fd, fcntl.LOCK_EX)
    finally:
        turn(fd, TRY, _LEAVE_FRONT)


def try_turn(fd: int) -> bool:
    """`lock_in_turn` where nobody has it or waits for it, else False."""
    return not (TURNS and is_held(fd, 0)) and lock(fd, wait=False)


@contextlib.contextmanager
def translated(operation: str, path: Path | str) -> Iterator[None]:
    """Turns an OSError inside into a StoreError that names the operation and the path."""
    try:
        yield
    except OSError as error:
        raise translate(error, operation, path) from error


@contextlib.contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Like `translated`, but a file that is not there stays FileNotFoundError: readers then plan again."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise translate(error, "read", path) from error


def translate(error: OSError, operation: str, path: Path | str) -> StoreError:
    reason = error.strerror or str(error)
    where = "" if error.filename is None else os.fsdecode(error.filename)
    if where and where != str(path):
        reason = f"{where}: {reason}"
    return StoreError(
        f"cannot {operation} {path}: {reason}{_ADVICE.get(error.errno or 0, '')}",
        operation=operation, path=str(path), errno=error.errno,
    )  # fmt: skip
