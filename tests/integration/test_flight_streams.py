"""What is written to the Flight front as a stream: single values in their short form, writes that break off, limits."""

from __future__ import annotations

import hashlib
import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import jjq
from jjq import wire
from jjq.errors import TooManyRequests
from jjq.server import flight_sessions
from jjq.server.flight_calls import report
from tests.brokers import serving
from tests.integration.test_flight_protocol import Front, code_of, failure

SESSION, PRODUCER = "a session of ours", b"abcdef"
VALUES = pa.schema([("value", pa.binary())])


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    made = Front(tmp_path / "store", max_record_bytes=1024, max_request_bytes=5000, token_bytes_per_s=50_000)
    yield made
    made.close()


KEYED = wire.OneValue(0, 1, 1, 1, b"", b"key").pack()
BAD_KEYED = KEYED[:-1], KEYED[:-4], KEYED[:-5], b"\x02", KEYED[:25] + b"\xff" * 4


class Appending:
    """An `append` stream to a topic."""

    def __init__(self, front: Front, topic_id: str, **more: Any) -> None:
        command = {"append": topic_id, "session": SESSION, "producer": PRODUCER, **more}
        descriptor = flight.FlightDescriptor.for_command(wire.encode(command))
        self.writer, self.reader = front.client.do_put(descriptor, VALUES)

    def send(self, message: bytes) -> dict[str, Any]:
        self.writer.write_metadata(message)
        return wire.unpack_answer(self.reader.read().to_pybytes())

    def value(self, number: int, value: bytes, among: int = 1, key: bytes | None = None) -> dict[str, Any]:
        return self.send(wire.OneValue(0, among, number, number, value, key).pack())


def values(front: Front, topic: str) -> list[bytes]:
    return [each["value"] for each in front.store.topic(topic).read(metadata=[]).read_all().to_pylist()]


def test_a_single_value_goes_in_once_however_often_its_number_comes(front: Front) -> None:
    stream = Appending(front, front.act("create_topic", {"name": "t"})["id"])
    first = stream.value(1, b"a")
    assert (first["start"], stream.value(2, b"b")["start"]) == (0, 1)
    assert stream.value(2, b"b")["start"] == 1
    assert stream.value(1, b"a")["error"]["code"] == "invalid_argument"  # it had said that it has that answer
    stream.writer.close()
    (record,) = front.store.topic("t").records(front.store.topic("t").plan(0, 0, 1))
    assert (record.value, record.timestamp) == (b"a", first["timestamp"])
    assert values(front, "t") == [b"a", b"b"]


@pytest.mark.parametrize("key", [b"k", b"", b"\1" * 300])
def test_a_single_value_has_its_key(front: Front, key: bytes) -> None:
    stream = Appending(front, front.act("create_topic", {"name": "t"})["id"])
    for number, value in enumerate((b"", b"v"), 1):
        assert stream.value(number, value, key=key)["start"] == number - 1
    stream.writer.close()
    topic = front.store.topic("t")
    assert [(each.key, each.value) for each in topic.records(topic.plan(0, 0, 2))] == [(key, b""), (key, b"v")]


def test_a_single_value_that_cannot_go_in_is_answered_and_the_stream_goes_on(front: Front) -> None:
    topic = front.act("create_topic", {"name": "t", "settings": {"max_record_bytes": 100}})
    shaped = front.store.create_topic("shaped", schema=pa.schema([("n", pa.int64())]))
    stream = Appending(front, topic["id"])
    assert stream.value(1, b"x" * 101)["error"]["code"] == "record_too_large"
    assert stream.value(1, b"x" * 50, key=b"k" * 51)["error"]["code"] == "record_too_large"
    assert stream.send(wire.OneValue(7, 1, 2, 2, b"a").pack())["error"]["code"] == "invalid_argument"
    for message in (b"\x01", b"\x01" * 20, b"\x01" + b"\xff" * 60, b"{}", b"[1]", *BAD_KEYED):
        assert stream.send(message)["error"]["code"] == "invalid_argument"
    assert stream.value(3, b"a")["start"] == 0
    stream.writer.close()
    for other in (Appending(front, shaped.id), Appending(front, topic["id"], session=None)):
        assert other.value(4, b"a")["error"]["code"] == "invalid_argument"
        other.writer.close()
    front.store.alter_topic("t", partitions=2)
    stream = Appending(front, topic["id"])
    assert stream.value(5, b"a", among=1)["error"]["code"] == wire.MORE_PARTITIONS
    assert stream.value(6, b"a", among=2)["start"] == 1
    stream.writer.close()
    assert values(front, "t") == [b"a", b"a"]


