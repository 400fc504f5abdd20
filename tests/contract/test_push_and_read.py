"""Pushing to topics and reading them, by offset and by time, whatever serves the store."""

import dataclasses
import datetime as dt
import re
from collections.abc import Callable

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import jjq
from jjq.headers import headers_array, null_headers
from jjq.preparing import partition_of

FLIGHTS = pa.schema([("carrier", pa.string()), ("delay", pa.int32())])


def values(topic: jjq.Topic, **options: object) -> list[object]:
    return topic.read(**options).read_all().column("value").to_pylist()  # type: ignore[arg-type]


# --- pushing -----------------------------------------------------------------------------------------------------------


def test_null_and_empty_are_kept_apart(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push(b"")
    topic.push(None, key=b"")
    topic.push(b"v", key="k", headers={})
    topic.push("ü", headers=[("a", b""), ("a", None)])
    rows = topic.read(metadata=["_key", "_headers"]).read_all().to_pylist()
    assert rows == [
        {"value": b"", "_key": None, "_headers": None},
        {"value": None, "_key": b"", "_headers": None},
        {"value": b"v", "_key": b"k", "_headers": []},
        {"value": "ü".encode(), "_key": None, "_headers": [{"key": "a", "value": b""}, {"key": "a", "value": None}]},
    ]


def test_keys_choose_the_partition_by_the_documented_hash(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=7)
    keys = [f"key-{i}".encode() for i in range(50)]
    one = {key: topic.push(b"v", key=key).partition for key in keys}
    many = topic.push_many([b"v"] * 50, keys=keys)
    topic.push_table(pa.table({"value": [b"v"] * 50, "key": pa.array(keys).dictionary_encode()}))
    assert one == {key: partition_of(key, 7) for key in keys}
    assert [position.partition for position in many] == list(one.values())
    for partition in range(7):
        found = topic.read(partitions=[partition]).read_all().column("_key").to_pylist()
        assert all(one[key] == partition for key in found)
        assert len(found) == 3 * sum(place == partition for place in one.values())


def test_the_hash_of_keys_never_changes() -> None:
    # CRC32C check value of RFC 3720 B.4: "123456789" -> 0xE3069283.
    assert partition_of(b"123456789", 1 << 31) == 0xE3069283 % (1 << 31)


def test_positions_come_back_in_the_order_given(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=3)
    keys = [b"a", b"b", b"c", b"a", None]
    positions = topic.push_many([b"0", b"1", b"2", b"3", b"4"], keys=keys)
    assert len(positions) == 5
    for i, position in enumerate(positions):
        record = topic.read(start={position.partition: position.offset}, partitions=[position.partition]).read_all()
        assert record.column("value")[0].as_py() == str(i).encode()
        assert record.column("_timestamp")[0].value == position.timestamp


def test_push_many_over_partitions_can_be_one_act(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=4)
    positions = topic.push_many(
        [b"1", b"2", b"3"], keys=[b"a", b"b", b"c"], headers=[None, {"h": b"x"}, None], atomic=True
    )
    assert sorted(values(topic)) == [b"1", b"2", b"3"]
    assert [p.partition for p in positions] == [partition_of(key, 4) for key in (b"a", b"b", b"c")]


def test_records_without_a_key_take_turns_among_partitions(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=3)
    assert [topic.push(b"v").partition for _ in range(6)] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("rows", [0, 1, 3, 5000])
def test_a_table_comes_back_as_it_was(store: jjq.Store, rows: int) -> None:
    topic = store.create_topic("t", schema=FLIGHTS)
    table = pa.table({"delay": pa.array(range(rows), pa.int32()), "carrier": [None if i % 3 else "AA" for i in range(rows)]},
                     schema=pa.schema([("delay", pa.int32()), ("carrier", pa.string())]))  # fmt: skip
    positions = topic.push_table(table)
    assert len(positions) == rows
    assert topic.read().read_all().equals(table.select(["carrier", "delay"]))


def test_frames_of_every_make_are_taken(store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=FLIGHTS)
    topic.push_table(pd.DataFrame({"carrier": ["pd"], "delay": [1]}, index=[7]))
    topic.push_table(pl.DataFrame({"carrier": ["pl"], "delay": [2]}))
    topic.push_table(pa.record_batch({"carrier": ["rb"], "delay": [3]}))
    topic.push_table(pa.table({"carrier": pa.array(["d"]).dictionary_encode(), "delay": pa.array([4], pa.int64())}))
    topic.push_table(pa.table({"carrier": pa.array(["v"], pa.string_view()), "delay": pa.array([5], pa.uint8())}))
    topic.push_table(
        pa.RecordBatchReader.from_batches(
            FLIGHTS, [pa.record_batch([["r"], pa.array([6], pa.int32())], schema=FLIGHTS)]
        )
    )
    assert topic.read().read_all().to_pydict() == {
        "carrier": ["pd", "pl", "rb", "d", "v", "r"],
        "delay": [1, 2, 3, 4, 5, 6],
    }


def test_duckdb_and_polars_read_the_reader(store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=FLIGHTS)
    topic.push_table(pa.table({"carrier": ["AA", "UA", "AA"], "delay": pa.array([1, 2, 3], pa.int32())}))
    reader = topic.read()
    found = duckdb.from_arrow(reader).aggregate("carrier, sum(delay)").order("carrier").fetchall()
    assert found == [("AA", 4), ("UA", 2)]
    frame = pl.DataFrame(topic.read(columns=["delay"]))
    assert frame["delay"].to_list() == [1, 2, 3]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"carrer": "AA"}, "did you mean 'carrier'"),
        ({1: "AA"}, "columns by their names"),
        ({"delay": "late"}, "column 'delay' takes int32"),
        ({"delay": 1 << 40}, "column 'delay' takes int32"),
        (b"AA", "takes mappings"),
        ([{"carrier": "AA"}], "not list; push_many takes a list of them"),
    ],
)
def test_rows_that_do_not_fit_the_schema_change_nothing(store: jjq.Store, row: object, message: str) -> None:
    topic = store.create_topic("t", schema=FLIGHTS)
    with pytest.raises(jjq.SchemaMismatch, match=message):
        topic.push(row)
    with pytest.raises(jjq.SchemaMismatch, match=r"^record 1: "):  # which one, among many
        topic.push_many([{"carrier": "UA"}, row])
    assert topic.offsets()[0].end == 0


