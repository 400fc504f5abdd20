"""Reading where records are gone or damaged: an error, or what is whole and a word of what is not. Deleting what is damaged."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq.log.flat import read_blocks
from jjq.log.format import ENTRY_SIZE
from jjq.repair import repair
from tests.stores import assert_whole, flip, paths, roll, without_active_file

Reopen = Callable[..., jjq.Store]


def make(directory: Path) -> None:
    """Two partitions of three segments with ten single records each."""
    with jjq.open(directory, maintenance=False) as store:
        topic = store.create_topic("t", partitions=2)
        for partition in range(2):
            for first in range(0, 30, 10):
                for i in range(first, first + 10):
                    topic.push(b"%d value %02d" % (partition, i), partition=partition)
                if first < 20:
                    roll(store, "t", partition)


def damage(directory: Path, value: bytes) -> None:
    [file] = [each for each in paths(directory, "*.arrows") if value in each.read_bytes()]
    flip(file, file.read_bytes().index(value))


def offsets(topic: jjq.Topic, **options: object) -> list[tuple[int, int]]:
    table = topic.read(metadata=["_partition", "_offset"], **options).read_all()  # type: ignore[arg-type]
    found = list(zip(table["_partition"].to_pylist(), table["_offset"].to_pylist(), strict=True))
    assert table["value"].to_pylist() == [b"%d value %02d" % each for each in found]
    return found


def without(*missing: int) -> list[tuple[int, int]]:
    """Everything but these of partition 0."""
    return [(p, offset) for p in range(2) for offset in range(30) if p or offset not in missing]


def test_a_gap_that_repair_left_is_an_error_or_skipped(
    directory: Path, reopen: Reopen, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    make(directory)
    damage(directory, b"0 value 13")
    repair(directory)
    topic = reopen(maintenance=False).topic("t")
    with pytest.raises(jjq.DataLoss) as caught:
        topic.read()
    assert (caught.value.asked, caught.value.earliest, caught.value.lost) == (13, 14, 1)
    assert caught.value.message.endswith("; read up to 13 or from 14 on, or with on_data_loss='skip'")
    assert len(offsets(topic, end={0: 13, 1: 0}) + offsets(topic, start={0: 14, 1: 0})) == 59
    assert [each.start for each in topic.segments(0) if each.path is None] == [13]
    assert all((each.path is None) == (each.state == "lost") for each in topic.segments())
    assert offsets(topic, on_data_loss="skip") == without(13)
    assert [each for each in caplog.messages if "skipped" in each] == [
        "skipped offsets 13 to 13 of partition 0 of topic 't': they are gone"
    ]
    assert topic.to_pandas(-20, on_data_loss="skip").shape[0] == 39
    assert offsets(topic, start={0: 12}, end={0: 15}, partitions=[0], on_data_loss="skip") == [(0, 12), (0, 14)]
    assert offsets(topic, start={0: 13}, end={0: 14}, partitions=[0], on_data_loss="skip") == []
    with pytest.raises(jjq.InvalidArgument, match="'error' or 'skip', not 'fail'"):
        topic.read(on_data_loss="fail")


def test_what_retention_took_is_an_error_or_skipped(directory: Path, reopen: Reopen) -> None:
    make(directory)
    with jjq.open(directory, maintenance=False) as embedded:
        embedded.alter_topic("t", retention_segments=2)
        embedded.maintain()
    topic = reopen(maintenance=False).topic("t")
    first = topic.offsets()[0].start
    assert first > 0
    with pytest.raises(jjq.DataLoss, match=r"; read from 'earliest', or with on_data_loss='skip'$"):
        topic.read(start=0)
    assert offsets(topic, start=0, on_data_loss="skip") == [
        (p, offset) for p in range(2) for offset in range(first, 30)
    ]


@pytest.mark.parametrize("value", [b"0 value 03", b"0 value 10", b"0 value 25", b"0 value 29"])
def test_a_damaged_record_is_an_error_or_skipped_alone(
    value: bytes, directory: Path, reopen: Reopen, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    make(directory)
    damage(directory, value)
    topic = reopen(maintenance=False).topic("t")
    number = int(value[-2:])
    with pytest.raises(jjq.DamagedSegment):
        topic.read().read_all()
    assert offsets(topic, on_data_loss="skip") == without(number)
    assert f"skipped offsets {number} to {number} of partition 0" in caplog.text


def test_behind_damage_in_an_index_it_goes_on_with_the_next_segment(directory: Path, reopen: Reopen) -> None:
    make(directory)
    [index] = [
        each.with_suffix(".index") for each in paths(directory, "*.arrows") if b"0 value 13" in each.read_bytes()
    ]
    flip(index, 5 * ENTRY_SIZE + 20)
    topic = reopen(maintenance=False).topic("t")
    assert offsets(topic, on_data_loss="skip") == without(*range(14, 20))


@pytest.mark.parametrize("numbers", [[0], [2], [1, 2], [0, 4], [1, 3], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("part", ["head", "body"])
def test_of_a_sealed_file_only_the_damaged_batches_are_skipped(
    part: str, numbers: list[int], directory: Path, reopen: Reopen, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    with jjq.open(directory, maintenance=False) as store:
        store.create_topic("t", schema=pa.schema({"n": pa.int64(), "noise": pa.binary()}))
        with store.stage() as stage:
            stage.write("t", pa.table({"n": range(500), "noise": [os.urandom(42_000) for _ in range(500)]}))
            store.commit(stage.finish())
    [file] = paths(directory, "*.arrow")
    data = file.read_bytes()
    length = int.from_bytes(data[-10:-6], "little")
    blocks = read_blocks(data[-10 - length : -10])
    assert len(blocks) == 5
    for number in numbers:
        position, head, body = blocks[number]
        flip(file, position + (head - 20 if part == "head" else head + body // 2))
    copy = shutil.copytree(directory, directory.with_name("copy"))
    topic = reopen(maintenance=False).topic("t")
    with pytest.raises(jjq.DamagedSegment) as caught:
        topic.read().read_all()
    assert caught.value.position in [blocks[number][0] for number in numbers]
    whole = [n for n in range(500) if n // 100 not in numbers]
    for start in (0, 150, 250, 499):
        table = topic.read(start=start, on_data_loss="skip").read_all()
        assert table["n"].to_pylist() == [n for n in whole if n >= start]
    assert f"skipped offsets {numbers[0] * 100} to " in next(each for each in caplog.messages if "skipped" in each)
    with jjq.open(directory, maintenance=False) as store:
        [problem] = store.verify().problems
        assert problem.start == numbers[0] * 100
        assert problem.end == numbers[-1] * 100 + 100
        assert ("batches are damaged" in problem.message) is (len(numbers) > 1)
    # What is skipped is what repair cannot save either.
    assert repair(copy).saved == len(whole)


def test_a_missing_file_is_skipped(directory: Path, reopen: Reopen) -> None:
    make(directory)
    [file] = [each for each in paths(directory, "*.arrows") if b"0 value 13" in each.read_bytes()]
    file.unlink()
    topic = reopen(maintenance=False).topic("t")
    with pytest.raises(jjq.DamagedSegment):
        topic.read().read_all()
    assert offsets(topic, on_data_loss="skip") == without(*range(10, 20))


@pytest.mark.parametrize("suffix", [".arrows", ".index"])
@pytest.mark.parametrize("opened", [False, True], ids=["before", "while it is open"])
def test_without_the_active_file_the_rest_of_the_partition_and_all_others_are_read(
    opened: bool, suffix: str, directory: Path, reopen: Reopen, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    make(directory)
    [file] = [each for each in paths(directory, "*.arrows") if b"0 value 25" in each.read_bytes()]
    if not opened:
        file.with_suffix(suffix).unlink()
    topic = reopen(maintenance=False).topic("t")
    if opened:
        assert len(offsets(topic)) == 60
        file.with_suffix(suffix).unlink()
    with pytest.raises(jjq.DamagedSegment, match=file.stem):
        topic.read().read_all()
    assert offsets(topic, on_data_loss="skip") == without(*range(20, 30))
    assert any("skipped offsets 20 " in each and file.stem in each for each in caplog.messages)
    for start, end in [(15, 30), (25, 28), ("2020-01-01T00:00:00Z", "latest"), (0, 12)]:
        wanted = range(start if isinstance(start, int) else 0, end if isinstance(end, int) else 30)
        found = offsets(topic, start={0: start}, end={0: end}, partitions=[0], on_data_loss="skip")
        assert found == [(0, offset) for offset in wanted if offset < 20]
    assert topic.to_pandas(on_data_loss="skip").shape[0] == 50


def test_a_subscriber_gets_what_is_whole_of_the_other_partitions_before_the_error(
    directory: Path, reopen: Reopen
) -> None:  # fmt: skip
    make(directory)
    damage(directory, b"0 value 13")
    store = reopen(maintenance=False)
    polled, popped = store.create_subscriber("t", "polled"), store.create_subscriber("t", "popped")
    for take in (lambda: polled.poll(7), lambda: [each for each in [popped.pop()] if each is not None]):
        found: list[tuple[int, int]] = []
        with pytest.raises(jjq.DamagedSegment):
            exhaust(take, found)
        assert sorted(found) == without(*range(13, 30))
    polled.commit()
    assert polled.positions() == {0: 13, 1: 30}


def exhaust(take: Callable[[], list[jjq.Record]], found: list[tuple[int, int]]) -> None:
    while records := take():
        found += [(each.partition, each.offset) for each in records]


def test_what_several_topics_hold_is_an_error_that_names_the_damaged_one(reopen: Reopen, directory: Path) -> None:
    """Left out it would pass for one that was deleted."""
    store = reopen()
    for name in ("bad", "good"):
        store.create_topic(name).push(b"x")
    with without_active_file(directory, store.topic("bad").id, "*.index"):
        other = reopen(maintenance=False)
        with pytest.raises(jjq.DamagedSegment, match=r"topic 'bad' is damaged: .* run `jjq repair`"):
            other.offsets()
        assert list(other.offsets(["good"])) == ["good"]


def cut_off(path: Path) -> None:
    path.write_bytes(b"")


HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "no index": (Path.unlink, "*.index"),
    "no data": (Path.unlink, "*.arrows"),
    "an empty index": (cut_off, "*.index"),
    "a damaged index": (lambda path: flip(path, 70), "*.index"),
    "no directory of a partition": (lambda path: shutil.rmtree(path.parent), "*.index"),
    "no directory": (lambda path: shutil.rmtree(path.parents[1]), "*.index"),
}


@pytest.mark.parametrize(("harm", "pattern"), HARM.values(), ids=HARM)
def test_a_damaged_topic_is_deleted_without_repair(
    reopen: Reopen, directory: Path, harm: Callable[[Path], object], pattern: str
) -> None:
    opened = reopen(maintenance=False)
    topic = opened.create_topic("t", partitions=2)
    opened.create_topic("other").push(b"x")
    for partition in range(2):
        topic.push(b"x", partition=partition)
    opened.create_subscriber("t", "s")
    opened.channel("t", "c", create=True)
    [path] = (directory / "topics" / topic.id / "1").glob(pattern)
    harm(path)
    store = reopen(maintenance=True)  # which has seen none of it
    store.delete_topic("t")
    assert ([each.name for each in store.topics()], store.subscribers(), store.channels()) == (["other"], [], [])
    for call in (topic.offsets, topic.describe):
        with pytest.raises(jjq.TopicDeleted):
            call()
    with pytest.raises((jjq.TopicDeleted, jjq.StoreError)):  # the latter where its directory is another one by now
        topic.push(b"y", partition=1)
    assert store.create_topic("t").push(b"again").offset == 0
    assert_whole(directory)
