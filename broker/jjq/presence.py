"""Who consumes a channel: files under `channels/<id>/` that are locked as long as a consumer lives, and one that is written
to wake those who wait."""

from __future__ import annotations

import contextlib
import time
import uuid
from pathlib import Path

from jjq import files

_RING = "ring"
_YOUNG_S = 60.0


class Presence:
    """One consumer's lock; the kernel frees it when the process dies."""

    def __init__(self, store: Path, channel_id: int) -> None:
        self.id = uuid.uuid4().hex
        self._fd = -1
        where = directory(store, channel_id)
        self._path = where / f"{self.id}.lock"
        with files.translated("join a channel in", where):
            files.make_dirs(where, within=store)
            files.close(files.open_lock(where / _RING))
            self._fd = files.open_lock(self._path)
            files.lock(self._fd)

    def close(self, *, remove: bool) -> None:
        """Closing, not unlocking: in a forked child the lock stays the parent's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if remove:
                with contextlib.suppress(OSError):
                    files.unlink(self._path)
            files.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close(remove=False)


def is_alive(store: Path, channel_id: int, consumer: str) -> bool:
    try:
        fd = files.open_ro(directory(store, channel_id) / f"{consumer}.lock")
    except FileNotFoundError:
        return False
    try:
        return not files.lock(fd, shared=True, wait=False)
    finally:
        files.close(fd)


def forget(store: Path, channel_id: int, consumer: str) -> None:
    """Removes the lock of a consumer that is gone; ids are never used again."""
    with contextlib.suppress(OSError):
        files.unlink(directory(store, channel_id) / f"{consumer}.lock")


def sweep(store: Path, channel_id: int) -> None:
    """Removes locks that nobody holds: their consumers died before anybody knew of them."""
    try:
        found = [path for path in directory(store, channel_id).iterdir() if path.suffix == ".lock"]
    except FileNotFoundError:  # the channel was deleted meanwhile
        return
    for path in found:
        with contextlib.suppress(OSError):
            # One that was made a moment ago may not be locked yet.
            if time.time() - path.stat().st_mtime > _YOUNG_S and not is_alive(store, channel_id, path.stem):
                files.unlink(path)


def ring(store: Path, channel_id: int) -> None:
    """Wakes whoever waits in a channel, after a change that is no push."""
    files.ring(bell(store, channel_id))


def bell(store: Path, channel_id: int) -> Path:
    """The file that is written to wake who waits; it is there when somebody has consumed."""
    return directory(store, channel_id) / _RING


def directory(store: Path, channel_id: int) -> Path:
    return store / "channels" / str(channel_id)


def remove(store: Path, channel_id: int) -> None:
    """Removes the files of a channel that is gone, and wakes who waits in it."""
    ring(store, channel_id)
    where = directory(store, channel_id)
    with contextlib.suppress(OSError):
        for path in sorted(where.iterdir()):
            files.unlink(path)
        files.remove_dir(where)