def test_limits_are_held_and_say_how_to_raise_them(store: jjq.Store) -> None:
    topic = store.create_topic("t", max_record_bytes=100, max_batch_bytes=1000)
    topic.push(b"x" * 100)
    with pytest.raises(jjq.RecordTooLarge, match="alter_topic"):
        topic.push(b"x" * 101)
    with pytest.raises(jjq.RecordTooLarge, match="record 1"):
        topic.push_many([b"", b"x" * 101])
    with pytest.raises(jjq.RecordTooLarge, match="the batch"):
        topic.push_many([b"x" * 100] * 11)
    with pytest.raises(jjq.RecordTooLarge):
        topic.push_table(pa.table({"value": [b"x" * 101]}))
    assert topic.offsets()[0].end == 1
    store.alter_topic("t", max_record_bytes=200)
    topic.refresh()
    assert topic.push(b"x" * 101).offset == 1


def test_a_record_alone_is_a_batch_too_whatever_it_is_of(store: jjq.Store) -> None:
    topic = store.create_topic("t", max_batch_bytes=100)
    topic.push(b"x" * 100)
    topic.push(b"x" * 99, key=b"k")
    topic.push("x" * 100)
    headers = {"h": b"h"}
    for value, key, given in (
        (b"x" * 101, None, None), ("x" * 101, None, None), (b"x" * 100, b"k", None), (b"x" * 99, None, headers),
    ):  # fmt: skip
        with pytest.raises(jjq.RecordTooLarge, match="the batch has 101 bytes"):
            topic.push(value, key=key, headers=given)
    assert topic.offsets()[0].end == 3


def test_a_record_larger_than_a_segment_has_one_to_itself(reopen: Callable[..., jjq.Store]) -> None:
    topic = reopen(maintenance=False).create_topic("t", segment_bytes=4096)
    for size in (10, 10_000, 10, 10_000):
        topic.push(b"x" * size)
    assert [len(value) for value in values(topic)] == [10, 10_000, 10, 10_000]  # type: ignore[arg-type]
    assert [each.rows for each in topic.segments()] == [2, 2]


