"""Durations and times relative to now, as people write them."""

import pytest

from jjq.clock import parse_duration, parse_instant, written_duration
from jjq.errors import InvalidArgument

NOW = 1_700_000_000_000_000


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("500 ms", 500_000), ("1ms", 1000), ("3 us", 3), ("2 milliseconds", 2000), ("1 s", 1_000_000), ("90 secs", 90_000_000),
        ("2 m", 120_000_000), ("1 min", 60_000_000), ("5 mins", 300_000_000), ("1.5 hours", 5_400_000_000),
        ("7 days", 604_800_000_000), ("2 W", 1_209_600_000_000),
    ],
)  # fmt: skip
def test_a_unit_means_itself_in_the_singular_and_the_plural(text: str, us: int) -> None:
    assert parse_duration(text, "age") == us
    assert parse_instant(f"-{text}", NOW) == NOW - us
    assert parse_instant(f"+{text}", NOW) == NOW + us


@pytest.mark.parametrize("text", ["1 day", "7 days", "36 hours", "1 hour", "90 min", "1 s", "1500 ms", "3 us"])
def test_a_duration_is_written_as_it_is_read(text: str) -> None:
    assert written_duration(parse_duration(text, "age") or 0) == text


@pytest.mark.parametrize("text", ["1 month", "90", "5 u", "1 mss s", "ms", "-1 s", "0 s", ""])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_duration(text, "age")


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(InvalidArgument, match="unknown unit 'months' in '-2 months'; use one of ms, seconds"):
        parse_instant("-2 months", NOW)
