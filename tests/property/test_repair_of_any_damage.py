"""Any damage to any files: repair ends, the store is whole after it, and no record is ever another one than it was."""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import jjq
from jjq.repair import repair
from tests.crash.killing import copy_store
from tests.stores import EVERYTHING, assert_whole, roll

Rows = dict[tuple[str, int], dict[int, Any]]  # by topic id and partition: by offset
KEPT = {"jjq.json", "store.lock", "catalog.lock", "maintenance.lock", "lock"}


def build(path: Path, seed: int) -> None:
    """A store with a random history."""
    chosen = random.Random(seed)
    with jjq.open(path) as store:
        store.create_topic("plain", partitions=2, sync="none", segment_rows=chosen.choice([None, 7]))
        schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
        store.create_topic("shaped", schema=schema, sync="none", compression=chosen.choice([None, "zstd"]))
        batch = 0
        for _ in range(chosen.randrange(5, 25)):
            act = chosen.randrange(8)
            plain, shaped = store.topic("plain"), store.topic("shaped")
            if act <= 1:
                plain.push(chosen.randbytes(chosen.randrange(60)), key=b"k", partition=chosen.randrange(2))
            elif act == 2:
                plain.push_many([chosen.randbytes(20) for _ in range(chosen.randrange(1, 9))], partition=0)
            elif act == 3:
                shaped.push_many([{"n": i, "s": "text" * i} for i in range(chosen.randrange(1, 9))])
            elif act == 4:
                with store.stage() as stage:
                    stage.write("plain", pa.table({"value": [b"linked", None]}), partition=chosen.randrange(2))
                    stage.write("shaped", pa.table({"n": [batch], "s": ["linked"]}))
                    store.commit(stage.finish(), "w", batch)
                batch += 1
            elif act == 5:
                roll(store, chosen.choice(["plain", "shaped"]))
            elif act == 6:
                store.maintain(grace_us=chosen.choice([None, 0]))
            elif chosen.random() < 0.3:
                chosen.choice([plain, shaped]).empty()
            elif "x" not in shaped.schema.names:
                store.alter_topic("shaped", add_columns=pa.schema([("x", pa.int32())]))


def rows(store: jjq.Store) -> tuple[Rows, dict[tuple[str, int], tuple[int, int]]]:
    """What can be read, and from where to where each partition goes."""
    found: Rows = {}
    spans = {}
    for topic in store.topics():
        for bounds in topic.offsets():
            place = topic.id, bounds.partition
            spans[place] = bounds.start, bounds.end
            slices = topic.plan(bounds.partition, bounds.start, bounds.end, skip_lost=True)
            batches = list(store.read_slices(slices, metadata=EVERYTHING))
            records = pa.Table.from_batches(batches).to_pylist() if batches else []
            found[place] = {each["_offset"]: {k: v for k, v in each.items() if v is not None} for each in records}
            assert len(found[place]) == len(records)
    return found, spans


def flip(path: Path, chosen: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    path.write_bytes(data)


def zeros(path: Path, chosen: random.Random) -> None:
    data = bytearray(path.read_bytes())
    start = chosen.randrange(len(data) + 1)
    data[start : start + 512] = bytes(len(data[start : start + 512]))
    path.write_bytes(data)


def cut(path: Path, chosen: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chosen.randrange(path.stat().st_size + 1)])


def lengthen(path: Path, chosen: random.Random) -> None:
    path.write_bytes(path.read_bytes() + chosen.randbytes(chosen.randrange(1, 100)))


def remove(path: Path, _: random.Random) -> None:
    path.unlink()


DAMAGES: list[Callable[[Path, random.Random], None]] = [flip, flip, zeros, cut, lengthen, remove]


class Made:
    """Stores by their seed, each made once."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._stores: dict[int, tuple[Path, Rows, dict[tuple[str, int], tuple[int, int]]]] = {}

    def __repr__(self) -> str:
        return "Made()"

    def __getitem__(self, seed: int) -> tuple[Path, Rows, dict[tuple[str, int], tuple[int, int]]]:
        if seed not in self._stores:
            path = self._place / str(seed)
            build(path, seed)
            with jjq.open(path) as store:
                self._stores[seed] = (path, *rows(store))
        return self._stores[seed]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


@pytest.mark.timeout(600)
@settings(max_examples=60)
@given(seed=st.integers(0, 11), damage=st.integers(0, 1 << 30), files=st.integers(1, 6), catalog=st.booleans())
def test_what_is_left_is_what_was_there(made: Made, seed: int, damage: int, files: int, catalog: bool) -> None:
    template, before, spans = made[seed]
    chosen = random.Random(damage)
    with tempfile.TemporaryDirectory(prefix="jjq-damage-") as name:
        path = copy_store(template, Path(name) / "store")
        names = sorted(each for each in path.rglob("*") if each.is_file() and each.name not in KEPT)
        touched = set()
        victims = chosen.sample(names, min(files, len(names)))
        if catalog:
            victims.append(path / "catalog.db")
        for victim in victims:
            if victim.exists():
                how = chosen.choice(DAMAGES)
                note(f"{how.__name__} {victim.relative_to(path)}")
                how(victim, chosen)
                touched.add(str(victim.relative_to(path)))
        report = repair(path)
        note(str(report))
        seen = assert_whole(path)
        assert not seen.unknown
        with jjq.open(path) as store:
            after, after_spans = rows(store)
            topics = {topic.id for topic in store.topics()}
            for place in before:
                if place[0] not in topics:
                    raise AssertionError(f"topic {place[0]} is gone")
                wrong = [
                    offset
                    for offset, row in after[place].items()
                    if offset in before[place]
                    and {k: v for k, v in row.items() if k != "_topic"} != before[place][offset]
                ]
                assert not wrong, f"other records at {wrong} of {place}"
                # Nothing appears that was not there, but for what was let go and still in its files.
                extra = [offset for offset in after[place] if offset >= spans[place][1]]
                assert not extra, f"records behind the end: {extra}"
                gone = set(before[place]) - set(after[place])
                lost = {offset for each in report.lost for offset in range(each.start, each.end)}
                # How far the last file went may be known to nobody, and where records began only to the topic's own file.
                first, end = (
                    after_spans[place] if f"topics/{place[0]}/topic.json" in touched else (0, after_spans[place][1])
                )
                assert {offset for offset in gone if first <= offset < end} <= lost
                # The last entry of an index may be gone like that of a writer that died before it acknowledged.
                index = any(
                    each.startswith(f"topics/{place[0]}/{place[1]}/") and each.endswith(".index") for each in touched
                )
                assert report.rebuilt is not None or index or all(offset < end for offset in gone)
            for topic in store.topics():
                value = b"more" if topic.schema is None else {"n": -1}
                topic.push(value, partition=0)
            store.maintain(grace_us=0)
        assert not assert_whole(path).unknown
        assert repair(path).quarantined == []
