"""Processes that push to one partition at once: the one that has the lock writes what the others wait with.

A store that is opened twice has two descriptors of each lock, as two processes have.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jjq
from jjq import files
from jjq.log import waiting
from jjq.log.format import BATCH, ENTRY_SIZE, unpack_entries
from jjq.log.partition import PartitionLog
from tests.crash.faults import Disk, Operation
from tests.stores import assert_whole, flip, paths

pytestmark = pytest.mark.skipif(not files.TURNS, reason="the system has no locks of the open file")


class Pusher:
    """A store of its own, from which a thread pushes one value."""

    def __init__(self, path: Path, meet: bool) -> None:
        self.store = jjq.open(path, maintenance=False)
        self.topic = self.store.topic("t")
        self.log: PartitionLog = self.store.log(self.topic.id, 0)
        self.offset: int | None = None
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if meet:
            self.meet_others()

    def meet_others(self) -> None:
        self.topic.push(b"met")  # which opens its files
        with self.log.exclusive():
            self.log._open_waiting()
            assert self.log._waiting is not None
            self.log._waiting.seek_slot_locked()

    @property
    def slot(self) -> int:
        assert self.log._waiting is not None
        return self.log._waiting._slot

    def asks(self) -> bool:
        with paths(self.store.path, "waiting")[0].open("rb") as file:
            numbers = file.read(waiting.NUMBERS.size).ljust(waiting.NUMBERS.size, b"\0")
        return bool(waiting.NUMBERS.unpack(numbers)[self.slot])

    def push(self, value: bytes, **options: Any) -> None:
        """In a thread, and returns when it waits for who has the lock."""

        def run() -> None:
            try:
                self.offset = self.topic.push(value, **options).offset
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()
        while not self.asks() and self._thread.is_alive():
            os.sched_yield()

    def join(self) -> int | None:
        assert self._thread is not None
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.offset


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        store.create_topic("t", sync="always")
    return tmp_path / "store"


@pytest.fixture
def pushers(path: Path) -> Iterator[Callable[..., list[Pusher]]]:
    made: list[Pusher] = []

    def make(count: int, meet: bool = True) -> list[Pusher]:
        made.extend(Pusher(path, meet) for _ in range(count))
        return made[-count:]

    yield make
    for each in made:
        each.store.close()
    assert_whole(path)


@contextlib.contextmanager
def somebody_has_the_lock(path: Path) -> Iterator[None]:
    """A process that has the partition's lock, and neither pushes nor knows of those who wait."""
    fd = files.open_rw(paths(path, "lock")[0])
    try:
        assert files.lock(fd, wait=False)
        yield
    finally:
        files.close(fd)


def values(path: Path) -> list[bytes]:
    with jjq.open(path, maintenance=False) as store:
        found = store.topic("t").read().read_all()["value"].to_pylist()
    return [value for value in found if value != b"met"]


def groups(path: Path) -> list[int]:
    """The rows of each message, over all files."""
    entries = [entry for each in paths(path, "*.index") for entry in unpack_entries(whole(each))]
    return [entry.rows for entry in entries if entry.kind == BATCH]


