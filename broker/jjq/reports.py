"""What verify, maintenance and repair say of what they saw and did: values, with a text for people and a dict for JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from jjq.values import counted, sized

_REPAIR = "`jjq repair`"
Progress = Callable[[int, int, str], None]  # bytes done, bytes in all, what is being looked at


def no_progress(done: int, total: int, what: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be, where, and what to do. Offsets are `[start, end)`.

    `code`: `catalog`, `missing` or `damaged` (a file), `row` (the catalog contradicts itself), `gap`, `overlap`,
    `cursor`, `topic_file`.
    """

    code: str
    message: str
    advice: str
    topic: str | None = None
    partition: int | None = None
    path: str | None = None
    start: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        said = _REPAIR in self.message and self.advice.startswith(f"Run {_REPAIR}")  # by the error that a reader gets
        return f"{self.code}: {self.message}" if said else f"{self.code}: {self.message}. {self.advice}"


@dataclass(slots=True)
class VerifyReport:
    """What `verify` saw. `problems` is empty for a store that is whole; `notes` are facts that need nothing done.

    `unknown` are files that nobody names (paths relative to the store): no harm, and never deleted by jjq.
    """

    path: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    topics: int = 0
    partitions: int = 0
    segments: int = 0
    records: int = 0
    lost: int = 0
    bytes: int = 0

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def __str__(self) -> str:
        state = "whole" if self.ok else counted(len(self.problems), "problem")
        parts = [(self.topics, "topic"), (self.segments, "segment"), (self.records, "record")]
        counts = ", ".join([*(counted(number, what) for number, what in parts), sized(self.bytes)])
        lines = [f"{self.path}: {state}; {counts}"]
        lines += [str(each) for each in self.problems]
        lines += [f"note: {each}" for each in self.notes]
        lines += [f"unknown file: {each}" for each in self.unknown]
        return "\n".join(lines)


@dataclass(slots=True)
class MaintenanceReport:
    """What was done. `busy` when another process was at it: then nothing was. Sizes in bytes.

    `reaped` are ephemeral topics, `objects` big objects that nobody needs any more. `waiting` says for whom retention waits.
    `errors` did not keep the rest from being done; `kept` are files of a deleted topic that jjq does not know and therefore
    left.
    """

    busy: bool = False
    rolled: int = 0
    compacted: int = 0
    compacted_into: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    expired: int = 0
    expired_records: int = 0
    expired_bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0
    staged_reaped: int = 0
    leftovers: int = 0
    reaped: int = 0
    objects: int = 0
    manifests: int = 0
    topic_files: int = 0
    backup: bool = False
    waiting: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets `[start, end)` of a partition that could not be saved, and the file they were in (empty: nobody knows)."""

    topic: str
    partition: int
    start: int
    end: int
    path: str


@dataclass(slots=True)
class RepairReport:
    """What repair did. `rebuilt` is why the catalog was made again, None when it was not; `topics`, `writers` and `subscribers` are
    how many there are now.

    `saved` counts records that were copied out of damaged files; `lost` names those that could not be, and `gone` says what
    is lost of which nobody knows how much it was. `quarantined` are the files taken out of the way (paths relative to the
    store, where they are now).
    """

    path: str
    rebuilt: str | None = None
    topics: int = 0
    writers: int = 0
    subscribers: int = 0
    segments: int = 0
    bytes: int = 0
    saved: int = 0
    lost: list[LostRange] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.path}: {counted(self.segments, 'segment')} looked at, {sized(self.bytes)}"]
        if self.rebuilt is not None:
            lines.append(
                f"the catalog was made again ({self.rebuilt}): {counted(self.topics, 'topic')}, "
                f"{counted(self.writers, 'writer')}, {counted(self.subscribers, 'subscriber')}"
            )
        if self.saved:
            verb = "was" if self.saved == 1 else "were"
            lines.append(f"{counted(self.saved, 'record')} {verb} copied out of damaged files")
        lines += [
            f"lost: offsets {each.start} to {each.end - 1} of partition {each.partition} of topic {each.topic!r}"
            for each in self.lost
        ]
        lines += [f"lost: {each}" for each in self.gone]
        lines += [f"quarantined: {each}" for each in self.quarantined]
        lines += [f"note: {each}" for each in self.notes]
        return "\n".join(lines)
