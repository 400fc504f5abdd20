"""Handlers of signals that raise an Exception of their own, as those of SIGALRM that end what takes too long: a push that returns
has been done."""

import contextlib
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq import feed, files, records
from jjq.interrupts import surely
from jjq.log import partition
from jjq.log.partition import PartitionLog
from tests.stores import assert_whole
from tests.tracing import at_first, traced


class TooLong(Exception):
    pass


WHERE = [
    (function, line)
    for function in (
        PartitionLog._lead,
        PartitionLog._take_queue,
        PartitionLog._write,
        PartitionLog._tell,
        PartitionLog._leave,
    )
    for line in sorted({at for *_, at in function.__code__.co_lines() if at})
]


@pytest.mark.parametrize("function", dict.fromkeys(function for function, _ in WHERE), ids=lambda each: each.__name__)
def test_a_push_that_such_an_exception_meets_is_not_acknowledged_without_being_there(
    tmp_path: Path, function: Any
) -> None:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", sync="none")
        topic.push_many([b"first", b"second"])
        for number, line in enumerate(line for each, line in WHERE if each is function):
            values, positions = [b"%d %d" % (number, i) for i in range(2)], []
            with contextlib.suppress(TooLong, jjq.StoreError):
                push = functools.partial(topic.push_many, values)
                traced(lambda push=push, to=positions: to.append(push()), at_first(function.__code__, line, TooLong))
            for each in positions:
                start = each.ranges[0].start
                assert topic.read(start=start, end=start + 2).read_all()["value"].to_pylist() == values, line
        assert topic.push(b"last").offset >= 2  # and nobody holds the lead
        assert_whole(store)


FILES = {feed.__file__, records.__file__}


class Interrupting:
    """A profiler that raises in the functions of a feed when so many of them have begun, or have come back from a call: where a handler is
    called. It does so once."""

    def __init__(self, left: int, files: Collection[str] = FILES) -> None:
        self._left, self._files = left, files

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # What is raised as a generator is closed nobody hears of.
        if code.co_filename in self._files and event in {"call", "c_return"} and code.co_name != "<genexpr>":
            self._left -= 1
            if not self._left:
                sys.setprofile(None)
                raise TooLong

    def is_met(self, act: Callable[[], object]) -> bool:
        """Does it; whether the exception came, which is not to be swallowed."""
        sys.setprofile(self)
        try:
            act()
        except TooLong:
            return True
        finally:
            sys.setprofile(None)
        assert self._left > 0
        return False


def wanted(store: jjq.Store) -> list[bytes]:
    """What is read one after the other: of a single push each, of a batch, of a sealed file."""
    topic = store.create_topic("t", sync="none")
    values = [b"%d" % number for number in range(1200)]
    topic.push_table(pa.table({"value": values[:600]}), writer_id="w", batch_id=1)
    topic.push_many(values[600:1100])
    for value in values[1100:]:
        topic.push(value)
    store.create_subscriber("t", "s")
    return values


