"""Each operation made to fail in turn: an error, nothing half-visible, what was acknowledged is there, and pushing goes on."""

import errno
import inspect
import shutil
from copy import deepcopy
from pathlib import Path

import pyarrow as pa
import pytest

import jjq
from jjq import files
from jjq.errors import DataLoss, JjqError, StoreError
from tests.crash.checks import State, contents, open_alone
from tests.crash.faults import CHANGES, KINDS, PLAIN, Counting, Failing, Operation
from tests.crash.scenarios import SCENARIOS, SYNC_MODES, Scenario, make


def test_every_function_of_the_files_module_is_one_that_the_tests_can_make_fail() -> None:
    functions = {
        name
        for name, value in vars(files).items()
        if inspect.isfunction(value) and value.__module__ == files.__name__ and not name.startswith("_")
    }
    functions |= {"datasync", "look"}  # which are the system's own
    assert functions == KINDS.keys() | PLAIN


def seen_afresh(path: Path) -> State:
    with open_alone(path) as fresh:
        return contents(fresh)


def attempt(scenario: Scenario, store: jjq.Store) -> JjqError | None:
    try:
        scenario.act(store)
    except JjqError as error:
        return error
    return None


def between(state: State, before: State, after: State) -> bool:
    """Whether each partition is as before or as after."""
    return state.keys() == before.keys() and all(
        rows in (before["t"]["rows"][p], after["t"]["rows"][p]) for p, rows in state["t"]["rows"].items()
    )


def check_interrupted(scenario: Scenario, state: State, before: State, after: State, raised: bool) -> None:
    if not raised:
        assert state == after
    elif scenario.pushes:
        assert state == before
    elif scenario.pieces:
        assert between(state, before, after)
    else:
        assert state in (before, after)


def check_goes_on(path: Path, state: State, *stores: jjq.Store) -> None:
    """Every topic takes another record from each store, and all see them once."""
    for store in stores:
        for topic in store.topics():
            start, rows = state[topic.name]["rows"][0]
            value = b"later" if topic.schema is None else {"n": -1, "s": "later"}
            position = topic.push(value, partition=0)
            assert position.offset == start + len(rows)
            columns = [b"later"] if isinstance(value, bytes) else [value.get(name) for name in topic.schema.names]
            rows.append((position.offset, None, *columns))
    assert seen_afresh(path) == state
    assert contents(stores[0]) == state


def lost_end(failed: Operation, state: State, before: State, store: jjq.Store) -> bool:
    """Whether a failed sync took back records that were not promised to be on disk, and every cursor can tell."""
    if failed.kind != "sync" or failed.path.suffix != ".arrows":
        return False
    partition = int(failed.path.parent.name)
    (topic,) = (topic for topic in store.topics() if topic.id == failed.path.parent.parent.name)
    if topic.config.sync == "always":
        return False
    start, rows = state[topic.name]["rows"][partition]
    _, had = before[topic.name]["rows"][partition]
    if rows == had:
        return False
    assert rows == had[: len(rows)]
    state[topic.name]["rows"][partition] = (start, had)
    assert state == before
    topic.push_many([b"again" if topic.schema is None else {"n": 0}] * len(had), partition=partition)
    with pytest.raises(DataLoss) as caught:
        topic.plan(partition, start, start + len(had), lineage=0)
    assert caught.value.earliest == start + len(rows)
    return True


@pytest.mark.parametrize("sync", SYNC_MODES)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_an_operation_that_fails_leaves_all_or_nothing(scenario: Scenario, sync: str, place: Path) -> None:
    template = place / "template"
    make(template, sync)
    with open_alone(template) as store:
        scenario.prepare(store)
        before = contents(store)
    shutil.copytree(template, place / "done")
    with open_alone(place / "done") as store:
        with Counting() as counting:
            scenario.act(store)
        after = contents(store)
    assert counting.seen
    # The modes differ in little else than syncs, so for two of them every other operation does.
    first, step = (1, 1) if sync == "always" else (SYNC_MODES.index(sync), 2)
    for number, operation in list(enumerate(counting.seen, 1))[first - 1 :: step]:
        # Half of a write may get to the file before it fails, which is another failure than one of which nothing does.
        for part in (0.0, 0.5) if operation.kind == "write" else (0.0,):
            path = place / f"{number} {part}"
            shutil.copytree(template, path)
            with open_alone(path) as store, open_alone(path) as other:
                contents(other)  # so that it has files open which others then give up
                with Failing(number, CHANGES, part=part) as failing:
                    error = attempt(scenario, store)
                raised = error is not None
                assert not raised or (type(error) is StoreError and error.__cause__ is not None)
                assert failing.failed is not None
                state = contents(other)
                assert seen_afresh(path) == state
                if lost_end(failing.failed, deepcopy(state), before, store):
                    continue
                check_interrupted(scenario, state, before, after, raised)
                if raised and not scenario.pieces and not (scenario.twice and state == after):
                    again = attempt(scenario, store)
                    assert again is None or type(again) is scenario.already
                    state = contents(other)
                    assert state == after
                check_goes_on(path, state, store, other)
            shutil.rmtree(path)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_a_read_that_fails_says_so_and_the_next_one_works(code: int, place: Path) -> None:
    make(place / "store", "always")
    with open_alone(place / "store") as store:
        store.topic("s").push_table(pa.table({"n": [1, 2]}), writer_id="w", batch_id=1)
        expected = contents(store)
    with open_alone(place / "store") as store, Counting(["open", "read"]) as counting:
        assert contents(store) == expected
    for number in range(1, len(counting.seen) + 1):
        with open_alone(place / "store") as store:
            with Failing(number, ["open", "read"], code=code) as failing, pytest.raises(StoreError, match=str(place)):
                contents(store)
            assert failing.failed is not None
            assert contents(store) == expected


@pytest.mark.parametrize(("step", "moved"), [("begin", 0), ("commit", 0), ("committed", 1)])
def test_a_pop_that_fails_has_taken_its_record_only_where_the_cursor_has_moved(
    step: str, moved: int, place: Path
) -> None:
    with open_alone(place / "store") as store:
        store.create_topic("t").push_many([b"a", b"b"])
        with store.create_subscriber("t", "s", start="earliest") as subscriber:
            with Failing(1, [step]), pytest.raises(StoreError):
                subscriber.pop()
            assert subscriber.positions() == {0: moved}
            assert subscriber.pop().value == [b"a", b"b"][moved]
            assert subscriber.positions() == {0: moved + 1}


def test_a_topic_that_cannot_be_made_leaves_nothing_of_itself(place: Path) -> None:
    with open_alone(place / "store") as store:
        store.create_topic("t")
        with Counting() as counting:
            store.create_topic("counted", partitions=2)
        there = sorted((place / "store" / "topics").iterdir())
        own = [
            number
            for number, each in enumerate(counting.seen, 1)
            if "topics" in each.path.parts and each.kind != "unlink"
        ]
        assert {counting.seen[number - 1].kind for number in own} >= {
            "make_dirs",
            "create",
            "write",
            "sync",
            "replace",
            "sync_dir",
        }
        for number in own:
            with Failing(number, part=0.5) as failing, pytest.raises(StoreError):
                store.create_topic("new", partitions=2)
            assert sorted((place / "store" / "topics").iterdir()) == there, failing.failed
            assert "new" not in [each.name for each in store.topics()]
        assert store.create_topic("new", partitions=2).push(b"a").offset == 0
