"""The short way of a single value gives the bytes, the order and the durability of the long one."""

import importlib
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jjq
from jjq.log import format as fmt
from jjq.log.template import RowsTemplate
from jjq.schema import physical

SCHEMA = physical(None)
TEMPLATE = RowsTemplate(SCHEMA)
INT = st.integers(0, (1 << 62) - 1)


@given(
    st.integers(-(1 << 62), 1 << 62), st.none() | st.binary(max_size=30), st.binary(max_size=300),
    st.binary(min_size=16, max_size=16), INT, INT, INT, st.just(fmt.NO_MARK) | st.tuples(st.binary(min_size=6, max_size=6), INT),
)  # fmt: skip
def test_message_is_the_one_that_encoding_and_placing_give(
    ts: int, key: bytes | None, value: bytes, topic: bytes, base: int, synced_to: int, now: int, mark: tuple[bytes, int]
) -> None:
    field = fmt.ActiveField(topic, 7, base, 1, synced_to, now)
    encoded = TEMPLATE.encode([ts], [key], [value])._replace(producer=mark[0], sequence=mark[1])
    expected = fmt.place(encoded, field) + b"".join(encoded.body)
    message = TEMPLATE.message(ts, value, topic, 7, base, synced_to, now, key, mark)
    assert message == expected
    assert encoded.layout == TEMPLATE.layout
    assert TEMPLATE.rows_at(bytes(message), [0]) == ([key], [value])
    batch = pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA)
    assert batch.column("_key").to_pylist() == [key]
    assert batch.column("value").to_pylist() == [value]
    assert batch.column("_timestamp").cast(pa.int64()).to_pylist() == [ts]


def test_single_values_and_batches_of_many_threads_have_one_order(tmp_path: Path) -> None:
    def push(number: int) -> None:
        for i in range(30):
            if (number + i) % 3:
                placed = topic.push(f"{number} {i}".encode()).offset
            else:
                placed = topic.push_many([f"{number} {i}"])[0].offset
            positions[number].append(placed)

    positions: list[list[int]] = [[] for _ in range(8)]
    with jjq.open(tmp_path / "store") as store:
        topic = store.create_topic("t", sync="none")
        threads = [threading.Thread(target=push, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        values = topic.read().read_all().column("value").to_pylist()
    assert sorted(each for own in positions for each in own) == list(range(240))
    assert all(values[placed] == f"{n} {i}".encode() for n, own in enumerate(positions) for i, placed in enumerate(own))


ONE_PUSH = """
import sys
import jjq
with jjq.open(sys.argv[1], maintenance=False) as store:
    topic = store.create_topic("t")
    topic.push(b"v")
    topic.push(b"v", key=b"k")
    topic.push(b"v", headers={"h": b"1"})
    topic.push_many([b"v", b"v"])
sys.exit("pandas" in sys.modules)
"""


def test_a_push_does_not_wait_for_pandas(tmp_path: Path) -> None:
    importlib.import_module("pandas")  # it is there to be imported
    subprocess.run([sys.executable, "-c", ONE_PUSH, str(tmp_path / "store")], check=True)


FIRST_RECORDS = """
import sys
import jjq
with jjq.open(sys.argv[1], maintenance=False) as store:
    assert store.subscriber("s").pop().headers == [("h", b"1")]
    assert store.subscriber("s").pop().key == b"k"
    assert store.subscriber("columns").pop().value == {"n": 1, "text": "a"}
    assert [each.record.value for each in store.channel("t", "c").receive(3)] == [b"v", b"w", None]
    assert store.topic("t").read(metadata=["_topic", "_partition", "_key"]).read_all().num_rows == 3
    assert store.subscriber("s").pop().value is None
sys.exit("pandas" in sys.modules)
"""


def test_the_first_record_does_not_wait_for_pandas(tmp_path: Path) -> None:
    importlib.import_module("pandas")
    with jjq.open(tmp_path / "store") as store:
        topic = store.create_topic("t")
        topic.push(b"v", headers={"h": b"1"})
        topic.push(b"w", key=b"k")
        topic.push(None)
        store.create_topic("u", schema=pa.schema([("n", pa.int32()), ("text", pa.string())])).push(
            {"n": 1, "text": "a"}
        )
        store.create_subscriber("t", "s")
        store.create_subscriber("u", "columns")
        store.channel("t", "c", create=True)
    subprocess.run([sys.executable, "-c", FIRST_RECORDS, str(tmp_path / "store")], check=True)


def test_files_roll_under_single_values(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store") as store:
        topic = store.create_topic("t", segment_rows=3, sync="none")
        for i in range(8):
            topic.push(str(i).encode())
        assert [segment.rows for segment in topic.segments()] == [3, 3, 2]
        assert topic.read().read_all().column("value").to_pylist() == [str(i).encode() for i in range(8)]


def test_a_value_over_the_limit_and_one_after_the_topic_is_gone_are_refused(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store") as store:
        topic = store.create_topic("t", max_record_bytes=10)
        topic.push(b"0123456789")
        with pytest.raises(jjq.RecordTooLarge):
            topic.push(b"0123456789!")
        store.delete_topic("t")
        with pytest.raises(jjq.TopicDeleted):
            topic.push(b"x")
    with pytest.raises(jjq.StoreClosed):
        topic.push(b"x")


def test_the_record_that_is_too_large_is_named_with_its_key_counted(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store") as store:
        topic = store.create_topic("t", max_record_bytes=10)
        topic.push_many([b"0123456789", None, "text", bytearray(b"ten bytes!")])
        with pytest.raises(jjq.RecordTooLarge, match="record 2 has 11 bytes"):
            topic.push_many([b"", None, "eleven text"])
        with pytest.raises(jjq.RecordTooLarge, match="record 1 has 12 bytes"):
            topic.push_many([b"", b"0123456789"], keys=[b"0123456789", b"ab"])
        with pytest.raises(jjq.InvalidArgument):
            topic.push_many([b"", 7])
        assert topic.offsets()[0].end == 4


def test_a_batch_is_measured_by_its_values_and_keys_however_many_they_are(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store") as store:
        topic = store.create_topic("t", sync="none", max_batch_bytes=2000)
        for count in (200, 1000):
            each = 2000 // count
            topic.push_many([b"v" * each] * count)
            topic.push_many([b"v" * (each - 1)] * count, keys=[b"k"] * count)
            topic.push_many([None] * count, keys=[b"k" * each] * count)
            topic.push_many([None] * count)
            end = topic.offsets()[0].end
            for values, keys in (
                ([b"v" * each] * (count + 1), None),
                ([None] * count, [b"k" * (each + 1)] + [b"k" * each] * (count - 1)),
            ):
                with pytest.raises(jjq.RecordTooLarge, match="the batch has 2,0"):
                    topic.push_many(values, keys=keys)
            assert topic.offsets()[0].end == end
        with store.producer(linger_ms=60_000) as producer:
            futures = [producer.push("t", b"v") for _ in range(3000)]
        assert [future.result().offset for future in futures] == list(range(end, end + 3000))
