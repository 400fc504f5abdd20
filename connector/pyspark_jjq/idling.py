"""What a query does while there is nothing new: it rests, and is woken by what is written to its topics."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jjq.errors import JjqError
from pyspark_jjq.options import BrokerUrl
from pyspark_jjq.stores import open_store

if TYPE_CHECKING:
    from jjq.wake import Listener
    from pyspark_jjq.stores import TopicView

# An idle query asks for the end about every 15 ms. It may spend a tenth of a core on that, and looks every 0.2 s.
IDLE_SHARE = 10
IDLE_PAUSE_MAX_S = 0.2
MOST_WATCHED = 16  # partitions: to find the files of each takes a look at the catalog


class Idle:
    """The rest between two looks that find nothing. For one thread.

    Of a store on this machine the kernel tells what is written, to who has listened since before the look. A broker is told
    what the look has found, and answers when there is something else.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._until = 0.0
        self._views: Collection[TopicView] = ()
        self._listener: Listener | None = None
        self._armed: int | None = None  # since when it is listened; None: a rest ends with its time alone

    def rest(self) -> None:
        """Waits as `begin` said, or less where something has been written since `listen`."""
        pause = self._until - time.monotonic()
        if pause <= 0:
            return
        if self._armed is None:
            time.sleep(pause)
        elif self._listener is not None:
            self._listener.sleep(self._armed, pause)
        else:
            self._await(pause)

    def listen(self) -> None:
        """Before a look: what is written from here on ends the rest after it."""
        self._armed = None
        if not self._views or sum(len(view.offsets) for view in self._views) > MOST_WATCHED:
            return
        if isinstance(self._path, BrokerUrl):
            self._armed = 0
            return
        if self._listener is None:
            self._listener = open_store(self._path).listener(self._paths)
        self._armed = self._listener.arm()

    def watch(self, views: Collection[TopicView]) -> None:
        """What a look has seen, to listen to from the next one on."""
        self._views = views

    def begin(self, cost: float, *, woken: bool) -> None:
        """After a look that took `cost` seconds and found nothing to do. Not `woken`: there is something, but too little,
        and more of it changes nothing each time."""
        if not woken:
            self._armed = None
        waits = self._armed is not None and self._listener is None  # to ask a broker more often tells nothing sooner
        self._until = time.monotonic() + (IDLE_PAUSE_MAX_S if waits else min(cost * IDLE_SHARE, IDLE_PAUSE_MAX_S))

    def end(self) -> None:
        """After a look that found something."""
        self._until = 0.0

    def _await(self, pause: float) -> None:
        store: Any = open_store(self._path)
        ends = [(view.id, p, each.end) for view in self._views for p, each in view.offsets.items()]
        try:
            store.await_records(ends, pause)
        except JjqError:  # a topic that is gone, a broker that is: the look says it
            time.sleep(max(0.0, self._until - time.monotonic()))

    def _paths(self) -> list[Path] | None:
        found: list[Path] = []
        for view in self._views:
            for partition in view.offsets:
                try:
                    paths = view.reader.watched(partition)
                except JjqError:  # such as of a topic that is gone, which the look will say
                    return None
                if paths is None:
                    return None
                found += paths
        return found
