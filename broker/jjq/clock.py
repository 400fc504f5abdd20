"""Time, and the identity of this boot of this machine."""

from __future__ import annotations

import re
import socket
import time
import uuid
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import cast

from jjq.errors import InvalidArgument
from jjq.values import MOST, shown, whole

_UNITS = {
    "us": 1, "microsecond": 1, "ms": 1_000, "millisecond": 1_000, "s": 1_000_000, "sec": 1_000_000, "second": 1_000_000,
    "m": 60_000_000, "min": 60_000_000, "minute": 60_000_000, "h": 3_600_000_000, "hour": 3_600_000_000,
    "d": 86_400_000_000, "day": 86_400_000_000, "w": 604_800_000_000, "week": 604_800_000_000,
}  # fmt: skip
_RELATIVE = re.compile(r"^([+-])\s*(\d+(?:\.\d+)?)\s*([a-z]+)$")
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)\s*([a-z]+)$")
# A time of day is what tells an ISO-8601 instant from a bare date, and an instant needs a zone.
_ISO = re.compile(r"^\d{4}-\d{2}-\d{2}([T ].*)?$")

EARLIEST_US = -62_135_596_800_000_000  # 0001-01-01, what Python's datetime can hold
LATEST_US = 253_402_300_799_999_999  # 9999-12-31

# Seconds and milliseconds of this century, taken for microseconds, are instants of 1970 to 1973.
SUSPICIOUS_US = range(100_000_000, 100_000_000_000_000)
_OF_NOW = range(978_307_200, 4_102_444_800)  # seconds, of the years 2001 to 2099
_NANOSECONDS = range(LATEST_US + 1, 4_102_444_800_000_000_000)  # of 1978 to 2099


def now_us() -> int:
    """Microseconds since the epoch, UTC. Not monotone: whoever stores it takes the maximum with the last one."""
    return time.time_ns() // 1000


def boot_id() -> str:
    """What the kernel calls this boot. A power cut or a reboot changes it, the death of a process does not."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        # Without procfs (macOS): the boot time is as good, to the second.
        return f"{uuid.getnode():012x}-{int(time.time() - time.monotonic())}"


def host() -> str:
    return socket.gethostname()


def to_us(moment: datetime) -> int:
    """An aware datetime in microseconds since the epoch; a naive one is refused, since it names no instant."""
    if moment.tzinfo is None:
        raise InvalidArgument(
            f"{moment.isoformat(sep=' ')} has no time zone, so it names no instant; "
            f"write {moment.isoformat()}Z, or give it the zone that it is of"
        )
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def stamp_us(value: datetime | int) -> int:
    """A record's time, as whoever pushes it gives it, in microseconds; raises InvalidArgument."""
    if isinstance(value, datetime):
        return to_us(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(
            f"a timestamp is a datetime with a zone, or microseconds since the epoch, not {shown(value)}"
        )
    if wrong := no_time(value):
        raise InvalidArgument(f"timestamp {shown(value)} {wrong}; pushes take microseconds, or a time with a zone")
    return value


def sought_us(value: object) -> int:
    """A time that is looked for, in microseconds; raises InvalidArgument."""
    if isinstance(value, (str, date)) or whole(value, "a timestamp in microseconds", -MOST) in SUSPICIOUS_US:
        wrong = shown(value) if isinstance(value, (str, date)) else f"{value}, which looks like seconds or milliseconds"
        raise InvalidArgument(
            f"a time that is looked for is in microseconds since 1970, not {wrong}; resolve takes a time with a zone, "
            "'-10 minutes' and any other start"
        )
    return cast(int, value)


def no_time(us: int) -> str | None:
    """What is wrong with a number that somebody takes for microseconds since the epoch; None for a time that Python can say."""
    if us in SUSPICIOUS_US:
        return "looks like seconds or milliseconds"
    if EARLIEST_US <= us <= LATEST_US:
        return None
    return "looks like nanoseconds" if us in _NANOSECONDS else "is no time of the years 1 to 9999"


def instant_meant(number: int) -> str | None:
    """The time of the years 2001 to 2099 that a number may be meant as, in seconds, milliseconds, microseconds or nanoseconds; None where
    it is not so large. The ranges of the four do not meet."""
    for unit in (1, 1_000, 1_000_000, 1_000_000_000):
        if _OF_NOW.start <= number // unit < _OF_NOW.stop:
            return f"{datetime.fromtimestamp(number // unit, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return None


def from_us(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def iso(us: int) -> str:
    """`2026-01-31T12:00:00.000000Z`, which sorts as text and parses back to the same microsecond."""
    return from_us(us).isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_instant(text: str, now: int | None = None) -> int | None:
    """Microseconds for an ISO-8601 instant with a zone or a time relative to now (`-10 minutes`); None for neither.

    Raises InvalidArgument for an ISO-8601 time without a zone and for a relative time with an unknown unit.
    """
    text = text.strip()
    if match := _RELATIVE.match(text.lower()):
        sign, amount, unit = match.groups()
        unit_us = _unit_us(unit)
        if unit_us is None:
            raise InvalidArgument(
                f"unknown unit {unit!r} in {text!r}; use one of ms, seconds, minutes, hours, days, weeks"
            )
        delta = _microseconds(float(amount), unit_us, "a time relative to now")
        return (now_us() if now is None else now) + (delta if sign == "+" else -delta)
    if _ISO.match(text):
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidArgument(f"{text!r} is not an ISO-8601 time: {error}") from error
        return to_us(moment)
    return None


def is_unit(name: str) -> bool:
    """Whether a word is a unit of time, as in `-10 minutes`."""
    return _unit_us(name.lower()) is not None


def _unit_us(name: str) -> int | None:
    """Microseconds of a unit, in the singular or the plural; `ms` is itself and no plural."""
    return _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))


def parse_duration(value: timedelta | str | int | float | None, name: str) -> int | None:
    """Microseconds of a timedelta, a text such as `7 days`, or a number of seconds; None stays None."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        us = value // timedelta(microseconds=1)
    elif isinstance(value, bool):
        raise InvalidArgument(f"{name} must be a duration such as '7 days', not {shown(value)}")
    elif isinstance(value, (int, float)):
        us = _microseconds(value, 1_000_000, name)
    elif (match := _DURATION.match(str(value).strip().lower())) and (unit_us := _unit_us(match.group(2))) is not None:
        us = _microseconds(float(match.group(1)), unit_us, name)
    else:
        raise InvalidArgument(f"{name} must be a duration such as '7 days' or '90 s', not {shown(value)}")
    if not 0 < us <= MOST:
        raise InvalidArgument(f"{name} must be longer than nothing and at most 146,000 years, not {shown(value)}")
    return us


def written_duration(us: int) -> str:
    """`7 days`, `90 min`: microseconds as `parse_duration` reads them, in the largest unit that has no fraction."""
    unit = next(each for each in ("day", "hour", "min", "s", "ms", "us") if us % _UNITS[each] == 0)
    count = us // _UNITS[unit]
    return f"{count} {unit}{'s' if unit in ('day', 'hour') and count != 1 else ''}"


def _microseconds(amount: float, unit_us: int, name: str) -> int:
    """Of an amount that may be no number, or more than there can be."""
    if not -MOST <= amount * unit_us <= MOST:
        raise InvalidArgument(
            f"{name} must be at most 146,000 years, not {shown(amount)}; None is for ever, where it may be"
        )
    return int(amount * unit_us)
