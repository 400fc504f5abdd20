"""Files that somebody removes below processes that have them open: nothing is acknowledged that nobody will find, and
nobody waits for what will not come back."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq import files
from jjq.clock import now_us
from jjq.layout import BACKUP
from jjq.repair import repair
from jjq.server.health import probe
from tests.stores import assert_whole, roll


@pytest.fixture
def store(place: Path) -> Iterator[jjq.Store]:
    with jjq.open(place, maintenance=False) as opened:
        yield opened


def begin(store: jjq.Store, sync: str) -> tuple[jjq.Topic, jjq.Subscriber]:
    """A topic whose files this process has open, to write and to read."""
    topic = store.create_topic("t", sync=sync)
    topic.push(b"there")
    subscriber = store.create_subscriber("t", "s")
    assert subscriber.pop() is not None
    return topic, subscriber


def pushes_until_refused(topic: jjq.Topic) -> jjq.JjqError:
    while True:
        try:
            topic.push(b"lost")
        except jjq.JjqError as error:
            return error


def test_a_push_that_waits_for_its_turn_is_not_acknowledged_into_files_that_are_gone_by_then(store: jjq.Store) -> None:
    topic, _ = begin(store, "always")
    directory = topic.directory(0)
    log, refused = store.logs[topic.id, 0], []
    log._looked_at = now_us()  # a moment ago, so that it is not due

    def push() -> None:
        with pytest.raises(jjq.DamagedSegment) as error:
            topic.push(b"lost")
        refused.append(error)

    held = files.open_rw(directory / "lock")
    assert files.lock(held, wait=False)
    pushing = threading.Thread(target=push)
    pushing.start()
    while not waits_for(held):
        pass
    for path in directory.glob("*.*"):
        path.unlink()
    log._looked_at = now_us()
    files.close(held)
    pushing.join()
    assert refused


def waits_for(fd: int) -> bool:
    """Whether somebody waits for a lock on the file that this descriptor has open."""
    inode = f":{os.fstat(fd).st_ino} "
    return any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


GONE = "/[^ ]*:?( the store)? was removed or moved away while it was open"


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("fate", ["removed", "moved", "emptied", "replaced"])
def test_a_store_that_is_gone_is_said_to_be_and_nothing_is_left_in_its_place(
    place: Path, tmp_path: Path, fate: str, read_only: bool
) -> None:
    path = place / "store"
    with jjq.open(path, maintenance=False) as store:
        begin(store, "always")
    with jjq.open(path, maintenance=False, read_only=read_only) as store:
        topic, subscriber = store.topic("t"), store.subscriber("s")
        if fate == "removed":
            shutil.rmtree(path)
        else:
            path.rename(tmp_path / "aside")
        said = GONE
        if fate == "emptied":
            path.mkdir()
        if fate == "replaced":
            jjq.open(path, maintenance=False).close()
            said = "store is another store now than was opened"
        calls: list[Callable[[], object]] = [topic.read, store.stats]
        if not read_only:
            calls += [
                lambda: topic.push(b"lost"), lambda: topic.push_many([b"lost"] * 3), subscriber.pop,
                lambda: subscriber.seek("earliest"), lambda: store.create_topic("new"),
                lambda: store.create_topic("wide", partitions=3), lambda: store.alter_topic("t", partitions=3),
                lambda: store.delete_topic("t"), topic.empty, store.maintain, lambda: topic.push_file(b"x" * 100),
                lambda: topic.push_table(pa.table({"value": [b"more"]}), writer_id="w", batch_id=1),
            ]  # fmt: skip
        for call in calls:
            with pytest.raises(jjq.StoreError, match=said):
                call()
        if not read_only:
            for make in (
                lambda: store.channel("t", "c", create=True).receive(),
                lambda: store.pubsub().subscribe("news"),
                lambda: subscriber.poll(),
            ):
                with contextlib.suppress(jjq.JjqError):
                    make()
    if fate == "replaced":
        assert not assert_whole(path).unknown
        assert list((path / "topics").iterdir()) == []
        assert not (path / BACKUP).exists()  # of the catalog that was
    elif fate == "emptied":
        assert list(path.iterdir()) == []
    else:
        assert not path.exists()
    with jjq.open(path, maintenance=False) as store:
        assert store.topics() == []


@pytest.mark.parametrize("first", [jjq.Store.stats, lambda store: probe(store).reason or None], ids=["stats", "health"])
def test_a_store_that_can_only_be_read_and_was_not_yet_read_is_the_one_that_was_opened(
    place: Path, first: Callable[[jjq.Store], object]
) -> None:
    with jjq.open(place, maintenance=False) as store:
        store.create_topic("t")
    with jjq.open(place, read_only=True) as store:
        found = first(store)
        assert found is None or found["topics"][0]["name"] == "t"


def test_a_store_whose_place_cannot_be_looked_at_is_said_to_be_so(place: Path, tmp_path: Path) -> None:
    path = place / "store"
    with jjq.open(path, maintenance=False) as store:
        topic, _ = begin(store, "always")
        path.rename(tmp_path / "aside")
        path.symlink_to(path)
        calls = (
            store.stats, store.maintain, lambda: store.create_topic("new"), lambda: topic.push_file(b"x" * 100),
            lambda: topic.push(b"lost"),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(jjq.StoreError, match="symbolic links"):
                call()


def test_nothing_is_made_in_a_copy_that_lies_in_the_place_of_the_store(place: Path, tmp_path: Path) -> None:
    path = place / "store"
    with jjq.open(path, maintenance=False) as store:
        topic, subscriber = begin(store, "always")
        topic.push(b"more")
        channel, subscription = store.channel("t", "c", create=True), store.pubsub()
        path.rename(tmp_path / "aside")
        shutil.copytree(tmp_path / "aside", path)
        before = sorted(path.rglob("*"))
        for use in (
            subscriber.poll,
            lambda: subscriber.seek(0),
            channel.receive,
            lambda: subscription.subscribe("news"),
        ):
            with pytest.raises(jjq.StoreError, match="is another store now than was opened"):
                use()
        problem = str(store.verify().problems[0])
        assert problem.endswith("was replaced while it was open. Open it again")
        assert sorted(path.rglob("*")) == before


def test_verify_says_that_the_store_is_gone(store: jjq.Store, place: Path, tmp_path: Path) -> None:
    begin(store, "always")
    place.rename(tmp_path / "aside")
    [problem] = store.verify().problems
    assert (
        str(problem) == f"catalog: {place} was removed or moved away while it was open. Put it back, and open it again"
    )
    (tmp_path / "aside").rename(place)


@pytest.mark.parametrize("opened", [False, True])
def test_who_pushes_to_a_topic_without_its_directory_is_told_to_repair(place: Path, opened: bool) -> None:
    path = place / "store"
    with jjq.open(path, maintenance=False) as store:
        topic = store.create_topic("t", partitions=2)
        if opened:
            topic.push(b"x")
        shutil.rmtree(path / "topics" / topic.id)
        calls = (
            lambda: topic.push(b"lost", partition=1), lambda: topic.push_many([b"lost"] * 3, partition=1),
            lambda: store.alter_topic("t", partitions=3), topic.empty, lambda: roll(store, "t", 1),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(jjq.DamagedSegment, match="is missing; run `jjq repair`"):
                call()
    repair(path)
    with jjq.open(path, maintenance=False) as store:
        store.topic("t").push(b"again", partition=1)


REMOVALS: dict[str, Callable[[Path, Path], None]] = {
    "the store": lambda store, partition: shutil.rmtree(store),
    "a partition": lambda store, partition: shutil.rmtree(partition),
    "the data": lambda store, partition: next(partition.glob("*.arrows")).unlink(),
    "the index": lambda store, partition: next(partition.glob("*.index")).unlink(),
}


@pytest.mark.parametrize("remove", REMOVALS.values(), ids=REMOVALS)
def test_nothing_is_acknowledged_into_a_file_that_was_removed(
    store: jjq.Store, remove: Callable[[Path, Path], None]
) -> None:
    topic, _ = begin(store, "always")
    remove(store.path, store.path / "topics" / topic.id / "0")
    for push in (lambda: topic.push(b"lost"), lambda: topic.push_many([b"lost"] * 3)):
        if store.path.exists():
            with pytest.raises(jjq.DamagedSegment, match="active file is missing; run `jjq repair`"):
                push()
        else:
            with pytest.raises(jjq.StoreError, match=GONE) as caught:
                push()
            assert not caught.value.retryable


@pytest.mark.parametrize("sync", ["always", "interval", "none"])
@pytest.mark.parametrize("what", ["the store", "a partition"])
def test_nothing_is_acknowledged_into_a_directory_that_was_moved_away_for_a_copy(
    store: jjq.Store, tmp_path: Path, sync: str, what: str
) -> None:
    """As one does who puts back a backup. What is there now has another lock, so nothing is appended to that, either."""
    topic, _ = begin(store, sync)
    topic.push(b"in time")
    replaced = store.path if what == "the store" else store.path / "topics" / topic.id / "0"
    replaced.rename(tmp_path / "aside")
    shutil.copytree(tmp_path / "aside", replaced)
    for _ in range(2):
        error = pushes_until_refused(topic)
        assert isinstance(error, jjq.StoreError)
        assert "was replaced while it was open" in str(error)
        assert not error.retryable
    assert_whole(store.path)
    with jjq.open(store.path, maintenance=False) as again:
        assert again.topic("t").read().read_all()["value"].to_pylist() == [b"there", b"in time"]
        again.topic("t").push(b"goes on")


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.topic("t").push_table(pa.table({"value": [b"more"]}), writer_id="w", batch_id=1),
        lambda store: store.alter_topic("t", sync="none"),
        lambda store: store.topic("t").empty(),
        lambda store: roll(store, "t"),
        lambda store: store.logs[store.topic("t").id, 0].sync(),
    ],
    ids=["commit", "alter", "empty", "roll", "sync"],
)
@pytest.mark.parametrize("known", [True, False], ids=["with the file open", "without"])
def test_nothing_is_changed_by_the_lock_of_a_directory_that_was_moved_away(
    store: jjq.Store, tmp_path: Path, known: bool, change: Callable[[jjq.Store], object]
) -> None:
    topic, _ = begin(store, "interval")
    place = store.path / "topics" / topic.id / "0"
    place.rename(tmp_path / "aside")
    shutil.copytree(tmp_path / "aside", place)
    if not known:
        store.logs[topic.id, 0].forget_active()
    with pytest.raises(jjq.StoreError, match="was replaced while it was open"):
        change(store)
    assert_whole(store.path)
    with jjq.open(store.path, maintenance=False) as again:
        change(again)
        assert_whole(again)


@pytest.mark.parametrize("sync", ["interval", "none"])
def test_where_pushes_do_not_wait_for_the_disk_it_is_seen_soon(store: jjq.Store, sync: str) -> None:
    topic, _ = begin(store, sync)
    shutil.rmtree(store.path / "topics" / topic.id / "0")
    assert isinstance(pushes_until_refused(topic), jjq.DamagedSegment)


def test_reading_a_file_that_was_removed_ends_with_an_error(store: jjq.Store) -> None:
    """Though this process has it open: others would not read the same."""
    topic, _ = begin(store, "always")
    next((store.path / "topics" / topic.id / "0").glob("*.arrows")).unlink()
    for look in (topic.read, topic.segments):
        with pytest.raises(jjq.DamagedSegment, match="active file is missing"):
            look()


CUT_SHORT = """
import os, sys
import jjq

