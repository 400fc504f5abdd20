"""What is true or false is not taken for one of them: `ordered="no"` is no wish for order."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jjq

FLAGS: dict[str, Callable[[jjq.Store, Any], object]] = {
    "exist_ok": lambda store, wrong: store.create_topic("t", exist_ok=wrong),
    "exist_ok of a subscriber": lambda store, wrong: store.create_subscriber("t", "s", exist_ok=wrong),
    "ephemeral": lambda store, wrong: store.create_topic("new", ephemeral=wrong),
    "retention_waits": lambda store, wrong: store.create_topic("new", retention_waits=wrong),
    "create": lambda store, wrong: store.channel("new", "c", create=wrong),
    "ordered": lambda store, wrong: store.channel("t", "new", create=True, ordered=wrong),
    "ordered of one that is there": lambda store, wrong: store.channel("t", "c", ordered=wrong),
    "rows_may_differ": lambda store, wrong: store.commit([], "w", 1, rows_may_differ=wrong),
    "new_partitions": lambda store, wrong: next(store.follow(store.topic("t"), {0: (0, 0)}, new_partitions=wrong)),
    "atomic": lambda store, wrong: store.topic("t").push_many([b"x"], atomic=wrong),
    "skip_lost": lambda store, wrong: store.topic("t").plan(0, 0, 1, skip_lost=wrong),
    "end": lambda store, wrong: store.topic("t").resolve("latest", end=wrong),
    "decode_responses": lambda store, wrong: store.pubsub(decode_responses=wrong),
    "ignore_subscribe_messages": lambda store, wrong: store.pubsub(ignore_subscribe_messages=wrong),
}


@pytest.mark.parametrize("name", FLAGS)
def test_what_only_counts_as_true_or_false_is_refused(name: str, store: jjq.Store) -> None:
    store.create_topic("t").push(b"there")
    store.create_subscriber("t", "s")
    store.channel("t", "c", create=True)
    for wrong in ("no", "", 1, 0, {}, 1.0):
        with pytest.raises(jjq.InvalidArgument, match=f"{name.split()[0]} must be true"):
            FLAGS[name](store, wrong)
    assert [each.name for each in store.topics()] == ["t"]
    assert [each.name for each in store.channels()] == ["c"]
    assert store.topic("t").offsets()[0].end == 1
    assert store.writers() == []


@pytest.mark.embedded
@pytest.mark.parametrize("name", ["create", "read_only", "maintenance", "create_topics"])
def test_so_it_is_when_a_store_is_opened(name: str, directory: Path, backend: str) -> None:
    for wrong in ("no", 1, []):
        with pytest.raises(jjq.InvalidArgument, match=f"{name} must be true or false, not "):
            jjq.open(directory, **{name: wrong})
    assert not directory.exists()
