"""Whether the broker can do its work: whether what it writes gets to the disk, asked when somebody asks, by writing."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
import time
from typing import NamedTuple

from jjq import files
from jjq.errors import JjqError
from jjq.server.http_errors import without_paths
from jjq.store import Store

_FRESH_S = 1.0  # an answer is given again for as long, so that asking often costs nothing
_PATIENCE_S = 5.0  # a disk that has not answered by then is a bad one
_PROBE = bytes(4096)

log = logging.getLogger("jjq.server.http")


class Verdict(NamedTuple):
    ok: bool
    reason: str  # empty when all is well


class Health:
    """Asked from one event loop. The probe has a thread of its own: a disk that hangs must not hold up others."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last = Verdict(True, "")
        self._last_at = 0.0
        self._probing: asyncio.Future[Verdict] | None = None

    async def check(self) -> Verdict:
        """The disk as it was within the last second, or is now."""
        if time.monotonic() - self._last_at < _FRESH_S:
            return self._last
        if self._probing is None:
            self._probing = asyncio.get_running_loop().create_future()
            threading.Thread(target=self._run, args=(self._probing,), name="jjq-health", daemon=True).start()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await asyncio.shield(self._probing)
        except TimeoutError:
            return Verdict(False, f"the disk has not answered for {_PATIENCE_S:.0f} seconds")

    def _run(self, asked: asyncio.Future[Verdict]) -> None:
        verdict = probe(self._store)
        try:
            asked.get_loop().call_soon_threadsafe(self._answered, asked, verdict)
        except RuntimeError:  # the loop is closed
            return

    def _answered(self, asked: asyncio.Future[Verdict], verdict: Verdict) -> None:
        if verdict.ok != self._last.ok:
            if verdict.ok:
                log.warning("the store is well again")
            else:
                log.error("the store is not well: %s", verdict.reason)
        self._last, self._last_at, self._probing = verdict, time.monotonic(), None
        if not asked.done():
            asked.set_result(verdict)


def probe(store: Store) -> Verdict:
    """Writes a little to a file without a name in the store, syncs it, and looks into the catalog. A directory that was put in the
    place of the store takes that too, and nothing that is pushed: only a broker that is started anew serves it."""
    try:
        store.check_open()
        store.catalog.check_named()
        store.catalog.topic_names()
        if not store.read_only:
            with tempfile.TemporaryFile(dir=store.path) as file:
                files.pwrite(file.fileno(), _PROBE, 0)
                files.datasync(file.fileno())
    except OSError as error:
        return Verdict(False, f"a write to the store failed: {error.strerror or type(error).__name__}")
    except JjqError as error:
        return Verdict(False, without_paths(error.message, store.path))
    except Exception as error:  # noqa: BLE001 - whatever it is, all is not well
        return Verdict(False, f"the store cannot be used: {type(error).__name__}")
    return Verdict(True, "")
