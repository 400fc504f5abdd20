"""Making the catalog again from the files: `topic.json`, manifests of commits, sidecars of compaction, and stream files,
which describe themselves.

What is found are *candidates* for offsets `[base, end)` of a partition; a partition is the chain of candidates that begins
at its start. Two claim the same offsets when one is a compaction of the other, which then is the better one if it is
whole; or when a process died between a commit's manifest and its transaction, which then was none.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from jjq import files, layout, topicfile
from jjq.candidates import (
    Candidate,
    Topic,
    link_up,
    look_at_index,
    look_at_stream,
    lost_candidate,
    schema_of,
    version_of_sealed,
)
from jjq.catalog.base import Catalog
from jjq.catalog.restore import (
    Restored,
    carry_over,
    restore_garbage,
    restore_topic,
    restore_writer,
    writer_batches,
)
from jjq.catalog.rows import PartitionRow, Positions, TopicRow
from jjq.clock import now_us
from jjq.config import MAX_PARTITIONS, TopicConfig
from jjq.log.format import NO_TS, stream_head
from jjq.log.reader import LOST
from jjq.log.sealed import file_crc
from jjq.model import Segment, WriterInfo
from jjq.reports import LostRange, RepairReport
from jjq.schema import RAW, physical

# A catalog that is lost may have begun lineages that nobody else knows of: one for each reboot since `topic.json` was
# written. The next one's number must be none of theirs.
LINEAGE_STEP = 1000
_EVER = 1 << 62
Place = tuple[str, int]  # topic id, partition


class Rebuild:
    """One attempt at a new catalog. Changes no file but the catalog it is given."""

    def __init__(
        self, store: Path, older: Sequence[Catalog], trusted: Sequence[Catalog], report: RepairReport, boot_id: str
    ) -> None:
        self._store = store
        self._older = older  # catalogs that can still be read, the newest first
        self._trusted = trusted  # of these: what they name and is not there is lost; others may be too old to say so
        self._report = report
        self._boot_id = boot_id
        self._topics: dict[str, Topic] = {}
        self._found: dict[Place, list[Candidate]] = {}
        self._garbage: list[str] = []
        self._manifests: list[layout.Manifest] = []

    def into(self, catalog: Catalog) -> None:
        """Fills a new, empty catalog."""
        self._find_topics()
        for path in sorted((self._store / "links").glob("*.json")):
            manifest = layout.read_manifest(layout.read_json(path))
            if manifest is not None:
                self._manifests.append(manifest)
        for topic in self._topics.values():
            for partition in range(topic.row.partitions):
                self._find_candidates(topic, partition)
        taken = self._take_manifests()
        for topic in self._topics.values():
            schemas = topic.schemas
            restored = [self._partition(topic, partition) for partition in range(topic.row.partitions)]
            restore_topic(catalog, topic.row, schemas, restored)
        self._put_writers(catalog, taken)
        self._put_subscribers(catalog)
        restore_garbage(catalog, self._garbage, now_us())

    # --- topics ------------------------------------------------------------------------------------------------------

    def _find_topics(self) -> None:
        by_name: dict[str, Topic] = {}
        for directory in layout.topic_directories(self._store):
            found = topicfile.read(self._store, directory.name)
            if found is not None and found.deleted:
                self._garbage.append(f"topics/{directory.name}")
                continue
            topic = self._known(directory, found)
            if topic is None:
                continue
            self._name(topic, by_name)
        for catalog in self._trusted:
            for row in catalog.topics():
                directory = self._store / "topics" / row.id
                known = {each.row.id for each in by_name.values()}
                if row.id in known or directory.is_dir():
                    continue
                topic = self._known(directory, None)
                if topic is not None:
                    self._report.notes.append(f"the directory of topic {row.name!r} was missing: {directory}")
                    self._name(topic, by_name)
        self._topics = {each.row.id: each for each in by_name.values()}

    def _name(self, topic: Topic, by_name: dict[str, Topic]) -> None:
        other = by_name.get(topic.row.name)
        if other is not None:
            # One was deleted, or never got its name, by a process that died. The other has records, or came first.
            loser = min(topic, other, key=lambda each: (self._has_records(each), -each.row.created_at))
            self._report.notes.append(
                f"topic {topic.row.name!r} is there twice; {loser.row.id} is now recovered-{loser.row.id[:8]}"
            )
            loser.row = replace(loser.row, name=f"recovered-{loser.row.id[:8]}")
            by_name[loser.row.name] = loser
            topic = other if loser is topic else topic
        by_name[topic.row.name] = topic

    def _has_records(self, topic: Topic) -> bool:
        directory = self._store / "topics" / topic.row.id
        return any(path.suffix in (".arrow", ".arrows") for path in directory.glob("*/*"))

    def _known(self, directory: Path, found: topicfile.TopicFile | None) -> Topic | None:
        """What `topic.json` says, or an older catalog, or else what can be told from the files."""
        topic = None if found is None else Topic(found.row, dict(found.schemas), found.spans, found.lineages)
        partitions = layout.partition_directories(directory)
        # A partition that was added a moment ago is in the newest of these alone, or only in its directory's files.
        most = max((int(each.name) + 1 for each in partitions if _has_segments(each)), default=1)
        for catalog in self._older:
            row = catalog.topic_by_id(directory.name)
            if row is None:
                continue
            most = max(most, row.partitions)
            if topic is None:
                topic = Topic(row, catalog.schemas(row.id))
                for each in catalog.partitions(row.id):
                    topic.spans[each.partition] = (each.start_offset, each.end_offset)
            elif row.schema_version > topic.row.schema_version:
                topic.row = row
            topic.schemas = catalog.schemas(row.id) | topic.schemas
            for partition in range(row.partitions):
                known = topic.lineages.setdefault(partition, [])
                known += [each for each in catalog.lineages(row.id, partition, -1) if each not in known]
        if topic is None and partitions:
            count = max(int(each.name) for each in partitions) + 1
            config = TopicConfig().to_dict()
            name = f"recovered-{directory.name[:8]}"
            topic = Topic(TopicRow(directory.name, name, count, config, 0, now_us(), None), {}, learned=True)
            self._report.notes.append(f"nobody knows what topic {directory.name} was called; it is now {name}")
        if topic is not None:
            topic.row = replace(topic.row, partitions=max(most, topic.row.partitions))
            self._learn_schemas(topic, partitions)
        return topic

    def _learn_schemas(self, topic: Topic, partitions: Sequence[Path]) -> None:
        """A column added by a process that died before `topic.json` knew of it is in the files, which say what they are."""
        if topic.schemas and topic.row.schema is None:
            return  # plain values get no columns: another schema is a damaged head
        heads = {stream_head(physical(schema)) for schema in topic.schemas.values()}
        seen: Counter[pa.Schema] = Counter()
        for directory in partitions:
            for path in sorted(directory.glob("*.arrow*")):
                schema = schema_of(path) if layout.segment_file(path.name) is not None else None
                if schema is not None and stream_head(physical(schema)) not in heads:
                    seen[schema] += 1
        # A schema only ever grows. What is no more and no less than another one is a damaged head, not a schema.
        known = topic.row.schema if topic.schemas else max(seen, key=lambda each: seen[each], default=None)
        latest = list(known or ())
        for schema in sorted(seen, key=len):
            columns = list(schema)
            grown = columns[: len(latest)] == latest and len(columns) > len(latest)
            if grown or (topic.learned and columns == latest[: len(columns)]):
                version = max(topic.schemas, default=0) + 1
                topic.schemas[version] = None if schema == RAW and topic.learned else schema
                topic.row = replace(topic.row, schema_version=version, schema=topic.schemas[version])
        if not topic.schemas:
            topic.schemas[1] = None
            topic.row = replace(topic.row, schema_version=1, schema=None)

    # --- candidates --------------------------------------------------------------------------------------------------

    def _find_candidates(self, topic: Topic, partition: int) -> None:
        place = (topic.row.id, partition)
        found = self._found[place] = []
        directory = self._directory(place)
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            file = layout.segment_file(path.name)
            if file is None or path.name.endswith(layout.UNFINISHED):
                continue
            if file.suffix == ".json":
                sidecar = layout.read_sidecar(layout.read_json(path))
                if sidecar is not None:
                    clean = self._is_whole(directory, sidecar.segment)
                    segment = self._of_known_schema(topic, directory, sidecar.segment)
                    found.append(Candidate(segment, "sidecar", clean, replaces=tuple(sidecar.replaces)))
            elif file.suffix == ".arrows":
                candidate = look_at_stream(directory, file.uuid, topic, partition)
                if candidate is not None:
                    found.append(candidate)
            elif file.suffix == ".index" and not path.with_suffix(".arrows").exists():
                candidate = look_at_index(path, topic)
                if candidate is not None:
                    found.append(candidate)
        known = {each.segment.uuid for each in found}
        for catalog in self._older:
            for _, segment in self._rows_of(catalog, place):
                if segment.uuid not in known and segment.kind != LOST:
                    known.add(segment.uuid)
                    segment = self._of_known_schema(topic, directory, segment)
                    found.append(Candidate(segment, "catalog", self._is_there(directory, segment)))

    def _of_known_schema(self, topic: Topic, directory: Path, segment: Segment) -> Segment:
        """A sealed file with the version of a schema that is there: where nobody knows which there were, by its head."""
        if not topic.learned and segment.schema_version in topic.schemas:
            return segment
        version = version_of_sealed(directory / f"{segment.uuid}.arrow", topic.schemas)
        return replace(segment, schema_version=topic.row.schema_version if version is None else version)

    def _rows_of(self, catalog: Catalog, place: Place) -> Iterator[tuple[PartitionRow, Segment]]:
        if not _knows(catalog, place):
            return
        row, segments = catalog.segments(*place, 0, _EVER)
        for segment in segments:
            yield row, segment

    def _is_there(self, directory: Path, segment: Segment) -> bool:
        try:
            return (directory / f"{segment.uuid}.{segment.kind}").stat().st_size >= segment.length
        except FileNotFoundError:
            return False

    def _is_whole(self, directory: Path, segment: Segment) -> bool:
        if not self._is_there(directory, segment):
            return False
        return file_crc(directory / f"{segment.uuid}.{segment.kind}") == (segment.length, segment.crc)

    def _directory(self, place: Place) -> Path:
        return self._store / "topics" / place[0] / str(place[1])

    # --- commits -----------------------------------------------------------------------------------------------------

    def _take_manifests(self) -> list[layout.Manifest]:
        """The commits that were, or may have been, in the order they were made; their files become candidates."""
        claims = _Claims()
        for place, found in self._found.items():
            for each in found:
                if each.source == "stream":
                    claims.starts(place, each.segment.base)
        candidates = []
        # Of two that claim the same, the earlier one never was: had it been, the later one would have begun at its end.
        for manifest in sorted(self._manifests, key=lambda each: each.at, reverse=True):
            linked = self._linked(manifest)
            if not claims.denies(linked):
                claims.take(linked)
                candidates.append(manifest)
        taken: list[layout.Manifest] = []
        later: set[tuple[str, int]] = set()
        for manifest in candidates:
            batch = None if manifest.writer is None else manifest.writer[:2]
            # A batch that was committed a second time was not committed the first time, unless something shows it: then
            # its writer was reset in between.
            if self._went_through(manifest, claims) or (batch not in later and self._is_complete(manifest)):
                taken.append(manifest)
                if batch is not None:
                    later.add(batch)
        taken.reverse()
        for manifest in taken:
            for placed in self._linked(manifest):
                place = (placed.topic_id, placed.partition)
                clean = self._is_there(self._directory(place), placed.segment)
                self._found[place] = [each for each in self._found[place] if each.segment.uuid != placed.segment.uuid]
                segment = self._of_known_schema(self._topics[place[0]], self._directory(place), placed.segment)
                self._found[place].append(Candidate(segment, "manifest", clean))
        return taken

    def _linked(self, manifest: layout.Manifest) -> list[layout.Placed]:
        """The files that a commit brought, without the active files it closed, in topics that are still there."""
        return [
            each
            for each in manifest.segments
            if each.segment.kind == "arrow" and (each.topic_id, each.partition) in self._found
        ]

    def _went_through(self, manifest: layout.Manifest, claims: _Claims) -> bool:
        """Whether something shows that a commit did: what comes after it in a partition, a compaction of its files, a row
        in an older catalog."""
        for placed in self._linked(manifest):
            place, segment = (placed.topic_id, placed.partition), placed.segment
            if segment.end <= self._start(place) or claims.beyond(place, segment.end):
                return True
            for each in self._found[place]:
                after = each.segment.base >= segment.end or segment.uuid in each.replaces
                if after or each.segment.uuid == segment.uuid:
                    return True
        return False

    def _is_complete(self, manifest: layout.Manifest) -> bool:
        return all(
            self._is_there(self._directory((each.topic_id, each.partition)), each.segment)
            for each in self._linked(manifest)
        )

    def _start(self, place: Place) -> int:
        span = self._topics[place[0]].spans.get(place[1])
        return 0 if span is None else span[0]

    # --- the chain ---------------------------------------------------------------------------------------------------

    def _partition(self, topic: Topic, partition: int) -> Restored:
        place = (topic.row.id, partition)
        directory = self._directory(place)
        files.make_dirs(directory)
        found = self._found[place]
        span = topic.spans.get(partition)
        if span is None:
            # Nobody knows how far retention had got; what is gone at the beginning may just have been let go.
            start = min((each.segment.base for each in found if self._is_there(directory, each.segment)), default=0)
            if start:
                self._report.notes.append(
                    f"nobody knows where partition {partition} of topic {topic.row.name!r} began; it begins at {start} now"
                )
        else:
            start = span[0]
        chain = link_up(found, start, lambda each: self._is_there(directory, each.segment))
        end = chain[-1].segment.end if chain else start
        if span is not None and span[1] > end:
            chain.append(lost_candidate(end, span[1]))
            end = span[1]
        active = None
        if chain and chain[-1].open:
            active = chain.pop()
            end = active.segment.base
        self._report.lost += [
            LostRange(topic.row.name, partition, each.segment.base, each.segment.end, "")
            for each in chain
            if each.segment.kind == LOST
        ]
        segments = self._rows(chain, topic.row.schema_version)
        self._let_go(place, found, chain, start)
        self._miss_active(topic, partition, end if active is None else active.segment.end)
        prefix = max(segments[-1].prefix_max_ts if segments else NO_TS, NO_TS if active is None else active.floor)
        lineages = sorted(topic.lineages.get(partition, []))
        number = max((each for each, _ in lineages), default=0) + LINEAGE_STEP
        lineages.append((number, end if active is None else active.segment.end))
        row = PartitionRow(
            topic.row.id, partition, start, end, None if active is None else active.segment.uuid,
            topic.row.schema_version if active is None else active.segment.schema_version, number,
            # The first to touch an active file under another boot looks at all of it.
            self._boot_id if active is None else "", prefix,
        )  # fmt: skip
        return Restored(row, segments, lineages)

    def _miss_active(self, topic: Topic, partition: int, end: int) -> None:
        """Says so when the file that was appended to is gone with its index: nobody knows how much was in it. Where the
        partition goes further than its beginning (`end`), others have taken its place, or the loss is named already."""
        place = (topic.row.id, partition)
        seen = set()
        for catalog in self._older:
            row = catalog.partition(*place) if _knows(catalog, place) else None
            if row is None or (active := row.active) is None or active in seen:
                continue
            seen.add(active)
            there = any((self._directory(place) / name).exists() for name in layout.names_of(active, "arrows"))
            if not there and not self._is_taken_apart(place, active):
                lost = catalog in self._trusted and end <= row.end_offset
                (self._report.gone if lost else self._report.notes).append(
                    f"{active}.arrows of partition {partition} of topic {topic.row.name!r} is gone; what had been appended "
                    f"to it, and not rewritten since, is lost"
                )

    def _is_taken_apart(self, place: Place, active: str) -> bool:
        """Whether a repair has copied out of this file what was whole, and told what was not."""
        return any((self._store / "quarantine").glob(f"*/topics/{place[0]}/{place[1]}/{active}.arrows"))

    def _rows(self, chain: Sequence[Candidate], version: int) -> list[Segment]:
        rows: list[Segment] = []
        for each in chain:
            before = rows[-1] if rows else None
            segment = each.segment
            if segment.kind == LOST:
                segment = replace(segment, appended_at=before.appended_at if before else 0, schema_version=version)
            prefix = max(segment.prefix_max_ts, segment.max_ts, before.prefix_max_ts if before else NO_TS)
            rows.append(replace(segment, prefix_max_ts=prefix))
        return rows

    def _let_go(self, place: Place, found: Sequence[Candidate], chain: Sequence[Candidate], start: int) -> None:
        """Files whose records are elsewhere, or were let go before, are garbage; what else is not used is unknown."""
        used = {each.segment.uuid for each in chain}
        replaced = {uuid for each in chain for uuid in each.replaces}
        for _ in range(2):  # the inputs of an input may still be there, too
            replaced |= {uuid for each in found if each.segment.uuid in replaced for uuid in each.replaces}
        gone = replaced | {each.segment.uuid for each in found if each.segment.end <= start}
        directory = self._directory(place)
        for uuid in sorted(gone - used):
            for suffix in layout.SUFFIXES:
                if (directory / f"{uuid}{suffix}").exists():
                    self._garbage.append(f"topics/{place[0]}/{place[1]}/{uuid}{suffix}")

    # --- writers and subscribers -------------------------------------------------------------------------------------

    def _put_writers(self, catalog: Catalog, taken: Sequence[layout.Manifest]) -> None:
        writers: dict[str, WriterInfo] = {}
        batches: dict[str, dict[int, Positions]] = {}
        for older in reversed(self._older):
            for writer in older.writers():
                writers[writer.id] = writer
                batches[writer.id] = writer_batches(older, writer.id)
        for manifest in taken:
            if manifest.writer is None:
                continue
            writer_id, batch, query = manifest.writer
            known = writers.get(writer_id)
            if known is not None and manifest.at <= known.updated_at:
                continue
            if known is None or batch < known.last_batch:  # new, or begun anew after a reset
                batches[writer_id] = {}
            writers[writer_id] = WriterInfo(writer_id, query, batch, manifest.at)
            batches[writer_id][batch] = manifest.positions
        for writer in writers.values():
            restore_writer(catalog, writer, batches[writer.id])

    def _put_subscribers(self, catalog: Catalog) -> None:
        """Cursors are in no file but the catalog and its backup."""
        for older in self._older[:1]:
            for row in older.subscribers():
                if row.topic_id in self._topics:
                    catalog.add_subscriber(row, older.cursors(row.id))
            carry_over(older, catalog)


def _knows(catalog: Catalog, place: Place) -> bool:
    """Whether a catalog has a partition, which may be younger than it is."""
    topic = catalog.topic_by_id(place[0])
    return topic is not None and place[1] < topic.partitions


def _has_segments(directory: Path) -> bool:
    within = int(directory.name) < MAX_PARTITIONS
    return within and any(layout.segment_file(path.name) is not None for path in directory.iterdir())


class _Claims:
    """Which offsets and files are spoken for."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._starts: dict[Place, list[int]] = {}
        self._ranges: dict[Place, list[tuple[int, int]]] = {}

    def starts(self, place: Place, base: int) -> None:
        bisect.insort(self._starts.setdefault(place, []), base)

    def denies(self, linked: Sequence[layout.Placed]) -> bool:
        for each in linked:
            place, segment = (each.topic_id, each.partition), each.segment
            starts, ranges = self._starts.get(place, []), self._ranges.get(place, [])
            at = bisect.bisect_left(starts, segment.base)
            if segment.uuid in self._files or (at < len(starts) and starts[at] < segment.end):
                return True
            at = bisect.bisect_left(ranges, (segment.end, 0))
            if at and ranges[at - 1][1] > segment.base:
                return True
        return False

    def beyond(self, place: Place, end: int) -> bool:
        """Whether a commit begins at or after an offset."""
        ranges = self._ranges.get(place, [])
        return bool(ranges) and ranges[-1][0] >= end

    def take(self, linked: Sequence[layout.Placed]) -> None:
        for each in linked:
            self._files.add(each.segment.uuid)
            bisect.insort(
                self._ranges.setdefault((each.topic_id, each.partition), []), (each.segment.base, each.segment.end)
            )
