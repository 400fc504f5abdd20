"""What the catalog promises of its transactions."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq.catalog.sqlite import SqliteDriver
from tests.stores import assert_whole

NORMAL, FULL = 1, 2  # of SQLite's PRAGMA synchronous: with FULL a transaction is on disk when it has committed


def synchronous(driver: SqliteDriver) -> int:
    [(level,)] = driver._open().execute("PRAGMA synchronous")
    return int(level)


@pytest.mark.parametrize("first", [True, False])
def test_a_durable_transaction_is_synced_and_another_is_not(tmp_path: Path, first: bool) -> None:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        driver = store.catalog.driver
        for durable in (first, not first, first, not first):
            with driver.write(durable=durable) as tx:
                assert synchronous(driver) == (FULL if durable else NORMAL)
                tx.run("set_meta", key="k", value="1")
            driver.run("set_meta", durable=not durable, key="k", value="2")
            assert synchronous(driver) == (NORMAL if durable else FULL)


def meta(driver: SqliteDriver) -> str | None:
    found = driver.row("meta", key="k")
    return None if found is None else str(found[0])


@pytest.mark.parametrize("following", ["read", "snapshot", "run", "write"])
def test_a_transaction_that_an_interrupt_left_open_is_ended_by_who_comes_next(tmp_path: Path, following: str) -> None:
    """As where an exception that a signal's handler raises comes just as a `with` ends: it is open as long as its traceback is kept, and
    what is read in it is what nobody has committed."""
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        driver = store.catalog.driver
        elsewhere = SqliteDriver(driver.path, driver.path.with_name("catalog.lock"))
        driver.run("set_meta", durable=True, key="k", value="before")
        left = driver.write(durable=True)
        tx = left.__enter__()
        tx.run("set_meta", key="k", value="left")
        if following == "read":
            assert meta(driver) == "before"
        elif following == "snapshot":
            with driver.snapshot() as state:
                assert state.row("meta", key="k") == ("before",)
        elif following == "run":
            driver.run("set_meta", durable=True, key="k", value="next")
        else:
            with driver.write(durable=True) as after:
                after.run("set_meta", key="k", value="next")
        expected = "before" if following in ("read", "snapshot") else "next"
        assert [meta(driver), meta(elsewhere)] == [expected] * 2
        with pytest.raises(jjq.StoreError, match="ended by another use"):
            tx.run("set_meta", key="k", value="late")
        elsewhere.run("set_meta", durable=True, key="k", value="theirs")  # nobody has the lock
        with driver.write(durable=True) as after:
            after.run("set_meta", key="k", value="after")
            with pytest.raises(jjq.StoreError, match="ended by another use"):
                left.__exit__(None, None, None)  # while another one is open
            after.run("set_meta", key="k", value="whole")
        assert [meta(driver), meta(elsewhere)] == ["whole"] * 2
        elsewhere.close()


def test_partitions_are_locked_in_one_order_whatever_the_order_of_files(tmp_path: Path) -> None:
    """Two commits that locked each what the other waits for would wait for ever."""
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topics = [store.create_topic(name, partitions=2) for name in "abc"]
        locked: list[tuple[str, int]] = []
        for topic in topics:
            for partition in (0, 1):
                log = store.logs[topic.id, partition]

                def noted(exclusive=log.exclusive, place=(topic.id, partition)):  # type: ignore[no-untyped-def]
                    locked.append(place)
                    return exclusive()

                log.exclusive = noted  # type: ignore[method-assign]
        orders = []
        for order in (topics, topics[::-1], topics[1:] + topics[:1]):
            with store.stage() as stage:
                for topic in order:
                    for partition in (1, 0):
                        stage.write(topic, pa.table({"value": [b"v"]}), partition=partition)
                store.commit(stage.finish())
            orders.append(locked[:])
            locked.clear()
        assert orders == [sorted((topic.id, partition) for topic in topics for partition in (0, 1))] * 3


def test_a_batch_that_several_commit_at_once_is_there_once(tmp_path: Path) -> None:
    path, together = tmp_path / "store", threading.Barrier(4, timeout=60)
    with jjq.open(path, maintenance=False) as store:
        store.create_topic("t")

    def push(number: int) -> list[bool]:
        """Of each batch, whether it was there already."""
        with jjq.open(path, maintenance=False) as store:
            topic, known = store.topic("t"), []
            for batch in range(15):
                with store.stage() as stage:
                    stage.write(topic, pa.table({"value": [b"%d" % batch]}))
                    staged = stage.finish()
                together.wait()
                known.append(store.commit(staged, writer_id="w", batch_id=batch).duplicate)
            return known

    with ThreadPoolExecutor(4) as pool:
        known = list(pool.map(push, range(4)))
    assert [sum(each) for each in zip(*known, strict=True)] == [3] * 15
    with jjq.open(path, maintenance=False) as store:
        read = store.topic("t").read().read_all()["value"].to_pylist()
    assert read == [b"%d" % batch for batch in range(15)]
    assert_whole(path)