@pytest.mark.parametrize("odd", [{"session": 7}, {"producer": b"abc"}, {"producer": "abcdef"}, {"more": 1}])
def test_a_command_to_append_that_makes_no_sense_is_refused(front: Front, odd: dict[str, Any]) -> None:
    stream = Appending(front, front.act("create_topic", {"name": "t"})["id"], **odd)
    error = failure(stream.reader.read) or failure(stream.writer.close)
    assert error is not None
    assert code_of(error) == "invalid_argument"


@pytest.mark.parametrize("owner", [5, "x", [], {}, ["a"], ["a", "b"], [[1], [2]]], ids=str)
def test_a_stage_of_an_owner_that_is_none_is_refused(front: Front, owner: Any) -> None:
    topic = front.act("create_topic", {"name": "t"})["id"]
    about = {"topic_id": topic, "session": SESSION, "handle": 1, "number": 1, "rows": 0, "owner": owner}
    command = flight.FlightDescriptor.for_command(wire.encode({"stage": about}))
    writer, reader = front.client.do_put(command, VALUES)
    writer.done_writing()
    error = failure(reader.read) or failure(writer.close)
    assert error is not None
    assert code_of(error).startswith("invalid_")


def test_a_write_of_a_stage_that_broke_off_goes_on_where_it_was(front: Front) -> None:
    topic = front.act("create_topic", {"name": "t"})
    command = wire.encode({"stage": {"session": SESSION, "handle": 1, "number": 0, "rows": 3, "topic_id": topic["id"]}})
    batches = [pa.record_batch([pa.array([each], pa.binary())], VALUES) for each in (b"a", b"b", b"c")]
    descriptor = flight.FlightDescriptor.for_command(command)

    def write_in_part() -> None:
        """Cut off amid it, on a slow machine maybe even before its second batch."""
        writer, reader = front.client.do_put(descriptor, VALUES, flight.FlightCallOptions(timeout=0.5))
        writer.write_batch(batches[0])
        writer.write_batch(batches[1])
        assert reader.read() is None
        writer.close()

    # Its client is gone before it has said that this is all.
    with pytest.raises(flight.FlightTimedOutError):
        write_in_part()

    for _ in range(2):
        writer, reader = front.client.do_put(descriptor, VALUES)
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()
        assert json.loads(bytes(reader.read())) == {"rows": 3}
        writer.close()
    staged = front.act("stage_finish", {"args": {"handle": 1, "writes": 1}, "session": SESSION})
    front.act("commit", {"staged": staged})
    assert values(front, "t") == [b"a", b"b", b"c"]


def test_what_the_broker_takes_bounds_every_way_to_push(front: Front) -> None:
    front.act("create_topic", {"name": "t"})
    large = pa.record_batch([pa.array([b"a", b"x" * 1025], pa.binary())], VALUES)
    writer, reader = front.client.do_put(flight.FlightDescriptor.for_path("t"), VALUES)
    writer.write_batch(large)
    error = failure(reader.read) or failure(writer.close)
    assert error is not None
    assert code_of(error) == "record_too_large"
    for ask in (
        lambda: front.act("publish", {"name": "t", "data": "x" * 1025}),
        lambda: front.act("topic", {"name": "x" * 5001}),
    ):
        error = failure(ask)
        assert error is not None
        assert code_of(error) == "record_too_large"
    assert values(front, "t") == []


