"""Big objects (images, models, documents) that records refer to instead of carrying.

An object is a file in the store, named by the SHA-256 of its content and kept once however many records refer to it. A
record refers to it in its header `jjq-object`. The object goes when retention has taken the last of those records.

A reference and its object have their rows before the object is looked for and before the record is pushed, and objects
are removed only inside a catalog transaction that sees no reference: so what a record refers to is there, and no file is
there without a row. A reference without an offset is somebody's who pushes, and holds `objects.lock`, or of one who died:
its row says whether the record may be there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from jjq import files, layout
from jjq.clock import now_us
from jjq.errors import DamagedSegment, InvalidArgument, JjqError, SchemaMismatch, StoreError
from jjq.headers import check_headers
from jjq.model import Position, Record
from jjq.values import counted

if TYPE_CHECKING:
    from jjq.store import Store
    from jjq.topic import Headers, Timestamp, Topic

HEADER = "jjq-object"
CHUNK_BYTES = 1 << 20
_REFERENCE = re.compile(r"sha256:([0-9a-f]{64})")
# A push that died between its reference and its record leaves a row without an offset. It is dropped once nothing of the
# topic is as old as when that was found, with this much allowed for clocks.
_MARGIN_US = 86_400_000_000

Pairs = list[tuple[str, bytes | None]]
Source = str | os.PathLike[str] | bytes | IO[bytes]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object of the store: SHA-256 as hex, bytes, when it came (microseconds), how many records refer to it."""

    hash: str
    bytes: int
    created_at: int
    references: int


def object_path(store: Store, digest: str) -> Path:
    return store.path / "objects" / digest[:2] / digest


def push_file(
    topic: Topic, store: Store, source: Source, value: Any, *, key: bytes | str | None, headers: Headers,
    timestamp: Timestamp, partition: int | None,
) -> Position:  # fmt: skip
    """See `Topic.push_file`."""
    store.check_open(write=True)
    value, pairs = record_of(topic, source, value, headers)
    with (
        pushing(store), files.translated("keep an object in", store.path), opened(source) as stream, Incoming(store) as incoming,
    ):  # fmt: skip
        while chunk := read_source(stream):
            incoming.add(chunk)
        return push_kept(topic, store, incoming, value, pairs, key, timestamp, partition)


def record_of(topic: Topic, source: Source, value: Any, headers: Headers) -> tuple[Any, Pairs]:
    """The value and the headers of the record that is to refer to an object."""
    if topic.schema is not None and not isinstance(value, Mapping):
        raise SchemaMismatch(
            f"topic {topic.name!r} has a schema, so the record that refers to the object has its columns: give them as the value, "
            f"push_file(source, {{{topic.schema.names[0]!r}: ...}}), or make a topic without a schema for big objects"
        )
    if topic.schema is None and value is None:
        value = os.fspath(source).rpartition(os.sep)[2] if isinstance(source, (str, os.PathLike)) else b""
    pairs = check_headers(headers) or []
    if any(name == HEADER for name, _ in pairs):
        raise InvalidArgument(
            f"the header {HEADER!r} is what push_file adds; push the record with another name for yours"
        )
    return value, pairs


def push_kept(
    topic: Topic, store: Store, incoming: Incoming, value: Any, pairs: Pairs, key: bytes | str | None,
    timestamp: Timestamp, partition: int | None,
) -> Position:  # fmt: skip
    """Keeps what has come in, and pushes the record. The caller is `pushing`."""
    digest, reference = incoming.digest, uuid.uuid4().hex
    with store.catalog.driver.write(durable=True) as tx:
        tx.run("add_object_reference", id=reference, hash=digest, topic_id=topic.id, created_at=now_us())
        tx.run("add_object", hash=digest, bytes=incoming.size, created_at=now_us())
    pushed = False
    try:
        with files.translated("keep an object in", store.path):
            incoming.keep(object_path(store, digest))
        with store.catalog.driver.write(durable=True) as tx:
            tx.run("begin_object_reference", id=reference)
        pushed = True
        headers = [*pairs, (HEADER, f"sha256:{digest}".encode())]
        position = topic.push(value, key=key, headers=headers, timestamp=timestamp, partition=partition)
    except BaseException as error:
        # Where it was interrupted, or the disk refused, the record may be there, if only after the next boot.
        if not pushed or (isinstance(error, JjqError) and not isinstance(error, StoreError)):
            with contextlib.suppress(JjqError), store.catalog.driver.write(durable=True) as tx:
                tx.run("drop_object_reference", id=reference)
        raise
    with store.catalog.driver.write(durable=True) as tx:
        tx.run("place_object_reference", id=reference, partition=position.partition, record_offset=position.offset)
    return position


