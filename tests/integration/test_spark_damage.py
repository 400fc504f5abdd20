"""Damaged files as Spark's tasks come upon them, without a JVM: an error, or the very rows that were written. Bits, holes and cuts here
and there: the log's own tests (tests/crash/test_damage.py) have all of them."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq.errors import DamagedSegment
from tests.readers import batch, close_stores, values
from tests.stores import end_of

WRITTEN = [b"value %d" % i for i in range(5)]
HEAD = 1024  # a stream file's schema message is nothing that a reader relies on


class File:
    """The one file of a topic, small, and a task that was planned when it was whole."""

    def __init__(self, store: jjq.Store, kind: str) -> None:
        topic = store.create_topic("t")
        if kind == "arrow":
            topic.push_table(pa.table({"value": WRITTEN}), writer_id="w", batch_id=0)
        else:
            topic.push_many(WRITTEN[:3])
            topic.push_many(WRITTEN[3:])
        [segment] = topic.segments()
        self.store, self.path = store, Path(segment.path)
        assert self.path.suffix == f".{kind}"
        self.whole = self.path.read_bytes()
        if kind == "arrows":
            self.whole = self.whole[: end_of(self.path)]
        self.head = HEAD if kind == "arrows" else 0
        self._planned = batch(store).partitions()

    def notices(self, content: bytes, what: str) -> bool:
        """Whether a task says so that finds the file like this; else it must have read what was written. Made anew, as who has a
        mapped file open that is cut short dies."""
        self.path.unlink()
        self.path.write_bytes(content)
        close_stores()
        try:
            assert values(batch(self.store), self._planned) == WRITTEN, f"{what}: wrong rows were read"
        except DamagedSegment:
            return True
        return False


@pytest.fixture(params=["arrows", "arrow"])
def file(request: pytest.FixtureRequest, store: jjq.Store) -> Iterator[File]:
    found = File(store, request.param)
    yield found
    assert not found.notices(found.whole, "mended")


def test_a_flipped_bit_never_gives_a_task_a_wrong_row(file: File) -> None:
    noticed = 0
    for position in range(0, len(file.whole), 13):
        flipped = bytearray(file.whole)
        flipped[position] ^= 1 << position % 8
        noticed += file.notices(bytes(flipped), f"bit {position % 8} of byte {position}")
    assert noticed > (len(file.whole) - file.head) // 13 // 2


@pytest.mark.parametrize(("size", "step"), [(64, 64), (512, 128)])
def test_a_hole_of_zeros_is_noticed_by_a_task_wherever_it_is(file: File, size: int, step: int) -> None:
    whole = file.whole
    for position in range(0, len(whole), step):
        hole = whole[:position] + bytes(min(size, len(whole) - position)) + whole[position + size :]
        noticed = file.notices(hole, f"{size} zeros at {position}")
        assert noticed or hole == whole or position < file.head, position


def test_a_file_cut_at_any_byte_is_noticed_by_a_task(file: File) -> None:
    whole = file.whole
    for length in {*range(0, len(whole), 29), *range(len(whole) - 8, len(whole))}:
        assert file.notices(whole[:length], f"cut at {length}"), length