def whole(index: Path) -> bytes:
    data = index.read_bytes()
    return data[: len(data) // ENTRY_SIZE * ENTRY_SIZE]


def test_one_message_and_one_sync_for_all_that_wait(
    path: Path, pushers: Callable[[int], list[Pusher]], monkeypatch: pytest.MonkeyPatch
) -> None:
    several = pushers(5)
    syncs: list[int] = []
    datasync = files.datasync
    with somebody_has_the_lock(path):
        for number, each in enumerate(several):
            each.push(b"value %d" % number)
        monkeypatch.setattr(files, "datasync", lambda fd: syncs.append(fd) or datasync(fd))
    offsets = [each.join() for each in several]
    assert len(syncs) == 1
    assert groups(path)[-1] == 5
    assert sorted(offset for offset in offsets if offset is not None) == list(range(5, 10))
    with jjq.open(path, maintenance=False) as store:
        for number, offset in enumerate(offsets):
            record = store.topic("t").read(start=offset, end=(offset or 0) + 1, metadata=["_timestamp"]).read_all()
            assert record["value"].to_pylist() == [b"value %d" % number]
    assert not any(each.asks() for each in several)


def test_an_answer_is_to_one_request(path: Path, pushers: Callable[[int], list[Pusher]]) -> None:
    several, offsets = pushers(3), []
    for turn in range(5):
        with somebody_has_the_lock(path):
            for number, each in enumerate(several):
                each.push(b"%d of %d" % (turn, number))
        offsets += [each.join() for each in several]
    assert sorted(offset for offset in offsets if offset is not None) == list(range(3, 18))
    assert sorted(values(path)) == sorted(b"%d of %d" % (turn, number) for turn in range(5) for number in range(3))


def test_who_writes_its_own_value_asks_no_more_when_others_get_the_lock(
    path: Path, pushers: Callable[[int], list[Pusher]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pushers(2)
    set_lock = files.set_lock

    def unlocked(fd: int, how: int) -> None:
        set_lock(fd, how)
        if fd == one.log._lock_fd and how == files.FREE and other.offset is None:
            other.offset = other.topic.push(b"other").offset

    with somebody_has_the_lock(path):
        one.push(b"one")
        monkeypatch.setattr(files, "set_lock", unlocked)
    assert [one.join(), other.offset] == [2, 3]
    assert values(path) == [b"one", b"other"]


def test_each_round_has_another_byte_than_the_last(path: Path, pushers: Callable[[int], list[Pusher]]) -> None:
    one, other = pushers(2)
    rounds = []
    for each in (one, other) * (waiting.SLOTS + 1):
        each.topic.push(b"v")
        with paths(path, "waiting")[0].open("rb") as file:
            rounds.append(file.read()[waiting.NUMBERS.size])
    assert rounds == [(rounds[0] + i) % waiting.SLOTS for i in range(len(rounds))]


def test_the_timestamp_that_a_push_returns_is_that_of_its_record(
    path: Path, pushers: Callable[[int], list[Pusher]]
) -> None:
    one, other = pushers(2)
    got: dict[int, int] = {}

    def push(log: PartitionLog, value: bytes) -> None:
        offset, ts = log.append_value(1, value)
        got[offset] = ts

    threads = [threading.Thread(target=push, args=(each.log, b"x")) for each in (one, other)]
    with somebody_has_the_lock(path):
        for each in threads:
            each.start()
        while not (one.asks() and other.asks()):
            os.sched_yield()
    for each in threads:
        each.join()
    with jjq.open(path, maintenance=False) as store:
        rows = store.topic("t").read(metadata=["_offset", "_timestamp"]).read_all()
    there = dict(zip(rows["_offset"].to_pylist(), rows["_timestamp"].cast("int64").to_pylist(), strict=True))
    assert {offset: there[offset] for offset in got} == got
    assert len(got) == 2


@pytest.mark.parametrize("kind", ["write", "sync", "answer", "entry", "half an entry"])
def test_where_the_one_that_writes_fails_each_writes_its_own(
    path: Path, pushers: Callable[[int], list[Pusher]], kind: str
) -> None:
    """Each step of who writes for all: none is lost, none is there twice."""
    several = pushers(3)
    with failing(kind) as disk:
        with somebody_has_the_lock(path):
            for number, each in enumerate(several):
                each.push(b"value %d" % number)
        offsets = [each.join() for each in several]
    assert disk.failed
    refused = [each for each in several if each.error is not None]
    assert [type(each.error) for each in refused] == [jjq.StoreError]  # the one that wrote
    left = [b"value %d" % number for number, each in enumerate(several) if each.error is None]
    assert sorted(values(path)) == left
    with jjq.open(path, maintenance=False) as store:
        for number, offset in enumerate(offsets):
            if offset is not None:
                found = store.topic("t").read(start=offset, end=offset + 1).read_all()["value"].to_pylist()
                assert found == [b"value %d" % number]


def test_a_marked_value_whose_entry_is_there_counts_though_that_of_the_others_is_not(
    path: Path, pushers: Callable[[int], list[Pusher]]
) -> None:
    one, other = pushers(2)
    assert other.log._waiting is not None
    assert other.log._waiting.ask(b"other", 0)
    with FailsOnce("write", ".index", least=2 * ENTRY_SIZE, part=ENTRY_SIZE + 40) as disk:
        offset, _ = one.log.append_value(1, b"one", 0, (b"p", 1))
    assert disk.failed
    answer = other.log._waiting.answer()
    assert answer is not None
    assert not other.log._waiting.counts(answer)
    other.log._waiting.leave()
    assert offset == 2
    assert values(path) == [b"one"]


class FailsOnce(Disk):
    """The first operation of a kind on a file with a certain ending fails, where it brings so many bytes at least."""

    def __init__(self, kind: str, ending: str, least: int = 0, part: int = 0) -> None:
        super().__init__()
        self.kind, self.ending, self.least, self.part = kind, ending, least, part
        self.failed = False
        self._mutex = threading.Lock()

    def _due(self, operation: Operation) -> bool:
        with self._mutex:
            due = (
                not self.failed
                and operation.kind == self.kind
                and operation.path.name.endswith(self.ending)
                and len(operation.data) >= self.least
            )
            self.failed = self.failed or due
            return due

    def step(self, operation: Operation) -> None:
        if not self.part and self._due(operation):
            raise self.failure(operation)

    def lets_through(self, operation: Operation) -> int:
        return self.part if self.part and self._due(operation) else len(operation.data)

    def failure(self, operation: Operation) -> OSError:
        return OSError(errno.EIO, os.strerror(errno.EIO), str(operation.path))


def failing(kind: str) -> FailsOnce:
    return {
        "write": FailsOnce("write", ".arrows"),
        "sync": FailsOnce("sync", ".arrows"),
        "answer": FailsOnce("write", "waiting", waiting.ANSWER.size),
        "entry": FailsOnce("write", ".index"),
        "half an entry": FailsOnce("write", ".index", part=40),
    }[kind]


def test_what_a_dead_process_waited_with_is_not_written(path: Path, pushers: Callable[[int], list[Pusher]]) -> None:
    one, other = pushers(2)
    assert other.log._waiting is not None
    assert other.log._waiting.ask(b"of the dead", 0)
    os.close(other.log._lock_fd)  # as the kernel does for it
    one.topic.push(b"one")
    other.log._lock_fd = files.open_rw(paths(path, "lock")[0])
    assert values(path) == [b"one"]
    other.log._waiting.leave()


def test_who_gets_the_slot_of_a_dead_one_does_not_ask_for_what_that_one_asked(
    path: Path, pushers: Callable[[int], list[Pusher]]
) -> None:
    [one], [dead] = pushers(1), pushers(1)
    slot = dead.slot
    assert dead.log._waiting is not None
    assert dead.log._waiting.ask(b"of the dead", 0)
    os.close(dead.log._lock_fd)
    dead.log._lock_fd = files.open_rw(paths(path, "lock")[0])
    dead.log._waiting._asks = False
    [heir] = pushers(1)
    assert heir.slot == slot
    one.topic.push(b"one")
    assert values(path) == [b"one"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_who_fails_to_take_a_slot_asks_nothing_of_a_dead_one(
    path: Path, pushers: Callable[..., list[Pusher]], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    [one], [dead] = pushers(1), pushers(1)
    assert dead.log._waiting is not None
    assert dead.log._waiting.ask(b"of the dead", 0)
    os.close(dead.log._lock_fd)
    dead.log._lock_fd = files.open_rw(paths(path, "lock")[0])
    dead.log._waiting._asks = False
    [heir] = pushers(1, meet=False)
    heir.topic.push(b"met")

    def fails(*_: object) -> None:
        raise error

    with heir.log.exclusive():
        heir.log._open_waiting()
        assert heir.log._waiting is not None
        monkeypatch.setattr(heir.log._waiting, "_say", fails)
        with contextlib.suppress(KeyboardInterrupt):
            heir.log._waiting.seek_slot_locked()
    assert heir.slot == -1
    one.topic.push(b"one")
    assert values(path) == [b"one"]


def test_a_slot_that_is_free_again_is_taken(path: Path, pushers: Callable[[int], list[Pusher]]) -> None:
    pushers(1)
    taken = files.open_rw(paths(path, "lock")[0])
    for slot in range(1, waiting.SLOTS):
        files.turn(taken, files.TRY, files.bytes_lock(waiting.SLOT_LOCK + slot))
    [one] = pushers(1)
    assert one.slot == -1
    files.close(taken)
    one.meet_others()
    assert one.slot == 1


def test_one_whose_asking_is_interrupted_by_an_error_of_the_system_s_kind_is_not_written_twice(
    path: Path, pushers: Callable[[int], list[Pusher]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pushers(2)
    assert one.log._waiting is not None
    say, somebody = one.log._waiting._say, files.open_rw(paths(path, "lock")[0])
    assert files.lock(somebody, wait=False)

    def timed_out(slot: int, number: int) -> None:
        say(slot, number)
        if number:
            files.close(somebody)
            other.topic.push(b"other")
            raise TimeoutError

    monkeypatch.setattr(one.log._waiting, "_say", timed_out)
    assert one.topic.push(b"one").offset == 3
    assert values(path) == [b"other", b"one"]


def test_one_that_gives_up_and_cannot_say_so_has_no_slot_any_more(
    path: Path, pushers: Callable[[int], list[Pusher]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pushers(2)
    assert one.log._waiting is not None
    say = one.log._waiting._say

    def full(slot: int, number: int) -> None:
        if not number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        say(slot, number)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(one.log._waiting, "_say", full)
    monkeypatch.setattr(one.log._waiting, "await_round", interrupted)
    with somebody_has_the_lock(path), pytest.raises(KeyboardInterrupt):
        one.topic.push(b"given up")
    assert one.slot == -1
    other.topic.push(b"other")
    assert values(path) == [b"other"]


def test_one_that_gives_up_withdraws_its_value(
    path: Path, pushers: Callable[[int], list[Pusher]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pushers(2)

    def interrupted(_: object) -> None:
        assert one.asks()
        raise KeyboardInterrupt

    monkeypatch.setattr(waiting.Waiting, "await_round", interrupted)
    with somebody_has_the_lock(path), pytest.raises(KeyboardInterrupt):
        one.topic.push(b"given up")
    monkeypatch.undo()
    assert not one.asks()
    other.topic.push(b"other")
    assert values(path) == [b"other"]


def test_one_that_chose_among_fewer_partitions_is_left_to_find_out(
    path: Path, pushers: Callable[[int], list[Pusher]]
) -> None:
    one, other = pushers(2)
    waits = other.log._waiting
    assert waits is not None
    assert waits.ask(b"among fewer", 1)
    with jjq.open(path, maintenance=False) as store:
        store.alter_topic("t", partitions=2)
    one.topic.push(b"one", partition=0)
    assert waits.answer() is None
    waits.leave()


@pytest.mark.parametrize("change", [{"sync": "none"}, {"sync": "interval"}])
def test_a_topic_that_does_not_wait_for_the_disk_writes_for_nobody(
    path: Path, pushers: Callable[[int], list[Pusher]], change: dict[str, Any]
) -> None:
    one, other = pushers(2)
    with somebody_has_the_lock(path):
        other.push(b"other")
    other.join()
    with jjq.open(path, maintenance=False) as store:
        store.alter_topic("t", **change)
    assert other.log._waiting is not None
    assert other.log._waiting.ask(b"asked", 0)
    one.topic.push(b"one")
    assert other.log._waiting.answer() is None
    other.log._waiting.leave()
    assert values(path) == [b"other", b"one"]


def test_a_push_that_finds_its_topic_altered_is_synced_within_the_interval(
    path: Path, pushers: Callable[[int], list[Pusher]], monkeypatch: pytest.MonkeyPatch
) -> None:
    [one] = pushers(1)
    with jjq.open(path, maintenance=False) as store:
        store.alter_topic("t", sync="interval", sync_interval_ms=250)
    told: list[float] = []
    monkeypatch.setattr(one.log, "_unsynced", lambda log, seconds: told.append(seconds))
    one.topic.push(b"one")
    assert told == [0.25]


@pytest.mark.parametrize(
    ("act", "added"),
    [
        (lambda topic: topic.push(b"k", key="k"), 1),
        (lambda topic: topic.push_many([b"a", b"b", b"c"]), 3),
        (lambda topic: topic.push(b"x" * waiting.MOST_BYTES), 1),
        (lambda topic: topic.push(b"x" * (waiting.MOST_BYTES + 1)), 1),
    ],
)
def test_whoever_pushes_writes_what_others_wait_with(
    path: Path, pushers: Callable[[int], list[Pusher]], act: Callable[[jjq.Topic], object], added: int
) -> None:
    one, other = pushers(2)
    waits = other.log._waiting
    assert waits is not None
    assert waits.ask(b"other", 0)
    before = one.topic.offsets()[0].end
    act(one.topic)
    answer = waits.answer()
    assert answer is not None
    assert waits.counts(answer)
    assert answer.offset == before + added
    waits.leave()
    assert values(path)[-1] == b"other"


def test_an_answer_whose_file_was_rolled_meanwhile_is_found(path: Path, pushers: Callable[[int], list[Pusher]]) -> None:
    one, other = pushers(2)
    waits = other.log._waiting
    assert waits is not None
    assert waits.ask(b"other", 0)
    one.topic.push(b"one")
    with one.log.exclusive():
        assert one.log.roll_locked()
    one.topic.push(b"after")
    answer = waits.answer()
    assert answer is not None
    assert other.log._counts(answer)  # in the file that it has open
    other.log.forget_active()
    assert other.log._counts(answer)
    assert values(path) == [b"one", b"other", b"after"]
    waits.leave()


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EMFILE])
def test_where_an_index_cannot_be_read_the_error_says_to_look_first(
    path: Path, pushers: Callable[[int], list[Pusher]], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    one, other = pushers(2)
    assert one.log._waiting is not None
    answer = waiting.Answer(1, bytes(16), 0, 0, 0, bytes(ENTRY_SIZE))

    def fails(_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, "open_ro", fails)
    with pytest.raises(jjq.StoreError, match=f"{os.strerror(code)}; look first whether the record is there") as raised:
        one.log._counts(answer)
    monkeypatch.undo()
    assert not raised.value.retryable
    other.topic.push(b"goes on")


def test_where_all_slots_are_taken_one_waits_for_the_lock(path: Path, pushers: Callable[[int], list[Pusher]]) -> None:
    pushers(1)
    taken = files.open_rw(paths(path, "lock")[0])
    for slot in range(1, waiting.SLOTS):
        files.turn(taken, files.TRY, files.bytes_lock(waiting.SLOT_LOCK + slot))
    one, other = pushers(2)
    assert [one.slot, other.slot] == [-1, -1]
    offsets = []
    pushing = [
        threading.Thread(target=lambda each=each: offsets.append(each.topic.push(b"v").offset)) for each in (one, other)
    ]
    with somebody_has_the_lock(path):
        for thread in pushing:
            thread.start()
    for thread in pushing:
        thread.join()
    assert sorted(offsets) == [3, 4]
    files.close(taken)


@pytest.mark.parametrize("shape", ["garbage", "ones", "short", "empty", "gone", "directory"])
def test_a_file_that_says_nonsense_harms_no_push(
    path: Path, pushers: Callable[[int], list[Pusher]], shape: str
) -> None:
    one, other = pushers(2)
    file = paths(path, "waiting")[0]
    data = {"garbage": os.urandom(20_000), "ones": b"\xff" * 300_000, "short": b"\x01" * 100}
    if shape in {"gone", "directory"}:
        file.unlink()
        if shape == "directory":
            file.mkdir()
    else:
        file.write_bytes(data.get(shape, b""))
    with somebody_has_the_lock(path):
        started = [threading.Thread(target=each.topic.push, args=(b"v",)) for each in (one, other)]
        for thread in started:
            thread.start()
    for thread in started:
        thread.join(30)
        assert not thread.is_alive()
    [third] = [jjq.open(path, maintenance=False)]
    third.topic("t").push(b"v")
    third.close()
    assert values(path) == [b"v"] * 3
    if shape == "directory":
        file.rmdir()


def test_rounds_go_on_where_the_next_byte_is_still_held(path: Path, pushers: Callable[[int], list[Pusher]]) -> None:
    """By a process that was stopped between its being woken and its letting go."""
    one, _ = pushers(2)
    stopped = files.open_rw(paths(path, "lock")[0])
    for lock in waiting._AWAIT:
        files.turn(stopped, files.TRY, lock)
    assert one.topic.push(b"on").offset == 2
    files.close(stopped)


def test_a_child_does_not_take_its_parents_slot(path: Path, pushers: Callable[[int], list[Pusher]]) -> None:
    one, other = pushers(2)
    slot, child = one.slot, os.fork()
    if not child:
        done = 1
        with contextlib.suppress(BaseException):
            forgotten = one.log._waiting is None
            assert forgotten
            for _ in range(5):
                one.topic.push(b"child")
            assert one.log._waiting is None or one.slot != slot  # it may have met its parent
            done = 0
        os._exit(done)
    for _ in range(5):
        one.topic.push(b"parent")
    assert os.waitpid(child, 0)[1] == 0
    other.topic.push(b"other")
    assert sorted(values(path)) == [b"child"] * 5 + [b"other"] + [b"parent"] * 5


@pytest.mark.parametrize("at", [waiting.REQUEST_AT + at for at in (0, 8, 12, 16, waiting.REQUEST.size + 1)])
def test_a_request_that_is_not_whole_is_not_written(
    path: Path, pushers: Callable[[int], list[Pusher]], at: int
) -> None:
    one, other = pushers(2)
    assert other.log._waiting is not None
    assert other.log._waiting.ask(b"asked", 0)
    flip(paths(path, "waiting")[0], (1 + other.slot) * waiting.SLOT_BYTES + at)
    one.topic.push(b"one")
    other.log._waiting.leave()
    assert values(path) == [b"one"]


@pytest.mark.parametrize("at", range(0, waiting.ANSWER.size + 4, 12))
def test_an_answer_that_is_not_whole_is_none(path: Path, pushers: Callable[[int], list[Pusher]], at: int) -> None:
    one, other = pushers(2)
    waits = other.log._waiting
    assert waits is not None
    assert waits.ask(b"asked", 0)
    one.topic.push(b"one")
    assert waits.answer() is not None
    flip(paths(path, "waiting")[0], (1 + other.slot) * waiting.SLOT_BYTES + at)
    assert waits.answer() is None
    waits.leave()
