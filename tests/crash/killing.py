"""Death at any step: an act is done in a forked child that ends, as by SIGKILL, before its n-th change of the disk."""

import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from tests.crash.faults import Dying

DIED, DONE, FAILED = 9, 0, 1


def elsewhere(act: Callable[[], object]) -> None:
    """Does `act` in a child, which ends after it."""
    assert not dies(act, 1 << 62)


def dies(act: Callable[[], object], number: int, part: float = 0.0) -> bool:
    """Does `act` in a child that dies before (with `part`: half-way through) its `number`-th change of the disk that
    outlives a process, counted from 1. False when it was done before that. `act` opens what it needs itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: the child uses none of them
        child = os.fork()
    if not child:
        code = FAILED
        try:
            with Dying(number, part=part):
                act()
            code = DONE
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (DIED, DONE), f"the child failed ({code}) instead of dying at change {number}"
    return code == DIED


def copy_store(source: Path, target: Path) -> Path:
    """A store that is closed, again. Plain reads and writes, as a copy would share the file's pages on some systems."""
    target.mkdir()
    for path in sorted(source.rglob("*")):
        there = target / path.relative_to(source)
        if path.is_dir():
            there.mkdir()
        else:
            there.write_bytes(path.read_bytes())
            os.utime(there, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    return target
