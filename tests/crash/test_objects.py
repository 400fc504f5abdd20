"""A push of a big object that dies, or fails, at any step: neither is its object lost, nor does it stay for nothing."""

import contextlib
from pathlib import Path

import pytest

import jjq
from jjq import objects
from jjq.clock import now_us
from tests.crash.checks import open_alone
from tests.crash.faults import CHANGES, Failing
from tests.crash.killing import copy_store, dies
from tests.stores import assert_whole

CONTENT = b"an object"
DAY_US = 86_400_000_000


def make(path: Path) -> None:
    with open_alone(path) as store:
        store.create_topic("t").push(b"before")


def push(store: jjq.Store) -> None:
    store.topic("t").push_file(CONTENT, "name")


def push_alone(path: Path) -> None:
    with open_alone(path) as store:
        push(store)


def kept(store: jjq.Store) -> list[Path]:
    return [path for path in (store.path / "objects").rglob("*") if path.is_file()]


def check_objects(store: jjq.Store) -> int:
    """That each record has its object, also after a sweep; how many there are."""
    topic = store.topic("t")
    for _ in range(2):
        found = 0
        for record in topic.records(
            [each for p in topic.offsets() for each in topic.plan(p.partition, p.start, p.end)]
        ):
            if record.headers:
                with store.open_object(record) as stream:
                    assert stream.read() == CONTENT
                found += 1
        objects.sweep(store)
    return found


def check_goes_on(store: jjq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right after what died: with its record, if that is there, and by a push that is made again; then nothing is left."""
    found = check_objects(store)
    unsure = store.catalog.driver.rows("objects") and not found
    if not found and not unsure:
        assert kept(store) == []  # there is no record, which is known, and so no object
    push(store)
    assert check_objects(store) == found + 1
    assert_whole(store)
    store.topic("t").empty()
    with monkeypatch.context() as patched:
        patched.setattr(objects, "now_us", lambda: now_us() + 3 * DAY_US)
        objects.sweep(store)
    assert (store.list_objects(), kept(store)) == ([], [])


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_push_that_is_killed_at_any_step_leaves_no_object_for_nothing(
    part: float, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(place / "template")
    number, unsure, alive = 0, 0, False
    while not alive:
        number += 1
        path = copy_store(place / "template", place / str(number))
        alive = not dies(lambda path=path: push_alone(path), number, part)  # type: ignore[misc]
        with open_alone(path) as store:
            objects.sweep(store)
            unsure += bool(store.list_objects()) and not check_objects(store)
            check_goes_on(store, monkeypatch)
    assert number > 10
    assert unsure <= 8  # only who died between its note and its record: of these the object stays a day


def test_a_missing_object_is_said_also_where_the_push_died_with_its_record(place: Path) -> None:
    make(place / "template")
    number, died, said = 0, True, 0
    while died:
        number += 1
        path = copy_store(place / "template", place / str(number))
        died = dies(lambda path=path: push_alone(path), number)  # type: ignore[misc]
        with open_alone(path) as store:
            records = check_objects(store)
            for each in kept(store):
                each.unlink()
            found = [why for _, why in objects.problems(store) if "is missing" in why]
            assert found or not records
            said += bool(found)
    assert said > 1


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "until mended"])
def test_a_push_that_fails_at_any_step_leaves_no_object_for_nothing(
    for_good: bool, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(place / "template")
    number, failing = 0, None
    while failing is None or failing.failed is not None:
        number += 1
        with open_alone(copy_store(place / "template", place / str(number))) as store:
            store.topic("t").push(b"opens the log")
            with Failing(number, CHANGES, for_good=for_good) as failing, contextlib.suppress(jjq.JjqError):
                push(store)
            check_goes_on(store, monkeypatch)
    assert number > 10


def test_a_record_that_comes_to_be_after_a_boot_though_its_push_failed_has_its_object(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk took the record, and not the entry that would have made it count."""
    make(place / "template")
    number, failing, found = 0, None, 0
    while failing is None or failing.failed is not None:
        number += 1
        monkeypatch.setattr("jjq.store.boot_id", lambda: "a boot")
        with open_alone(copy_store(place / "template", place / str(number))) as store:
            store.topic("t").push(b"opens the log")
            with Failing(number, CHANGES) as failing, contextlib.suppress(jjq.JjqError):
                push(store)
        monkeypatch.setattr("jjq.store.boot_id", lambda: "the next boot")
        with open_alone(place / str(number)) as store:
            objects.sweep(store)
            found += check_objects(store)
            assert_whole(store)
    assert found > 1


def test_an_interrupted_push_whose_record_may_be_there_keeps_its_object(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(place / "store")
    real = jjq.Topic.push

    def unsure(*arguments: object, **options: object) -> jjq.Position:
        real(*arguments, **options)  # type: ignore[arg-type]
        raise jjq.StoreError("the thread that wrote for this one was interrupted")

    with open_alone(place / "store") as store:
        with monkeypatch.context() as patched:
            patched.setattr(jjq.Topic, "push", unsure)
            with pytest.raises(jjq.StoreError):
                push(store)
        check_goes_on(store, monkeypatch)
