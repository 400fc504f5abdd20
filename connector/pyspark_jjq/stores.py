"""Opened stores, one a process and path: Spark reuses its Python workers, and opening costs more than a small task."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from jjq.errors import JjqError, TopicNotFound

if TYPE_CHECKING:
    from jjq import Store, Topic

Result = TypeVar("Result")

_opened: dict[tuple[int, str], tuple[tuple[int, int] | None, Store]] = {}

# Spark does not try the calls of a source's driver side again: a hiccup of the disk would end the query.
ATTEMPTS = 5
FIRST_PAUSE_S = 0.05


def open_store(path: str, *, create: bool = False) -> Store:
    """The store in the directory `path`, opened at most once in this process.

    Raises StoreNotFound where there is none and `create` is false.
    """
    from pyspark import TaskContext

    import jjq

    # A forked child must not use its parent's handles, and a directory made anew under the same name is another store.
    key = (os.getpid(), os.path.abspath(path))
    identity = _identity(path)
    known = _opened.get(key)
    if known is not None and known[0] == identity and identity is not None:
        return known[1]
    # The planner and the committer stay as long as the query, so they take their turn at maintenance; tasks do not.
    store = jjq.open(path, create=create, maintenance=TaskContext.get() is None)
    _opened[key] = (_identity(path), store)
    return store


def open_topics(path: str, names: Sequence[str]) -> list[Topic]:
    """The named topics as they are now, in the order named. Raises TopicNotFound, which names the nearest one."""
    store = open_store(path)
    return [store.topic(name) for name in names]


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
            if not error.retryable or attempt == ATTEMPTS - 1:
                raise
            time.sleep(FIRST_PAUSE_S * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(os.path.join(path, "jjq.json"))
    except OSError:
        return None
    return found.st_dev, found.st_ino