def test_what_is_polled_goes_on_where_the_last_whole_poll_ended(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        values, met = wanted(store), 0
        for number in itertools.count(1):
            subscriber = store.subscriber("s")
            got = subscriber.poll(70)
            met_here = Interrupting(number).is_met(lambda of=subscriber, to=got: to.extend(of.poll(300)))
            while found := subscriber.poll(400):
                got += found
            assert [each.value for each in got] == values, number
            subscriber.close()
            met += met_here
            if not met_here:
                break
        assert met > 20


def test_what_is_popped_is_the_next_record_and_none_twice(tmp_path: Path) -> None:
    """One that an interrupted pop had taken may be left out: it is given at most once."""
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        values, got, met = wanted(store), [], 0
        subscriber = store.subscriber("s")
        for number in itertools.count():
            popped: list[Any] = []
            if Interrupting(1 + number % 29, FILES if number % 2 else {records.__file__}).is_met(
                lambda to=popped: to.append(subscriber.pop())
            ):
                met += 1
            elif popped[0] is None:
                break
            else:
                got.append(popped[0].value)
        assert met > 200
        assert got == [value for value in values if value in set(got)]
        assert len(got) >= len(values) - met


@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
@pytest.mark.parametrize("among", [0, 2])
@pytest.mark.parametrize("kind", ["push", "push_many"])
def test_a_push_that_is_met_at_any_of_its_calls_leaves_the_others_to_theirs(
    kind: str, among: int, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody else pushes, and between two threads that do all the time: nobody waits for ever for a lead that is gone."""
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", sync="none")

        def act(value: bytes) -> object:
            return topic.push(value) if kind == "push" else topic.push_many([value])

        topic.push(b"first")
        pushed: list[list[bytes]] = [[] for _ in range(among)]
        over, mine, met = threading.Event(), list[bytes](), list[int]()

        def push_on(into: list[bytes], number: int) -> None:
            for count in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
                value = b"%d of %d" % (count, number)
                with contextlib.suppress(jjq.StoreError):  # it was written for by the thread that is met
                    act(value)
                    into.append(value)

        others = [
            threading.Thread(target=push_on, args=(each, number), daemon=True) for number, each in enumerate(pushed)
        ]
        for each in others:
            each.start()

        def be_met_again(*given: Any) -> None:
            if threading.current_thread() is others[-1]:
                sys.setprofile(Interrupting(1, {partition.__file__}))
            surely(*given)

        if again:  # while what was interrupted is done again
            monkeypatch.setattr(partition, "surely", be_met_again)

        def push_and_be_met() -> None:
            # Alone they are the same calls each time; between others, those of who leads, who follows, and who does both.
            for number in range(420 if among else 60):
                value = b"%d" % number
                sys.setprofile(Interrupting(1 + number % 60, {partition.__file__}))
                try:
                    act(value)
                    mine.append(value)
                except TooLong:
                    met.append(number)
                finally:
                    sys.setprofile(None)
            over.set()

        others.append(threading.Thread(target=push_and_be_met, daemon=True))
        others[-1].start()
        for each in reversed(others):
            each.join(60)
        assert not any(each.is_alive() for each in others)
        assert len(met) > (30 if among else 5)
        topic.push(b"last")  # and nobody holds the lead
        found = topic.read().read_all()["value"].to_pylist()
        assert len(set(found)) == len(found)
        assert set(found) >= {b"first", b"last", *mine, *itertools.chain(*pushed)}
        for each in pushed:
            assert [value for value in found if value in set(each)] == each
        assert_whole(store)


class Noticed(dict[str, object]):
    """Who leads, with a bell for who has looked whether somebody does."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = threading.Event()

    def setdefault(self, key: str, default: Any = None) -> Any:
        found = super().setdefault(key, default)
        if found is not default:
            self.looked.set()
        return found


def test_who_queues_just_as_the_last_one_leaves_is_told_to_lead(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", sync="none")
        topic.push(b"first")
        log = store.logs[topic.id, 0]
        log._leads = leads = Noticed()
        other = threading.Thread(target=topic.push, args=(b"other",), daemon=True)

        def as_it_leaves(frame: FrameType, event: str, what: Any) -> None:
            if event == "c_call" and what.__name__ == "clear" and frame.f_code is PartitionLog.append_value.__code__:
                sys.setprofile(None)
                other.start()
                assert leads.looked.wait(30)

        sys.setprofile(as_it_leaves)
        try:
            topic.push(b"one")
        finally:
            sys.setprofile(None)
        other.join(30)
        assert not other.is_alive()
        assert topic.read().read_all()["value"].to_pylist() == [b"first", b"one", b"other"]
        assert_whole(store)


def test_who_leads_with_more_before_it_than_a_group_takes_writes_its_own_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "_GROUP_BYTES", 1000)
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", sync="none")
        topic.push(b"first")
        log = store.logs[topic.id, 0]
        log._leads = leads = Noticed()
        queued = threading.Thread(target=topic.push, args=(b"q" * 500,), daemon=True)
        told: list[object] = []

        def push_one_more() -> None:
            try:
                told.append(topic.push_many([b"m" * 500]).ranges[0].start)
            except jjq.StoreError as error:
                told.append(error)

        more = threading.Thread(target=push_one_more, daemon=True)

        def as_it_leaves(frame: FrameType, event: str, what: Any) -> None:
            if frame.f_code is not PartitionLog.append_value.__code__ or getattr(what, "__name__", "") != "clear":
                return
            if event == "c_call":  # one queues, who is told that somebody leads
                queued.start()
                assert leads.looked.wait(30)
            elif event == "c_return":  # then nobody does, and another one comes before the lead is handed on
                sys.setprofile(None)
                more.start()
                more.join(30)

        sys.setprofile(as_it_leaves)
        try:
            topic.push(b"one")
        finally:
            sys.setprofile(None)
        queued.join(30)
        assert not queued.is_alive()
        assert told == [3]
        assert topic.read().read_all()["value"].to_pylist() == [b"first", b"one", b"q" * 500, b"m" * 500]
        assert_whole(store)


def test_what_a_handler_raises_in_the_thread_that_writes_is_not_raised_in_those_that_it_writes_for(
    tmp_path: Path,
) -> None:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", sync="none")
        topic.push(b"first")
        log, told = store.logs[topic.id, 0], list[BaseException]()

        def push_other() -> None:
            try:
                topic.push(b"other")
            except BaseException as error:
                told.append(error)

        other = threading.Thread(target=push_other, daemon=True)

        def queue_and_interrupt(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and frame.f_code is PartitionLog._take_queue.__code__:
                other.start()
                while len(log._queue) < 2:
                    pass
            elif event == "call" and frame.f_code is PartitionLog._append_locked.__code__:
                sys.setprofile(None)
                raise TooLong

        sys.setprofile(queue_and_interrupt)
        try:
            with pytest.raises(TooLong):
                topic.push_many([b"one"])
        finally:
            sys.setprofile(None)
        other.join(30)
        (error,) = told
        assert isinstance(error, jjq.StoreError)
        assert "may be there or not" in error.message
        assert not error.retryable  # or a producer would push it once more
        assert topic.push(b"last").offset == 1
        assert_whole(store)


def open_files(directory: Path) -> list[str]:
    """What this process has open in a directory."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(fd.readlink()))
    return [each for each in found if each.startswith(str(directory))]


@pytest.mark.parametrize("opening", [files.create, files.open_rw, files.open_ro, files.open_lock, files.sync_dir])
def test_a_file_is_not_left_open_where_the_exception_comes_as_the_system_has_opened_it(
    tmp_path: Path, opening: Callable[[Path], object]
) -> None:
    """A handler runs when the call that was met is done, which here is what opens a file: the profiler raises at the same place."""
    path = tmp_path if opening is files.sync_dir else tmp_path / "file"
    if opening in (files.open_rw, files.open_ro):
        path.touch()
    left = [True]

    def profile(frame: FrameType, event: str, done: object) -> None:
        if event == "c_return" and left and open_files(tmp_path):
            left.clear()
            raise TooLong

    sys.setprofile(profile)
    try:
        with contextlib.suppress(TooLong):
            opening(path)
    finally:
        sys.setprofile(None)
    assert not left
    assert open_files(tmp_path) == []


def test_a_file_of_compaction_is_not_left_open_where_the_exception_comes_before_its_end_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_long(*_: object) -> bytes:
        raise TooLong

    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", sync="none", segment_rows=1)
        topic.push(b"first")
        topic.push(b"second")
        with monkeypatch.context() as patched:
            patched.setattr("jjq.log.sealed.make_footer", too_long)
            with pytest.raises(TooLong):
                store.maintain()
        gone = [each for each in open_files(tmp_path) if each.endswith(".arrow (deleted)")]
        assert gone == []
        assert_whole(store)
