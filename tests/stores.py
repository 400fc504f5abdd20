"""What tests of many kinds ask of a store."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from jjq.log.format import unpack_entries
from jjq.store import Store
from jjq.verify import VerifyReport, verify

EVERYTHING = ("_partition", "_offset", "_timestamp", "_key", "_headers")


def assert_whole(store: Store | str | os.PathLike[str]) -> VerifyReport:
    """That `verify` finds nothing wrong: the last line of a test that wrote to a store. A path or an open store.

    Files that nobody names are allowed, as a killed process leaves some.
    """
    report = verify(store)
    assert report.ok, str(report)
    return report


def tables(store: Store) -> dict[str, pa.Table]:
    """Every row of every topic with its place, time, key and headers, by the topic's name."""
    return {topic.name: topic.read(metadata=EVERYTHING).read_all() for topic in store.topics()}


def roll(store: Store, name: str, partition: int = 0) -> None:
    """Ends the active file of a partition, if it has records, as an append does that finds it full."""
    log = store.logs[store.topic(name).id, partition]
    with log.exclusive():
        log.roll_locked()


def paths(store: Path, pattern: str) -> list[Path]:
    """The files of all partitions whose names match, without those in quarantine."""
    return sorted((store / "topics").glob(f"*/*/{pattern}"))


def end_of(path: Path) -> int:
    """Where the messages of a stream file end; what was laid out ahead follows."""
    return unpack_entries(path.with_suffix(".index").read_bytes())[-1].end_position


def flip(path: Path, position: int, bit: int = 0) -> None:
    """One bit of a file the other way round, in place, as a disk goes bad."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


@contextlib.contextmanager
def without_active_file(store: Path, topic_id: str, pattern: str = "*.arrows") -> Iterator[None]:
    """As long as it lasts, the active file (or its index) of a topic of one partition is not there."""
    (path,) = (store / "topics" / topic_id / "0").glob(pattern)
    aside = store.parent / path.name
    path.rename(aside)
    yield
    aside.rename(path)


def open_below(directory: Path) -> list[str]:
    """The files in a directory that this process has open; what else it has, such as of tests before, comes and goes."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(fd))
    return sorted(each for each in found if each.startswith(f"{directory}/"))