def test_streams_on_which_clients_send_are_bounded(tmp_path: Path) -> None:
    front = Front(tmp_path / "store", max_connections=2)
    try:
        topic = front.act("create_topic", {"name": "t"})["id"]
        first, second = Appending(front, topic), Appending(front, topic)
        assert [first.value(1, b"a")["start"], second.value(2, b"b")["start"]] == [0, 1]
        refused = Appending(front, topic)
        error = failure(refused.reader.read) or failure(refused.writer.close)
        assert error is not None
        assert code_of(error) == "too_many_requests"
        first.writer.close()  # the broker has left it when this returns
        third = Appending(front, topic)
        assert third.value(3, b"c")["start"] == 2
        for each in (second, third):
            each.writer.close()
        assert values(front, "t") == [b"a", b"b", b"c"]
    finally:
        front.close()


def test_a_table_goes_in_by_requests_as_large_as_the_broker_takes(tmp_path: Path) -> None:
    made = Front(tmp_path / "store", max_record_bytes=8192, max_request_bytes=20_000)
    try:
        with jjq.connect(f"jjq://127.0.0.1:{made.port}") as store:
            topic = store.create_topic("t")
            small, large = [b"s"] * 1000, [b"x" * 8000] * 10
            topic.push_table(pa.table({"value": [*small, *large, *small]}))
            topic.push_table(pa.table({"value": large[:1]}))
        assert values(made, "t") == [*small, *large, *small, *large[:1]]
    finally:
        made.close()


def test_a_record_that_is_larger_than_the_broker_takes_is_told_its_bound(tmp_path: Path) -> None:
    made = Front(tmp_path / "store", max_record_bytes=1024)
    try:
        with jjq.connect(f"jjq://127.0.0.1:{made.port}") as store:
            topic = store.create_topic("t", max_record_bytes=4096)
            for push in (lambda: topic.push(b"x" * 2000), lambda: topic.push(b"", key=b"k" * 2000)):
                with pytest.raises(jjq.RecordTooLarge, match=r"broker takes up to 1,024 \(max_record_bytes\)"):
                    push()
            store.alter_topic("t", max_record_bytes=100)
            with pytest.raises(jjq.RecordTooLarge, match="topic takes up to 100"):
                topic.push(b"x" * 500)
        assert values(made, "t") == []
    finally:
        made.close()


def test_a_write_of_a_stage_that_is_refused_amid_it_ends_the_stage(tmp_path: Path) -> None:
    made = Front(tmp_path / "store", max_request_bytes=20_000, token_bytes_per_s=10_000)
    try:
        with jjq.connect(f"jjq://127.0.0.1:{made.port}") as store:
            topic = store.create_topic("t")
            stage = store.stage()
            with pytest.raises(TooManyRequests):
                stage.write(topic, pa.table({"value": [b"x" * 1000] * 100}))
            for go_on in (lambda: stage.write(topic, pa.table({"value": [b"a"]})), stage.finish):
                with pytest.raises(jjq.InvalidArgument, match="begin another"):
                    go_on()
        assert values(made, "t") == []
    finally:
        made.close()


def test_what_was_done_is_answered_again_though_the_rate_is_spent(tmp_path: Path) -> None:
    made = Front(tmp_path / "store", token_bytes_per_s=1)
    try:
        stream = Appending(made, made.act("create_topic", {"name": "t"})["id"])
        first = stream.value(1, b"x" * 1000)
        assert [stream.value(1, b"x" * 1000) for _ in range(3)] == [first] * 3
        assert stream.value(2, b"b")["error"]["code"] == "too_many_requests"
        stream.writer.close()
        assert values(made, "t") == [b"x" * 1000]
    finally:
        made.close()


def test_published_texts_count_for_the_rate(tmp_path: Path) -> None:
    made = Front(tmp_path / "store", token_bytes_per_s=1)
    try:
        publish = {"name": "t", "data": "x" * 1000}
        made.act("publish", publish)
        error = failure(lambda: made.act("publish", publish))
        assert error is not None
        assert code_of(error) == "too_many_requests"
    finally:
        made.close()


