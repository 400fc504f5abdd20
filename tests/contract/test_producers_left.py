"""Producers that nobody has closed: what they were given is written when their store is closed, or their process ends."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import jjq
from jjq import files
from jjq.server.flight import FlightFront
from jjq.server.guard import Guard
from jjq.server.settings import ServerSettings

BEGIN = """
import os, sys
import jjq
where = sys.argv[1]
store = jjq.connect(where) if where.startswith("jjq:") else jjq.open(where)

def push(what):
    producer = store.producer(linger_ms=60_000)
    for i in range(1000):
        producer.push("t", b"%s %d" % (what, i))
    return producer

producer = push(b"own")
"""
ON_TERM = """
import signal
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
"""
ENDS = {
    "exit": ("sys.exit(3)", 3),
    "terminated": (ON_TERM + "os.kill(os.getpid(), signal.SIGTERM)", 143),
    "raise": ("raise SystemError", 1),
    "interval": ("store.create_topic('synced', sync='interval')\nproducer.push('synced', b'')", 0),
}
IN_PROCESSES = """
import multiprocessing

def others():
    push(b"child's")
    producer.push("t", b"child's 1000")

child = multiprocessing.get_context("fork").Process(target=others)
child.start()
child.join()
forked = os.fork()
if forked == 0:
    sys.exit(5)  # by the same way out as the parent, with what is the parent's to write
assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 5
sys.exit(child.exitcode)
"""
OUTLIVES = """
import sys, threading
import jjq
store = jjq.open(sys.argv[1])

def outlive():
    threading.main_thread().join()
    store.create_topic("t").push_many([b"many %d" % i for i in range(300)])
    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        print("no thread can begin")
        return
    producer = store.producer(linger_ms=60_000)
    for i in range(1000):
        producer.push("t", b"own %d" % i)

threading.Thread(target=outlive).start()
"""
PUSHES_AT_EXIT = """
import atexit, sys
import jjq
producer = jjq.open(sys.argv[1]).producer(linger_ms=60_000)
atexit.register(lambda: producer.push("t", b"last"))
producer.push("t", b"first")
"""
LOOKS_AT_EXIT = """
import atexit, sys
import jjq
store = jjq.open(sys.argv[1])
atexit.register(lambda: print(store.topic("t").offsets()[0].end))
producer = store.producer(linger_ms=60_000)
producer.push("t", b"first")
"""
# A disk that is full all the while.
INTERRUPTED = """
import errno, signal
from jjq import files

def full(fd):
    print("tried", flush=True)
    raise OSError(errno.ENOSPC, "No space left on device")

