"""Damaged files: every way of reading gives exactly the rows that were written, or says that the file is damaged."""

import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq.errors import DamagedSegment
from jjq.log import flat
from jjq.log.format import ENTRY_SIZE
from jjq.repair import repair
from tests.crash.checks import Rows, open_alone
from tests.stores import end_of, flip, roll

Read = Callable[[jjq.Store], Rows]
HEAD = 1024  # a stream file's schema message is nothing that a reader relies on
RECORD = ("_offset", "_timestamp", "_key", "_headers")


def by_topic(store: jjq.Store) -> Rows:
    return tuples(store.topic("t").read(metadata=RECORD).read_all())


def by_slices(store: jjq.Store) -> Rows:
    topic = store.topic("t")
    slices = topic.plan(0, 0, topic.offsets()[0].end)
    return tuples(pa.Table.from_batches(store.read_slices(slices, metadata=RECORD)))


def tuples(table: pa.Table) -> Rows:
    return [(row["_offset"], row["_key"], *list(row.values())[: -len(RECORD)]) for row in table.to_pylist()]


def by_pop(store: jjq.Store) -> Rows:
    subscriber = store.subscriber("s")
    subscriber.seek("earliest")
    values = [(r.offset, r.key, *([r.value] if isinstance(r.value, bytes | None) else r.value.values()))
              for r in iter(subscriber.pop, None)]  # fmt: skip
    subscriber.close()
    return values


READERS = {"read": by_topic, "slices": by_slices, "pop": by_pop}


class Damaged:
    """A store with one small file of one kind, and the bytes of it to damage."""

    def __init__(self, store: jjq.Store, path: Path) -> None:
        self.store, self.path = store, path
        self.whole = path.read_bytes()
        if path.suffix == ".arrows":
            self.whole = self.whole[: end_of(path)]
        self._fd = os.open(path, os.O_RDWR)
        self.expected = by_topic(store)
        topic = store.topic("t")
        self._slices = topic.plan(0, 0, topic.offsets()[0].end)
        self._table = self._planned()

    def _planned(self) -> pa.Table:
        return pa.Table.from_batches(self.store.read_slices(self._slices, metadata=RECORD))

    def write(self, data: bytes, position: int = 0) -> None:
        """In place, as a disk goes bad: whoever has the file open sees it."""
        os.pwrite(self._fd, data, position)

    def close(self) -> None:
        os.close(self._fd)

    def cut(self, length: int) -> None:
        """Made anew, as a mapped file that is cut short kills whoever looks behind its end."""
        self.path.unlink()
        self.path.write_bytes(self.whole[:length])
        self.store.topic("t").reader.close()

    def kept(self) -> int:
        """Bytes of the head and the footer of a sealed file."""
        if self.path.suffix != ".arrow":
            return 0
        end = len(self.whole) - 10  # of the footer, whose length and six letters follow
        footer = self.whole[end - struct.unpack_from("<i", self.whole, end)[0] : end]
        return len(self.whole) - sum(meta + body for _, meta, body in flat.read_blocks(footer))

    def notices(self, what: object, read: Read | None = None) -> bool:
        """True when a reader (None: one that has planned before) says so, False when the right rows came back."""
        try:
            if read is None:
                assert self._planned() == self._table, f"{what}: wrong rows were read"
            else:
                assert read(self.store) == self.expected, f"{what}: wrong rows were read"
        except DamagedSegment as error:
            found = error
        else:
            return False
        assert Path(found.path).stem == self.path.stem
        return True


def fill_active(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push(b"plain")
    topic.push_many([b"a", None, b""], keys=[b"k", None, b""])
    topic.push(b"with headers", key=b"key", headers={"h": b"1"})


def fill_sealed(store: jjq.Store, compression: str | None = None) -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int32())), ("b", pa.bool_())])
    topic = store.create_topic("t", schema=schema, compression=compression)
    table = pa.table({"n": [1, None, 3], "s": ["one", "", None], "l": [[1], [], None], "b": [True, None, False]})
    topic.push_table(table.cast(schema), writer_id="w", batch_id=1)


def fill_rolled(store: jjq.Store) -> None:
    topic = store.create_topic("t", segment_rows=1)
    topic.push(b"rolled", key=b"k")
    store.logs[topic.id, 0].roll_locked()