@pytest.mark.parametrize("waiting", [[1] * 100_001, ["1"], [[1]], {"1": 1}], ids=["many", "text", "lists", "no list"])
def test_what_a_client_waits_for_is_numbers_and_not_more_than_is_kept(front: Front, waiting: Any) -> None:
    assert front.front._served is not None
    sessions = front.front._served.sessions
    with pytest.raises(jjq.InvalidArgument, match="waiting"):
        sessions.once(sessions.get(SESSION, "anybody"), {"id": 1, "waiting": waiting}, lambda: 1)


def test_large_answers_that_a_client_never_says_it_has_are_bounded(front: Front) -> None:
    """Each answer has 4 MiB: of those that are awaited the broker keeps what fits, of those that have come nothing."""
    assert front.front._served is not None
    sessions = front.front._served.sessions
    session = sessions.get(SESSION, "anybody")

    def ask(number: int, **about: Any) -> int:
        return len(sessions.once(session, {"id": number, **about}, lambda: bytes(4 << 20)))

    for number in range(1, 200):
        assert ask(number, waiting=[1, number]) == 4 << 20
    assert session.answer_bytes <= 12 << 20
    assert ask(1, again=True, broker=sessions.broker) == 4 << 20
    with pytest.raises(jjq.InvalidArgument, match="answered before"):
        ask(7)
    refused = None
    for number in range(200, 300):
        try:
            ask(number)
        except TooManyRequests as error:
            refused = error
            break
    assert refused is not None
    assert session.answer_bytes <= 260 << 20
    assert ask(300, done=300) == 4 << 20
    assert session.answer_bytes < (4 << 20) + 1000


def send_object(front: Front, topic_id: str, size: int, **record: Any) -> Any:
    command = {"object": {"topic_id": topic_id, "value": b"v", **record, "session": SESSION, "id": 1, "done": 0}}
    writer, reader = front.client.do_put(flight.FlightDescriptor.for_command(wire.encode(command)), VALUES)
    with writer:
        for start in range(0, size, 1000):
            writer.write_metadata(b"\0" + bytes(min(1000, size - start)))
        check = hashlib.sha256(bytes(size)).hexdigest()
        writer.write_metadata(wire.encode({"sha256": check, "bytes": size}))
        writer.done_writing()
        return wire.decode(reader.read().to_pybytes())


def test_an_object_is_as_large_as_the_broker_takes_and_leaves_nothing_else(tmp_path: Path) -> None:
    made = Front(tmp_path / "store", max_object_bytes=10_000, max_record_bytes=1024)
    try:
        topic_id = made.act("create_topic", {"name": "t"})["id"]
        for refused, says in (
            (lambda: send_object(made, topic_id, 10_001), "max_object_bytes"),
            (lambda: send_object(made, topic_id, 1_000_000), "max_object_bytes"),
            (lambda: send_object(made, topic_id, 10, value=bytes(1025)), "max_record_bytes"),
            (lambda: send_object(made, topic_id, 10, key=bytes(1025)), "max_record_bytes"),
            (lambda: send_object(made, topic_id, 10, headers=[["a", bytes(1025)]]), "max_record_bytes"),
        ):
            error = failure(refused)
            assert error is not None
            assert code_of(error) == "record_too_large"
            assert says in str(error)
        assert [each for each in (tmp_path / "store" / "objects").rglob("*") if each.is_file()] == []
        assert send_object(made, topic_id, 10_000)[1] == 0
        with jjq.connect(f"jjq://127.0.0.1:{made.port}") as store, pytest.raises(jjq.RecordTooLarge, match="10,000"):
            store.topic("t").push_file(bytes(3 << 20))
    finally:
        made.close()


def test_tickets_and_commands_are_as_large_as_the_broker_takes(front: Front) -> None:
    large = wire.encode({"topic": "x" * 6000})
    for ask in (
        lambda: front.client.get_flight_info(flight.FlightDescriptor.for_command(large)),
        lambda: front.client.do_get(flight.Ticket(large)).read_all(),
        lambda: front.client.do_put(flight.FlightDescriptor.for_command(large), VALUES)[0].close(),
    ):
        error = failure(ask)
        assert error is not None
        assert code_of(error) == "record_too_large"


