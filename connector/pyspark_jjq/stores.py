"""Opened stores, one a process and path: Spark reuses its Python workers, and opening costs more than a small task."""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from jjq.clock import boot_id, host
from jjq.errors import BrokerUnavailable, JjqError, StoreNotFound, TopicNotFound
from pyspark_jjq.choice import Choice
from pyspark_jjq.options import Access, BrokerUrl

if TYPE_CHECKING:
    from jjq import Store, Topic
    from jjq.log.reader import LogReader
    from jjq.model import PartitionOffsets, TopicOffsets

Result = TypeVar("Result")

_opened: dict[tuple[int, str | tuple[str, Access]], tuple[tuple[int, int] | None, Store]] = {}

# Spark does not try the calls of a source's driver side again: a hiccup of the disk would end the query.
ATTEMPTS = 5
FIRST_PAUSE_S = 0.05


def open_store(path: str, *, create: bool = False) -> Store:
    """The store in the directory `path`, or behind the broker that it names, opened at most once in this process.

    Raises StoreNotFound where there is none and `create` is false, BrokerUnavailable.
    """
    from pyspark import TaskContext

    import jjq

    if isinstance(path, BrokerUrl):
        return _connect(path)
    # A forked child must not use its parent's handles, and a directory made anew under the same name is another store.
    key = (os.getpid(), os.path.abspath(path))
    identity = _identity(path)
    known = _opened.get(key)
    if known is not None and known[0] == identity and identity is not None:
        return known[1]
    # The planner and the committer stay as long as the query, so they take their turn at maintenance; tasks do not.
    store = jjq.open(path, create=create, maintenance=TaskContext.get() is None)
    _opened[key] = (_identity(path), store)
    _spare_the_collector()
    return store


@functools.cache
def _spare_the_collector() -> None:
    """Spark's Python worker collects garbage after each task and each call of a planner, for which every object of every
    module is looked at: longer than a small task takes. What is there by now stays as long as the process."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == "pyspark.daemon":
        gc.collect()
        gc.freeze()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store is or is to be, as the driver sees it: the innermost directory of its path that is there. Crosses to the
    executors, as one on another machine would find, or make, another store under the same path."""

    path: str
    directory: str
    identity: tuple[str, int, int] | None

    @classmethod
    def of(cls, path: str) -> Place | None:
        """None behind a broker."""
        if isinstance(path, BrokerUrl):
            return None
        whole = directory = os.path.abspath(path)
        while (found := _directory(directory)) is None and directory != os.path.dirname(directory):
            directory = os.path.dirname(directory)
        return cls(whole, directory, found)

    def check_seen(self, path: str) -> None:
        """Raises StoreNotFound where this process sees another place under the path."""
        if os.path.abspath(path) != self.path or _directory(self.directory) != self.identity:
            raise not_seen(path)


def not_seen(path: str) -> StoreNotFound:
    return StoreNotFound(
        f"a task on {host()} does not see {os.path.abspath(path)} as the driver does: it runs on another machine, in a container or a "
        f"directory of its own, or the disk has gone meanwhile. A store is on the disk of one machine: have executors run there and name "
        f'it by its whole path, or serve it with `jjq serve` and name it by .option("broker", "jjq://host:4750")'
    )


def _directory(path: str) -> tuple[str, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    # Where the system has no name for its boot, what follows in ours is a time that moves by a second now and then.
    return boot_id().partition("-")[0], found.st_dev, found.st_ino


def _connect(broker: BrokerUrl) -> Store:
    import jjq

    # How it is connected to belongs to the key: what a token may not do, another one's connection must not do for it.
    access = broker.access
    key = (os.getpid(), (str(broker), access))
    known = _opened.get(key)
    if known is None:
        store: Any = jjq.connect(
            broker, token=access.token, tls_ca=access.tls_ca, tls_cert=access.tls_cert, tls_key=access.tls_key,
            retry_s=access.retry_s,
        )  # fmt: skip
        if access.files is not None:
            store.see_files(access.files)
        known = _opened[key] = None, store
        _spare_the_collector()
    return known[1]


def open_topics(path: str, choice: Choice) -> list[Topic]:
    """The chosen topics as they are now, in the order named or, for a pattern, by name.

    Raises TopicNotFound for one that is named and not there; it names the nearest one.
    """
    store = open_store(path)
    if choice.pattern is None:
        return [store.topic(name) for name in choice.names]
    topics = store.topics()
    found = [topic for topic in topics if choice.wants(topic.name)]
    if not found:
        choice.check_no_glob([topic.name for topic in topics])
    return found


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic as it was at a look: what it holds, in the partitions that are read, and the reader of its log."""

    id: str
    name: str
    offsets: Mapping[int, PartitionOffsets]
    reader: LogReader


def look(path: str, choice: Choice, *, all_there: bool = False) -> dict[str, TopicView]:
    """What is there of the chosen topics, by name. One look at the catalog, however many they are.

    With `all_there` a topic that is named and missing raises TopicNotFound.
    """
    store = open_store(path)
    held = store.offsets(choice.names) if choice.pattern is None else store.offsets(matching=choice.wants)
    for name in choice.names:
        if all_there and name not in held:
            store.topic(name)
    return {name: _view(store, topic, choice.partitions(name, len(topic.partitions))) for name, topic in held.items()}


def look_at(path: str, names: Sequence[str]) -> dict[str, TopicView]:
    """What is there of these topics, with all their partitions, whatever is chosen."""
    store = open_store(path)
    return {name: _view(store, topic, range(len(topic.partitions))) for name, topic in store.offsets(names).items()}


def _view(store: Store, topic: TopicOffsets, partitions: Iterable[int]) -> TopicView:
    offsets = {p: topic.partitions[p] for p in partitions}
    return TopicView(topic.id, topic.name, offsets, store.reader(topic.id, topic.name))


# A reader keeps the active files open that it has planned from, two a partition: of a few that makes the next plan
# cheaper, of a thousand it is more than a process may have.
KEPT_OPEN = 64


def let_go(views: Iterable[TopicView]) -> None:
    """Closes what planning has opened, where it is much."""
    found = {view.id: view for view in views}
    if sum(len(view.offsets) for view in found.values()) > KEPT_OPEN:
        for view in found.values():
            view.reader.close()


def find_topic(store: Store, name: str) -> Topic | None:
    """The topic as it is now, or None where it is gone."""
    try:
        return store.topic(name)
    except TopicNotFound:
        return None


def patiently(call: Callable[[], Result]) -> Result:
    """The result of `call`, which is made again a few times, for about a second, while its error says that it may."""
    for attempt in range(ATTEMPTS):
        try:
            return call()
        except JjqError as error:
            # A broker that cannot be reached was tried for long enough by who calls it.
            if not error.retryable or isinstance(error, BrokerUnavailable) or attempt == ATTEMPTS - 1:
                raise
            time.sleep(FIRST_PAUSE_S * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(os.path.join(path, "jjq.json"))
    except (OSError, ValueError):  # ValueError: there can be no such path, which opening it says
        return None
    return found.st_dev, found.st_ino
