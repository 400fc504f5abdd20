"""A store with many sealed segments beside one with few: what does not grow with them."""

from __future__ import annotations

import os
import random
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

import jjq
from jjq.headers import null_headers
from jjq.log.sealed import SealedWriter, sealed_path
from jjq.model import StagedFile
from jjq.schema import TIMESTAMP, physical
from tests.bench.run import Run, seconds
from tests.bench.table import Row, at_most

ROWS = 4  # of each segment
STEP_US = 1_000_000  # between the timestamps of neighbours
BEGIN_US = 1_700_000_000_000_000
COMMIT_FILES = 5000
SOUGHT = 1000


def build(path: Path, segments: int) -> list[int]:
    """A store whose topic has so many sealed segments, taken in as any staged files are. Returns those that may be read.

    To write 100,000 files takes minutes, and all but those that a seek opens matter by their row in the catalog and
    their name in the directory: the others are links to one and the same file, with the times they would have.
    """
    read = sorted(random.Random(1).sample(range(segments), min(segments, SOUGHT)))
    chosen = set(read)
    with jjq.open(path, maintenance=False) as store:
        topic = store.create_topic("measured", timestamps="producer")
        directory, made = topic.directory(0), []
        original: StagedFile | None = None
        for number in range(segments):
            first = BEGIN_US + number * ROWS * STEP_US
            if number in chosen or original is None:
                staged = write(topic, directory, first)
            else:
                staged = replace(original, uuid=uuid.uuid4().hex, min_ts=first, max_ts=first + (ROWS - 1) * STEP_US)
                os.link(sealed_path(directory, original.uuid), sealed_path(directory, staged.uuid))
            original = original or staged
            made.append(staged)
            if len(made) == COMMIT_FILES or number == segments - 1:
                store.commit(made)
                made, original = [], None  # a file has room for some ten thousand names
    return read


def write(topic: jjq.Topic, directory: Path, first: int) -> StagedFile:
    """A sealed file of records a step apart."""
    schema = physical(None)
    stamps = pa.array(range(first, first + ROWS * STEP_US, STEP_US), pa.int64()).cast(TIMESTAMP)
    columns = [stamps, pa.nulls(ROWS, pa.binary()), null_headers(ROWS), pa.array([b"value"] * ROWS, pa.binary())]
    writer = SealedWriter(directory, uuid.uuid4().hex, schema)
    writer.write(pa.RecordBatch.from_arrays(columns, schema=schema))
    writer.finish()
    return writer.staged(topic.id, topic.name, 0, topic.schema_version)


def opening(path: Path, times: int) -> float:
    """Seconds to open the store, get the topic and ask for its offsets."""

    def once() -> None:
        with jjq.open(path, create=False) as store:
            store.topic("measured").offsets()

    return seconds(lambda: [once() for _ in range(times)]) / times


def many_segments(run: Run) -> list[Row]:
    many, few = run.amount(100_000, 20), run.amount(100, 5)
    opens, seeks = run.amount(50, 2), run.amount(200, 2)
    chance = random.Random(7)
    with run.place() as place:
        read = {name: build(place / name, count) for name, count in (("few", few), ("many", many))}

        opened = run.interleave(
            {"many": lambda: opening(place / "many", opens), "few": lambda: opening(place / "few", opens)}
        )
        with (
            jjq.open(place / "many", maintenance=False) as big,
            jjq.open(place / "few", maintenance=False) as small,
        ):
            topics = {"many": big.topic("measured"), "few": small.topic("measured")}

            def seeking(name: str) -> float:
                topic = topics[name]
                rows = [chance.choice(read[name]) * ROWS + chance.randrange(ROWS) for _ in range(seeks)]
                found: list[dict[int, int | None]] = []
                taken = seconds(
                    lambda: found.extend(topic.offset_for_timestamp(BEGIN_US + row * STEP_US) for row in rows)
                )
                assert [each[0] for each in found] == rows
                return taken / seeks

            sought = run.interleave({"many": lambda: seeking("many"), "few": lambda: seeking("few")})
    return [
        Row(f"open a store of {many:,} sealed segments", f"one of {few:,}", "s", opened["many"], opened["few"], at_most(2)),
        Row(f"seek a timestamp among {many:,} sealed segments", f"among {few:,}", "s", sought["many"], sought["few"],
            at_most(3)),
    ]  # fmt: skip


BENCHMARKS = {"segments": many_segments}