KINDS: dict[str, tuple[Callable[[jjq.Store], None], str]] = {
    "active data": (fill_active, "arrows"),
    "active index": (fill_active, "index"),
    "rolled data": (fill_rolled, "arrows"),
    "rolled index": (fill_rolled, "index"),
    "sealed": (fill_sealed, "arrow"),
    "sealed lz4": (lambda store: fill_sealed(store, "lz4"), "arrow"),
}


@pytest.fixture(params=[pytest.param(each, marks=pytest.mark.soak) if "lz4" in each else each for each in KINDS])
def damaged(request: pytest.FixtureRequest, place: Path) -> Iterator[Damaged]:
    fill, suffix = KINDS[request.param]
    with open_alone(place / "store") as store:
        fill(store)
        store.create_subscriber("t", "s", start="earliest")
        (segment,) = [each for each in store.topic("t").segments() if each.rows]
        found = Damaged(store, Path(segment.path).with_suffix(f".{suffix}"))
        yield found
        found.close()


def test_every_flipped_bit_is_noticed_or_does_not_matter(damaged: Damaged) -> None:
    noticed = 0
    for position, byte in enumerate(damaged.whole):
        for bit in range(8):
            damaged.write(bytes([byte ^ 1 << bit]), position)
            # A reader that has verified the file before must not rely on that.
            noticed += damaged.notices(f"bit {bit} of byte {position}")
        damaged.write(bytes([byte]), position)
    # A sealed file that is open keeps the head and the footer that it has verified, here most of it.
    assert noticed > 3 * (len(damaged.whole) - damaged.kept())
    assert not damaged.notices("mended", by_topic)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_flipped_bit_in_every_byte_is_noticed_by_who_opens_the_file_then(damaged: Damaged, read: Read) -> None:
    noticed = 0
    for position, byte in enumerate(damaged.whole):
        damaged.write(bytes([byte ^ 1 << position % 8]), position)
        damaged.store.topic("t").reader.close()
        noticed += damaged.notices(f"bit {position % 8} of byte {position}", read)
        damaged.write(bytes([byte]), position)
    assert noticed > len(damaged.whole) // 2
    assert not damaged.notices("mended", read)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_hole_of_zeros_is_noticed_wherever_it_is(damaged: Damaged, read: Read) -> None:
    whole = damaged.whole
    for size, step in ((64, 64), (512, 64), (4096, 512)):
        for position in range(0, len(whole), step):
            hole = whole[:position] + bytes(min(size, len(whole) - position)) + whole[position + size :]
            damaged.write(hole)
            damaged.store.topic("t").reader.close()
            noticed = damaged.notices(f"{size} zeros at {position}", read)
            assert noticed or hole == whole or position < HEAD
    damaged.write(whole)
    assert not damaged.notices("mended", read)


def test_a_file_cut_at_every_byte_is_noticed(damaged: Damaged) -> None:
    """But for an index cut between two entries: the records behind it are as if they had never been acknowledged."""
    for length in range(len(damaged.whole)):
        damaged.cut(length)
        if damaged.path.suffix == ".index" and length >= ENTRY_SIZE:
            continue
        for read in (None, by_topic):
            assert damaged.notices(f"cut at {length}", read)
    damaged.cut(len(damaged.whole))
    for read in READERS.values():
        assert not damaged.notices("mended", read)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_missing_file_is_noticed(damaged: Damaged, read: Read) -> None:
    damaged.path.unlink()
    damaged.store.topic("t").reader.close()
    assert damaged.notices("missing", read)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_block_written_to_another_place_is_noticed(damaged: Damaged, read: Read) -> None:
    whole = damaged.whole
    for source in range(0, len(whole), 256):
        for target in range(0, len(whole), 256):
            moved = whole[source : source + 256][: len(whole) - target]
            damaged.write(moved, target)
            damaged.store.topic("t").reader.close()
            noticed = damaged.notices(f"{source} written to {target}", read)
            assert noticed or moved == whole[target : target + len(moved)] or target < HEAD
            damaged.write(whole[target : target + len(moved)], target)
    assert not damaged.notices("mended", read)


