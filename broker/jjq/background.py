"""What a process does for its stores beside its own work: syncing `interval` topics, and the care the store needs."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from jjq.clock import host, now_us
from jjq.errors import JjqError, StoreClosed, TopicDeleted

if TYPE_CHECKING:
    from jjq.log.partition import PartitionLog
    from jjq.store import Store

log = logging.getLogger("jjq.maintenance")

LAST_TURN = "maintenance"  # key in the catalog's meta table
INTERVAL_S = 10.0
_RETRY_S = 1.0  # after a sync that failed
_THOROUGH_US = 3_600_000_000  # between turns that look at every file


class Syncer:
    """Syncs partitions of `interval` topics in the background, each when its interval since the first unsynced append is over."""

    def __init__(self) -> None:
        self._due: dict[PartitionLog, float] = {}  # and when, by the monotonic clock
        self._mutex = threading.Lock()  # taken by itself: where a condition takes it, an interrupt may leave it taken
        self._wake = threading.Condition(self._mutex)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="jjq-sync", daemon=True)
        self._thread.start()

    def watch(self, log: PartitionLog, interval_s: float) -> None:
        if log not in self._due:
            with self._mutex:
                self._due.setdefault(log, time.monotonic() + interval_s)
                self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._mutex:
                while not self._stopping:
                    left = min(self._due.values()) - time.monotonic() if self._due else None
                    if left is not None and left <= 0:
                        break
                    self._wake.wait(left)
                stopping, now = self._stopping, time.monotonic()
                logs = [each for each, due in self._due.items() if stopping or due <= now]
                for each in logs:
                    del self._due[each]
            for each in logs:
                try:
                    each.sync()
                except (StoreClosed, TopicDeleted):
                    pass
                except Exception as error:  # noqa: BLE001 - the others are to be synced all the same
                    # Who pushed was answered long ago. A sync that failed has closed the file where it is on disk, or, where
                    # that could not be written either, does so when it is tried again; it is never believed then.
                    log.warning("what was pushed since the last sync may be lost: %s", error)
                    self.watch(each, _RETRY_S)
            if stopping:
                return

    def stop(self) -> None:
        with self._mutex:
            self._stopping = True
            self._wake.notify()
        self._thread.join()


class Caretaker:
    """Does a store's maintenance every now and then as long as this process has it open.

    Among processes one does it at a time, and not again before `INTERVAL_S` have passed since the last. Most turns look
    only at partitions that have changed; once an hour one looks at every file. What the last turn did is in the catalog.
    """

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)  # a store that was forgotten without being closed is let go
        self._stopped = threading.Event()
        self._seen: dict[tuple[str, int], object] = {}
        self._thread = threading.Thread(target=self._run, name="jjq-maintenance", daemon=True)
        self._thread.start()

    @classmethod
    def begun(cls, store: Store) -> Caretaker | None:
        """None where no thread can begin, as where the process ends: then others take their turns."""
        try:
            return cls(store)
        except RuntimeError as error:
            log.warning("this process does no maintenance of %s: %s", store.path, error)
            return None

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL_S):
            store = self._store()
            if store is None:
                return
            try:
                self.turn(store)
            except (JjqError, OSError) as error:
                log.debug("maintenance of %s was put off: %s", store.path, error)
            del store

    def turn(self, store: Store) -> bool:
        """One turn, if it is time; True if it was done."""
        from jjq.maintenance import Maintenance

        last = last_turn(store) or {}
        now = now_us()
        # A turn that lies in the future was before the clock was set back, and says nothing.
        if 0 <= now - int(last.get("at", 0)) < INTERVAL_S * 1_000_000 * 0.9:
            return False
        thorough = not 0 <= now - int(last.get("thorough_at", 0)) < _THOROUGH_US
        with Maintenance(store, stop=self._stopped) as work:
            if work.report.busy:
                return False
            work.run(thorough=thorough, seen=self._seen)
            report = {name: value for name, value in work.report.to_dict().items() if value}
        note = {
            "at": now, "thorough_at": now if thorough else last.get("thorough_at", 0), "took_us": now_us() - now,
            "host": host(), "pid": os.getpid(), "did": report,
        }  # fmt: skip
        store.catalog.set_meta(LAST_TURN, json.dumps(note), durable=False)
        for error in work.report.errors:
            log.warning("maintenance of %s: %s", store.path, error)
        return True

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


def last_turn(store: Store) -> dict[str, Any] | None:
    """When maintenance was last done in the background (`at`, microseconds), by whom, and what it did; None before."""
    text = store.catalog.meta(LAST_TURN)
    return None if text is None else dict(json.loads(text))
