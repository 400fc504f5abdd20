"""What files of a partition hold, as far as each tells by itself, and how they follow each other.

A *candidate* claims offsets `[base, end)`. Two claim the same when one is a compaction of the other, which then is the
better one if it is whole.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from jjq.catalog.rows import TopicRow
from jjq.log.format import BATCH, NO_TS, OPEN, stream_head
from jjq.log.reader import LOST
from jjq.log.salvage import Wreck, read_index, runs
from jjq.log.sealed import MAGIC
from jjq.log.stream import stream_paths
from jjq.model import Segment
from jjq.schema import SYSTEM_COLUMNS, SYSTEM_FIELDS, physical


@dataclass(frozen=True, slots=True)
class Candidate:
    """A segment that may be part of a partition.

    `source`: `stream`, `manifest`, `sidecar` or `catalog` (a row of an older catalog). `clean` when the file is what the
    row says, as far as was looked; `open` for a stream file that was not closed and is whole.
    """

    segment: Segment
    source: str
    clean: bool
    open: bool = False
    floor: int = NO_TS
    replaces: tuple[str, ...] = ()


@dataclass(slots=True)
class Topic:
    """What is known of a topic that has to be put back."""

    row: TopicRow
    schemas: dict[int, pa.Schema | None]
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    lineages: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    learned: bool = False  # its schemas are those of the files, so their numbers are ours


def link_up(found: Sequence[Candidate], start: int, is_there: Callable[[Candidate], bool]) -> list[Candidate]:
    """The candidates that follow each other from `start` on, the best at each place; what is missing becomes `lost`."""
    by_base: dict[int, list[Candidate]] = {}
    for each in found:
        if each.segment.base >= start and each.segment.rows:
            by_base.setdefault(each.segment.base, []).append(each)
    bases = sorted(by_base)
    chain: list[Candidate] = []
    at = start
    while True:
        options = by_base.get(at)
        if options is None:
            following = bisect.bisect_left(bases, at)
            if following == len(bases):
                return chain
            chain.append(lost_candidate(at, bases[following]))
            at = bases[following]
            continue
        chain.append(max(options, key=lambda each: _rank(each, is_there(each))))
        at = chain[-1].segment.end


def _rank(each: Candidate, there: bool) -> tuple[int, int]:
    """A whole compaction before its inputs, those before a damaged one, and any file before none."""
    if each.source == "sidecar":
        quality = 3 if each.clean else 1 if there else 0
    else:
        quality = 2 if there else 0
    return (2 * quality + each.clean, each.segment.end)


def lost_candidate(start: int, end: int) -> Candidate:
    return Candidate(lost_segment(start, end, 0, NO_TS, 0), "lost", True)


def lost_segment(start: int, end: int, version: int, prefix_max_ts: int, appended_at: int) -> Segment:
    """A row that stands for records which could not be saved, so that no offset is given twice and none is skipped
    silently."""
    return Segment(uuid4().hex, LOST, start, end, 0, 0, 0, version, NO_TS, NO_TS, prefix_max_ts, appended_at)


def look_at_stream(directory: Path, uuid: str, topic: Topic, partition: int) -> Candidate | None:
    """What a stream file holds, by its index where that is whole and closes it, else by its messages; None when it holds nothing."""
    path, index_path = stream_paths(directory, uuid)
    wreck = Wreck(path)
    version = _version_of(wreck, topic.schemas)
    if version is None:
        return None
    index = read_index(index_path)
    batches = [entry for entry in index.entries if entry.kind == BATCH and entry.end <= index.end]
    opening = next((entry for entry in index.entries if entry.kind == OPEN), None)
    floor = opening.max_ts if opening is not None else NO_TS
    closing = index.closing
    if index.whole and opening is not None and closing is not None:
        if index.end <= opening.base:
            return None
        low = min(entry.min_ts for entry in batches)
        segment = Segment(
            uuid, "arrows", opening.base, closing.base, closing.position, closing.file_crc, 0, version, low,
            closing.run_max_ts, max(floor, closing.run_max_ts), closing.appended_at,
        )  # fmt: skip
        return Candidate(segment, "stream", len(wreck) >= segment.length, floor=floor)
    pieces = wreck.stream_pieces(physical(topic.schemas[version]), bytes.fromhex(topic.row.id), partition)
    bases = [opening.base] if opening is not None else []
    bases += [entry.base for entry in batches] + [piece.base for piece in pieces]
    end = max([index.end, *(piece.end for piece in pieces)]) if closing is None else index.end
    if not bases or end <= min(bases):
        return None
    # The row of a file that was never closed is made by whoever copies what is whole in it.
    appended_at = max(
        [entry.appended_at for entry in index.entries] + [piece.appended_at for piece in pieces], default=0
    )
    high = max((entry.run_max_ts for entry in batches), default=NO_TS)
    segment = Segment(
        uuid, "arrows", min(bases), end, 0, 0, 0, version, min((e.min_ts for e in batches), default=NO_TS), high,
        max(floor, high), appended_at,
    )  # fmt: skip
    # A file that is whole up to its end can be appended to again. What is whole behind a damaged place is copied out.
    first = next(runs(pieces), [])
    head = len(stream_head(physical(topic.schemas[version])))
    whole = bool(first) and (first[0].base, first[0].position, first[-1].end) == (segment.base, head, end)
    return Candidate(segment, "stream", index.whole, closing is None and whole, floor)


def look_at_index(path: Path, topic: Topic) -> Candidate | None:
    """What a stream file held that is gone: the offsets were given, whoever reads them should be told."""
    index = read_index(path)
    bases = [entry.base for entry in index.entries if entry.kind in (OPEN, BATCH)]
    if not bases or index.end <= min(bases):
        return None
    high = max(entry.run_max_ts for entry in index.entries)
    segment = Segment(
        path.stem, "arrows", min(bases), index.end, 0, 0, 0, topic.row.schema_version, NO_TS, NO_TS, high,
        index.entries[-1].appended_at,
    )  # fmt: skip
    return Candidate(segment, "stream", False)


def _version_of(wreck: Wreck, schemas: dict[int, pa.Schema | None]) -> int | None:
    """The version of the schema a file was written with, by its head, or where that is damaged by its messages."""
    if not len(wreck):
        return None
    for version, schema in schemas.items():
        head = stream_head(physical(schema))
        if bytes(wreck.data[: len(head)]) == head:
            return version
    return next((version for version in sorted(schemas, reverse=True) if wreck.fits(physical(schemas[version]))), None)


def version_of_sealed(path: Path, schemas: dict[int, pa.Schema | None]) -> int | None:
    """The version of the schema a sealed file was written with, by its head, or where that is damaged by its batches."""
    if not path.exists():
        return None
    wreck = Wreck(path)
    for version, schema in schemas.items():
        head = MAGIC + stream_head(physical(schema))
        if bytes(wreck.data[: len(head)]) == head:
            return version
    return next((each for each in sorted(schemas, reverse=True) if wreck.fits_sealed(physical(schemas[each]))), None)


def schema_of(path: Path) -> pa.Schema | None:
    """The topic's columns by the head of a file, None where that is not one of ours."""
    try:
        with path.open("rb") as file:
            if path.suffix == ".arrow":
                file.seek(8)
            found = pa.ipc.read_schema(file)
    except (OSError, pa.ArrowException):
        return None
    if len(found) <= SYSTEM_COLUMNS or tuple(found)[:SYSTEM_COLUMNS] != SYSTEM_FIELDS:
        return None
    return pa.schema(list(found)[SYSTEM_COLUMNS:])