LARGE: dict[str, Callable[[jjq.Store], object]] = {
    "one message": lambda store: store.create_topic("t").push(random.Random(1).randbytes(600_000)),
    "runs of messages": lambda store: [
        store.topic("t").push_many([random.Random(n).randbytes(1000) for n in range(40)])
        for _ in [store.create_topic("t", sync="none"), *range(39)]
    ],
    "sealed batches": lambda store: store.create_topic("t").push_table(
        pa.table({"value": [random.Random(n).randbytes(12_000) for n in range(1000)]}), writer_id="w", batch_id=1
    ),
}


@pytest.mark.parametrize("fill", LARGE.values(), ids=LARGE)
def test_flipped_bits_of_files_that_are_mapped(fill: Callable[[jjq.Store], object], place: Path) -> None:
    """Only what is read is verified: other parts of a damaged file can be read, and are right."""
    with open_alone(place / "store") as store:
        fill(store)
        topic = store.topic("t")
        (segment,) = topic.segments()
        damaged = Damaged(store, Path(segment.path))
        chance = random.Random(1)
        for _ in range(60):
            position = chance.randrange(HEAD, len(damaged.whole) - HEAD)
            damaged.write(bytes([damaged.whole[position] ^ 1 << chance.randrange(8)]), position)
            assert damaged.notices(position)
            assert damaged.notices(position, by_topic)
            ends = 0
            for end in (0.1, 0.5, 0.9):
                try:
                    rows = tuples(topic.read(0, int(end * len(damaged.expected)), metadata=RECORD).read_all())
                except DamagedSegment:
                    continue
                assert rows == damaged.expected[: len(rows)]
                ends += 1
            damaged.write(damaged.whole[position : position + 1], position)
        assert not damaged.notices("mended", by_topic)
        damaged.close()


def test_pushing_to_a_damaged_partition_goes_on_or_says_why(damaged: Damaged, place: Path) -> None:
    """And what was damaged stays named as damaged: no append hides it, in this process or another."""
    whole, end = damaged.whole, len(damaged.expected)
    value = b"next" if damaged.store.topic("t").schema is None else {"n": 7}
    changes = [whole[:length] for length in range(0, len(whole), 101)]
    changes.append(whole[:-200] + bytes([whole[-200] ^ 1]) + whole[-199:])
    if damaged.path.suffix == ".index":
        changes = [data for data in changes if len(data) < ENTRY_SIZE or len(data) == len(whole)]
    for number, data in enumerate(changes):
        copy = place / str(number)
        shutil.copytree(damaged.store.path, copy)
        (copy / damaged.path.relative_to(damaged.store.path)).write_bytes(data)
        with open_alone(copy) as store, open_alone(copy) as other:
            try:
                position = store.topic("t").push(value)
            except DamagedSegment:
                with pytest.raises(DamagedSegment, match="jjq repair"):
                    other.topic("t").push(value)
                continue
            finally:
                for each in (store, other):
                    with pytest.raises(DamagedSegment):
                        by_topic(each)
            assert position.offset == end
            for each in (store, other):
                assert each.topic("t").read(end, metadata=["_offset"]).read_all()["_offset"].to_pylist() == [end]


def by_polls(store: jjq.Store) -> Iterator[int]:
    with store.create_subscriber("t", "polls") as subscriber:
        while records := subscriber.poll(max_records=700):
            yield from (record.offset for record in records)


def by_channel(store: jjq.Store) -> Iterator[int]:
    with store.channel("t", "receives", create=True) as channel:
        while deliveries := channel.receive(max_records=300, timeout=0):
            for each in deliveries:
                each.ack()
                yield each.record.offset


def by_batches(store: jjq.Store) -> Iterator[int]:
    for batch in store.topic("t").read(metadata=["_offset"]):
        yield from batch.column("_offset").to_pylist()


def by_pops(store: jjq.Store) -> Iterator[int]:
    for record in iter(store.create_subscriber("t", "pops").pop, None):
        yield record.offset


def exhaust(offsets: Iterator[int], found: list[int]) -> None:
    for each in offsets:
        found.append(each)  # noqa: PERF402 - an error leaves what came before it