files.datasync = full
"""


def run(where: str, script: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", BEGIN + script, where],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def place(store: jjq.Store) -> str:
    return str(getattr(store, "url", store.path))


def values(store: jjq.Store) -> list[bytes]:
    found: list[bytes] = store.topic("t").read().read_all()["value"].to_pylist()
    return found


def own(what: bytes = b"own", count: int = 1000) -> list[bytes]:
    return [b"%s %d" % (what, i) for i in range(count)]


def test_closing_the_store_writes_what_its_producers_were_given(reopen: Callable[..., jjq.Store]) -> None:
    store, other = reopen(), reopen()
    kept = other.producer(linger_ms=60_000)
    first, second = store.producer(linger_ms=60_000), store.producer(linger_ms=60_000)
    futures = [producer.push("t", b"%d" % i) for i, producer in enumerate([first, second, first])]
    lingering = kept.push("t", b"another store's")
    store.close()
    assert all(future.done() and future.exception() is None for future in futures)
    assert not lingering.done()
    assert sorted(values(reopen())) == [b"0", b"1", b"2"]
    with pytest.raises(jjq.StoreClosed):
        first.push("t", b"late")


def test_no_producer_is_made_while_its_store_is_being_closed(reopen: Callable[..., jjq.Store]) -> None:
    """It would be closed by nobody, and what it was given not be written."""
    store = reopen()
    errors: list[type[jjq.JjqError]] = []

    def make(_: object) -> None:
        try:
            store.producer().push("t", b"late")
        except jjq.JjqError as error:
            errors.append(type(error))

    store.producer(linger_ms=60_000).push("t", b"first").add_done_callback(make)
    store.close()
    assert errors == [jjq.StoreClosed]
    assert values(reopen()) == [b"first"]


@pytest.mark.embedded
def test_who_closes_a_store_waits_no_longer_than_its_producers_try(
    reopen: Callable[..., jjq.Store], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = reopen()
    for name in "ab":
        store.create_topic(name)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    producer = store.producer(linger_ms=60_000, delivery_timeout_s=0.2)
    futures = [producer.push(name, b"v") for name in "ab"]
    with monkeypatch.context() as patched:
        patched.setattr(files, "datasync", full)
        store.close()
    assert all(isinstance(future.exception(0), jjq.StoreError) for future in futures)
    assert [each.getMessage().partition(":")[0] for each in caplog.records if "not written" in each.message] == [
        f"1 record for topic '{name}' was not written" for name in "ab"
    ]


def test_a_broker_that_is_gone_is_waited_for_once(tmp_path: Path) -> None:
    settings = ServerSettings(store=tmp_path / "store", flight_port=0)
    with jjq.open(tmp_path / "store") as served:
        front = FlightFront(served, settings, Guard(settings))
        store = jjq.connect(f"jjq://127.0.0.1:{front.start()}", retry_s=0)
        producer = store.producer(linger_ms=60_000, delivery_timeout_s=0)
        futures = [producer.push(name, b"v") for name in "abc"]
        front.stop(30)
        store.close()
    errors = [future.exception(0) for future in futures]
    assert isinstance(errors[0], jjq.BrokerUnavailable)
    assert errors == errors[:1] * 3  # the very same: the others were not tried


@pytest.mark.embedded
def test_a_thread_that_outlives_the_main_one_pushes_as_ever(store: jjq.Store) -> None:
    """What pyarrow imports with the first list of values could not be imported then. A producer needs a thread, which some versions
    of Python begin no more."""
    ended = subprocess.run(
        [sys.executable, "-c", OUTLIVES, place(store)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert values(store) == own(b"many", 300) + ([] if ended.stdout else own())


@pytest.mark.embedded
def test_what_others_push_as_the_process_ends_is_written_too(store: jjq.Store) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PUSHES_AT_EXIT, place(store)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert values(store) == [b"first", b"last"]


@pytest.mark.embedded
def test_what_was_begun_before_the_first_push_is_there_as_it_is_written(store: jjq.Store) -> None:
    """Such as a directory that goes with the process, or a broker that it ends."""
    ended = subprocess.run(
        [sys.executable, "-c", LOOKS_AT_EXIT, place(store)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")


def test_what_nobody_holds_any_more_is_written_as_the_process_ends(store: jjq.Store) -> None:
    ended = run(place(store), "del producer, store")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert values(store) == own()


@pytest.mark.embedded
@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_ends_writes_what_its_producers_were_given(store: jjq.Store, end: str) -> None:
    script, code = ENDS[end]
    ended = run(place(store), script)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr == "" or end == "raise"
    assert values(store) == own()
    if end == "interval":
        assert store.topic("synced").offsets()[0].end == 1


@pytest.mark.embedded
def test_each_process_writes_its_own(store: jjq.Store) -> None:
    ended = run(place(store), IN_PROCESSES)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(values(store)) == sorted(own() + own(b"child's", 1001))


@pytest.mark.embedded
def test_an_interrupt_ends_the_wait_of_a_process_that_ends(store: jjq.Store) -> None:
    store.create_topic("t")
    with subprocess.Popen(
        [sys.executable, "-c", BEGIN + INTERRUPTED, place(store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "tried\n"
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "1,000 records that were pushed are not written" in said
    assert "Traceback" not in said
    assert store.topic("t").offsets()[0].end == 0
