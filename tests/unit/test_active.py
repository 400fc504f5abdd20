"""An active file that two processes add to in turn: what each finds when its turn has come."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jjq import files
from jjq.errors import DamagedSegment
from jjq.log import format as fmt
from jjq.log.active import ActiveFile
from jjq.log.template import RowsTemplate
from jjq.schema import physical

TOPIC, UUID = bytes(16), "0" * 32
TEMPLATE = RowsTemplate(physical(None))
KNOWN = ("base", "head_length", "end", "length", "crc", "closed", "appended_at", "run_max_ts", "min_ts", "floor_ts",
         "synced_offset", "synced_position", "opened_at", "failed", "_known")  # fmt: skip


def append(file: ActiveFile, now: int, sync: bool = True) -> None:
    file.append_value_locked(TEMPLATE, TOPIC, 0, b"value", now, sync)


def known(file: ActiveFile) -> dict[str, Any]:
    return {name: getattr(file, name) for name in KNOWN}


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[ActiveFile, ActiveFile]]:
    """One file as two processes have it open; the first has made it and added a record."""
    one = ActiveFile.create(tmp_path, UUID, physical(None), 0, fmt.NO_TS, 1000)
    append(one, 1000)
    other = ActiveFile.open(tmp_path, UUID)
    other.refresh_locked()
    assert other.ready_locked()
    yield one, other
    one.close_descriptors()
    other.close_descriptors()


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("records", [0, 1, 5, 64, 65, 200])
def test_what_the_other_has_added_is_taken_in(both: tuple[ActiveFile, ActiveFile], records: int, sync: bool) -> None:
    one, other = both
    for number in range(records):
        append(one, 2000 - number, sync)
    if not other.ready_locked():  # more than it takes in by itself
        assert records > 60
        other.refresh_locked()
        assert other.ready_locked()
    assert known(other) == known(one)
    append(other, 3000)
    assert one.ready_locked()
    assert known(one) == known(other)
    assert (one.end, one.base, one.opened_at) == (records + 2, 0, 1000)
    assert one.head_length == len(fmt.stream_head(physical(None)))
    assert (one.min_ts, one.run_max_ts) == (1000, 3000)


def test_lower_timestamps_that_the_other_has_added_count(both: tuple[ActiveFile, ActiveFile]) -> None:
    """As records that a commit brings may have them."""
    one, other = both
    for stamp in (7, 5, 6):
        message = TEMPLATE.encode_values([None], [b"value"]).stamped(stamp)
        one.append_locked(TOPIC, 0, [message], 2000, True)
    assert other.ready_locked()
    assert [one.min_ts, other.min_ts] == [5, 5]


def test_a_file_that_the_other_has_closed_takes_nothing(both: tuple[ActiveFile, ActiveFile]) -> None:
    one, other = both
    one.close_locked("rolled")
    assert [other.ready_locked(), one.ready_locked()] == [False, False]
    other.refresh_locked()
    assert other.closed


def test_a_file_whose_sync_failed_takes_nothing(both: tuple[ActiveFile, ActiveFile]) -> None:
    one, other = both
    one._mark_failed_locked()
    assert not other.ready_locked()
    other.refresh_locked()
    assert [other.failed, other.ready_locked()] == [True, False]


def test_a_file_whose_sync_failed_takes_nothing_though_the_index_does_not_say_so(
    both: tuple[ActiveFile, ActiveFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = both

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "refused")

    append(one, 2000, sync=False)
    with monkeypatch.context() as patch:
        for name in ("datasync", "set_size", "pwrite"):
            patch.setattr(files, name, refuse)
        with pytest.raises(OSError, match="refused"):
            one.sync_locked()
    assert not one.torn_locked()
    assert not one.ready_locked()


@pytest.mark.parametrize("ahead", [True, False], ids=["over zeros", "at the end"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in part"])
def test_a_message_without_its_entry_is_torn(both: tuple[ActiveFile, ActiveFile], ahead: bool, whole: bool) -> None:
    one, other = both
    while (one.path.stat().st_size > one.length) != ahead:
        append(one, 2000, sync=ahead)
    assert [other.ready_locked(), other.torn_locked()] == [True, False]
    length, entries = other.length, one.index_path.stat().st_size
    append(one, 3000)
    with one.index_path.open("r+b") as index:  # its writer died before
        index.truncate(entries)
    if not whole:
        with one.path.open("r+b") as messages:
            messages.seek(length + 8)
            messages.truncate() if not ahead else messages.write(bytes(one.length - length - 8))
    assert not other.ready_locked()
    other.refresh_locked()
    assert other.torn_locked()


def test_an_entry_in_part_is_torn(both: tuple[ActiveFile, ActiveFile]) -> None:
    one, other = both
    append(one, 2000)
    with one.index_path.open("r+b") as index:
        index.truncate(one.index_path.stat().st_size - 1)
    assert not other.ready_locked()
    other.refresh_locked()
    assert other.torn_locked()


@pytest.mark.parametrize("entries", [0, 1])
def test_an_index_that_was_cut_is_damage(both: tuple[ActiveFile, ActiveFile], entries: int) -> None:
    one, other = both
    with one.index_path.open("r+b") as index:
        index.truncate(entries * fmt.ENTRY_SIZE)
    assert not other.ready_locked()
    with pytest.raises(DamagedSegment):
        other.refresh_locked()


@pytest.mark.parametrize("messages", [True, False])
def test_an_empty_index_is_damage_for_who_opens_it(both: tuple[ActiveFile, ActiveFile], messages: bool) -> None:
    one, _ = both
    one.index_path.write_bytes(b"")
    if not messages:
        one.path.write_bytes(b"")
    newcomer = ActiveFile.open(one.directory, UUID)
    try:
        assert not newcomer.ready_locked()
        with pytest.raises(DamagedSegment):
            newcomer.refresh_locked()
    finally:
        newcomer.close_descriptors()


def test_an_entry_of_which_a_bit_was_flipped_is_damage(both: tuple[ActiveFile, ActiveFile]) -> None:
    one, other = both
    append(one, 2000)
    with one.index_path.open("r+b") as index:
        index.seek(-40, 2)
        (byte,) = index.read(1)
        index.seek(-1, 1)
        index.write(bytes([byte ^ 1]))
    assert not other.ready_locked()
    with pytest.raises(DamagedSegment):
        other.refresh_locked()