with jjq.open(sys.argv[1], read_only=True) as store:
    topic = store.topic("t")
    slices = topic.plan(0, 0, 100)
    rows = sum(each.num_rows for each in store.read_slices(slices))
    [path] = [each.path for each in topic.segments() if each.rows == 100]
    os.truncate(path, 5000)
    reads = (
        lambda: list(store.read_slices(slices)), lambda: list(topic.records(slices)),
        lambda: topic.offset_for_timestamp(topic.segments()[0].max_timestamp),
    )
    for read in reads:
        try:
            read()
        except jjq.DamagedSegment:
            print(rows)
"""


@pytest.mark.parametrize("state", ["sealed", "rolled", "active"])
def test_a_file_that_is_cut_short_is_damaged_and_does_not_end_who_has_it_open(
    store: jjq.Store, place: Path, state: str
) -> None:
    """What is mapped of it must not be touched any more."""
    topic = store.create_topic("t")
    table = pa.table({"value": [bytes(50_000)] * 100})
    if state == "sealed":
        topic.push_table(table, writer_id="w", batch_id=0)
    else:
        topic.push_table(table)
    if state == "rolled":
        roll(store, "t")
    store.close()
    done = subprocess.run([sys.executable, "-c", CUT_SHORT, str(place)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "100\n" * 3), done.stderr


def test_nothing_is_written_to_a_catalog_that_was_removed(store: jjq.Store, place: Path) -> None:
    topic, subscriber = begin(store, "always")
    topic.push(b"in time")
    (place / "catalog.db").unlink()
    for change in (lambda: store.create_topic("new"), subscriber.pop, lambda: subscriber.seek("earliest")):
        with pytest.raises(
            jjq.StoreError, match=r"the catalog .* was removed while it was open; put it back or run `jjq repair`"
        ):
            change()
    topic.push(b"in a file that is there")
    store.close()
    assert_repaired(place, [b"there", b"in time", b"in a file that is there"])


def assert_repaired(place: Path, values: list[bytes]) -> None:
    repair(place)
    assert_whole(place)
    with jjq.open(place, read_only=True) as store:
        assert store.topic("t").read().read_all()["value"].to_pylist() == values


FORKS = """
import os, shutil, sys, warnings
from pathlib import Path
import jjq
warnings.simplefilter("ignore", DeprecationWarning)
base = Path(sys.argv[1])
gone, *stores = [jjq.open(base / name, maintenance=False) for name in ("gone", "a", "b", "c")]
topics = [store.create_topic("t") for store in (gone, *stores)]
for topic in topics:
    topic.push(b"parent's")
shutil.rmtree(base / "gone")
if sys.argv[2] == "emptied":
    (base / "gone").mkdir()
elif sys.argv[2] == "copied":
    shutil.copytree(base / "a", base / "gone")
child = os.fork()
for topic in topics[1:]:
    topic.push(b"both")
if not child:
    held = {os.fspath(store.path / "store.lock") for store in stores}
    links = [os.path.join("/proc/self/fd", each) for each in os.listdir("/proc/self/fd")]
    assert held <= {os.path.realpath(each) for each in links}
    for use in (lambda: topics[0].push(b"lost"), gone.topics, gone.stats, lambda: gone.create_topic("u")):
        try:
            use()
        except jjq.StoreError:
            continue
        os._exit(1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("fate", ["removed", "emptied", "copied"])
def test_a_store_that_is_gone_keeps_no_other_from_a_forked_child(place: Path, fate: str) -> None:
    """And the child makes nothing in its place, nor takes what lies there for its own."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(place), fate], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    if fate == "emptied":
        assert list((place / "gone").iterdir()) == []
    for name in "abc":
        assert_whole(place / name)
        with jjq.open(place / name, maintenance=False) as store:
            assert store.topic("t").read().read_all()["value"].to_pylist() == [b"parent's", b"both", b"both"]
