"""One partition among threads and processes: its lock, its active file, rolling, recovering. What appends is in `partition.py`.

Methods that need the partition's lock end in `_locked`; whoever calls them holds the leader lock of this object before.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jjq import files
from jjq.clock import now_us
from jjq.errors import DamagedSegment, StoreError
from jjq.log.active import LARGE_BYTES, ActiveFile
from jjq.log.contracts import LogCatalog, LogSettings, PartitionState, TopicFacts
from jjq.log.recovery import copy_whole, cut_index, lacks_entries, survey
from jjq.log.stream import missing_active, missing_directory, stream_paths
from jjq.log.waiting import END_ROUND, Waiting
from jjq.model import Segment

# How often the active file's name is looked for; where pushes wait for the disk, its place is asked for at each.
_LOOK_US = 100_000
_DROPPED = ("emptied", "deleted")  # why a file is closed whose records nobody wants any more


class Partition:
    """One partition as this process holds it: at most one thread at a time leads."""

    def __init__(self, directory: Path, topic_id: str, partition: int, catalog: LogCatalog, facts: TopicFacts,
                 boot_id: str, sidecar: Callable[[str], str], grace_us: int) -> None:  # fmt: skip
        self.directory = directory
        self.topic_id = topic_id
        self.partition = partition
        self._topic_bytes = bytes.fromhex(topic_id)
        self._catalog = catalog
        self._facts = facts
        self._boot_id = boot_id
        self._relative = sidecar  # a file name in this directory -> its path relative to the store, for garbage rows
        self._grace_us = grace_us
        self._leader = threading.Lock()
        self._lock_fd = -1
        self._waiting: Waiting | None = None  # once it has met others
        self._active: ActiveFile | None = None
        self._looked_at = 0  # when its name was looked for
        # Until then, and to this length, it takes records without another question; never where each push is to ask for its place.
        self._good_until = self._good_to = 0
        self._settings: LogSettings | None = None

    # --- the lock ----------------------------------------------------------------------------------------------------

    def _lock(self) -> None:
        """The caller unlocks, and does so although this was interrupted: it may have locked."""
        if self._lock_fd < 0:
            self._open_lock()
        settings = self._settings
        if settings is not None and settings.sync != "always":
            files.set_lock(self._lock_fd, files.EXCLUSIVE)
            return
        # A turn is a sync long, so who is passed over waits for many.
        if not files.try_turn(self._lock_fd):
            files.lock_in_turn(self._lock_fd)
            if settings is not None:
                self._open_waiting()
        if self._waiting is not None:
            self._waiting.begin_round_locked()

    def _open_waiting(self) -> None:
        """Others push as well: they may ask this process."""
        if self._waiting is None and files.TURNS:
            with contextlib.suppress(OSError):  # then each waits for the lock
                self._waiting = Waiting(self.directory)

    def _open_lock(self) -> None:
        with files.translated("lock", self.directory):
            try:
                self._lock_fd = files.open_lock(self.directory / "lock")
            except FileNotFoundError as error:
                self._catalog.check_named()
                self._catalog.partition(
                    self.topic_id, self.partition
                )  # raises TopicDeleted: its directory went with it
                raise missing_directory(self.directory) from error

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """The partition among threads and processes, for callers outside."""
        with self._leader, files.translated("lock", self.directory):
            # Both in one generator: where an interrupt comes as its `with` ends, it is closed at any later time, and must not unlock
            # the file under another thread.
            try:
                self._lock()
                yield
            finally:
                if self._lock_fd >= 0:
                    try:
                        files.set_lock(self._lock_fd, files.FREE)
                    finally:
                        if self._waiting is not None:
                            files.turn(self._waiting.fd, files.TRY, END_ROUND)

    # --- the active file, under the lock -----------------------------------------------------------------------------

    def _ready_locked(self, now: int) -> ActiveFile:
        """The active file, open and able to take records; whatever was left undone by others is done first."""
        active = self._active
        if (
            active is not None
            and self._looked_at <= now < self._good_until
            and active.ready_locked()
            and active.length < self._good_to
        ):
            return active
        while True:
            active = self._active
            if active is None:
                active = self._load_locked(now)
            if not active.ready_locked():
                try:
                    active.refresh_locked()
                except DamagedSegment:
                    self._catalog.partition(
                        self.topic_id, self.partition
                    )  # raises TopicDeleted: its files need not be whole
                    raise
                if active.closed:
                    self._finish_locked(active, now)
                    continue
                if active.failed or active.torn_locked():
                    self._close_locked(active, "torn")
                    continue
            settings = self._settings
            assert settings is not None
            # An acknowledgement of what nobody will find is none. Where none means a sync, looking each time would cost.
            due = abs(now - self._looked_at) > _LOOK_US
            if due or settings.sync == "always":
                if not active.named(surely=due):
                    self._check_lock_named()
                    self.forget_active()  # opened by its name again, it says what is missing
                    continue
                if due:
                    self._looked_at = now
            full, age = active.head_length + settings.segment_bytes, settings.segment_age_us
            if (
                active.length < full
                and (settings.segment_rows is None or active.rows < settings.segment_rows)
                and (age is None or now - active.opened_at < age)
            ) or not active.rows:
                if settings.sync != "always" and settings.segment_rows is None:
                    until = self._looked_at + _LOOK_US
                    self._good_until, self._good_to = until if age is None else min(until, active.opened_at + age), full
                return active
            if due:
                active.close_locked("rolled")
                self._finish_locked(active, now)
            self._looked_at = 0  # it is ended only where it is sure to be the one that others find

    def _check_lock_named(self) -> None:
        """Raises StoreError where another directory has come in this one's place: who opens that locks another file."""
        path = self.directory / "lock"
        if path.exists() and not files.is_named(files.identity(self._lock_fd), path):
            raise StoreError(
                f"{self.directory} was replaced while it was open, so nothing can be appended; open the store again",
                operation="append to", path=str(self.directory), errno=errno.ENOTDIR,
            )  # fmt: skip

    def _load_locked(self, now: int) -> ActiveFile:
        self._check_lock_named()
        row = self._catalog.partition(self.topic_id, self.partition)
        settings = self._facts.settings()
        if row.boot_id != self._boot_id:
            row = self.recover_locked(row, settings)
        if row.active is None:
            active = self._create_locked(row.end_offset, row.prefix_max_ts, settings, now)
            self._name_active_locked(row, active, None, settings)
            self.ring_locked()
        else:
            active = self._open_active(row)
        self._active, self._settings = active, settings
        return active

    def _open_active(self, row: PartitionState) -> ActiveFile:
        assert row.active is not None
        try:
            return ActiveFile.open(self.directory, row.active)
        except FileNotFoundError as error:
            self._catalog.check_named()
            raise missing_active(stream_paths(self.directory, row.active)[0], row.end_offset) from error

    def _create_locked(self, base: int, floor_ts: int, settings: LogSettings, now: int) -> ActiveFile:
        schema = self._facts.physical(settings.schema_version)
        return ActiveFile.create(self.directory, uuid.uuid4().hex, schema, base, floor_ts, now)

    def _name_active_locked(
        self, row: Any, active: ActiveFile, closed: ActiveFile | None, settings: LogSettings
    ) -> None:
        """One transaction: takes the closed file's row in and names the new active file."""
        lineage_start = None
        garbage: list[str] = []
        if closed is not None:
            if closed.highest_visible_locked() > closed.end:
                lineage_start = closed.end
            if not closed.rows:
                garbage = [self._relative(path.name) for path in stream_paths(self.directory, closed.uuid)]
        try:
            self._catalog.roll(
                row,
                closed=closed.segment(row.active_schema) if closed is not None and closed.rows else None,
                active=active.uuid, active_schema=settings.schema_version, boot_id=self._boot_id,
                lineage_start=lineage_start, garbage=garbage, due_at=now_us() + self._grace_us,
            )  # fmt: skip
        except BaseException:
            # Whether the transaction got through is not known, so the file stays; maintenance finds it if nobody names it.
            active.close_descriptors()
            self.forget_active()
            raise

    def _finish_locked(self, closed: ActiveFile, now: int) -> None:
        """A closed file gets its row, unless somebody has given it one; another file becomes active."""
        row = self._catalog.partition(self.topic_id, self.partition)
        if row.active != closed.uuid:
            self.forget_active()
            return
        closed.settle_locked()
        self._settings = settings = self._facts.settings()
        active = self._create_locked(closed.end, closed.last_ts, settings, now)
        self._name_active_locked(row, active, closed, settings)
        self.forget_active()
        self._active, self._settings = active, settings
        self.ring_locked()

    def close_active_locked(self, reason: str) -> tuple[Any, Segment | None]:
        """Ends the active file for a change of the catalog by the caller, in whose transaction the row belongs.

        Returns the partition's row and the closed file's segment (None when it had no records).
        """
        row = self._catalog.partition(self.topic_id, self.partition)
        if row.boot_id != self._boot_id:
            row = self.recover_locked(row, self._facts.settings())
        if row.active is None:
            self.forget_active()
            return row, None
        active = self._named_locked(row)
        if not active.closed:
            self._close_locked(active, reason)
        active.settle_locked()
        if active.highest_visible_locked() > active.end:
            # Records were taken back: that needs a lineage of its own, which a plain roll gives it.
            self._finish_locked(active, now_us())
            return self.close_active_locked(reason)
        segment = active.segment(row.active_schema) if active.rows else None
        return row, segment

    def _close_locked(self, active: ActiveFile, reason: str) -> None:
        """Ends the active file, which may be torn or have had a sync that failed. Raises DamagedSegment where that would lose
        records because the index does not know of them any more."""
        if active.failed:
            reason = "failed"
        elif reason not in _DROPPED and active.torn_locked() and lacks_entries(active.path, active.length):
            raise cut_index(active.index_path, active.end)
        active.close_locked(reason)

    def _named_locked(self, row: PartitionState) -> ActiveFile:
        """The active file that the partition's row names, with what others have written taken in."""
        active = self._active
        if active is None or active.uuid != row.active or not active.named(surely=True):
            self._check_lock_named()
            self.forget_active()
            settings = self._facts.settings()
            active = self._open_active(row)
            self._active, self._settings = active, settings  # both, or after an interrupt neither
        active.refresh_locked()
        return active

    def roll_locked(self, reason: str = "rolled") -> bool:
        """Rolls the active file if it has records; True if it did."""
        row = self._catalog.partition(self.topic_id, self.partition)
        if row.active is None:
            return False
        now = now_us()
        self._looked_at = self._good_until = 0
        active = self._ready_locked(now)
        if not active.rows:
            return False
        active.close_locked(reason)
        self._finish_locked(active, now)
        return True

    def sync(self) -> None:
        """Puts on disk what was appended without a sync, by any process."""
        active = self._active
        if active is not None and active.length - active.synced_position >= LARGE_BYTES:
            files.wait_written(active.path)  # while others append: what is left under the lock is little
        with self.exclusive(), files.translated("sync", self.directory):
            row = self._catalog.partition(self.topic_id, self.partition)
            if row.active is None or row.boot_id != self._boot_id:
                return
            self._named_locked(row).sync_locked()

    def roll_if_old(self, now: int) -> bool:
        """Rolls an active file that is over its age though nobody appends; True if it did."""
        with self.exclusive():
            row = self._catalog.partition(self.topic_id, self.partition)
            if row.active is None:
                return False
            before = row.active
            self._ready_locked(now)
            return bool(self._catalog.partition(self.topic_id, self.partition).active != before)

    def ring_locked(self) -> None:
        """Wakes who waits for this partition after a change that is no append: those are seen by themselves."""
        if self._lock_fd >= 0:
            with contextlib.suppress(OSError):  # only a wake-up: who waits looks again by itself a little later
                files.pwrite(self._lock_fd, b"\0", 0)

    def forget_active(self) -> None:
        active, self._active = self._active, None  # first: after an interrupt nobody must come upon a closed one
        self._settings, self._good_until = None, 0
        if active is not None:
            active.close_descriptors()

    # --- recovery ----------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Verifies the active file if this is the first touch under another boot."""
        with self.exclusive():
            row = self._catalog.partition(self.topic_id, self.partition)
            if row.boot_id != self._boot_id:
                self.recover_locked(row, self._facts.settings())

    def recover_locked(self, row: Any, settings: LogSettings) -> Any:
        """After a reboot the index may lag behind the data and the data may have holes: the messages themselves decide.

        Returns the partition's row of this boot. What was acknowledged as durable is there, or DamagedSegment is
        raised. Where the end may have moved back, a new lineage begins.
        """
        self.forget_active()
        if row.active is None:
            return self._catalog.roll(
                row, closed=None, active=None, active_schema=row.active_schema, boot_id=self._boot_id
            )
        schema = self._facts.physical(row.active_schema)
        found = survey(self.directory, row, schema, self._topic_bytes, self.partition)
        lineage_start = found.end if settings.sync != "always" or found.index_end > found.end else None
        active, garbage = row.active, []
        if found.clean and not found.closed:
            self._say_synced_locked(row)
        if not found.clean:
            copy = copy_whole(self.directory, row, schema, self._topic_bytes, self.partition, found)
            active = copy.uuid
            copy.close_descriptors()
            garbage = [self._relative(path.name) for path in stream_paths(self.directory, row.active)]
        return self._catalog.roll(
            row, closed=None, active=active, active_schema=row.active_schema, boot_id=self._boot_id,
            lineage_start=lineage_start, garbage=garbage, due_at=now_us() + self._grace_us,
        )  # fmt: skip

    def _say_synced_locked(self, row: PartitionState) -> None:
        """What was read after a reboot is on disk, and a lineage rests on it: the index is to say so."""
        active = self._open_active(row)
        try:
            active.refresh_locked()
            active.sync_locked()
        finally:
            active.close_descriptors()

    # --- the life of the object --------------------------------------------------------------------------------------

    def close(self) -> None:
        with self._leader:
            self.forget_active()
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                waiting.close()
            fd, self._lock_fd = self._lock_fd, -1
            if fd >= 0:
                files.close(fd)

    def after_fork(self) -> None:
        """In a forked child: closing the descriptors leaves the parent's locks alone, unlocking would not."""
        self._leader = threading.Lock()
        self.forget_active()
        if self._lock_fd >= 0:
            with contextlib.suppress(OSError):
                files.close(self._lock_fd)
            self._lock_fd = -1
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            with contextlib.suppress(OSError):
                waiting.close()
