"""Big objects by reference: pushed from a path, bytes or a file, and read back whole."""

import errno
import io
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq import objects

LARGE = os.urandom(1 << 20) * 9 + b"and a bit"  # several pieces


class Pipe(io.RawIOBase):
    """A source that is read once, and gives little at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._data.read(min(size, 300_001))


class Breaking(Pipe):
    """One that fails after its first bytes, when these have come to where objects are kept."""

    def __init__(self, data: bytes, kept: Path) -> None:
        super().__init__(data)
        self._kept = kept

    def read(self, size: int = -1) -> bytes:
        if not self._data.tell():
            return super().read(size)
        pause = threading.Event()
        while not any(each.stat().st_size for each in self._kept.glob("*.new")):
            assert not pause.wait(0.01)
        raise OSError(errno.EIO, "it broke")


def records(store: jjq.Store, name: str) -> list[jjq.Record]:
    topic = store.topic(name)
    return [r for o in topic.offsets() for r in topic.records(topic.plan(o.partition, o.start, o.end))]


def content(store: jjq.Store, record: jjq.Record | str) -> bytes:
    with store.open_object(record) as stream:
        return stream.read()


@pytest.mark.parametrize("data", [b"", b"small", LARGE], ids=["empty", "small", "large"])
@pytest.mark.parametrize("kind", ["path", "bytes", "file", "pipe"])
def test_an_object_is_read_back_through_its_record(store: jjq.Store, tmp_path: Path, kind: str, data: bytes) -> None:
    (tmp_path / "cat.png").write_bytes(data)
    sources = {"path": tmp_path / "cat.png", "bytes": data, "file": io.BytesIO(data), "pipe": Pipe(data)}
    topic = store.create_topic("t", partitions=2)
    position = topic.push_file(sources[kind], key="cat", headers={"mime": b"image/png", "no": None}, partition=1)  # type: ignore[arg-type]
    assert position[:2] == (1, 0)
    (record,) = records(store, "t")
    assert (record.value, record.key, record.timestamp) == (
        b"cat.png" if kind == "path" else b"",
        b"cat",
        position.timestamp,
    )
    assert record.headers is not None
    assert record.headers[:2] == [("mime", b"image/png"), ("no", None)]
    assert content(store, record) == data
    assert content(store, record.headers[2][1].decode()) == data  # type: ignore[union-attr]


def test_a_source_that_breaks_off_leaves_nothing_though_its_error_is_kept(store: jjq.Store, directory: Path) -> None:
    topic = store.create_topic("t")
    with pytest.raises(jjq.InvalidArgument, match="what is to be kept cannot be read: it broke") as kept:
        topic.push_file(Breaking(LARGE, directory / "objects"))
    assert [each for each in (directory / "objects").rglob("*") if each.is_file()] == []
    assert kept.value.__traceback__ is not None  # of whom the frames still have the stream to a broker
    assert topic.offsets()[0].end == 0


def test_the_same_content_is_kept_once(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    for value in ("one", b"two", None):
        topic.push_file(b"content", value)
    assert [(each.bytes, each.references) for each in store.list_objects()] == [(7, 3)]
    assert [record.value for record in records(store, "t")] == [b"one", b"two", b""]


def test_topics_with_a_schema_carry_objects_too(store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=pa.schema([("name", pa.string()), ("at", pa.list_(pa.int32()))]))
    for value in (None, b"n"):
        with pytest.raises(jjq.SchemaMismatch, match=r"topic 't' has a schema.*push_file\(source, {'name': ...}\)"):
            topic.push_file(b"never kept", value)
    topic.push_file(b"data", {"name": "n", "at": [1, 2]})
    (record,) = records(store, "t")
    assert record.value == {"name": "n", "at": [1, 2]}
    assert content(store, record) == b"data"


def test_a_push_that_is_refused_keeps_nothing(store: jjq.Store, tmp_path: Path) -> None:
    topic = store.create_topic("t", max_record_bytes=5)
    with pytest.raises(jjq.RecordTooLarge):
        topic.push_file(LARGE, b"too long a value")
    with pytest.raises(jjq.InvalidArgument, match="cannot read"):
        topic.push_file(tmp_path / "nope")
    with pytest.raises(jjq.InvalidArgument, match="takes a path"):
        topic.push_file(7)  # type: ignore[arg-type]
    with pytest.raises(jjq.InvalidArgument, match="for text"):
        topic.push_file(io.StringIO("text"))  # type: ignore[arg-type]
    with (
        open("/proc/self/mem", "rb") as source,
        pytest.raises(jjq.InvalidArgument, match="cannot be read: Input/output error"),
    ):
        topic.push_file(source)
    with pytest.raises(jjq.InvalidArgument, match="jjq-object"):
        topic.push_file(b"data", headers={objects.HEADER: b""})
    with pytest.raises(jjq.InvalidArgument, match="partition"):
        topic.push_file(b"data", partition=7)
    assert records(store, "t") == []
    assert [each.references for each in store.list_objects()] in ([], [0, 0])  # and maintenance removes them


def test_what_is_not_there_and_what_is_no_reference(store: jjq.Store, directory: Path) -> None:
    topic = store.create_topic("t")
    topic.push(b"plain")
    (record,) = records(store, "t")
    with pytest.raises(jjq.InvalidArgument, match="refers to no object"):
        store.open_object(record)
    with pytest.raises(jjq.InvalidArgument, match="is no reference"):
        store.open_object("sha256:abc")
    with pytest.raises(jjq.InvalidArgument, match="has no object 000"):
        store.open_object(f"sha256:{'0' * 64}")
    topic.push_file(b"right")
    (file,) = [each for each in (directory / "objects").rglob("*") if each.is_file()]
    file.write_bytes(b"wrong")
    with pytest.raises(
        jjq.DamagedSegment, match="not what was pushed; put the right file in its place, or push it again"
    ):
        store.open_object(records(store, "t")[1])
    file.unlink()
    file.mkdir()
    with pytest.raises(jjq.StoreError, match="Is a directory"):
        store.open_object(records(store, "t")[1])
    file.rmdir()
    topic.push_file(b"right")
    assert [content(store, record) for record in records(store, "t")[1:]] == [b"right"] * 2
