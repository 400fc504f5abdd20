"""A disk that is full and then has room again: pushing says so, then works, and nothing is half there."""

import contextlib
import errno
import itertools
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq.errors import JjqError, StoreError
from jjq.repair import repair
from tests.crash.checks import contents, open_alone
from tests.crash.faults import Failing, Filling, Operation
from tests.crash.killing import copy_store, elsewhere
from tests.crash.scenarios import SCENARIOS, Scenario, make
from tests.stores import assert_whole

ROOMS = 12  # how full the disk is, in so many steps


@pytest.mark.parametrize("sync", ["always", "none"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_full_disk_stops_what_it_stops_whole(scenario: Scenario, sync: str, place: Path) -> None:
    template = place / "template"
    make(template, sync)
    with open_alone(template) as store:
        scenario.prepare(store)
        before = contents(store)
    with open_alone(copy_store(template, place / "done")) as store, Filling(1 << 40) as roomy:
        scenario.act(store)
        after = contents(store)
    needed = (1 << 40) - roomy.room
    for room in sorted({*range(0, needed, max(1, needed // ROOMS)), needed - 1, needed}):
        path = copy_store(template, place / str(room))
        with open_alone(path) as store, open_alone(path) as other, Filling(room) as disk:
            contents(other)
            error = attempt(scenario, store)
            assert (error is not None) == (disk.refused > 0)
            state = contents(other)
            if error is None:
                assert state == after
            else:
                assert type(error) is StoreError
                assert "free some space" in str(error)
                assert state in (before, after) or scenario.pieces
                # As full as before: it says so again, and reading goes on.
                assert attempt(scenario, other) is not None
                assert contents(store) == contents(other)
            disk.free()
            state = contents(other)
            if state == before:
                scenario.act(store)
                state = contents(other)
                assert state == after
            for each in (store, other):
                for topic in each.topics():
                    topic.push(b"more" if topic.schema is None else {"n": 0}, partition=0)
            assert contents(store) == contents(other)
            assert_whole(store)
        shutil.rmtree(path)


def attempt(scenario: Scenario, store: jjq.Store) -> JjqError | None:
    try:
        scenario.act(store)
    except JjqError as error:
        return error
    return None


def _tmpfs(_: Path, mounted: Path) -> list[str]:
    return ["mount", "-t", "tmpfs", "-o", "size=3m", "jjq-test", str(mounted)]


def _ext4(place: Path, mounted: Path) -> list[str]:
    image = place / "image"
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    return ["mount", "-o", "loop", str(image), str(mounted)]


@pytest.fixture(params=[_tmpfs, _ext4], ids=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A mounted file system of a few megabytes, with nothing in it."""
    mount: Callable[[Path, Path], list[str]] = request.param
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    try:
        subprocess.run(mount(tmp_path, mounted), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a file system cannot be mounted here: {error}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_a_disk_that_is_really_full_and_freed_again(small_disk: Path) -> None:
    """By pushes of several kinds, until nothing fits; then somebody else's file is removed, and old records are."""
    path, ballast = small_disk / "store", small_disk / "ballast"
    acknowledged: list[bytes] = []
    values = (b"%d " % i + os.urandom(i * 997 % 20_000) for i in itertools.count())
    with open_alone(path) as store:
        topic = store.create_topic("t", segment_bytes=100_000)
        for kind in range(3):
            ballast.write_bytes(bytes(500_000))
            full = None
            while full is None:
                try:
                    acknowledged += push_one(topic, [next(values) for _ in range(kind + 1)], kind)
                except StoreError as error:
                    full = error
            assert "free some space" in str(full)
            with open_alone(path) as other:
                for each in (store, other):
                    with pytest.raises(StoreError):
                        each.topic("t").push(b"does not fit" * 2000)
            assert values_in(path) == acknowledged
            ballast.unlink()
            acknowledged += push_one(topic, [next(values) for _ in range(kind + 1)], kind)
            assert values_in(path) == acknowledged
            store.alter_topic("t", retention_bytes=1)
            assert store.maintain(grace_us=0).expired > 0
            store.alter_topic("t", retention_bytes=None)
            (left,) = topic.offsets()
            acknowledged = acknowledged[len(acknowledged) - (left.end - left.start) :]
            assert values_in(path) == acknowledged
        assert_whole(store)


def test_what_lets_records_go_says_that_it_needs_a_little_room_and_then_makes_more(small_disk: Path) -> None:
    """Nothing is left, not even for a transaction of the catalog; then a small file of somebody's is removed."""
    path, ballast = small_disk / "store", small_disk / "ballast"
    with open_alone(path) as store:
        topic = store.create_topic("t", segment_bytes=100_000, retention_bytes=300_000)
        store.create_topic("other").push(b"stays")
        ballast.write_bytes(bytes(200_000))
        acknowledged: list[bytes] = []
        for size in (20_000, 1):  # and then what is left in between
            with pytest.raises(StoreError, match="free some space"):
                acknowledged.extend(pushed_until_full(topic, size))
        for act in (topic.empty, lambda: store.delete_topic("t"), lambda: store.alter_topic("t", retention_bytes=1)):
            with pytest.raises(StoreError, match="free some space"):
                act()
        report = store.maintain(grace_us=0)
        assert report.expired == 0
        assert all("free some space" in error for error in report.errors if error.startswith("t"))
        assert values_in(path) == acknowledged
        ballast.unlink()
        assert store.maintain(grace_us=0).expired > 0
        (left,) = topic.offsets()
        assert values_in(path) == acknowledged[left.start :]
        store.delete_topic("other")
        topic.empty()
        assert topic.push(b"goes in").offset == left.end
        assert_whole(store)


def pushed_until_full(topic: jjq.Topic, size: int) -> Iterator[bytes]:
    while True:
        yield from push_one(topic, [os.urandom(size)], 0)


def push_one(topic: jjq.Topic, values: list[bytes], kind: int) -> list[bytes]:
    if kind == 2:
        topic.push_table(pa.table({"value": values}))
    elif kind == 1:
        topic.push_many(values)
    else:
        topic.push(values[0])
        return values[:1]
    return values


def values_in(path: Path) -> list[bytes]:
    with open_alone(path) as store:
        values: list[bytes] = store.topic("t").read().read_all()["value"].to_pylist()
    return values


class Ending(Filling):
    """A disk whose stream files cannot become longer than this."""

    def __init__(self, length: int) -> None:
        super().__init__(0)
        self.length = length

    def step(self, operation: Operation) -> None:
        pass

    def lets_through(self, operation: Operation) -> int:
        if operation.path.suffix != ".arrows":
            return len(operation.data)
        return min(len(operation.data), max(0, self.length - operation.position))


@pytest.mark.parametrize("many", [1, 3])
def test_what_fits_is_taken_though_the_zeros_behind_it_are_not(many: int, tmp_path: Path) -> None:
    """They are laid out for speed alone."""
    values = [b"x"] * many
    with open_alone(tmp_path) as store:
        topic = store.create_topic("t")
        push_one(topic, values, kind=many > 1)
        [before] = topic.segments()
        push_one(topic, values, kind=many > 1)
        [after] = topic.segments()
        assert after.path is not None
        room = os.stat(after.path).st_size + 10 * (after.bytes - before.bytes)
        fits = 1 + (room - before.bytes) // (after.bytes - before.bytes)
        with Ending(room):
            for _ in range(fits - 2):
                push_one(topic, values, kind=many > 1)
            with pytest.raises(StoreError, match="free some space"):
                push_one(topic, values, kind=many > 1)
        assert topic.offsets()[0].end == fits * many
        push_one(topic, values, kind=many > 1)
        assert_whole(store)


def test_who_opens_a_catalog_on_a_full_disk_is_told_so_and_repair_does_not_make_it_again(place: Path) -> None:
    path = place / "store"
    make(path, "always")

    def without_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, resource.RLIM_INFINITY))
        for use in (open_alone, repair):
            with pytest.raises(
                StoreError, match=r"catalog\.db cannot be used: database or disk is full; free some space"
            ):
                use(path)

    elsewhere(without_room)
    assert_whole(path)


def test_a_stage_that_met_a_full_disk_gives_no_files_of_which_some_rows_are_there_twice_or_not(place: Path) -> None:
    rows = pa.table({"value": [b"%d" % n + b"x" * 1000 for n in range(9000)]})  # many are written before the end
    with open_alone(place / "store") as store:
        topic = store.create_topic("t")
        for kind in ("write", "sync"):
            for number in itertools.count(1):
                stage, staged = store.stage(), None
                with contextlib.suppress(StoreError), Failing(number, [kind], code=errno.ENOSPC):
                    stage.write(topic, rows)
                    staged = stage.finish()
                if staged is not None:
                    store.commit(staged)
                    break
                with pytest.raises(jjq.InvalidArgument, match="begin another"):
                    stage.write(topic, rows)
                with pytest.raises(jjq.InvalidArgument, match="begin another"):
                    stage.finish()
            assert number > 1
        assert topic.read().read_all()["value"].to_pylist() == 2 * rows["value"].to_pylist()
        assert_whole(store)


@pytest.mark.parametrize("kind", ["write", "sync", "sync_dir"])
def test_a_stage_that_met_a_full_disk_leaves_no_file(kind: str, place: Path) -> None:
    """The disk would have no room again for as long as a file waits for its commit."""
    rows = pa.table({"value": [b"%d" % n + b"x" * 1000 for n in range(5000)]})
    with open_alone(place / "store") as store:
        directory = store.create_topic("t").directory(0)
        before = sorted(directory.iterdir())
        for number in itertools.count(1):
            staged: list[jjq.StagedFile] = []
            with contextlib.suppress(StoreError), Failing(number, [kind], code=errno.ENOSPC), store.stage() as stage:
                stage.write("t", rows)
                staged = stage.finish()
            store.discard(staged)
            assert sorted(directory.iterdir()) == before, number
            if staged:
                break
        assert number > 1
