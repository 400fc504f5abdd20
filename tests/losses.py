"""Records, topics and partitions that go or come while a query runs and while it is stopped: what happens, and what a query
must make of it. Whoever runs the queries says how: through Spark, or by calling the readers as Spark does."""

from collections.abc import Callable
from typing import Any

import pytest

import jjq
from tests.stores import roll


def fill(store: jjq.Store) -> None:
    """A topic of the records 0 to 7, two a segment."""
    topic = store.create_topic("t", segment_rows=2)
    for first in (0, 2, 4, 6):
        topic.push_many([b"%d" % first, b"%d" % (first + 1)])
        roll(store, "t")


# What happens to the topic when 0 and 1 are read; each returns what there is to read then.


def expire(store: jjq.Store) -> list[str]:
    store.alter_topic("t", retention_segments=2)
    while store.maintain(grace_us=0).busy:
        pass
    if store.topic("t").offsets()[0].start <= 2:
        # The process that plans the query has its turns, too, and on a slow machine it has merged the segments: then only
        # all of them can go.
        store.topic("t").empty()
    [held] = store.topic("t").offsets()
    assert 2 < held.start <= held.end == 8
    return [str(offset) for offset in range(held.start, held.end)]


def empty(store: jjq.Store) -> list[str]:
    store.topic("t").empty()
    store.topic("t").push(b"after")
    return ["after"]


def delete(store: jjq.Store) -> list[str]:
    store.delete_topic("t")
    return []


def recreate(store: jjq.Store) -> list[str]:
    store.delete_topic("t")
    store.create_topic("t").push_many([b"new", b"newer"])
    return ["new", "newer"]


def grow(store: jjq.Store) -> None:
    topic = store.alter_topic("t", partitions=3)
    for partition in range(3):
        topic.push(b"to %d" % partition, partition=partition)


Happens = Callable[[jjq.Store], list[str]]
SAYS: dict[Happens, str] = {
    expire: "DataLoss",
    empty: "DataLoss",
    delete: "it was deleted",
    recreate: "deleted and made again",
}
NAMED = {"subscribe": "t"}
ASSIGNED = {"assign": '{"t":[0]}'}
PATTERN = {"subscribePattern": "t.*"}


class Query:
    """Reads the topic two records at a time and keeps what it has read, in order. Its checkpoint outlives its runs."""

    fails_with: type[Exception]  # what ends a run, with the kind and the words of the connector's error in its own

    def __init__(self, store: jjq.Store, what: dict[str, str]) -> None:
        self.store, self.what = store, what
        self.seen: list[str] = []

    def options(self, more: dict[str, Any]) -> dict[str, Any]:
        return {**self.what, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 2, **more}

    def run(self, then: Callable[[], object] | None = None, **options: Any) -> None:
        """Under AvailableNow to its end; `then` happens once, when the first micro-batch is read."""
        raise NotImplementedError


def loss_while_it_runs(query: Query, happens: Happens, strict: bool) -> None:
    left: list[str] = []
    if strict:
        with pytest.raises(query.fails_with, match=SAYS[happens]):
            query.run(lambda: left.extend(happens(query.store)))
        assert query.seen == ["0", "1"]
        return
    query.run(lambda: left.extend(happens(query.store)), failOnDataLoss=False)
    if happens is not delete:  # what comes after the query's end was fixed is for its next run
        query.run(failOnDataLoss=False)
    assert query.seen == ["0", "1", *left]


def loss_while_it_is_stopped(query: Query, happens: Happens) -> None:
    query.run(endingOffsets='{"t":{"0":2}}')
    left = happens(query.store)
    # A topic that is named and not there cannot be read, whatever failOnDataLoss says; one of a pattern is passed over.
    named = "subscribePattern" not in query.what
    with pytest.raises(Exception, match="TopicNotFound" if happens is delete and named else SAYS[happens]):
        query.run()
    assert query.seen == ["0", "1"]
    if happens is delete:
        query.what = PATTERN
        query.run(failOnDataLoss=False)
        query.store.create_topic("t").push(b"again")
        left = ["again"]
    for _ in range(2):
        query.run(failOnDataLoss=False)
    assert query.seen == ["0", "1", *left]


def partitions_that_are_added(query: Query, running: bool) -> None:
    if running:
        query.run(lambda: grow(query.store))
    else:
        query.run(endingOffsets='{"t":{"0":2}}')
        grow(query.store)
    for _ in range(2):
        query.run()
    added = [] if "assign" in query.what else ["to 1", "to 2"]
    assert sorted(query.seen) == sorted([*"01234567", "to 0", *added])
    if "assign" in query.what:
        query.what = {"assign": '{"t":[1,0]}'}
        query.run()
        assert query.seen[-1] == "to 1"
        assert len(query.seen) == 10


def assigned_and_not_in_the_topic_made_again(query: Query, running: bool, strict: bool) -> None:
    """The query is assigned partitions 0 and 2 of a topic that has grown."""
    refused = pytest.raises(Exception, match=r"assign names partition 2 of topic 't', which has 0 to 0")
    if running:
        with refused:
            query.run(lambda: recreate(query.store), failOnDataLoss=strict)
    else:
        query.run(endingOffsets='{"t":{"0":2,"2":0}}')
        recreate(query.store)
        with refused:
            query.run(failOnDataLoss=strict)
    seen = list(query.seen)
    query.what = ASSIGNED
    if strict:
        with pytest.raises(Exception, match="deleted and made again"):
            query.run()
        assert query.seen == seen
    for _ in range(2):
        query.run(failOnDataLoss=False)
    assert query.seen == [*seen, "new", "newer"]
