"""Forking while other threads use the catalog."""

import multiprocessing
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import jjq
from jjq import files
from jjq.catalog.sqlite import SqliteDriver
from tests.stores import assert_whole

CHILDREN = 60


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_forked_while_threads_are_inside_the_catalog_can_use_it(tmp_path: Path) -> None:
    """SQLite has locks for the whole process; a child would inherit one held by a thread that it does not have."""
    context = multiprocessing.get_context("fork")
    done = threading.Event()
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t")

        def read() -> None:
            while not done.is_set():
                store.catalog.topics()

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(CHILDREN):
                child = context.Process(target=lambda: topic.offsets())
                child.start()
                child.join(30)
                stuck = child.exitcode is None
                child.kill()
                child.join()
                assert not stuck
                assert child.exitcode == 0
        finally:
            done.set()
            for thread in threads:
                thread.join()


@pytest.mark.parametrize("left", [False, True], ids=["", "with a transaction that interrupts have left open"])
def test_what_a_child_pushes_is_there_though_its_parent_closes_the_store_meanwhile(tmp_path: Path, left: bool) -> None:
    """SQLite takes its parent's locks for its own, and so has none: the write-ahead log would go as the parent closes."""
    context = multiprocessing.get_context("fork")
    begun, closed = context.Event(), context.Event()
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", segment_rows=1)
        topic.push(b"parent")

        def push() -> None:
            topic.push(b"child")
            begun.set()
            closed.wait(30)
            for value in (b"late", b"later", b"latest"):
                topic.push(value)

        if left:
            assert isinstance(store.catalog.driver, SqliteDriver)
            store.catalog.driver._open().execute("BEGIN")
        child = context.Process(target=push)
        child.start()
        assert begun.wait(30)
    closed.set()
    child.join(30)
    assert child.exitcode == 0
    with jjq.open(tmp_path / "store", maintenance=False) as again:
        assert again.topic("t").read().read_all()["value"].to_pylist() == [
            b"parent", b"child", b"late", b"later", b"latest",
        ]  # fmt: skip
        assert_whole(again)


ORPHANING = """
import os, signal, sys
import jjq
from jjq import files
store = jjq.open(sys.argv[1], maintenance=False)
with store.logs[store.topic("t").id, 0].exclusive():
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os.read(reading, 1)  # the child is there
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(writing, b"x")
    os.read(0, 1)
"""


def test_a_child_keeps_no_lock_of_its_parent_that_was_killed(tmp_path: Path) -> None:
    """A flock lasts as long as any descriptor of its file description: the child has to close those that it was born with."""
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t")
        program = [sys.executable, "-c", ORPHANING, store.path]
        with subprocess.Popen(program, stdin=subprocess.PIPE) as parent:  # whose end the orphan waits for
            assert parent.wait(60) == -signal.SIGKILL
            fd = files.open_lock(topic.directory(0) / "lock")
            assert files.lock(fd, wait=False)
            files.close(fd)
            assert topic.push(b"v").offset == 0
