"""Ids of events: UUIDs that sort as the events do, and say where these are."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from jjq.server.event_ids import EventPlace, event_id, parse_event_id

times = st.integers(0, 4_000_000_000_000_000)
partitions = st.integers(0, 1023)
offsets = st.integers(0, (1 << 52) - 1)
places = st.tuples(times, partitions, offsets)


@given(places)
def test_an_id_is_a_uuid_of_version_6_and_says_where_its_event_is(place: tuple[int, int, int]) -> None:
    text = event_id(*place)
    found = uuid.UUID(text)
    assert (found.version, found.variant, str(found)) == (6, uuid.RFC_4122, text)
    assert parse_event_id(text) == EventPlace(place[0] * 10, *place[1:])
    assert parse_event_id(text.upper().replace("-", "")) == parse_event_id(text)


@given(places, places)
def test_ids_sort_as_text_by_time_partition_and_offset(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    assert (event_id(*one) < event_id(*other)) == (one < other)


@given(times)
def test_the_time_is_where_the_standard_has_it(time: int) -> None:
    found = uuid.UUID(event_id(time, 0, 0))
    high, mid, low = found.time_low, found.time_mid, found.time_hi_version & 0xFFF
    since_1582 = high << 28 | mid << 12 | low
    assert since_1582 - 0x01B21DD213814000 == time * 10


def test_what_is_no_uuid_of_version_6_is_no_id() -> None:
    for text in (
        "",
        "17",
        "1",
        str(uuid.UUID(int=5, version=4)),
        event_id(1, 0, 0)[:-1],
        event_id(1, 0, 0) + "0",
        "0:17",
    ):
        assert parse_event_id(text) is None