def test_a_segment_says_its_times_also_the_one_that_is_appended_to(
    store: jjq.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jjq.log.stream._ENTRIES_AT_ONCE", 3)
    topic = store.create_topic("t", timestamps="producer", segment_rows=8)
    for stamp in (5, 7, 2, 9, 6, 6, 6, 6, 4, 3, 8):
        topic.push(b"x", timestamp=10**15 + stamp)
    found = [(each.state, each.min_timestamp, each.max_timestamp) for each in topic.segments()]
    assert found == [("rolled", 10**15 + 2, 10**15 + 9), ("active", 10**15 + 3, 10**15 + 8)]


def test_a_large_table_is_staged_and_linked_as_one_act(reopen: Callable[..., jjq.Store]) -> None:
    topic = reopen(maintenance=False).create_topic("t", segment_bytes=16 << 20)
    big = pa.table({"value": [b"x" * 1000] * 40_000})
    topic.push(b"first")
    assert topic.push_table(big).ranges[0].start == 1
    assert topic.push(b"last").offset == 40_001
    assert topic.read().read_all().num_rows == 40_002
    assert [each.state for each in topic.segments()][:2] == ["rolled", "sealed"]


# --- time --------------------------------------------------------------------------------------------------------------


def test_broker_time_never_goes_back(store: jjq.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = store.create_topic("t", segment_rows=2)
    clock = iter([5_000_000, 3_000_000, 4_000_000, 6_000_000, 1_000_000])
    monkeypatch.setattr("jjq.log.partition.now_us", lambda: next(clock, 7_000_000))
    stamps = [topic.push(b"v").timestamp for _ in range(5)]
    assert stamps == sorted(stamps)
    assert stamps[0] == 5_000_000


def test_producer_time_is_kept_and_found_by_a_seek(store: jjq.Store) -> None:
    topic = store.create_topic("t", timestamps="producer", segment_rows=2)
    stamps = [50, 10, 70, 20, 70, 90, 5]
    for stamp in stamps:
        assert topic.push(b"v", timestamp=stamp).timestamp == stamp
    for wanted in (0, 5, 11, 50, 51, 71, 90, 91):
        linear = next((offset for offset, stamp in enumerate(stamps) if stamp >= wanted), None)
        assert topic.offset_for_timestamp(wanted) == {0: linear}


def test_timestamps_that_name_no_instant_are_refused(store: jjq.Store) -> None:
    topic = store.create_topic("t", timestamps="producer")
    with pytest.raises(jjq.InvalidArgument, match="no time zone"):
        topic.push(b"v", timestamp=dt.datetime(2024, 1, 1))  # noqa: DTZ001 - the point
    for seconds_or_ms in (1_700_000_000, 1_700_000_000_000):
        with pytest.raises(jjq.InvalidArgument, match="looks like seconds or milliseconds"):
            topic.push(b"v", timestamp=seconds_or_ms)
    with pytest.raises(jjq.InvalidArgument, match="is a datetime with a zone, or microseconds"):
        topic.push(b"v", timestamp="2024-01-01T00:00:00Z")  # type: ignore[arg-type]
    with pytest.raises(jjq.InvalidArgument, match="timestamps='producer'"):
        store.create_topic("b").push(b"v", timestamp=dt.datetime.now(dt.UTC))
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    topic.push(b"v", timestamp=moment)
    assert topic.read().read_all().column("_timestamp")[0].as_py() == moment


# --- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", "latest", range(10)),
        (3, "end", range(3, 10)),
        (-4, "latest", range(6, 10)),
        (-100, "latest", range(10)),
        (0, 5, range(5)),
        (2, -2, range(2, 8)),
        ({0: 7}, "latest", range(7, 10)),
        ("beginning", {0: 1}, range(1)),
        ("latest", "latest", range(0)),
        (8, 8, range(0)),
        ({0: 8}, -5, range(0)),
        ("-10 minutes", "latest", range(10)),
        ("+10 minutes", "latest", range(0)),
        ("1970-01-01T00:00:00Z", "latest", range(10)),
    ],
)
def test_every_kind_of_start_and_end(store: jjq.Store, start: object, end: object, expected: range) -> None:
    topic = store.create_topic("t", segment_rows=3)
    for i in range(10):
        topic.push(str(i))
    assert values(topic, start=start, end=end) == [str(i).encode() for i in expected]


@pytest.mark.parametrize(
    ("start", "end"), [(2, 1), ({0: 2}, {0: 1}), (1, {0: 0}), ("latest", "earliest"), ("end", "beginning")]
)
@pytest.mark.parametrize("on_data_loss", ["error", "skip"])
def test_an_end_before_the_start_is_refused(topic: jjq.Topic, start: object, end: object, on_data_loss: str) -> None:
    with pytest.raises(jjq.InvalidArgument, match="is before the start"):
        topic.read(start=start, end=end, on_data_loss=on_data_loss)


def test_who_has_read_on_in_one_partition_asks_for_what_there_was_in_all(store: jjq.Store) -> None:
    topic = store.create_topic("t", partitions=2)
    for partition in (0, 1):
        topic.push_many([b"%d%d" % (partition, i) for i in range(8)], partition=partition)
    then = {0: 5, 1: 5}
    assert topic.read({0: 7, 1: 3}, then).read_all()["value"].to_pylist() == [b"13", b"14"]
    assert topic.read({0: 7, 1: 3}, 5, partitions=[1]).read_all().num_rows == 2
    with pytest.raises(jjq.InvalidArgument, match="the end, 5, is before the start, 7"):
        topic.read({0: 7, 1: 3}, then, partitions=[0])


def test_a_column_that_is_metadata_leads_to_it(topic: jjq.Topic) -> None:
    with pytest.raises(
        jjq.InvalidArgument, match=r"no column '_offset'.*; read\(metadata=\['_offset'\]\) adds what is no column"
    ):
        topic.read(columns=["value", "_offset"])


