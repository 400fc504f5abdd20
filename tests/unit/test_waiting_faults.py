"""Of processes that push to one partition at once one fails, dies, gives up, or finds nonsense: nothing is lost or there twice."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import jjq
from jjq import files
from jjq.log import waiting
from jjq.log.format import ENTRY_SIZE
from tests.crash.faults import Disk, Failing, Operation
from tests.pushers import Pusher, somebody_has_the_lock, values
from tests.stores import flip, paths

pytestmark = pytest.mark.skipif(not files.TURNS, reason="the system has no locks of the open file")


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
        offset, _ = one.log.append_value(1, b"one", mark=(b"p", 1))
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
    other.dies()
    one.topic.push(b"one")
    assert values(path) == [b"one"]


def test_who_gets_the_slot_of_a_dead_one_does_not_ask_for_what_that_one_asked(
    path: Path, pushers: Callable[[int], list[Pusher]]
) -> None:
    [one], [dead] = pushers(1), pushers(1)
    slot = dead.slot
    assert dead.log._waiting is not None
    assert dead.log._waiting.ask(b"of the dead", 0)
    dead.dies()
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
    dead.dies()
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
    taken = files.open_rw(paths(path, "waiting")[0])
    for slot in range(1, waiting.SLOTS):
        files.turn(taken, files.TRY, files.bytes_lock(slot))
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


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EMFILE])
def test_where_an_index_cannot_be_read_the_error_says_to_look_first(
    path: Path, pushers: Callable[[int], list[Pusher]], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    one, other = pushers(2)
    waits = one.log._waiting
    assert waits is not None
    monkeypatch.setattr(waits, "answer", lambda: waiting.Answer(1, bytes(16), 0, 0, 0, bytes(ENTRY_SIZE)))

    def fails(_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, "open_ro", fails)
    with pytest.raises(jjq.StoreError, match=f"{os.strerror(code)}; look first whether the record is there") as raised:
        one.log._answered(waits)
    monkeypatch.undo()
    assert not raised.value.retryable
    other.topic.push(b"goes on")


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
    stopped = files.open_rw(paths(path, "waiting")[0])
    for lock in waiting._AWAIT:
        files.turn(stopped, files.TRY, lock)
    assert one.topic.push(b"on").offset == 2
    files.close(stopped)


@pytest.mark.parametrize("at", [waiting.REQUEST_AT + at for at in (0, 8, 12, 16, 20, waiting.REQUEST.size + 1)])
@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_a_request_that_is_not_whole_is_not_written(
    path: Path, pushers: Callable[[int], list[Pusher]], at: int, key: bytes | None
) -> None:
    one, other = pushers(2)
    assert other.log._waiting is not None
    assert other.log._waiting.ask(b"asked", 0, key)
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


def test_what_two_interrupts_left_is_withdrawn_before_the_next_push(
    path: Path, pushers: Callable[[int], list[Pusher]]
) -> None:
    one, other = pushers(2)
    assert other.log._waiting is not None
    assert other.log._waiting.ask(b"raised", 0)
    with other.log.exclusive():
        pass
    one.topic.push(b"one")
    assert values(path) == [b"one"]


def test_who_writes_goes_on_where_it_cannot_read_what_others_ask(
    path: Path, pushers: Callable[[int], list[Pusher]]
) -> None:
    one, other = pushers(2)
    waits = one.log._waiting
    assert waits is not None
    assert other.log._waiting is not None
    assert other.log._waiting.ask(b"asked", 0)
    for number in range(1, 4):
        with Failing(number, ["read"], for_good=True):
            waits.begin_round_locked()
            assert waits.asked_locked() == []
        files.turn(waits.fd, files.TRY, waiting.END_ROUND)
    assert [each.value for each in waits.asked_locked()] == [b"asked"]
    other.log._waiting.leave()


def test_pushes_go_on_where_something_else_lies_in_the_place_of_the_file(tmp_path: Path, path: Path) -> None:
    os.mkfifo(path / "topics" / next(iter(os.listdir(path / "topics"))) / "0" / "waiting")
    with jjq.open(path, maintenance=False) as one, jjq.open(path, maintenance=False) as other:
        topics = [one.topic("t"), other.topic("t")]
        for topic in topics:
            topic.push(b"opened")
        for _ in range(3):
            pushing = [threading.Thread(target=topic.push, args=(b"v",)) for topic in topics]
            with somebody_has_the_lock(path):
                for each in pushing:
                    each.start()
            for each in pushing:
                each.join()
        assert topics[0].offsets()[0].end == 8


def test_a_process_that_is_stopped_as_it_wakes_up_does_not_keep_others_from_waiting_for_a_round(
    path: Path, pushers: Callable[[int], list[Pusher]]
) -> None:
    one, _ = pushers(2)
    waits = one.log._waiting
    assert waits is not None
    waits.begin_round_locked()
    last = waits._last_round()
    files.turn(waits.fd, files.TRY, waiting.END_ROUND)
    stopped = files.open_rw(paths(path, "waiting")[0])
    files.turn(stopped, files.TRY, waiting._AWAIT[(last + 1) % waiting.SLOTS])
    for _ in range(2 * waiting.SLOTS):
        waits.begin_round_locked()
        assert waits._last_round() not in {last, (stopped, last + 1)}
        assert files.is_held(stopped, waiting.SLOTS + waits._last_round())
        last = waits._last_round()
        files.turn(waits.fd, files.TRY, waiting.END_ROUND)
    files.close(stopped)


def test_a_file_that_was_removed_and_made_again_brings_back_nothing(
    path: Path, pushers: Callable[[int], list[Pusher]]
) -> None:
    """The locks are of the file: who has a slot of the one that was removed has none of the other."""
    [old] = pushers(1)
    paths(path, "waiting")[0].unlink()
    one, dead = pushers(2)
    assert dead.log._waiting is not None
    assert dead.log._waiting.ask(b"of the dead", 0)
    dead.dies()
    assert old.slot == 0
    one.topic.push(b"one")
    assert values(path) == [b"one"]


def test_who_waits_stands_in_line_after_rounds_that_wrote_nothing_for_others(
    path: Path, pushers: Callable[[int], list[Pusher]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pushers(2)
    waits, real, rounds = one.log._waiting, files.try_turn, 0
    assert waits is not None
    await_round = waiting.Waiting.await_round

    def one_more(self: waiting.Waiting) -> int:
        nonlocal rounds
        rounds += 1
        waits.begin_round_locked()
        files.turn(waits.fd, files.TRY, waiting.END_ROUND)
        return await_round(self)

    monkeypatch.setattr(waiting.Waiting, "await_round", one_more)
    monkeypatch.setattr(files, "try_turn", lambda fd: fd != other.log._lock_fd and real(fd))
    assert other.topic.push(b"waits").offset == 2
    assert rounds == 4
