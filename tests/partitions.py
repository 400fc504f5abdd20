"""What tests of growing topics share: a topic with two partitions, and another process's store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jjq
from tests.stores import assert_whole

Reopen = Callable[[], jjq.Store]


@pytest.fixture
def topic(store: jjq.Store, directory: Path) -> Iterator[jjq.Topic]:
    """Two partitions with two records each."""
    topic = store.create_topic("t", partitions=2, sync="none")
    for partition in range(2):
        topic.push_many([b"old %d %d" % (partition, i) for i in range(2)], partition=partition)
    yield topic
    assert_whole(directory)


@pytest.fixture
def elsewhere(topic: jjq.Topic, reopen: Reopen) -> jjq.Store:
    """Another process's store, by whose handles nothing is known of what this one changes."""
    return reopen()


def grow(store: jjq.Store, partitions: int = 5) -> jjq.Topic:
    return store.alter_topic("t", partitions=partitions)


def values(records: list[jjq.Record]) -> set[bytes]:
    return {record.value for record in records}


OLD = {b"old 0 0", b"old 0 1", b"old 1 0", b"old 1 1"}