@pytest.mark.parametrize("state", ["active", "rolled", "sealed"])
def test_what_is_whole_before_damage_is_read_before_the_error_and_nothing_behind_it(state: str, tmp_path: Path) -> None:
    with jjq.open(tmp_path) as store:
        topic = store.create_topic("t", compression="lz4")
        for first in range(0, 12000, 500):
            topic.push_many([b"value %06d" % (first + i) for i in range(500)])
        if state != "active":
            roll(store, "t")
        if state == "sealed":
            store.maintain(grace_us=0)
        file = topic.segments()[0]
        assert (file.state, file.end) == (state, 12000)
    # A byte of the 21st message, or of the last of three batches.
    data = Path(file.path).read_bytes()
    flip(Path(file.path), len(data) * 10 // 12 if state == "sealed" else data.index(b"value 010250"))
    with jjq.open(tmp_path) as store:
        for read in (by_pops, by_polls, by_channel, by_batches):
            found: list[int] = []
            with pytest.raises(DamagedSegment):
                exhaust(read(store), found)
            assert found == list(range(8000 if state == "sealed" else 10000)), read.__name__


def test_who_follows_record_by_record_gets_what_is_whole_before_damage(tmp_path: Path) -> None:
    with jjq.open(tmp_path) as store:
        topic = store.create_topic("t")
        subscriber = store.create_subscriber("t", "s")
        topic.push(b"first")
        assert subscriber.pop().offset == 0
        for i in range(1, 10):
            topic.push(b"value %d" % i)
        file = Path(topic.segments()[0].path)
        flip(file, file.read_bytes().index(b"value 6"))
        assert [subscriber.pop().offset for _ in range(5)] == [1, 2, 3, 4, 5]
        for _ in range(2):
            with pytest.raises(DamagedSegment):
                subscriber.pop()


@pytest.mark.parametrize("state", ["active", "rolled"])
@pytest.mark.parametrize("damaged", [3, 6, 9])
def test_what_comes_before_a_damaged_entry_of_an_index_is_read(damaged: int, state: str, tmp_path: Path) -> None:
    with jjq.open(tmp_path, maintenance=False) as store:
        topic = store.create_topic("t")
        for i in range(10):
            topic.push_many([b"value %d" % i] * 3)
        if state == "rolled":
            roll(store, "t")
        index = Path(topic.segments()[0].path).with_suffix(".index")
    flip(index, (1 + damaged) * ENTRY_SIZE + 20)
    if (damaged, state) == (9, "active"):
        return  # without its last entry nobody knows where the file ends
    with jjq.open(tmp_path, maintenance=False) as store:
        before = list(range(3 * damaged))
        for read in (by_pops, by_polls, by_channel, by_batches):
            found: list[int] = []
            with pytest.raises(DamagedSegment, match="the index is damaged"):
                exhaust(read(store), found)
            assert found == before, read.__name__
        topic = store.topic("t")
        for offset in before:
            assert [r.offset for r in topic.records(topic.plan(0, offset, offset + 1))] == [offset]
        report = store.verify()
        assert len(report.problems) == 1
        early = topic.records(topic.plan(0, 0, 1))
        assert topic.offset_for_timestamp(next(iter(early)).timestamp) == {0: 0}


def test_who_follows_record_by_record_gets_what_comes_before_a_damaged_entry(tmp_path: Path) -> None:
    with jjq.open(tmp_path, maintenance=False) as store:
        topic = store.create_topic("t")
        subscriber = store.create_subscriber("t", "s")
        topic.push(b"first")
        assert subscriber.pop().offset == 0
        for i in range(1, 10):
            topic.push(b"value %d" % i)
        flip(Path(topic.segments()[0].path).with_suffix(".index"), 7 * ENTRY_SIZE + 20)
        assert [subscriber.pop().offset for _ in range(5)] == [1, 2, 3, 4, 5]
        with pytest.raises(DamagedSegment):
            subscriber.pop()


def damaged_partition(store: jjq.Store) -> jjq.Topic:
    """Of three partitions with ten records each the first is damaged from its fourth record on."""
    topic = store.create_topic("t", partitions=3)
    for partition in range(3):
        for i in range(10):
            topic.push(b"value %d" % i, partition=partition)
    file = Path(topic.segments(0)[0].path)
    flip(file, file.read_bytes().index(b"value 3"))
    return topic


def take_all(take: Callable[[], jjq.Record | None], found: list[tuple[int, int]]) -> None:
    while record := take():
        found.append((record.partition, record.offset))


WHOLE = {(0, offset) for offset in range(3)} | {(partition, offset) for partition in (1, 2) for offset in range(10)}


@pytest.mark.parametrize("read", [by_pops, by_polls], ids=lambda each: each.__name__)
def test_damage_of_one_partition_holds_up_no_other_and_is_told_then(read: Callable[..., Any], tmp_path: Path) -> None:
    with jjq.open(tmp_path) as store:
        topic = damaged_partition(store)
        found: list[tuple[int, int]] = []
        subscriber = store.create_subscriber("t", "s")
        take = subscriber.pop if read is by_pops else lambda: next(iter(subscriber.poll(1)), None)
        for more in (0, 5):
            for _ in range(more):
                topic.push(b"later", partition=1)
            with pytest.raises(DamagedSegment):
                take_all(take, found)
        assert len(found) == len(set(found))
        assert set(found) == WHOLE | {(1, 10 + i) for i in range(5)}


def test_an_error_is_told_however_many_records_come_in_other_partitions(tmp_path: Path) -> None:
    with jjq.open(tmp_path) as store:
        topic = damaged_partition(store)
        subscriber = store.create_subscriber("t", "s")
        found: list[tuple[int, int]] = []

        def take() -> jjq.Record | None:
            topic.push(b"more", partition=2)  # as fast as they are taken
            return subscriber.pop()

        with pytest.raises(DamagedSegment):
            take_all(take, found)
        assert 23 <= len(found) <= 50


def test_records_that_are_gone_in_one_partition_hold_up_no_other(tmp_path: Path) -> None:
    with jjq.open(tmp_path) as store:
        damaged_partition(store)
        roll(store, "t")
        store.create_subscriber("t", "s")
        store.create_subscriber("t", "lax", on_data_loss="skip")
    repair(tmp_path)
    with jjq.open(tmp_path) as store:
        lost = 1
        with store.subscriber("s") as strict:
            found: list[tuple[int, int]] = []
            for _ in range(2):
                with pytest.raises(jjq.DataLoss) as caught:
                    take_all(strict.pop, found)
                assert (caught.value.partition, caught.value.asked, caught.value.lost) == (0, 3, lost)
            assert sorted(found) == sorted(WHOLE)
        with store.subscriber("lax") as lax:
            assert len(lax.poll(100)) + len(lax.poll(100)) == 30 - lost
            assert lax.skipped == lost


@pytest.mark.parametrize("left", [0.1, 0.45, 0.9])
def test_large_messages_of_a_file_cut_short_are_damage_and_those_before_are_read(left: float, tmp_path: Path) -> None:
    with jjq.open(tmp_path) as store:
        topic = store.create_topic("t")
        for _ in range(12):
            topic.push_many([bytes(100_000)] * 3)
        file = Path(topic.segments()[0].path)
    file.write_bytes(file.read_bytes()[: int(end_of(file) * left)])
    with jjq.open(tmp_path) as store:
        for read in (by_pops, by_polls, by_channel, by_batches):
            found: list[int] = []
            with pytest.raises(DamagedSegment):
                exhaust(read(store), found)
            assert found == list(range(int(36 * left) // 3 * 3)), read.__name__


def test_of_a_damaged_segment_a_channel_delivers_again_what_is_whole(tmp_path: Path) -> None:
    with jjq.open(tmp_path) as store:
        topic = store.create_topic("t")
        for first in range(0, 60, 20):
            topic.push_many([b"value %02d" % (first + i) for i in range(20)])
        channel = store.channel("t", "c", create=True)
        assert len(channel.receive(max_records=60, timeout=0)) == 60  # returned when the consumer closes
        channel.close()
        file = Path(topic.segments()[0].path)
        flip(file, file.read_bytes().index(b"value 30"))
        with store.channel("t", "c") as again:
            deliveries = again.receive(max_records=60, timeout=0)
            assert [each.record.offset for each in deliveries] == [*range(20), *range(40, 60)]
            again.ack_many(deliveries)
            assert store.stats()["channels"][0]["acked"] == 40
