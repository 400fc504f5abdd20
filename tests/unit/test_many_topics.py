"""What many topics hold, with one look at the catalog."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq.model import PartitionOffsets, TopicOffsets


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store", maintenance=False) as opened:
        yield opened


def test_offsets_are_those_of_each_topic(store: jjq.Store) -> None:
    """Of one with an active file, one that has only linked files, one that was emptied, one that nothing was pushed to."""
    store.create_topic("active", partitions=2).push_many([b"a", b"b"], partition=1)
    store.create_topic("linked").push_table(pa.table({"value": [b"a"]}), writer_id="w", batch_id=0)
    emptied = store.create_topic("emptied")
    emptied.push_many([b"a"] * 3)
    emptied.empty()
    store.create_topic("new")
    found = store.offsets()
    assert list(found) == ["active", "emptied", "linked", "new"]
    for name, held in found.items():
        topic = store.topic(name)
        assert held == TopicOffsets(topic.id, name, tuple(topic.offsets()))
    assert found["active"].partitions == (PartitionOffsets(0, 0, 0, 0), PartitionOffsets(1, 0, 2, 0))
    assert found["emptied"].partitions == (PartitionOffsets(0, 3, 3, 0),)


@pytest.mark.parametrize("count", [3, 30])
def test_topics_are_chosen_by_name_or_by_what_their_name_is(store: jjq.Store, count: int) -> None:
    for i in range(count):
        store.create_topic(f"t{i:02}", sync="none")
    wanted = [f"t{i:02}" for i in range(0, count, 2)]
    assert sorted(store.offsets([*wanted, "missing"])) == wanted
    assert list(store.offsets(matching=lambda name: int(name[1:]) % 2 == 0)) == wanted
    assert store.offsets([]) == {}


def test_a_look_sees_what_other_handles_push_and_roll(store: jjq.Store) -> None:
    topic = store.create_topic("t", segment_rows=5)
    for count in range(1, 13):
        topic.push(b"x")
        assert store.offsets(["t"])["t"].partitions[0].end == count
    with jjq.open(store.path) as other:
        other.topic("t").push(b"x")
    assert store.offsets(["t"])["t"].partitions[0].end == 13


def test_a_look_after_a_reboot_recovers_what_was_active(store: jjq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_topic("t").push_many([b"a", b"b"])
    store.close()
    monkeypatch.setattr("jjq.store.boot_id", lambda: "another boot")
    with jjq.open(store.path, maintenance=False) as after:
        assert after.offsets()["t"].partitions == tuple(after.topic("t").offsets())
        assert after.offsets()["t"].partitions[0].end == 2