def test_an_object_whose_reader_is_gone_before_its_first_byte_is_closed(tmp_path: Path) -> None:
    """A file that is left open is a warning, which the broker would write between the lines of its log."""
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        store.create_topic("t").push_file(bytes(64 << 20))
        [each] = store.list_objects()
    with serving(tmp_path / "store") as broker:
        ticket = flight.Ticket(wire.encode({"object": each.hash}))
        with flight.FlightClient(f"grpc://127.0.0.1:{broker.port}") as client:
            for ms in range(1, 20, 3):
                with pytest.raises(flight.FlightTimedOutError):  # while the object is looked through
                    client.do_get(ticket, flight.FlightCallOptions(timeout=ms / 1000)).read_all()
            assert client.do_get(ticket).read_all().nbytes > 64 << 20
        assert broker.stop() == 0
        assert broker.log()[-1]["level"] == "info"


def test_handles_of_one_client_are_bounded(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_sessions, "_MOST_HANDLES", 2)
    with jjq.connect(f"jjq://127.0.0.1:{front.port}") as store:
        topic = store.create_topic("t")
        channels = [store.channel(topic.name, "c", create=True) for _ in range(3)]
        assert [channels[0].counts().depth, channels[1].counts().depth] == [0, 0]
        with pytest.raises(TooManyRequests, match="close those"):
            channels[2].counts()
        channels[0].close()
        assert channels[2].counts().depth == 0


def test_a_handle_that_its_client_has_let_go_of_is_closed(front: Front) -> None:
    with jjq.connect(f"jjq://127.0.0.1:{front.port}") as store:
        store.create_topic("t").push_many([b"a", b"b"])
        store.create_subscriber("t", "s")
        assert [each.value for each in (store.subscriber("s").pop(), store.subscriber("s").pop()) if each] == [
            b"a",
            b"b",
        ]
        assert front.front._served is not None
        (session,) = front.front._served.sessions._sessions.values()
        pause = threading.Event()
        while "0 handles" not in repr(session):
            assert not pause.wait(0.01)


def test_what_the_disk_refuses_by_flight_is_in_the_log_of_the_broker(
    front: Front, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else only the clients know, and nobody who looks after the broker."""
    stream = Appending(front, front.act("create_topic", {"name": "t"})["id"])
    front.store.path.rename(tmp_path / "aside")
    with caplog.at_level("WARNING", "jjq.server"):
        assert "moved away" in stream.value(1, b"a")["error"]["message"]
        stream.writer.close()
        assert failure(lambda: front.act("create_topic", {"name": "u"})) is not None
    (tmp_path / "aside").rename(front.store.path)
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 2
    assert all(each.startswith("a request by Flight: ") and "moved away" in each for each in said)


def test_a_catalog_that_is_damaged_is_in_the_log_of_the_broker(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    served: Any = SimpleNamespace(store=front.store)
    with caplog.at_level("WARNING", "jjq.server"):
        report(jjq.StoreFormat("the catalog is damaged"), served)
    assert [each.getMessage() for each in caplog.records] == ["a request by Flight: the catalog is damaged"]


PUSHES = """
import sys
import jjq
with jjq.connect(sys.argv[1]) as store:
    topic = store.create_topic("t")
    topic.push("text")
    topic.push(None, key=b"k")
    topic.push_many([b"v", None, b"w"], keys=[None, b"k", b"l"])
sys.exit("pandas" in sys.modules)
"""


def test_a_first_push_through_a_broker_does_not_wait_for_pandas(tmp_path: Path) -> None:
    importlib.import_module("pandas")  # it is there to be imported
    with serving(tmp_path / "store", "--no-http") as broker:
        subprocess.run([sys.executable, "-c", PUSHES, broker.flight], check=True)
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        rows = store.topic("t").read(metadata=["_key"]).read_all()
    assert rows["value"].to_pylist() == [b"text", None, b"v", None, b"w"]
    assert rows["_key"].to_pylist() == [None, b"k", None, b"k", b"l"]
