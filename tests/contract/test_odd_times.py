"""Times that Python cannot say: refused where they are pushed as numbers, and in nobody's way where they are stored."""

from typing import Any

import pyarrow as pa
import pytest

import jjq

UTC_US, NAIVE_US, DAY = pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.date32()
FAR, FAR_DAY = 2**62, 2**31 - 1
NANOSECONDS = 1_796_000_000_000_000_000  # of 2026
SCHEMA = pa.schema(
    [("n", pa.int32()), ("ts", UTC_US), ("naive", NAIVE_US), ("d", DAY), ("several", pa.list_(UTC_US)),
     ("s", pa.struct([("d", DAY), ("x", pa.int64())])), ("m", pa.map_(DAY, pa.list_(NAIVE_US)))]
)  # fmt: skip


def as_times(numbers: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(numbers, pa.int32() if kind == DAY else pa.int64()).cast(kind)


def odd() -> pa.Table:
    """Three rows, all but the middle one with nothing odd."""
    days, times = as_times([0, FAR_DAY, -719_163], DAY), as_times([0, FAR, -FAR], UTC_US)
    naive = as_times([0, FAR, -62_135_596_800_000_001], NAIVE_US)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3, 3], pa.int32()), as_times([0, FAR, 5], UTC_US))
    structs = pa.StructArray.from_arrays([as_times([0, FAR_DAY, None], DAY), pa.array([1, 2, 3])], ["d", "x"])
    inner = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), as_times([FAR], NAIVE_US))
    maps = pa.MapArray.from_arrays(pa.array([0, 0, 1, 1], pa.int32()), as_times([FAR_DAY], DAY), inner)
    return pa.Table.from_arrays(
        [pa.array([1, 2, 3], pa.int32()), times, naive, days, lists, structs, maps], schema=SCHEMA
    )


def test_a_time_that_python_cannot_say_is_a_number_and_keeps_no_record_from_its_readers(store: jjq.Store) -> None:
    topic = store.create_topic("t", schema=SCHEMA)
    subscriber, channel = store.create_subscriber("t", "s"), store.channel("t", "c", create=True)
    topic.push_table(odd().slice(0, 1))
    topic.push_table(odd().slice(1))
    found = [record.value for record in subscriber.poll(10, timeout=0)]
    assert [value["n"] for value in found] == [1, 2, 3]
    assert found[0] == odd().slice(0, 1).to_pylist()[0]  # what Python can say is as ever
    assert (found[1]["ts"], found[1]["naive"], found[1]["d"]) == (FAR, FAR, FAR_DAY)
    assert found[1]["several"] == [FAR, odd()["several"][1][1].as_py()]
    assert (found[1]["s"], found[1]["m"]) == ({"d": FAR_DAY, "x": 2}, [(FAR_DAY, [FAR])])
    assert (found[2]["ts"], found[2]["naive"], found[2]["d"]) == (-FAR, -62_135_596_800_000_001, -719_163)
    assert (found[2]["several"], found[2]["s"], found[2]["m"]) == ([], {"d": None, "x": 3}, [])
    subscriber.seek("earliest")
    assert [subscriber.pop(timeout=5).value for _ in found] == found
    assert [each.record.value for each in channel.receive(10, timeout=5)] == found
    assert topic.read().read_all() == odd()
    frame = topic.to_pandas()
    assert frame["n"].tolist() == [1, 2, 3]
    assert frame["d"].tolist() == [each["d"] for each in found]
    assert frame["m"].tolist() == [each["m"] for each in found]


@pytest.mark.parametrize(
    ("column", "number", "says"),
    [
        ("ts", NANOSECONDS, "looks like nanoseconds"), ("ts", float(10**18), "looks like nanoseconds"),
        ("ts", 1577836800.0, "looks like seconds or milliseconds"), ("naive", FAR, "is no time of the years 1 to 9999"),
        ("naive", -62_135_596_800_000_001, "is no time"), ("several", [0, FAR], "is no time of the years"),
        ("d", 20_260_131, "is no day of the years 1 to 9999"), ("d", -719_163, "is no day"),
        ("s", {"d": 2_932_897.0}, "is no day"), ("m", {0: [FAR]}, "is no time"), ("m", {FAR_DAY: []}, "is no day"),
    ],
)  # fmt: skip
def test_a_number_that_is_no_time_is_refused(store: jjq.Store, column: str, number: Any, says: str) -> None:
    topic = store.create_topic("t", schema=SCHEMA)
    with pytest.raises(jjq.SchemaMismatch, match=f"^record 1: column '{column}' takes .* {says}"):
        topic.push_many([{"n": 1}, {column: number}])
    topic.push(
        {"d": -719_162, "ts": 253_402_300_799_999_999, "naive": -62_135_596_800_000_000}
    )  # the first and the last
    assert topic.offsets()[0].end == 1


def test_a_number_that_is_no_time_of_a_record_is_refused(store: jjq.Store) -> None:
    topic = store.create_topic("t", timestamps="producer")
    with pytest.raises(jjq.InvalidArgument, match="looks like nanoseconds; pushes take microseconds"):
        topic.push(b"x", timestamp=NANOSECONDS)
    with pytest.raises(jjq.InvalidArgument, match="is no time of the years 1 to 9999"):
        topic.push_many([b"x"], timestamps=[FAR])
    with store.producer() as producer, pytest.raises(jjq.InvalidArgument, match="looks like nanoseconds"):
        producer.push("t", b"x", timestamp=NANOSECONDS)
    assert topic.offsets()[0].end == 0


def test_the_times_of_a_table_go_in_as_they_are(store: jjq.Store) -> None:
    topic = store.create_topic("t", timestamps="producer")
    times = [5, 1_700_000_000, FAR, -FAR]
    topic.push_table(pa.table({"value": [b"x"] * len(times), "timestamp": as_times(times, UTC_US)}))
    found = [record.timestamp for record in store.create_subscriber("t", "s").poll(10, timeout=5)]
    assert found == times
