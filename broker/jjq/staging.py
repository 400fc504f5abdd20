"""Writing whole files first and giving them offsets later: bulk loads and exactly-once writers.

A stage writes sealed files under names nobody reads. A commit takes any number of them, in all partitions and topics
they touch, in one catalog transaction, together with the writer's batch: all of it once, or none.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jjq import files, layout
from jjq.catalog.rows import PartitionRow, Positions, Statements, segment_values, staged_segment
from jjq.clock import now_us
from jjq.errors import InvalidArgument, JjqError, StagedFileMissing, WriterConflict
from jjq.log.sealed import COMPRESSED_ROWS, SEALED_BATCH_BYTES, SealedWriter, file_crc, rebatch, sealed_path
from jjq.log.stream import missing_directory
from jjq.model import Commit, Segment, StagedFile, check_name
from jjq.preparing import prepare, split
from jjq.schema import check_arrays, physical, to_table
from jjq.values import counted, each_of, flag, shown, whole

if TYPE_CHECKING:
    from jjq.catalog.base import Catalog
    from jjq.store import Store
    from jjq.topic import Topic

WANTED = "give a list of staged files, as finish returned them"
Writer = tuple[str, int, str | None]  # id, batch, and the query it belongs to


class Stage:
    """Collects rows into sealed files, one or more a partition. `finish` returns them; leaving on an error removes them.

    For one caller at a time. Nothing is visible, and nothing of the topics changes, until a commit.
    """

    def __init__(self, store: Store, default_partition: int = 0, owner: tuple[str, int] | None = None) -> None:
        self._store = store
        self._default = whole(default_partition, "default_partition")
        self._owner = None if owner is None else _check_owner(owner)
        self._writers: dict[tuple[str, int], _PartitionStage] = {}
        self._done: list[StagedFile] = []
        self._finished = self._broken = False
        self._topics: dict[str, Topic] = {}  # by id; this stage's own, as who refreshes a handle changes its schema

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None or not self._finished:
            self.abandon()

    def write(
        self, topic: Topic | str, data: Any, *, partition: int | None = None, key: str | None = None,
        keys: pa.Array | pa.ChunkedArray | None = None, headers: pa.Array | pa.ChunkedArray | None = None,
        timestamps: pa.Array | pa.ChunkedArray | None = None,
    ) -> None:  # fmt: skip
        """Adds rows of anything `push_table` takes. Columns by name; `keys`, `headers` and `timestamps` beside them.

        `partition` sends all rows there, else a key chooses by the documented hash, else the stage's default. `key` names
        the column whose values are the keys. Raises SchemaMismatch, RecordTooLarge and InvalidArgument; then nothing was added.
        After an error amid the writing, as of the disk, the stage takes no more: begin another one.
        """
        self._check_whole()
        if self._finished:
            raise InvalidArgument("the stage is finished; begin another one")
        for what, given in (("keys", keys), ("headers", headers), ("timestamps", timestamps)):
            if given is not None and not isinstance(given, (pa.Array, pa.ChunkedArray)):
                raise InvalidArgument(f"{what} are a pyarrow array, not {type(given).__name__}; pa.array makes one")
        if isinstance(topic, str) or not hasattr(topic, "catch_up"):
            name: Any = topic  # or what is none, and refused
            topic = self._store.topic(name)
        own = self._topics.get(topic.id)
        if own is None:
            own = self._topics[topic.id] = self._store._topic(self._store.facts(topic.id).row())
        if partition is not None:
            own.check_partition(partition)  # before anything is prepared, as for a new one it takes in new columns, too
        table = to_table(data)  # once, as a reader cannot be read again
        beside = {"keys": keys, "headers": headers, "timestamps": timestamps}
        given = {name: column for name, column in beside.items() if column is not None}
        check_arrays([*table.schema.names, *given], [*table.columns, *given.values()])
        prepared = own.retry_schema(
            lambda: prepare(own, table, key=key, keys=keys, headers=headers, timestamps=timestamps)
        )
        with self._whole():
            for index, batch in split(own, prepared, partition, self._default % own.partitions):
                stage = self._writers.get((own.id, index))
                if stage is not None and stage.schema_version != own.schema_version:
                    stage.finish()  # columns were added meanwhile, and a file has one schema
                    stage = None
                if stage is None:
                    stage = _PartitionStage(own, index, self._owner, self._store.catalog, self._done)
                    self._writers[own.id, index] = stage
                stage.add(batch)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """What fails amid this may have been done in part, so that done again, some rows would be there twice, and others not."""
        try:
            yield
        except BaseException:
            self._broken = True
            self.abandon()
            raise

    def _check_whole(self) -> None:
        if self._broken:
            raise InvalidArgument("this stage failed amid a write, or as it was finished; begin another one")

    def finish(self) -> list[StagedFile]:
        """Everything on disk, names included; in the order written, by topic and partition."""
        self._check_whole()
        directories: set[Path] = set()
        with self._whole():
            for stage in self._writers.values():
                stage.finish()
                directories.add(stage.directory)
            for directory in sorted(directories):
                with files.translated("sync", directory):
                    files.sync_dir(directory)
        self._finished = True
        return list(self._done)

    def abandon(self) -> None:
        """Removes what was written; nothing of it was visible."""
        self._finished = True
        for stage in self._writers.values():
            stage.abandon()
        # Why it is abandoned is to be seen, and not that its store is closed by now; maintenance removes what is left.
        with contextlib.suppress(JjqError):
            self._store.discard(self._done)
        self._done = []


class _PartitionStage:
    """The sealed files of one partition. Those that are full go into `done` at once: what fails after that removes them."""

    def __init__(
        self, topic: Topic, partition: int, owner: tuple[str, int] | None, catalog: Catalog, done: list[StagedFile]
    ) -> None:
        self.topic, self.partition, self._catalog = topic, partition, catalog
        self.directory = topic.directory(partition)
        self._owner, self._done = owner, done
        self.schema_version, self._schema = topic.schema_version, physical(topic.schema)
        self._batch_bytes = min(SEALED_BATCH_BYTES, topic.config.segment_bytes)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._writer: SealedWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Holds it until there is enough for a batch of the file."""
        size = batch.nbytes
        if self._held_bytes + size > self._batch_bytes:
            self._flush()
        self._held.append(batch)
        self._held_bytes += size
        if self._held_bytes >= self._batch_bytes:
            self._flush()

    def _flush(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        rows = COMPRESSED_ROWS if self.topic.config.compression else 1 << 20
        for batch in rebatch(held, self._batch_bytes, rows):
            with files.translated("stage records in", self.directory):
                if self._writer is None:
                    self._writer = self._begin()
                self._writer.write(batch)
            if self._writer.length >= self.topic.config.segment_bytes:
                self._end()

    def _begin(self) -> SealedWriter:
        name = uuid.uuid4().hex
        note = {"staged": name, "topic": self.topic.id, "partition": self.partition, "owner": self._owner}
        note_path = self.directory / f"{name}.json"
        try:
            fd = files.create(note_path)
        except FileNotFoundError as error:
            self._catalog.check_named()
            self._catalog.partition(self.topic.id, self.partition)  # raises TopicDeleted
            raise missing_directory(self.directory) from error
        try:
            try:
                files.pwrite(fd, json.dumps(note).encode(), 0)
            finally:
                files.close(fd)
            return SealedWriter(self.directory, name, self._schema, self.topic.config.compression)
        except BaseException:
            for made in (sealed_path(self.directory, name), note_path):  # the note last: it says what the file is
                with contextlib.suppress(OSError):
                    files.unlink(made)
            raise

    def _end(self) -> None:
        writer = self._writer
        assert writer is not None
        with files.translated("stage records in", self.directory):
            writer.finish()
        self._done.append(writer.staged(self.topic.id, self.topic.name, self.partition, self.schema_version))
        self._writer = None  # not before: what fails is still to be removed

    def finish(self) -> None:
        self._flush()
        if self._writer is not None:
            self._end()

    def abandon(self) -> None:
        writer = self._writer
        if writer is not None and all(each.uuid != writer.uuid for each in self._done):  # else it goes with those
            with contextlib.suppress(OSError):
                writer.abandon()
                files.unlink(self.directory / f"{writer.uuid}.json")
        self._writer = None
        self._held = []


def commit(
    store: Store, staged: Sequence[StagedFile], writer_id: str | None, batch_id: int | None, query_id: str | None,
    also: Callable[[Statements], None] | None = None, *, run_id: str | None = None, rows_may_differ: bool = False,
) -> Commit:  # fmt: skip
    """See `Store.commit`. `also` is done in the same transaction; when it raises, nothing is."""
    flag(rows_may_differ, "rows_may_differ")
    if (writer_id is None) != (batch_id is None):
        raise InvalidArgument("writer_id and batch_id go together: they say once which batch of which writer this is")
    if writer_id is None and (query_id, run_id) != (None, None):
        what = "query_id" if run_id is None else "run_id"
        raise InvalidArgument(
            f"{what} says in what a writer commits a batch; give writer_id and batch_id, too, or leave it out"
        )
    staged = each_of(staged, StagedFile, WANTED)
    writer: Writer | None = None
    if writer_id is not None and batch_id is not None:
        _check_id(query_id, "query_id is a str, the id of a query")
        _check_id(run_id, "run_id is a str, the id of a run")
        writer = (check_name(writer_id, "writer"), _check_batch_id(batch_id), query_id)
        known = store.catalog.find_batch(writer_id, batch_id, query_id)
        if known is not None:
            return _again(store, staged, known, writer, run_id, rows_may_differ)
    if not staged and writer is None:
        return Commit()
    by_partition: dict[tuple[str, int], list[StagedFile]] = {}
    for file in staged:
        _check_staged(store, file)
        by_partition.setdefault((file.topic_id, file.partition), []).append(file)
    names = {file.topic_id: file.topic for file in staged}
    rows: dict[tuple[str, int], PartitionRow] = {}
    segments: dict[tuple[str, int], list[Segment]] = {}
    positions: dict[str, dict[int, tuple[int, int]]] = {}
    logs = {place: store.logs[place] for place in sorted(by_partition)}
    transaction = uuid.uuid4().hex
    with contextlib.ExitStack() as locks:
        for log in logs.values():
            locks.enter_context(log.exclusive())
        for file in staged:  # checked whole before the locks; maintenance may have thought it forgotten since
            path = sealed_path(store.partition_dir(file.topic_id, file.partition), file.uuid)
            if not path.exists():
                raise StagedFileMissing(f"{path}: the staged file is gone; write the batch again", path=str(path))
        now = now_us()
        for place, log in logs.items():
            with files.translated("commit to", log.directory):
                row, closed = log.close_active_locked("linked")
            rows[place] = row
            base = closed.end if closed else row.end_offset
            prefix = closed.prefix_max_ts if closed else row.prefix_max_ts
            appended_at = max(now, closed.appended_at if closed else 0)
            segments[place] = [closed] if closed else []
            first = base
            for file in by_partition[place]:
                segment = staged_segment(file, base, prefix, appended_at)
                segments[place].append(segment)
                base, prefix = segment.end, segment.prefix_max_ts
            positions.setdefault(names[place[0]], {})[place[1]] = (first, base)
        _write_manifest(store, transaction, writer, segments, positions, now)
        known = store.catalog.link(
            rows, segments, writer=writer, positions=positions, now=now, run_id=run_id, also=also
        )
        for log in logs.values():
            log.forget_active()
            log.ring_locked()
    if known is not None:
        assert writer is not None
        return _again(store, staged, known, writer, run_id, rows_may_differ)
    for file in staged:
        # The note that says "staged" has done its work; a crash before this line leaves it for maintenance.
        with contextlib.suppress(OSError):
            files.unlink(store.partition_dir(file.topic_id, file.partition) / f"{file.uuid}.json")
    return Commit(positions, transaction=transaction)


def _again(
    store: Store, staged: Sequence[StagedFile], known: Positions, writer: Writer, run_id: str | None,
    rows_may_differ: bool,
) -> Commit:  # fmt: skip
    """A batch that was committed before is not written again. One with other rows is another batch, and so is one from
    the same run: only the very same files may have been committed already, by a call whose answer was lost."""
    same = all(store.catalog.segment(file.uuid) is not None for file in staged)
    store.discard(staged)
    before = Counter({topic: sum(end - first for first, end in each.values()) for topic, each in known.items()})
    now: Counter[str] = Counter()
    for file in staged:
        now[file.topic] += file.rows
    if not rows_may_differ and now != before:
        raise WriterConflict(
            f"batch {writer[1]} of writer {writer[0]!r} was committed before with {_rows(before)}, and this one has {_rows(now)}, "
            f"so it is another; nothing was written. Commit what belongs together at once (store.stage), and give each "
            f"write a writer_id of its own; `jjq writer reset {writer[0]}` forgets what this writer has committed",
            writer=writer[0], batch=writer[1],
        )  # fmt: skip
    if run_id is not None and not store.catalog.claim_batch(writer[0], writer[1], run_id) and not same:
        raise WriterConflict(
            f"batch {writer[1]} of writer {writer[0]!r} was committed before by the same run, with {_rows(before)}, so this is a "
            f"second write of it and no replay; nothing was written. Give each write a writer_id of its own. If it is the "
            f"same write, tried again after an error, its rows are there: leave it out, or begin a new run",
            writer=writer[0], batch=writer[1],
        )  # fmt: skip
    return Commit(known, duplicate=True)


def _rows(counts: Counter[str]) -> str:
    return ", ".join(f"{counted(count, 'row')} into {topic!r}" for topic, count in sorted(counts.items())) or "no rows"


def _check_owner(owner: object) -> tuple[str, int]:
    if not isinstance(owner, tuple) or len(owner) != 2:
        raise InvalidArgument(f"owner is (writer_id, batch_id), not {shown(owner)}")
    return check_name(owner[0], "writer"), _check_batch_id(owner[1])


def _check_id(value: object, what: str) -> None:
    if value is not None and not (isinstance(value, str) and value.isprintable()):
        raise InvalidArgument(f"{what}, not {shown(value)}")


def _check_batch_id(value: object) -> int:
    return whole(value, "batch_id")


def discard(store: Store, staged: Sequence[StagedFile]) -> None:
    """See `Store.discard`."""
    for file in each_of(staged, StagedFile, WANTED):
        if store.catalog.segment(file.uuid) is None:
            path = sealed_path(store.partition_dir(file.topic_id, file.partition), file.uuid)
            # And no others of its name: those are an active segment's, which has no row either.
            for each in (path, path.with_suffix(".json")):
                with contextlib.suppress(OSError):
                    files.unlink(each)


def _check_staged(store: Store, file: StagedFile) -> None:
    path = sealed_path(store.partition_dir(file.topic_id, file.partition), file.uuid)
    try:
        length, crc = file_crc(path)
    except FileNotFoundError as error:
        raise StagedFileMissing(f"{path}: the staged file is gone; write the batch again", path=str(path)) from error
    if (length, crc) != (file.length, file.crc):
        raise StagedFileMissing(
            f"{path}: the staged file is not what was written; write the batch again", path=str(path)
        )


def _write_manifest(
    store: Store, transaction: str, writer: tuple[str, int, str | None] | None,
    segments: dict[tuple[str, int], list[Segment]], positions: dict[str, dict[int, tuple[int, int]]], now: int,
) -> None:  # fmt: skip
    """What this transaction is, beside the catalog: from it repair takes the transaction whole, or not at all."""
    body = {
        "transaction": transaction,
        "writer": writer,
        "at": now,
        "positions": positions,
        "segments": [
            {"topic": topic_id, "partition": partition, **segment_values(segment)}
            for (topic_id, partition), each in segments.items()
            for segment in each
        ],
    }
    path = store.path / "links" / f"{transaction}.json"
    with files.translated("write", path):
        fd = files.create(path)
        try:
            files.pwrite(fd, layout.to_json(body), 0)
            files.datasync(fd)
        finally:
            files.close(fd)
        files.sync_dir(path.parent)
