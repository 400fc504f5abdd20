"""Settings of a topic and of a store: values, validated once, with units in their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from typing import Any

from jjq.clock import parse_duration, written_duration
from jjq.errors import InvalidArgument
from jjq.hints import did_you_mean
from jjq.model import check_name
from jjq.values import flag, shown, size

SYNC_MODES = ("always", "interval", "none")
TIMESTAMPS = ("broker", "producer")
WHEN_FULL = ("drop_oldest", "drop_newest", "refuse")
COMPRESSIONS = (None, "lz4", "zstd")
MAX_PARTITIONS = 1024
DAY_US = 86_400_000_000
GRACE_US = 600_000_000  # how long a file outlives its row, so that readers need not plan again

Duration = timedelta | str | int | float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicConfig:
    """Settings of a topic. `None` for a limit means that there is none.

    sync: `always` (acknowledged means on disk), `interval` (a power cut may take the last `sync_interval_ms`),
        `none` (the kernel decides; the death of a process loses nothing in any mode)
    segment_bytes, segment_rows, segment_age_us: a new segment begins when one is reached; the age defaults to the
        smaller of a day and a seventh of the retention
    retention_us, retention_bytes, retention_segments: what is older (by the time it was appended) or beyond goes, whole
        segments at a time; the active one counts and stays
    retention_waits: whose unread records stay all the same: those of subscribers and channels of these names, True: of all
    timestamps: `broker` (when it was appended, never going back) or `producer` (as given)
    compression: of sealed segments; `lz4` or `zstd`
    ephemeral: gone with its last holder or a reboot, never synced, at most about `max_records` (10,000); `when_full` says
        what goes then: `drop_oldest`, `drop_newest` (both counted) or nothing, `refuse`
    boot_id: of an ephemeral topic, the boot it belongs to; set by the store
    """

    sync: str = "always"
    sync_interval_ms: int = 1000
    segment_bytes: int = 64 << 20
    segment_rows: int | None = None
    segment_age_us: int | None = None
    retention_us: int | None = None
    retention_bytes: int | None = None
    retention_segments: int | None = None
    retention_waits: bool | tuple[str, ...] = False
    timestamps: str = "broker"
    compression: str | None = None
    max_record_bytes: int = 64 << 20
    max_batch_bytes: int = 1 << 30
    ephemeral: bool = False
    max_records: int | None = None
    when_full: str = "drop_oldest"
    boot_id: str = ""

    def __post_init__(self) -> None:
        _one_of("sync", self.sync, SYNC_MODES)
        _one_of("timestamps", self.timestamps, TIMESTAMPS)
        _one_of("compression", self.compression, COMPRESSIONS)
        _between("sync_interval_ms", self.sync_interval_ms, 1, 3_600_000)
        _between("segment_bytes", self.segment_bytes, 4096, 1 << 40)
        _between("max_record_bytes", self.max_record_bytes, 1, (1 << 31) - (1 << 20))
        _between("max_batch_bytes", self.max_batch_bytes, 1, 1 << 40)
        _one_of("when_full", self.when_full, WHEN_FULL)
        flag(self.ephemeral, "ephemeral")
        if self.max_records is not None and not self.ephemeral:
            raise InvalidArgument("max_records is for ephemeral topics; retention and retention_bytes bound the others")
        if not isinstance(self.retention_waits, bool):  # a list, as JSON has it
            object.__setattr__(self, "retention_waits", _names("retention_waits", self.retention_waits))
        for name in (
            "segment_rows", "segment_age_us", "retention_us", "retention_bytes", "retention_segments", "max_records",
        ):  # fmt: skip
            if getattr(self, name) is not None:
                _between(name, getattr(self, name), 1, 1 << 62)

    @property
    def roll_age_us(self) -> int:
        """The age at which a segment rolls, so that a slow topic expires too."""
        if self.segment_age_us is not None:
            return self.segment_age_us
        return DAY_US if self.retention_us is None else max(1, min(DAY_US, self.retention_us // 7))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TopicConfig:
        """From a catalog row: settings of a later version are left out, missing ones take their default."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})

    def changed(self, settings: Mapping[str, Any], beside: Sequence[str] = ()) -> TopicConfig:
        """With settings as a caller gives them; raises InvalidArgument, also for an unknown name, which may be meant for one of
        the caller's arguments `beside` them."""
        return replace(self, **normalise(settings, beside))


_DURATIONS = {"segment_age": "segment_age_us", "retention": "retention_us"}


def normalise(settings: Mapping[str, Any], beside: Sequence[str] = ()) -> dict[str, Any]:
    """Durations (`retention`, `segment_age`) become microseconds, sizes bytes; unknown names are refused with the nearest one."""
    known = {field.name for field in fields(TopicConfig)} - set(_DURATIONS.values())
    result: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _DURATIONS:
            if isinstance(value, (int, float)) and not isinstance(value, bool):  # what was meant as days would be gone
                raise InvalidArgument(
                    f"{name} needs a unit: write '{shown(value)} days' or '{shown(value)} s', or give a timedelta"
                )
            result[_DURATIONS[name]] = parse_duration(value, name)
        elif name in known:
            result[name] = size(value, name) if name.endswith("_bytes") and isinstance(value, str) else value
        else:
            names = sorted({*known, *_DURATIONS, *beside})
            hint = did_you_mean(name, names, "'") or f"there are {', '.join(names)}"
            raise InvalidArgument(f"a topic has no setting {name!r}; {hint}")
    return result


def written(name: str, value: Any) -> str:
    """The value of a setting as people write it."""
    if value is None:
        return "none"
    return written_duration(value) if name in _DURATIONS.values() else shown(value)


def check_partitions(count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_PARTITIONS:
        raise InvalidArgument(f"partitions must be a whole number from 1 to {MAX_PARTITIONS}, not {shown(count)}")
    return count


def _one_of(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise InvalidArgument(f"{name} must be one of {listed}, not {shown(value)}")


def _names(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise InvalidArgument(f"{name} must be true, false, or a list of names, not {shown(value)}")
    return tuple(check_name(each, "subscriber") for each in value)


def _between(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgument(f"{name} must be a whole number from {low} to {high}, not {shown(value)}")
