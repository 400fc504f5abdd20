"""What is no file where the store has one, directories that are links, and names that are no text."""

import errno
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq import files
from jjq.errors import StoreError
from jjq.repair import repair
from jjq.verify import verify
from tests.stores import assert_whole, flip, paths, roll, tables


def make(path: Path) -> dict[str, pa.Table]:
    """A rolled file of 70,000 bytes, which is mapped, and an active one; a partition for each."""
    with jjq.open(path, maintenance=False) as store:
        topic = store.create_topic("t", partitions=2)
        topic.push_many([b"x" * 7000] * 10, partition=0)
        roll(store, "t")
        topic.push_many([b"a", b"b"], partition=1)
        store.create_subscriber("t", "s")
        return tables(store)


def a_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


INSTEAD: dict[str, Callable[[Path], object]] = {
    "directory": lambda path: path.mkdir(), "pipe": os.mkfifo, "socket": a_socket,
    "link to nothing": lambda path: path.symlink_to("nothing"), "link to itself": lambda path: path.symlink_to(path.name),
}  # fmt: skip


def swap(path: Path, instead: str) -> None:
    path.unlink()
    INSTEAD[instead](path)


@pytest.mark.parametrize("instead", INSTEAD)
@pytest.mark.parametrize(("suffix", "partition", "lost"), [(".arrows", 0, 10), (".index", 0, 0), (".index", 1, 0)])
def test_what_is_no_file_is_said_at_once_and_repaired_like_a_damaged_one(
    suffix: str, partition: int, lost: int, instead: str, place: Path
) -> None:
    before = make(place / "store")
    with jjq.open(place / "store") as store:
        segment = store.topic("t").segments(partition)[0]
        assert segment.rows == (10, 2)[partition]
    swap(Path(segment.path).with_suffix(suffix), instead)
    assert not verify(place / "store").ok
    with jjq.open(place / "store", maintenance=False) as store, pytest.raises(jjq.JjqError):
        store.topic("t").read(partitions=[partition]).read_all()
    report = repair(place / "store")
    assert sum(each.end - each.start for each in report.lost) == lost
    assert_whole(place / "store")
    with jjq.open(place / "store") as store:
        left = tables(store)["t"]
        assert left.equals(before["t"].slice(lost))
        assert store.topic("t").push(b"on", partition=partition).offset == (10, 2)[partition]


@pytest.mark.parametrize("instead", ["directory", "pipe", "link to nothing", "link to itself"])
@pytest.mark.parametrize(
    "name", ["catalog.db", "catalog.lock", "store.lock", "jjq.json", "topics/*/topic.json", "topics/*/0/lock"]
)
def test_the_other_files_of_a_store_are_made_again(name: str, instead: str, place: Path) -> None:
    before = make(place / "store")
    (found,) = (place / "store").glob(name) if "*" in name else [place / "store" / name]
    swap(found, instead)
    report = repair(place / "store")
    assert not report.lost
    assert any(each.endswith(found.name) for each in report.quarantined)
    with jjq.open(place / "store") as store:
        store.maintain()
        assert tables(store) == before
        store.topic("t").push(b"on")
        assert_whole(store)


@pytest.mark.parametrize("instead", INSTEAD)
@pytest.mark.parametrize("what", ["objects/*/*", "objects/*"])
def test_what_is_no_file_in_an_objects_place_is_moved_away_and_pushed_again(
    what: str, instead: str, place: Path
) -> None:  # fmt: skip
    with jjq.open(place / "store", maintenance=False) as store:
        store.create_topic("o").push_file(b"an object", "name")
    (found,) = (place / "store").glob(what)
    shutil.move(found, place / "aside")
    INSTEAD[instead](found)
    with jjq.open(place / "store", maintenance=False) as store:
        (record,) = store.topic("o").records(store.topic("o").plan(0, 0, 1))
        with pytest.raises(jjq.JjqError):
            store.open_object(record)
        assert not store.verify().ok
    report = repair(place / "store")
    moved = any(each.endswith(str(found.relative_to(place / "store"))) for each in report.quarantined)
    assert moved == ((what, instead) != ("objects/*", "directory"))  # where one belongs
    with jjq.open(place / "store") as store:
        store.topic("o").push_file(b"an object", "name")
        with store.open_object(record) as stream:
            assert stream.read() == b"an object"
        assert_whole(store)