@pytest.mark.parametrize(
    ("start", "error", "message"),
    [
        (11, jjq.OffsetOutOfRange, r"holds \[0, 10\)"),
        (1 << 63, jjq.InvalidArgument, "64 bits"),
        ("yesterday", jjq.InvalidArgument, "is not understood"),
        ("2024-01-01T00:00:00", jjq.InvalidArgument, "no time zone"),
        ("2024-13-01T00:00:00Z", jjq.InvalidArgument, "not an ISO-8601 time"),
        ("-10 parsecs", jjq.InvalidArgument, "unknown unit"),
        (None, jjq.InvalidArgument, "cannot be None"),
        (True, jjq.InvalidArgument, "cannot be True"),
        (1.5, jjq.InvalidArgument, "cannot be float"),
        ({1: 0}, jjq.InvalidArgument, "names partition 1"),
    ],
)
def test_a_start_that_means_nothing_says_what_can_be_written(
    store: jjq.Store, start: object, error: type[Exception], message: str
) -> None:
    topic = store.create_topic("t")
    topic.push_many([b"v"] * 10)
    with pytest.raises(error, match=message):
        topic.read(start=start)


def test_columns_and_metadata_are_what_was_asked_for(store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=FLIGHTS, partitions=2)
    topic.push({"carrier": "AA", "delay": 5}, key="k", headers={"h": b"1"}, partition=1)
    table = topic.read(columns=["delay"], metadata=["_offset", "_topic", "_partition", "_key", "_headers"]).read_all()
    assert table.to_pylist() == [
        {
            "delay": 5,
            "_offset": 0,
            "_topic": "t",
            "_partition": 1,
            "_key": b"k",
            "_headers": [{"key": "h", "value": b"1"}],
        }
    ]
    for bad in ({"columns": ["dely"]}, {"columns": "delay"}, {"columns": ["delay", "delay"]}, {"metadata": ["_ofset"]}):
        with pytest.raises(jjq.InvalidArgument):
            topic.read(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"columns": 1}, "columns is a list of names, not one int"),
        ({"columns": [1]}, "columns is a list of names, and among these is 1, of type int"),
        ({"metadata": "_offset"}, "metadata is a list of names, not one str"),
        ({"metadata": 1}, "metadata is a list of names, not one int"),
        ({"partitions": 0}, "partitions is a list of numbers, not one int"),
        ({"partitions": "0"}, "partitions is a list of numbers, not one str"),
        ({"partitions": ["0"]}, "partitions is a list of numbers, and among these is '0', of type str"),
    ],
)
def test_one_where_a_list_is_read_says_so(store: jjq.Store, given: dict[str, object], message: str) -> None:
    topic = store.create_topic("t", schema=FLIGHTS)
    with pytest.raises(jjq.InvalidArgument, match=re.escape(message)):
        topic.read(**given)  # type: ignore[arg-type]


def test_batches_are_of_a_sensible_size_whatever_was_pushed(store: jjq.Store) -> None:
    topic = store.create_topic("t", sync="none")
    for _ in range(3000):
        topic.push(b"x" * 1000)
    topic.push_table(pa.table({"value": [b"y" * 1000] * 8000}))
    sizes = [batch.nbytes for batch in topic.read()]
    assert sum(batch.num_rows for batch in topic.read()) == 11_000
    assert max(sizes) < 2 << 20
    assert sum(sizes) / len(sizes) > 500_000


def test_the_end_is_fixed_when_the_call_is_made(store: jjq.Store) -> None:
    topic = store.create_topic("t")
    topic.push(b"before")
    reader = topic.read()
    topic.push(b"after")
    assert reader.read_all().column("value").to_pylist() == [b"before"]


def test_headers_array_and_null_headers_agree() -> None:
    assert null_headers(3).equals(headers_array([None, None, None]))


@pytest.mark.embedded
def test_another_machine_reads_sealed_files_only(store: jjq.Store) -> None:
    topic = store.create_topic("t", segment_rows=2)
    topic.push_many([b"1", b"2"])
    topic.push(b"3")
    store.maintain()
    sealed, growing = topic.plan(0, 0, 3)
    elsewhere = "another-host another-boot"
    read = [b.num_rows for b in store.read_slices([dataclasses.replace(sealed, planned_on=elsewhere)])]
    assert read == [2]
    with pytest.raises(jjq.StoreError, match="broker"):
        list(store.read_slices([dataclasses.replace(growing, planned_on=elsewhere)]))
    # The same machine after a reboot, or from within a container, is the same machine.
    for host, boot in ((growing.planned_on.split()[0], "another-boot"), ("container", growing.planned_on.split()[1])):
        assert [b.num_rows for b in store.read_slices([dataclasses.replace(growing, planned_on=f"{host} {boot}")])] == [
            1
        ]
