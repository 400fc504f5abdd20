"""Forking while other threads use the catalog."""

import multiprocessing
import threading
from pathlib import Path

import pytest

import jjq

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