@contextlib.contextmanager
def pushing(store: Store) -> Iterator[None]:
    """Shared with all who push objects, and awaited by nobody: as long as it is held, no clock makes their rows old."""
    path = store.path / layout.OBJECTS_LOCK
    store.catalog.check_named()  # before anything is made in another store, or in none
    with files.translated("lock", path):
        fd = files.open_lock(path)
    try:
        files.lock(fd, shared=True)
        yield
    finally:
        files.close(fd)


@contextlib.contextmanager
def opened(source: Source) -> Iterator[IO[bytes]]:
    if isinstance(source, bytes):
        yield io.BytesIO(source)
    elif isinstance(source, (str, os.PathLike)):
        try:
            stream = open(source, "rb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise InvalidArgument(f"cannot read {os.fspath(source)}: {error.strerror}") from error
        with stream:
            yield stream
    elif hasattr(source, "read"):
        yield source
    else:
        raise InvalidArgument(f"push_file takes a path, bytes or a binary file, not {type(source).__name__}")


class Incoming:
    """A file on its way in: written under a name of its own, hashed as it goes, then given its content's name."""

    def __init__(self, store: Store) -> None:
        directory = store.path / "objects"
        files.make_dirs(directory, within=store.path)
        self._path = directory / f"{uuid.uuid4().hex}.new"
        self._fd = -1
        self._hash = hashlib.sha256()
        self.size = 0

    def __enter__(self) -> Incoming:
        self._fd = files.create(self._path)
        return self

    def __exit__(self, *_: object) -> None:
        files.close(self._fd)
        with contextlib.suppress(OSError):
            files.unlink(self._path)

    def add(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        files.pwrite(self._fd, chunk, self.size)
        self.size += len(chunk)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def keep(self, path: Path) -> None:
        """On disk under its name; one that is there already stays, if it is whole."""
        if not _is_whole(path, self.digest):
            files.datasync(self._fd)
            files.make_dirs(path.parent)
            files.replace(self._path, path)
        # Also what another process has put there a moment ago, which may not have come to this yet.
        for directory in path.parents[:3]:
            files.sync_dir(directory)


def _open(path: Path) -> io.BufferedReader:
    """An object's file; a pipe that lies in its place is not waited for."""
    return open(path, "rb", opener=lambda name, _: files.open_ro(name))


def _is_whole(path: Path, digest: str) -> bool:
    """Whether an object is there as it was pushed; one that cannot be read is not."""
    try:
        with _open(path) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == digest
    except OSError:
        return False


def read_source(stream: IO[bytes], most: int = CHUNK_BYTES) -> bytes:
    """The next bytes of what is to be kept; empty at its end."""
    try:
        chunk = stream.read(most)
    except OSError as error:  # which is not the store's, nor a connection's
        raise InvalidArgument(f"what is to be kept cannot be read: {error.strerror or error}") from error
    if not isinstance(chunk, bytes):
        raise InvalidArgument("the file is open for text; open it with mode 'rb'")
    return chunk


def digest_of(record: Record | str | bytes) -> str:
    """The SHA-256 (hex) that a record, or a reference `sha256:...`, names; raises InvalidArgument."""
    text: object = record
    if isinstance(record, Record):
        text = next((value for name, value in record.headers or () if name == HEADER), None)
        if text is None:
            raise InvalidArgument(f"the record at offset {record.offset} of {record.topic!r} refers to no object")
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidArgument(f"{text!r} is no reference; one looks like sha256: and 64 hexadecimal digits")
    return match.group(1)


def open_object(store: Store, record: Record | str | bytes) -> IO[bytes]:
    """The object's bytes as a file, checked whole before the first is given out; raises DamagedSegment."""
    digest = digest_of(record)
    path = object_path(store, digest)
    with files.translated("read", path), contextlib.ExitStack() as left_open:
        try:
            stream = left_open.enter_context(_open(path))
        except FileNotFoundError as error:
            raise InvalidArgument(
                f"the store has no object {digest}; retention may have taken its last record"
            ) from error
        if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
            raise DamagedSegment(
                f"{path}: the object is not what was pushed; put the right file in its place, or push it again",
                path=str(path), position=0, lost=None,
            )  # fmt: skip
        stream.seek(0)
        left_open.pop_all()  # it is the caller's to close
        return stream


def topics_of(store: Store, digest: str) -> list[str]:
    """The ids of the topics with a record that refers to an object."""
    return [topic_id for (topic_id,) in store.catalog.driver.rows("topics_of_object", hash=digest)]


def list_objects(store: Store) -> list[ObjectInfo]:
    return [ObjectInfo(*row) for row in store.catalog.driver.rows("objects")]


def sweep(store: Store) -> tuple[int, int]:
    """Removes objects that no record refers to any more; returns (objects, bytes) removed."""
    removed = freed = 0
    now = now_us()
    with store.catalog.driver.write(durable=True) as tx:
        tx.run("drop_passed_references")
        tx.run("drop_orphaned_references", before=now - _MARGIN_US, margin=_MARGIN_US)
    _mark_orphans(store, now)
    candidates = store.catalog.driver.rows("unreferenced_objects")
    for digest, size in candidates:
        # One at a time: the file goes while the catalog's lock keeps new references away.
        with store.catalog.driver.write(durable=True) as tx:
            if (digest, size) in tx.rows("unreferenced_objects"):
                with files.translated("remove", object_path(store, digest)):
                    files.unlink(object_path(store, digest))
                tx.run("drop_object", hash=digest)
                removed, freed = removed + 1, freed + size
    return removed, freed


def _mark_orphans(store: Store, now: int) -> None:
    """Removes what pushes that have died left and no record can refer to; notes of the other rows of theirs that this was
    so by now: a record that came after all is no younger. While objects are pushed all the time this waits, which only
    keeps an object longer."""
    path = store.path / layout.OBJECTS_LOCK
    if not store.catalog.driver.rows("unplaced_references") and not _unfinished(store):
        return
    with files.translated("lock", path):
        fd = files.open_lock(path)
    try:
        if files.lock(fd, wait=False):
            with store.catalog.driver.write(durable=True) as tx:
                tx.run("drop_unbegun_references")
                tx.run("mark_orphaned_references", now=now)
            for left in _unfinished(store):
                with files.translated("remove", left):
                    files.unlink(left)
    finally:
        files.close(fd)


def _unfinished(store: Store) -> list[Path]:
    """What is on its way in, or was."""
    return sorted((store.path / "objects").glob(f"*{layout.UNFINISHED}"))


def problems(store: Store) -> list[tuple[str, str]]:
    """(path, what is wrong) of each object that records refer to and that is missing or changed."""
    found = []
    for info in list_objects(store):
        if not info.references:
            continue
        path = str(object_path(store, info.hash))
        try:
            open_object(store, f"sha256:{info.hash}").close()
        except InvalidArgument:
            # A push that is under way, or has died, may not have come to its object; where its record may be there, it had.
            if records := store.catalog.driver.rows("begun_references", hash=info.hash):
                found.append(
                    (path, f"the object is missing; {counted(len(records), 'record refers', 'records refer')} to it")
                )
        except DamagedSegment:
            found.append((path, "the object is not what was pushed"))
        except StoreError as error:
            found.append((path, error.message))
    return found
