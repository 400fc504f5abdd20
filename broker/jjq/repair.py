"""Putting a store right after damage: what is whole is kept, what is not is named and taken out of the way.

Nothing is deleted: damaged and unknown files go to `quarantine/`. Each step leaves a store that the next run goes on from,
so a repair may be killed anywhere and run again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from jjq import files, layout, topicfile
from jjq.assessing import assess, open_backup
from jjq.candidates import lost_segment
from jjq.catalog.base import Catalog
from jjq.catalog.channels import ChannelState, all_channels, channel_places
from jjq.catalog.restore import raise_prefix, replace_active, replace_segment
from jjq.catalog.rows import PartitionRow, TopicRow
from jjq.catalog.sqlite import SqliteDriver
from jjq.clock import boot_id, from_us, iso, now_us
from jjq.compaction import Output
from jjq.config import TopicConfig
from jjq.errors import DamagedSegment, StoreError, StoreFormat, StoreNotFound
from jjq.facts import Facts
from jjq.founding import DIRECTORIES, FORMAT, users
from jjq.known import Known, in_use
from jjq.log.check import check_active, check_segment
from jjq.log.format import NO_TS
from jjq.log.reader import LOST
from jjq.log.salvage import Piece, Wreck, read_index, runs
from jjq.log.sealed import file_crc
from jjq.log.stream import stream_paths
from jjq.model import Segment
from jjq.rebuild import Rebuild
from jjq.reports import LostRange, Progress, RepairReport, no_progress
from jjq.store import Store
from jjq.values import counted

_EVER = 1 << 62
_MISPLACED = "the store has a file where this is none, or a directory"


def repair(path: str | os.PathLike[str], progress: Progress | None = None) -> RepairReport:
    """Repairs the store in a directory, which nobody else may have open.

    Raises StoreNotFound, StoreError (others have it open, or the disk refuses), and StoreFormat for one of a later
    version.
    """
    root = Path(path).absolute()
    if not (root / "jjq.json").exists() and not (root / "topics").is_dir():
        raise StoreNotFound(f"there is no store at {root}; name its directory")
    report = RepairReport(str(root))
    quarantine = Quarantine(root, report)
    with files.translated("repair", root):
        lock = root / "store.lock"
        if lock in layout.misplaced(root):  # then nobody can have the store open
            quarantine.take(lock, _MISPLACED)
        fd = files.open_lock(root / "store.lock")
        try:
            _lock_alone(root, fd)
            for path in layout.misplaced(root):
                quarantine.take(path, _MISPLACED)
            _repair_identity(root, quarantine, report)
            reason, catalog = assess(root)
            bare = not (root / "topics").is_dir()
            if bare and catalog is None:
                report.gone.append(
                    f"{root / 'topics'} was missing; nobody knows of all topics and records that were in it"
                )
            for name in DIRECTORIES:
                files.make_dirs(root / name)
            if reason is not None:
                _rebuild(root, reason, catalog, bare, quarantine, report)
            elif catalog is not None:
                catalog.close()
        except BaseException:
            files.close(fd)
            raise
        with Store(root, create=False, lock_fd=fd) as store:
            Repair(store, report, quarantine, progress or no_progress).run()
        quarantine.explain()
    return report


def _lock_alone(root: Path, fd: int) -> None:
    if not files.lock(fd, wait=False):
        raise StoreError(f"{root} is open in {users(root)}; close it everywhere, then repair it")


class Quarantine:
    """Where files go that are damaged or unknown: `quarantine/<time of this repair>/<where they were>`."""

    def __init__(self, root: Path, report: RepairReport) -> None:
        self._root = root
        self._report = report
        moment = from_us(now_us()).strftime("%Y%m%dT%H%M%SZ")
        self._directory = root / "quarantine" / f"{moment}-{uuid4().hex[:4]}"
        self._reasons: dict[str, str] = {}

    def take(self, path: Path, why: str) -> None:
        """Moves a file, if it is there. Names are made durable before the next step relies on it."""
        if not os.path.lexists(path):
            return
        relative = path.relative_to(self._root)
        target = self._directory / relative
        files.make_dirs(target.parent)
        files.move(path, target)
        files.sync_dir(target.parent)
        files.sync_dir(path.parent)
        self._reasons[str(relative)] = why
        self._report.quarantined.append(str(target.relative_to(self._root)))

    def explain(self) -> None:
        """Writes down beside the files why they are there."""
        if self._reasons:
            files.write_small(self._directory / "why.json", json.dumps(self._reasons, indent=1).encode())


def _repair_identity(root: Path, quarantine: Quarantine, report: RepairReport) -> None:
    path = root / "jjq.json"
    body = layout.read_json(path)
    if body is not None and isinstance(body.get("format"), int) and isinstance(body.get("id"), str):
        if body["format"] > FORMAT:
            raise StoreFormat(f"{root} has store format {body['format']}, this jjq knows up to {FORMAT}; upgrade jjq")
        return
    quarantine.take(path, "it cannot be read")
    layout.write_json(path, {"format": FORMAT, "id": uuid4().hex, "created_at": now_us()})
    report.notes.append(f"{path} was missing or damaged; the store has a new id")


# --- the catalog -----------------------------------------------------------------------------------------------------


def _rebuild(
    root: Path, reason: str, sound: Catalog | None, bare: bool, quarantine: Quarantine, report: RepairReport
) -> None:
    """Makes the catalog again beside the old one, then puts it in its place. `bare`: the store had no `topics/`."""
    report.rebuilt = reason
    rebuilt = root / layout.REBUILT
    for path in sorted(root.glob(f"{layout.REBUILT}*")):
        files.unlink(path)
    older = [] if sound is None else [sound]
    backup = open_backup(root)
    if backup is not None:
        older.append(backup)
    driver = SqliteDriver(rebuilt, root / "catalog.lock")
    try:
        driver.migrate()
        # What only a backup knows may have been deleted since, unless everything is gone.
        trusted = older if bare else [] if sound is None else [sound]
        Rebuild(root, older, trusted, report, boot_id()).into(Catalog(driver))
        if sound is None:
            report.notes.append(_who_reads(root, backup))
    finally:
        driver.close()
        for each in older:
            each.close()
    fd = files.open_rw(rebuilt)
    try:
        files.datasync(fd)
    finally:
        files.close(fd)
    # The database first: without it the rest is not taken for one by a run that follows. And all of it before the new one
    # gets its name, as SQLite would play the old log into it.
    for name in layout.CATALOG_FILES:
        quarantine.take(root / name, f"the catalog was made again: {reason}")
    files.replace(rebuilt, root / layout.CATALOG_FILES[0])
    files.sync_dir(root)
    for path in sorted(root.glob(f"{layout.REBUILT}*")):
        files.unlink(path)


def _who_reads(root: Path, backup: Catalog | None) -> str:
    """What has become of who reads, which is in no file but the catalog."""
    if backup is None:
        return "no backup of the catalog was found, so subscribers and channels have to be made again"
    moment = iso((root / layout.BACKUP).stat().st_mtime_ns // 1000)
    return (
        f"subscribers and channels, with their cursors and deliveries, are as the catalog's backup has them, of {moment} (by its "
        f"file's time): what they have read since may come again, and those made since are gone and have to be made again"
    )


# --- files -----------------------------------------------------------------------------------------------------------


class Repair:
    """One pass over a store whose catalog is sound."""

    def __init__(self, store: Store, report: RepairReport, quarantine: Quarantine, progress: Progress) -> None:
        self._store = store
        self._catalog = store.catalog
        self._report = report
        self._quarantine = quarantine
        self._progress = progress
        self._done = self._total = 0
        self._what = ""
        self._ends: dict[tuple[str, int], int] = {}

    def run(self) -> None:
        topics = self._catalog.topics()
        self._total = sum(size for each in topics for _, size, *_ in self._catalog.segment_counts(each.id).values())
        for topic in topics:
            self._what = topic.name
            facts = Facts(self._store, topic.id)
            for partition in range(topic.partitions):
                self._directory(topic, partition)
                _, segments = self._catalog.segments(topic.id, partition, 0, _EVER)
                before = NO_TS
                for segment in segments:
                    before = self._segment(topic, facts, partition, segment, before)
                raise_prefix(self._catalog, topic.id, partition, before)
                self._active(topic, facts, self._catalog.partition(topic.id, partition))
                self._begin_behind_losses(topic.id, partition)
            if topicfile.differs(self._store.path, self._catalog, topic):
                topicfile.write(self._store.path, self._catalog, topic)
        self._cursors()
        self._garbage()
        self._replaced()
        for path in Known(self._store).unknown():
            self._quarantine.take(path, "nobody names it")
        self._report.topics, self._report.writers = len(topics), len(self._catalog.writers())
        self._report.subscribers = len(self._catalog.subscribers())

    def _tick(self, size: int) -> None:
        self._done += size
        self._progress(min(self._done, self._total), self._total, self._what)

    def _directory(self, topic: TopicRow, partition: int) -> None:
        """Nothing could be appended to a partition without one."""
        directory = self._store.partition_dir(topic.id, partition)
        if not directory.is_dir():
            files.make_dirs(directory)
            self._report.notes.append(f"{directory} of topic {topic.name!r} was missing")

    def _segment(self, topic: TopicRow, facts: Facts, partition: int, segment: Segment, before: int) -> int:
        """Checks a closed segment and saves what is whole of a damaged one. `before` is the highest timestamp before it;
        returns that up to and including it."""
        prefix = max(before, segment.max_ts, segment.prefix_max_ts)
        if segment.kind == LOST:
            return self._with_prefix(topic, partition, segment, prefix)
        directory = self._store.partition_dir(topic.id, partition)
        self._report.segments += 1
        self._report.bytes += segment.length
        try:
            check_segment(directory, topic.id, partition, segment, facts, self._tick)
        except (DamagedSegment, OSError) as error:
            why = str(error)
        else:
            return self._with_prefix(topic, partition, segment, prefix)
        path = directory / f"{segment.uuid}.{segment.kind}"
        schema = facts.physical(segment.schema_version)
        pieces: list[Piece] = []
        wreck = None
        if path.exists():
            wreck = Wreck(path)
            if segment.kind == "arrow":
                pieces = wreck.sealed_pieces(schema, segment.base, segment.rows, segment.appended_at)
            else:
                pieces = wreck.stream_pieces(
                    schema, bytes.fromhex(topic.id), partition, segment.base, segment.end, segment.length or None
                )
        saved = self._save(topic, partition, segment, schema, wreck, pieces, before)
        replace_segment(self._catalog, topic.id, partition, segment, saved)
        self._say_lost(topic, partition, path, saved)
        for name in layout.names_of(segment.uuid, segment.kind):
            self._quarantine.take(directory / name, why)
        return saved[-1].prefix_max_ts

    def _with_prefix(self, topic: TopicRow, partition: int, segment: Segment, prefix: int) -> int:
        """What was saved before a segment may have a higher timestamp than its row knew of."""
        if segment.prefix_max_ts != prefix:
            new = replace(segment, prefix_max_ts=prefix)
            replace_segment(self._catalog, topic.id, partition, segment, [new])
        return prefix

    def _active(self, topic: TopicRow, facts: Facts, row: PartitionRow) -> None:
        place = (topic.id, row.partition)
        self._ends[place] = row.end_offset
        if row.active is None:
            return
        directory = self._store.partition_dir(*place)
        self._report.segments += 1
        try:
            found = check_active(directory, topic.id, row, facts, self._store.boot_id, self._tick)
        except (DamagedSegment, OSError) as error:
            why = str(error)
        else:
            self._ends[place] = found.offset
            self._report.bytes += found.position
            return
        path, index_path = stream_paths(directory, row.active)
        schema = facts.physical(row.active_schema)
        index = read_index(index_path)
        closing = index.closing
        wreck = Wreck(path) if path.exists() else None
        pieces: list[Piece] = []
        if wreck is not None:
            high, stop = (_EVER, None) if closing is None else (closing.base, closing.position)
            pieces = wreck.stream_pieces(schema, bytes.fromhex(topic.id), row.partition, row.end_offset, high, stop)
        end = max([row.end_offset, index.end, *(piece.end for piece in pieces)])
        appended_at = max(
            [entry.appended_at for entry in index.entries] + [piece.appended_at for piece in pieces], default=0
        )
        active = Segment(
            row.active, "arrows", row.end_offset, end, 0, 0, 0, row.active_schema, NO_TS, NO_TS, row.prefix_max_ts,
            appended_at,
        )  # fmt: skip
        saved = self._save(topic, row.partition, active, schema, wreck, pieces, row.prefix_max_ts)
        replace_active(self._catalog, row, saved, self._store.boot_id)
        self._ends[place] = end
        self._say_lost(topic, row.partition, path, saved)
        for each in (path, index_path):
            self._quarantine.take(each, why)

    def _save(
        self, topic: TopicRow, partition: int, segment: Segment, schema: pa.Schema, wreck: Wreck | None,
        pieces: Sequence[Piece], before: int,
    ) -> list[Segment]:  # fmt: skip
        """Writes what is whole of a segment into new files; returns their rows and, between them, those for what is
        lost: together its offsets."""
        config = TopicConfig.from_dict(topic.config)
        directory = self._store.partition_dir(topic.id, partition)
        rows: list[Segment] = []
        outputs: list[Output] = []
        at, prefix = segment.base, before

        def lose(end: int) -> None:
            nonlocal at, prefix
            if end > at:
                # Nobody knows whether a lost record had the highest timestamp, so it may have had.
                prefix = max(prefix, segment.prefix_max_ts)
                rows.append(lost_segment(at, end, segment.schema_version, prefix, segment.appended_at))
                at = end

        try:
            for run in runs(pieces):
                assert wreck is not None
                lose(run[0].base)
                output = Output(
                    directory, topic.id, partition, schema, segment.schema_version, config.compression,
                    config.segment_bytes, at, prefix, segment.level,
                )  # fmt: skip
                outputs.append(output)
                output.write([replace(segment, base=at, end=run[-1].end)], _Reading(wreck, run, schema))
                output.describe([segment.uuid], lambda _: segment.appended_at)
                rows += output.segments
                at, prefix = run[-1].end, output.segments[-1].prefix_max_ts
            lose(segment.end)
        except BaseException:
            with contextlib.suppress(OSError):
                for output in outputs:
                    output.discard()
            raise
        return rows

    def _begin_behind_losses(self, topic_id: str, partition: int) -> None:
        """What is lost at the beginning is gone as by retention: the earliest record is one that there is."""
        row, segments = self._catalog.segments(topic_id, partition, 0, _EVER)
        start = row.start_offset
        for each in segments:
            if each.kind != LOST or each.base > start:
                break
            start = each.end
        if start > row.start_offset:
            self._catalog.advance_start(topic_id, partition, start, [], now_us())

    def _say_lost(self, topic: TopicRow, partition: int, path: Path, saved: Sequence[Segment]) -> None:
        for each in saved:
            if each.kind == LOST:
                self._report.lost.append(LostRange(topic.name, partition, each.base, each.end, str(path)))
            else:
                self._report.saved += each.rows

    # --- the rest of the catalog -------------------------------------------------------------------------------------

    def _cursors(self) -> None:
        """A cursor beyond the end would skip what comes. One of an earlier lineage is told so when it is used. A partition
        without one would never be read."""
        with self._catalog.driver.write(durable=True) as tx:
            filled = sum(
                tx.run(name, topic_id=topic_id)
                for topic_id, *_ in tx.rows("topics")
                for name in ("fill_cursors", "fill_channel_partitions")
            )
        if filled:
            self._report.notes.append(
                f"{counted(filled, 'partition')} had no position of a subscriber or channel, {'which is' if filled == 1 else 'which are'} read from 0"
            )
        for each in self._catalog.subscribers():
            for partition, (offset, lineage) in self._catalog.cursors(each.id).items():
                end = self._ends.get((each.topic_id, partition))
                if end is None or offset <= end:
                    continue
                row = self._catalog.partition(each.topic_id, partition)
                if lineage >= row.lineage:
                    self._catalog.set_cursors(each.id, {partition: (end, row.lineage)}, only_forward=False)
                    self._report.notes.append(f"subscriber {each.name!r} stood beyond the end; it is at {end} now")
        for channel in all_channels(self._catalog.driver):
            for partition, place in channel_places(self._catalog.driver, channel.id).items():
                end = self._ends.get((channel.topic_id, partition))
                if end is None or place[0] <= end:
                    continue
                row = self._catalog.partition(channel.topic_id, partition)
                if place[1] >= row.lineage:
                    ChannelState(self._catalog.driver, channel).place_back(partition, place, (end, row.lineage))
                    self._report.notes.append(f"channel {channel.name!r} stood beyond the end; it is at {end} now")

    def _garbage(self) -> None:
        """What is in use is no garbage."""
        wrong = [path for path in self._catalog.garbage() if in_use(self._catalog, path)]
        if wrong:
            self._catalog.drop_garbage(wrong)

    def _replaced(self) -> None:
        """What is left of damaged files whose place others have taken, by a repair that died then: by their names they
        could be leftovers of maintenance, which removes those."""
        for topic in layout.topic_directories(self._store.path):
            for directory in layout.partition_directories(topic):
                for path in sorted(directory.iterdir()):
                    relative = str(path.relative_to(self._store.path))
                    if (
                        not in_use(self._catalog, relative)
                        and not self._catalog.is_garbage(relative)
                        and _is_rest(path)
                    ):
                        for each in (path.with_suffix(".arrow"), path):
                            self._quarantine.take(each, "it is damaged, and others have taken its place")


def _is_rest(path: Path) -> bool:
    """Whether a file is an index without its data, or the sidecar of a sealed file that is damaged or gone."""
    file = layout.segment_file(path.name)
    if file is None or path.name.endswith(layout.UNFINISHED):
        return False
    if file.suffix == ".index":
        return not path.with_suffix(".arrows").exists()
    sidecar = layout.read_sidecar(layout.read_json(path)) if file.suffix == ".json" else None
    if sidecar is None:
        return False
    sealed = path.with_suffix(".arrow")
    return not sealed.exists() or file_crc(sealed) != (sidecar.segment.length, sidecar.segment.crc)


class _Reading:
    """Gives the batches of pieces to who writes them."""

    def __init__(self, wreck: Wreck, pieces: Sequence[Piece], schema: pa.Schema) -> None:
        self._wreck, self._pieces, self._schema = wreck, pieces, schema

    def __call__(self, segment: Segment) -> Iterator[tuple[int, pa.RecordBatch]]:
        for piece in self._pieces:
            yield piece.base, self._wreck.read(piece, self._schema)
