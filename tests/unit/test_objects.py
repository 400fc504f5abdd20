"""Big objects by reference: kept once, checked when read, gone with the last record that refers to them."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq import files, objects
from jjq.clock import now_us
from jjq.log import partition
from jjq.repair import repair
from tests.stores import roll


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        yield opened


def records(store: jjq.Store, name: str) -> list[jjq.Record]:
    topic = store.topic(name)
    return [r for o in topic.offsets() for r in topic.records(topic.plan(o.partition, o.start, o.end))]


def content(store: jjq.Store, record: jjq.Record) -> bytes:
    with store.open_object(record) as stream:
        return stream.read()


def test_an_object_is_read_back_through_its_record(store: jjq.Store, tmp_path: Path) -> None:
    picture = tmp_path / "cat.png"
    picture.write_bytes(b"\x89PNG" * 1000)
    topic = store.create_topic("pictures")
    position = topic.push_file(picture, key="cat", headers={"mime": b"image/png"})
    assert position.offset == 0
    (record,) = records(store, "pictures")
    assert (record.value, record.key, record.headers[0]) == (b"cat.png", b"cat", ("mime", b"image/png"))  # type: ignore[index]
    with store.open_object(record) as stream:
        assert stream.read() == picture.read_bytes()


@pytest.mark.parametrize("make", [lambda data: data, io.BytesIO], ids=["bytes", "file"])
def test_the_same_content_is_kept_once(store: jjq.Store, make: object) -> None:
    topic = store.create_topic("t")
    for _ in range(3):
        topic.push_file(make(b"content"), b"own value")  # type: ignore[operator]
    (info,) = store.list_objects()
    assert (info.bytes, info.references) == (7, 3)
    assert len([p for p in (store.path / "objects").rglob("*") if p.is_file()]) == 1
    assert [record.value for record in records(store, "t")] == [b"own value"] * 3


def test_topics_with_a_schema_carry_objects_too(store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=pa.schema([("name", pa.string())]))
    for value in (None, b"n"):
        with pytest.raises(jjq.SchemaMismatch, match=r"topic 't' has a schema.*push_file\(source, {'name': ...}\)"):
            topic.push_file(b"never kept", value)
    topic.push_file(b"data", {"name": "n"})
    (record,) = records(store, "t")
    assert record.value == {"name": "n"}
    assert content(store, record) == b"data"


def test_an_object_goes_with_its_last_record(store: jjq.Store) -> None:
    one, two = store.create_topic("one"), store.create_topic("two")
    one.push_file(b"shared")
    two.push_file(b"shared")
    two.push_file(b"only two")
    assert objects.sweep(store) == (0, 0)
    two.empty()
    assert objects.sweep(store) == (1, 8)
    assert content(store, records(store, "one")[0]) == b"shared"
    store.delete_topic("one")
    assert objects.sweep(store) == (1, 6)
    assert [p for p in (store.path / "objects").rglob("*") if p.is_file()] == []


def test_a_changed_object_is_not_given_out(store: jjq.Store) -> None:
    store.create_topic("t").push_file(b"right")
    (record,) = records(store, "t")
    path = objects.object_path(store, objects.digest_of(record))
    path.write_bytes(b"wrong")
    with pytest.raises(jjq.DamagedSegment, match="not what was pushed"):
        store.open_object(record)
    assert len(objects.problems(store)) == 1
    store.topic("t").push_file(b"right")  # as the error advises
    assert content(store, record) == b"right"
    assert objects.problems(store) == []
    path.unlink()
    with pytest.raises(jjq.InvalidArgument, match="no object"):
        store.open_object(record)
    assert "is missing" in objects.problems(store)[0][1]
    path.mkdir()
    assert "Is a directory" in objects.problems(store)[0][1]


def test_a_push_that_fails_leaves_nothing_behind(store: jjq.Store, tmp_path: Path) -> None:
    topic = store.create_topic("t", max_record_bytes=5)
    with pytest.raises(jjq.RecordTooLarge):
        topic.push_file(b"data", b"too long a value")
    with pytest.raises(jjq.InvalidArgument, match="cannot read"):
        topic.push_file(tmp_path / "nope")
    with pytest.raises(jjq.InvalidArgument, match="takes a path"):
        topic.push_file(7)  # type: ignore[arg-type]
    with pytest.raises(jjq.InvalidArgument, match="for text"):
        topic.push_file(io.StringIO("text"))  # type: ignore[arg-type]
    with pytest.raises(jjq.InvalidArgument, match="jjq-object"):
        topic.push_file(b"data", headers={objects.HEADER: b""})
    objects.sweep(store)
    assert store.list_objects() == []
    assert [p for p in (store.path / "objects").rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("step", ["replace", "datasync", "sync_dir"])
def test_a_crash_on_the_way_in_never_leaves_a_record_without_its_object(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    topic = store.create_topic("t")
    topic.push_file(b"before")
    with monkeypatch.context() as patched:

        def fail(*_: object) -> None:
            raise OSError(5, "Input/output error")

        patched.setattr(files, step, fail)
        with pytest.raises(jjq.StoreError):
            topic.push_file(b"during")
    assert [content(store, record) for record in records(store, "t")] == [b"before"]
    topic.push_file(b"during")
    assert [content(store, record) for record in records(store, "t")] == [b"before", b"during"]
    assert objects.problems(store) == []


DAY_US = 86_400_000_000


def at(patched: pytest.MonkeyPatch, days: int) -> None:
    """The wall clock of all that keeps times here, so many days from now."""
    for module in (objects, partition):
        patched.setattr(module, "now_us", lambda: now_us() + days * DAY_US)


def test_a_sweep_long_after_an_object_and_before_its_record_leaves_the_object(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("t")
    push = jjq.Topic.push

    def late(*arguments: Any, **options: Any) -> jjq.Position:
        for days in (3, 6, 9):
            at(monkeypatch, days)
            assert objects.sweep(store) == (0, 0)
        return push(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(jjq.Topic, "push", late)
        topic.push_file(b"kept")
    assert objects.sweep(store) == (0, 0)
    assert [content(store, record) for record in records(store, "t")] == [b"kept"]
    topic.empty()
    assert objects.sweep(store) == (1, 4)


def test_a_record_that_came_days_after_its_object_keeps_it_though_the_push_died_then(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("t")
    topic.push(b"first")
    roll(store, "t")
    push = jjq.Topic.push

    def last(*arguments: Any, **options: Any) -> jjq.Position:
        at(monkeypatch, 3)
        push(*arguments, **options)
        raise KeyboardInterrupt  # before the offset is in the row

    with monkeypatch.context() as patched:
        patched.setattr(jjq.Topic, "push", last)
        with pytest.raises(KeyboardInterrupt):
            topic.push_file(b"kept")
    roll(store, "t")
    store.catalog.advance_start(topic.id, 0, 1, [], now_us())  # as retention does: only the record of the push is left
    for days in (3, 5, 9):
        at(monkeypatch, days)
        assert objects.sweep(store) == (0, 0)
    assert [content(store, record) for record in records(store, "t")] == [b"kept"]
    topic.empty()
    assert objects.sweep(store) == (1, 4)


@pytest.mark.parametrize("reference", ["", "sha256:12", "md5:" + "0" * 64, b"\xff", "sha256:" + "G" * 64])
def test_what_is_no_reference_is_refused(store: jjq.Store, reference: str | bytes) -> None:
    with pytest.raises(jjq.InvalidArgument, match="no reference"):
        store.open_object(reference)


def test_verify_knows_objects_and_names_a_changed_one(store: jjq.Store) -> None:
    store.create_topic("t").push_file(b"right")
    report = store.verify()
    assert (report.problems, report.unknown) == ([], [])
    (record,) = records(store, "t")
    path = objects.object_path(store, objects.digest_of(record))
    path.write_bytes(b"wrong")
    assert [(problem.code, problem.path) for problem in store.verify().problems] == [("damaged", str(path))]
    path.write_bytes(b"right")


def test_objects_survive_the_loss_of_the_catalog(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store") as store:
        store.create_topic("t").push_file(b"kept")
        store.maintain()  # backs the catalog up
    for path in (tmp_path / "store").glob("catalog.db*"):
        path.unlink()
    report = repair(tmp_path / "store")
    assert report.rebuilt is not None
    with jjq.open(tmp_path / "store") as store:
        assert [content(store, record) for record in records(store, "t")] == [b"kept"]
        assert [info.references for info in store.list_objects()] == [1]
        assert store.verify().ok
