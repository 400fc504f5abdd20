"""What all tests share: their order, the markers that a directory implies, and Hypothesis's settings."""

import os
import shutil
import tempfile
from multiprocessing import util
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

# Fast first, so that a plain mistake shows before Spark has started.
ORDER = ("unit", "property", "contract", "crash", "integration", "spark")
IMPLIED_MARKERS = {"crash": pytest.mark.crash, "spark": pytest.mark.spark}

# A deadline per example, and so a limit on how long it is drawn, is a timed assertion: it fails on a busy machine, and says
# nothing about the code.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", UNTIMED, max_examples=50)
settings.register_profile("ci", UNTIMED, max_examples=100, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


# Stores in tests sync thousands of times. What a sync must do is tested by recording and failing it, not by the disk, so
# they live in memory where there is room.
MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30


def pytest_configure(config: pytest.Config) -> None:
    if config.option.basetemp is not None:
        return
    in_memory = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM_BYTES
    # A directory of this run's own in any case: tests look at what others leave in theirs, and another run may be beside it.
    room = Path(tempfile.mkdtemp(prefix="jjq-test-", dir=MEMORY if in_memory else None))
    config.option.basetemp = room / "base"  # pytest empties it
    (room / "temporary").mkdir()
    tempfile.tempdir = str(room / "temporary")
    # Behind multiprocessing, which has a temporary directory of its own in there and removes it last of all (-100).
    util.Finalize(None, shutil.rmtree, args=(room,), kwargs={"ignore_errors": True}, exitpriority=-200)


def _directory(item: pytest.Item) -> str:
    """The directory under tests/ that the test is in, or "" for one directly in it or elsewhere."""
    parts = item.path.relative_to(TESTS).parts if item.path.is_relative_to(TESTS) else ()
    return parts[0] if len(parts) > 1 else ""


# First of all hooks, so that -m, which deselects in the same hook, sees the implied markers.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = IMPLIED_MARKERS.get(_directory(item))
        if marker is not None:
            item.add_marker(marker)

    def rank(item: pytest.Item) -> tuple[int, bool]:
        directory = _directory(item)
        place = ORDER.index(directory) if directory in ORDER else len(ORDER)
        return place, item.get_closest_marker("slow") is not None

    # Stable: within a directory the order stays that of the files, its slow tests last.
    items.sort(key=rank)
