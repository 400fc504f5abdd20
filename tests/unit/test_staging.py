"""What is staged, as it lies in the files."""

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq import files
from jjq.errors import StoreError
from jjq.log.sealed import SEALED_BATCH_BYTES, SealedReader
from jjq.schema import physical


def test_small_pieces_are_gathered_and_large_ones_cut_to_batches_of_some_mebibytes(path: Path) -> None:
    small = pa.table({"value": [os.urandom(1000)] * 900})
    large = pa.table({"value": [os.urandom(1000)] * 13_000})
    with jjq.open(path) as store:
        topic = store.create_topic("staged")
        with store.stage() as stage:
            for piece in (*[small] * 10, large, small):
                stage.write("staged", piece)
            store.commit(stage.finish(), "writer", 1)
        (segment,) = store.catalog.segments(topic.id, 0, 0, 1 << 62)[1]
        reader = SealedReader(topic.directory(0), segment, physical(None))
        batches = [batch for _, batch in reader.scan(0, segment.end)]
    assert sum(batch.num_rows for batch in batches) == 10 * 900 + 13_000 + 900
    sizes = [batch.nbytes for batch in batches]
    assert max(sizes) <= 1.5 * SEALED_BATCH_BYTES
    assert len(sizes) <= 7, sizes  # of 23 MB: four small pieces a batch, and the large one in three


def test_slices_of_a_large_table_are_gathered_as_if_they_were_tables_of_their_own(path: Path) -> None:
    large = pa.table({"value": [os.urandom(1000)] * 40_000})
    with jjq.open(path) as store:
        topic = store.create_topic("staged")
        with store.stage() as stage:
            for first in range(0, 10_000, 100):
                stage.write("staged", large.slice(first, 100))
            store.commit(stage.finish(), "writer", 1)
        (segment,) = store.catalog.segments(topic.id, 0, 0, 1 << 62)[1]
        reader = SealedReader(topic.directory(0), segment, physical(None))
        assert segment.rows == 10_000
        assert len(reader) <= 3  # of 10 MB, whatever the table has that they are slices of


@pytest.mark.parametrize("failing", ["create", "pwrite", "pwrite_all", "datasync"])
def test_a_stage_that_fails_leaves_no_file_whichever_of_its_writes_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    small, large = pa.table({"value": [os.urandom(1000)] * 3000}), pa.table({"value": [os.urandom(1000)] * 5000})
    real = getattr(files, failing)
    with jjq.open(path) as store:
        topic = store.create_topic("staged", segment_bytes=1 << 20)
        for fails in range(1, 100):
            left = fails

            def maybe(*arguments: object) -> object:
                nonlocal left
                left -= 1
                if not left:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return real(*arguments)

            stage = store.stage()
            try:
                with monkeypatch.context() as patched:
                    patched.setattr(files, failing, maybe)
                    for piece in (small, large, small):  # the second makes two files: of what was held, and its own
                        stage.write("staged", piece)
                    stage.finish()
            except StoreError:
                assert not list(topic.directory(0).iterdir()), f"the {fails}th"
            else:
                break
        assert fails > 3


def test_a_large_piece_goes_into_as_many_files_as_their_size_asks_for(path: Path) -> None:
    with jjq.open(path) as store:
        topic = store.create_topic("staged", segment_bytes=8 << 20)
        values = [b"%05d" % i + os.urandom(1000) for i in range(40_000)]
        topic.push_table(pa.table({"value": values}))
        segments = topic.segments()
        assert 4 <= len(segments) <= 5, segments
        assert max(each.bytes for each in segments) <= (8 << 20) + 1.5 * SEALED_BATCH_BYTES
        assert topic.read().read_all().column("value").to_pylist() == values
        assert store.verify().problems == []


def test_files_that_are_to_be_small_are_small_when_staged_too(path: Path) -> None:
    with jjq.open(path) as store:
        topic = store.create_topic("staged", segment_bytes="64KB")
        values = [os.urandom(1000) for _ in range(1000)]
        topic.push_table(pa.table({"value": values}), writer_id="writer", batch_id=1)
        segments = topic.segments()
        assert topic.read().read_all().column("value").to_pylist() == values
    assert max(each.bytes for each in segments) <= 2 * (64 << 10)


def test_a_position_has_the_timestamp_of_the_first_record_however_many_files_a_table_went_into(path: Path) -> None:
    with jjq.open(path) as store:
        topic = store.create_topic("staged", segment_bytes=4 << 20, timestamps="producer")
        stamps = pa.array([10 + i for i in range(6000)] + [777] * 6000, pa.int64())
        table = pa.table({"value": [os.urandom(1000)] * 12_000, "timestamp": stamps})
        (found,) = topic.push_table(table, writer_id="writer", batch_id=1).ranges
        assert len(topic.segments()) > 1
        assert (found.start, found.end, found.timestamp) == (0, 12_000, 10)
