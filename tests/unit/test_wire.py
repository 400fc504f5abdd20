"""What broker and clients say to each other, as values."""

import contextlib
import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jjq
from jjq import wire
from jjq.wire import Range, Ticket

ZONE = dt.timezone(dt.timedelta(hours=2))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner).filter(lambda each: len(each) != 1),
    max_leaves=20,
)
VALUES = st.recursive(
    st.none() | st.integers() | st.text() | st.binary() | st.decimals(allow_nan=False) | st.timedeltas() | st.dates()
    | st.datetimes() | st.datetimes(timezones=st.just(dt.UTC)),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(PLAIN)
def test_a_message_comes_back_as_it_was(message: object) -> None:
    assert wire.decode(wire.encode(message)) == message


@given(VALUES)
def test_what_users_give_comes_back_as_it_was_whatever_its_names(value: object) -> None:
    found = wire.decode(wire.encode([wire.outgoing(value)]))
    assert found == [value]
    assert type(found[0]) is type(value)


def test_a_message_without_bytes_is_plain_json() -> None:
    assert wire.encode({"name": "ü", "n": [1, None]}) == b'{"name":"\\u00fc","n":[1,null]}'
    assert wire.decode(b' {"name": "events"} ') == {"name": "events"}


def test_times_keep_their_instant_and_whether_they_had_a_zone() -> None:
    aware, naive = dt.datetime(2024, 1, 1, 12, tzinfo=ZONE), dt.datetime(2024, 1, 1, 12, 0, 0, 7)  # noqa: DTZ001
    assert wire.decode(wire.encode([aware, naive])) == [aware, naive]


def test_records_come_back_as_they_were() -> None:
    records = [
        jjq.Record("t", 0, 1, 2, None, None, None),
        jjq.Record("t", 0, 1, 2, b"", [], b""),
        jjq.Record("t", 1, 1 << 60, -5, b"k", [("h", b"1"), ("h", None)], b"v"),
        jjq.Record("t", 0, 3, 2, None, None, {"$b": {"$m": 1}, "d": Decimal("1.20"), "m": [("a", 1)], "x": [b"\0"]}),
    ]
    found = wire.unpack_records(wire.decode(wire.encode(wire.pack_records(records))))
    assert found == records
    assert [type(each) for each in found] == [jjq.Record] * 4


@given(st.binary() | st.text().map(lambda text: text.encode(errors="replace")))
def test_bytes_that_are_no_message_are_refused_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(jjq.InvalidArgument):
        wire.decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b'{"$b":[0,5]}\0abc', b'{"$b":[-1,1]}\0abc', b'[{"$b":[0,2]},{"$b":[1,2]}]\0abc', b'{"$b":7}', b'{"$t":[1e400,true]}', b'{"$d":0}', b'{"$n":"x"}',
        b'{"$m":3}', b'{"$i":1e30}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_parts_that_make_no_sense_are_refused(data: bytes) -> None:
    with pytest.raises(jjq.InvalidArgument):
        wire.decode(data)


def test_what_cannot_be_sent_says_what_it_is() -> None:
    with pytest.raises(jjq.InvalidArgument, match=r"cannot be sent to a broker: it is \w*Path"):
        wire.encode({"x": Path("x")})


# --- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_comes_back_as_its_class_with_its_details() -> None:
    loss = jjq.DataLoss("gone", topic="t", partition=1, asked=3, earliest=9, lost=6)
    found = wire.unpack_error(wire.decode(wire.encode(wire.pack_error(loss, "/srv/jjq"))))
    assert type(found) is jjq.DataLoss
    assert (found.message, found.asked, found.earliest, found.lost, found.topic) == ("gone", 3, 9, 6, "t")
    lasting = wire.unpack_error(wire.pack_error(jjq.StoreError("no", errno=13), "/srv/jjq"))
    assert (type(lasting), lasting.retryable) == (jjq.StoreError, False)


@pytest.mark.parametrize("kind", sorted(wire.KINDS.values(), key=lambda each: each.code), ids=lambda each: each.code)
def test_every_error_has_its_way_back(kind: type[jjq.JjqError]) -> None:
    found = wire.unpack_error(wire.pack_error(kind("why"), "/srv/jjq"))
    assert (type(found), found.message, found.retryable) == (kind, "why", kind("why").retryable)


def test_where_the_store_is_is_in_no_text() -> None:
    error = jjq.DamagedSegment(
        "/srv/jjq/topics/1/0/x.arrows: damaged; /srv/jjq is", path="/srv/jjq/topics/1/0/x.arrows", position=3
    )
    packed = wire.pack_error(error, "/srv/jjq")
    assert packed["message"] == "topics/1/0/x.arrows: damaged; the store is"
    assert packed["details"] == {"path": "topics/1/0/x.arrows", "position": 3}


def test_an_error_is_never_larger_than_trailers_may_be() -> None:
    error = jjq.StagedFileMissing("x" * 100_000, path="y" * 100_000, n=1, expired=list(range(100_000)))
    packed = wire.pack_error(error, "/srv/jjq")
    assert len(wire.encode(packed)) < 6000
    assert packed["details"] == {"n": 1}
    assert "(100,000 characters)" in packed["message"]


# --- tickets ---------------------------------------------------------------------------------------------------------

SCHEMA = pa.schema([("a", pa.int64())])


def ticket(*ranges: tuple[int, int, int]) -> Ticket:
    return Ticket("0" * 32, tuple(Range(p, start, end, 0) for p, start, end in ranges), SCHEMA, ("_offset",), 1000)


def test_a_ticket_comes_back_as_it_was() -> None:
    made = ticket((0, 5, 9), (2, 0, 1 << 60))
    assert Ticket.unpack(made.pack()) == made


@given(st.lists(st.integers(1, 5), max_size=5), st.integers(0, 30))
def test_after_some_rows_the_rest_is_left(lengths: list[int], rows: int) -> None:
    made = ticket(*((p, 10, 10 + length) for p, length in enumerate(lengths)))
    everything = [(r.partition, offset) for r in made.ranges for offset in range(r.start, r.end)]
    left = [(r.partition, offset) for r in made.after(rows).ranges for offset in range(r.start, r.end)]
    assert left == everything[rows:]


@given(st.binary())
def test_other_bytes_are_no_ticket(data: bytes) -> None:
    with pytest.raises(jjq.InvalidArgument):
        Ticket.unpack(data)


@pytest.mark.parametrize(
    "change",
    [
        {"ranges": [[0, -1, 5, 0]]}, {"ranges": [[0, 1]]}, {"ranges": 3}, {"ranges": [[0, 1, 1 << 70, 0]]}, {"schema": b"x"},
        {"schema": None}, {"topic_id": 3}, {"metadata": [1]}, {"target_bytes": "x"}, {"ranges": [["a", 1, 2, 3]]},
    ],
)  # fmt: skip
def test_a_ticket_that_was_tampered_with_is_refused(change: dict[str, object]) -> None:
    body = wire.decode(ticket((0, 0, 5)).pack())
    with pytest.raises(jjq.InvalidArgument, match=r"ticket|schema"):
        Ticket.unpack(wire.encode(body | change))
