"""Zeros that are laid out ahead of pushes that sync: they are no records, and only what a message begins with is torn."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq.errors import JjqError
from jjq.log.format import ENTRY_SIZE
from tests.stores import assert_whole, end_of, roll

VALUES = [b"%d" % i for i in range(40)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store", maintenance=False) as opened:
        yield opened


def filled(store: jjq.Store, sync: str = "always") -> jjq.Topic:
    topic = store.create_topic("t", sync=sync)
    for value in VALUES:
        topic.push(value)
    return topic


def values(topic: jjq.Topic) -> list[bytes]:
    found: list[bytes] = topic.read().read_all()["value"].to_pylist()
    return found


def active(topic: jjq.Topic) -> Path:
    return Path(next(each.path for each in topic.segments() if each.state == "active"))


def behind(path: Path) -> bytes:
    return path.read_bytes()[end_of(path) :]


def test_pushes_that_sync_write_over_zeros_and_leave_the_length_as_it_is(store: jjq.Store) -> None:
    path = active(filled(store))
    assert not any(behind(path))
    before, room = path.stat().st_size, len(behind(path))
    while room > 1000:
        store.topic("t").push(b"more")
        assert path.stat().st_size == before
        assert room > len(behind(path))
        room = len(behind(path))
    for _ in range(3):
        store.topic("t").push(b"beyond")
    assert path.stat().st_size > before
    assert assert_whole(store).notes == []


def test_there_are_at_most_as_many_as_the_file_has_messages(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    for value in VALUES:
        topic.push(value)
        assert len(behind(active(topic))) <= end_of(active(topic))


@pytest.mark.parametrize("sync", ["interval", "none"])
def test_pushes_that_do_not_sync_lay_out_none(store: jjq.Store, sync: str) -> None:
    assert behind(active(filled(store, sync))) == b""


def test_large_messages_lay_out_none(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    for _ in range(20):
        topic.push(b"x" * 40_000)
    assert behind(active(topic)) == b""


def test_any_arrow_reader_takes_them_for_the_end(store: jjq.Store) -> None:
    path = active(filled(store))
    assert behind(path)
    with path.open("rb") as file:
        assert pa.ipc.open_stream(file).read_all()["value"].to_pylist() == VALUES


def test_they_are_in_no_figure(store: jjq.Store) -> None:
    topic = filled(store)
    end = end_of(active(topic))
    [segment] = topic.segments()
    before = store.stats()["topics"][0]
    assert (segment.bytes, topic.describe()["bytes"], before["bytes"], before["pushed_bytes"]) == (end,) * 4
    roll(store, "t")
    assert store.stats()["topics"][0]["pushed_bytes"] == before["pushed_bytes"]


def test_two_who_push_in_turn_lay_out_one_file(store: jjq.Store) -> None:
    topic = filled(store)
    path = active(topic)
    with jjq.open(store.path, maintenance=False) as other:
        for i in range(200):
            (topic, other.topic("t"))[i % 2].push(b"%d" % i)
    assert values(topic) == VALUES + [b"%d" % i for i in range(200)]
    assert active(topic) == path
    assert not any(behind(path))


@pytest.mark.parametrize("length", [1, 8, 300])
def test_what_is_left_of_a_message_in_them_is_torn(store: jjq.Store, length: int) -> None:
    topic = filled(store)
    path = active(topic)
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(end_of(path))
        file.write(data[data.index(b"\xff\xff\xff\xff", 8) :][:length])
    assert "behind its end" in assert_whole(store).notes[0]
    topic.push(b"next")
    assert values(topic) == [*VALUES, b"next"]
    assert [each.state for each in topic.segments()] == ["rolled", "active"]


def test_a_file_that_was_cut_within_them_is_appended_to_no_more(store: jjq.Store) -> None:
    topic = filled(store)
    os.truncate(active(topic), end_of(active(topic)) + 3)
    topic.push(b"next")
    assert values(topic) == [*VALUES, b"next"]


@pytest.mark.parametrize("left", [b"", b"\0" * 100 + b"x"], ids=["zeros", "what a power cut left of a message"])
def test_after_a_reboot_a_file_with_nothing_but_zeros_behind_its_end_stays(
    store: jjq.Store, left: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = active(filled(store))
    with path.open("r+b") as file:
        file.seek(end_of(path))
        file.write(left)
    store.close()
    monkeypatch.setattr("jjq.store.boot_id", lambda: "another")
    with jjq.open(store.path, maintenance=False) as opened:
        topic = opened.topic("t")
        topic.push(b"next")
        assert values(topic) == [*VALUES, b"next"]
        assert (active(topic) == path) == (left == b"")
        assert_whole(opened)


def test_a_store_that_cannot_be_written_counts_its_messages_after_a_reboot(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = active(filled(store))
    end = end_of(path)
    store.close()
    os.truncate(path.with_suffix(".index"), ENTRY_SIZE)
    monkeypatch.setattr("jjq.store.boot_id", lambda: "another")
    with jjq.open(store.path, read_only=True) as opened:
        assert values(opened.topic("t")) == VALUES
        assert opened.topic("t").describe()["bytes"] == end


def test_a_link_to_another_store_in_the_place_of_this_one_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    link = tmp_path / "link"
    link.symlink_to("a")
    with jjq.open(link / "store", maintenance=False) as store:
        topic = filled(store)
        link.unlink()
        link.symlink_to("b")
        store.logs[topic.id, 0]._looked_at = 0  # it is time to look
        with pytest.raises(JjqError, match="was removed or moved away"):
            topic.push(b"to nobody")