@pytest.mark.parametrize("moved", ["topics", "topics/*", "topics/*/0", "links", "quarantine", "objects"])
def test_a_directory_may_be_a_link_to_another_disk(moved: str, place: Path) -> None:
    make(place / "store")
    with jjq.open(place / "store") as store:
        store.create_topic("o").push_file(b"an object", "name")
        before = tables(store)
    found = place / "store" / moved.replace("*", topic_id(place))
    shutil.move(found, place / "elsewhere")
    found.symlink_to(place / "elsewhere")
    assert not assert_whole(place / "store").unknown
    report = repair(place / "store")
    assert (report.lost, report.quarantined) == ([], [])
    with jjq.open(place / "store") as store:
        assert tables(store) == before
        store.topic("t").push(b"on", partition=0)
        roll(store, "t")
        store.maintain(grace_us=0)
        assert store.topic("t").segments(0)[0].state == "sealed"
        assert_whole(store)


def topic_id(place: Path) -> str:
    with jjq.open(place / "store") as store:
        return store.topic("t").id


def test_a_link_that_is_none_of_the_stores_is_never_followed(place: Path) -> None:
    make(place / "store")
    (place / "home").mkdir()
    (place / "home" / "precious").write_text("mine")
    (place / "store" / "notes").symlink_to(place / "home")
    (place / "store" / "topics" / topic_id(place) / "0" / "more").symlink_to(place / "home")
    with jjq.open(place / "store") as store:
        store.maintain(grace_us=0)
        store.delete_topic("t")
        store.maintain(grace_us=0)
    report = repair(place / "store")
    assert sorted(Path(each).name for each in report.quarantined) == ["more", "notes"]
    assert (place / "home" / "precious").read_text() == "mine"


def test_damage_is_moved_to_quarantine_across_disks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(place / "store")
    with jjq.open(place / "store") as store:
        damaged = Path(store.topic("t").segments(0)[0].path)
    flip(damaged, 3000)
    wreck = damaged.read_bytes()

    def replace(source: Path, target: Path) -> None:
        if "quarantine" in target.parts and "quarantine" not in source.parts:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        os.replace(source, target)

    monkeypatch.setattr(files, "replace", replace)
    report = repair(place / "store")
    assert report.lost
    (moved,) = (each for each in report.quarantined if each.endswith(".arrows"))
    assert (place / "store" / moved).read_bytes() == wreck
    assert not damaged.exists()
    assert_whole(place / "store")


@pytest.mark.parametrize("name", [b"no \xff\xfe text", b"two\nlines and ' \" %20 # ?"])
def test_a_store_lives_under_any_name(name: bytes, place: Path) -> None:
    path = place / os.fsdecode(name)
    before = make(path)
    with jjq.open(path) as store:
        store.maintain(grace_us=0)  # 70,000 bytes are mapped to be rewritten, and the sealed file to be read
        assert store.topic("t").segments(0)[0].state == "sealed"
        assert tables(store) == before
    assert_whole(path)
    assert repair(path).lost == []
    assert [each.suffix for each in paths(path, "*.arrow")] == [".arrow"]


def test_what_stays_as_it_is_need_not_be_tried_again(place: Path) -> None:
    (place / "file").write_text("")
    with pytest.raises(StoreError, match="a file lies where a directory belongs") as caught:
        jjq.open(place / "file" / "store")
    assert not caught.value.retryable
    assert files.translate(OSError(28, "No space left on device"), "append to", place).retryable
