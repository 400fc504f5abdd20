"""Processes that push to one partition at once, as far as one process can play them: a store that is opened twice has two descriptors
of each lock, as two processes have."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jjq
from jjq import files
from jjq.log import waiting
from jjq.log.format import BATCH, ENTRY_SIZE, unpack_entries
from jjq.log.partition import PartitionLog
from tests.stores import paths


class Pusher:
    """A store of its own, from which a thread pushes one value."""

    def __init__(self, path: Path, meet: bool) -> None:
        self.store = jjq.open(path, maintenance=False)
        self.topic = self.store.topic("t")
        self.log: PartitionLog = self.store.logs[self.topic.id, 0]
        self.offset: int | None = None
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if meet:
            self.meet_others()

    def meet_others(self) -> None:
        self.topic.push(b"met")  # which opens its files
        with self.log.exclusive():
            self.log._open_waiting()
            assert self.log._waiting is not None
            self.log._waiting.seek_slot_locked()

    @property
    def slot(self) -> int:
        assert self.log._waiting is not None
        return self.log._waiting._slot

    def dies(self) -> None:
        """As far as others see it: the kernel frees its locks."""
        waits, self.log._waiting = self.log._waiting, None
        assert waits is not None
        waits.close()

    def asks(self) -> bool:
        with paths(self.store.path, "waiting")[0].open("rb") as file:
            numbers = file.read(waiting.NUMBERS.size).ljust(waiting.NUMBERS.size, b"\0")
        return bool(waiting.NUMBERS.unpack(numbers)[self.slot])

    def push(self, value: bytes, **options: Any) -> None:
        """In a thread, and returns when it waits for who has the lock."""

        def run() -> None:
            try:
                self.offset = self.topic.push(value, **options).offset
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()
        while not self.asks() and self._thread.is_alive():
            os.sched_yield()

    def join(self) -> int | None:
        assert self._thread is not None
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.offset


@contextlib.contextmanager
def somebody_has_the_lock(path: Path) -> Iterator[None]:
    """A process that has the partition's lock, and neither pushes nor knows of those who wait."""
    fd = files.open_rw(paths(path, "lock")[0])
    try:
        assert files.lock(fd, wait=False)
        yield
    finally:
        files.close(fd)


def values(path: Path) -> list[bytes]:
    with jjq.open(path, maintenance=False) as store:
        found = store.topic("t").read().read_all()["value"].to_pylist()
    return [value for value in found if value != b"met"]


def groups(path: Path) -> list[int]:
    """The rows of each message, over all files."""
    entries = [entry for each in paths(path, "*.index") for entry in unpack_entries(whole(each))]
    return [entry.rows for entry in entries if entry.kind == BATCH]


def whole(index: Path) -> bytes:
    data = index.read_bytes()
    return data[: len(data) // ENTRY_SIZE * ENTRY_SIZE]
