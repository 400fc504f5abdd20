"""Killed between any two steps: what was under way is done, or not, and everything goes on from there."""

from pathlib import Path

import pytest

import jjq
from tests.crash.checks import State, contents, open_alone
from tests.crash.killing import copy_store, dies
from tests.crash.scenarios import SCENARIOS, SYNC_MODES, Scenario, make
from tests.stores import assert_whole


def act(path: Path, scenario: Scenario) -> None:
    with open_alone(path) as store:
        scenario.act(store)


def either(state: State, before: State, after: State, by_partition: bool) -> bool:
    """Whether a state is that before or that after; `by_partition`: in each partition by itself."""
    if not by_partition or state in (before, after):
        return state in (before, after)
    return state.keys() == before.keys() and all(
        rows in (before["t"]["rows"][p], after["t"]["rows"][p]) for p, rows in state["t"]["rows"].items()
    )


@pytest.mark.parametrize("sync", SYNC_MODES)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_process_killed_at_any_step_leaves_all_or_nothing(scenario: Scenario, sync: str, place: Path) -> None:
    template = place / "template"
    make(template, sync)
    with open_alone(template) as store:
        scenario.prepare(store)
        before = contents(store)
    done = copy_store(template, place / "done")
    act(done, scenario)
    with open_alone(done) as store:
        after = contents(store)
    # The modes differ in little else than syncs, so for two of them every other step does.
    number, step = (1, 1) if sync == "always" else (SYNC_MODES.index(sync), 2)
    alive = False
    while not alive:
        path = copy_store(template, place / str(number))
        # Another process has the store open all the time, and its files, which the dead one may have closed.
        with open_alone(path) as other:
            contents(other)
            alive = not dies(lambda path=path: act(path, scenario), number, part=0.5 * (number % 4 < 2))  # type: ignore[misc]
            state = contents(other)
            assert either(state, before, after, scenario.pieces)
            again = state == before or not (scenario.pieces or scenario.pushes or scenario.twice)
            if again:
                check_done_again(scenario, other, state, after)
            check_goes_on(other)
            assert_whole(other)
        number += step
    assert number > 2


def check_done_again(scenario: Scenario, store: jjq.Store, state: State, after: State) -> None:
    """The caller got no answer and asks again."""
    if state == after and scenario.already is not None:
        with pytest.raises(scenario.already):
            scenario.act(store)
    else:
        scenario.act(store)
    assert contents(store) == after


def check_goes_on(store: jjq.Store) -> None:
    for topic in store.topics():
        end = topic.offsets()[0].end
        value = b"later" if topic.schema is None else {"n": -1, "s": "later"}
        assert topic.push(value, partition=0).offset == end
        assert topic.read(end, metadata=["_offset"], partitions=[0]).read_all()["_offset"].to_pylist() == [end]
