"""The Flight front as other clients meet it: pyarrow.flight by itself, tokens, and bytes that make no sense."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import flight

import jjq
from jjq import wire
from jjq.server.flight import FlightFront
from jjq.server.flight_calls import ACTIONS
from jjq.server.guard import Guard
from jjq.server.settings import ServerSettings
from jjq.server.tokens import TokenFile
from tests.stores import assert_whole, without_active_file

SECRET_PLACES = ("Traceback", 'File "', ".py", "site-packages")


class Front:
    """A broker's Flight front in this process, and clients of it."""

    def __init__(self, directory: Path, **more: Any) -> None:
        self.directory = directory
        self.store = jjq.open(directory)
        settings = ServerSettings(store=directory, flight_port=0, **more)
        self.front = FlightFront(self.store, settings, Guard(settings))
        self.port = self.front.start()
        self.client = flight.FlightClient(f"grpc://127.0.0.1:{self.port}")

    def options(self, token: str | None) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(
            headers=[] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        )

    def act(self, name: str, body: Any = None, token: str | None = None) -> Any:
        data = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        (result,) = self.client.do_action(flight.Action(name, data), self.options(token))
        return wire.decode(result.body)

    def close(self) -> None:
        self.client.close()
        self.front.stop(30)
        self.store.close()


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    made = Front(tmp_path / "store")
    yield made
    made.close()
    assert_whole(tmp_path / "store")


def failure(ask: Callable[[], object]) -> flight.FlightError | None:
    try:
        ask()
    except flight.FlightError as error:
        return error
    return None


def code_of(error: flight.FlightError) -> str:
    return str(json.loads(bytes(error.extra_info))["code"])


# --- pyarrow.flight by itself ----------------------------------------------------------------------------------------


def test_any_flight_client_can_read_and_push(front: Front) -> None:
    front.act("create_topic", {"name": "events"})
    table = pa.table({"value": [b"a", b"b"], "key": [b"k", None]})
    descriptor = flight.FlightDescriptor.for_path("events")
    writer, reader = front.client.do_put(descriptor, table.schema)
    writer.write_table(table)
    assert json.loads(bytes(reader.read()))["ranges"][0][:3] == [0, 0, 2]
    writer.close()
    info = front.client.get_flight_info(descriptor)
    assert info.total_records == 2
    found = front.client.do_get(info.endpoints[0].ticket).read_all()
    assert found.schema == info.schema
    assert found.select(["value", "_offset", "_key"]).to_pylist() == [
        {"value": b"a", "_offset": 0, "_key": b"k"},
        {"value": b"b", "_offset": 1, "_key": None},
    ]
    command = flight.FlightDescriptor.for_command(
        b'{"topic": "events", "start": -1, "columns": ["value"], "metadata": []}'
    )
    (endpoint,) = front.client.get_flight_info(command).endpoints
    assert front.client.do_get(endpoint.ticket).read_all().to_pylist() == [{"value": b"b"}]
    assert [each.descriptor.path for each in front.client.list_flights()] == [[b"events"]]


def test_a_damaged_topic_hides_no_other(front: Front) -> None:
    for name in ("bad", "good"):
        front.store.create_topic(name).push(b"x")
    with without_active_file(front.directory, front.store.topic("bad").id):
        assert [each.descriptor.path for each in front.client.list_flights()] == [[b"good"]]
        found = front.act("stats")
        assert [each["name"] for each in found["topics"]] == ["good"]
        assert [(each["topic"], each["what"]) for each in found["damaged"]] == [("bad", "topic")]
        assert str(front.directory) not in found["damaged"][0]["error"]
        with pytest.raises(flight.FlightError, match="active file is missing"):
            front.client.get_flight_info(flight.FlightDescriptor.for_path("bad"))


def test_actions_are_listed_with_what_they_take_and_answer_json(front: Front) -> None:
    listed = {each.type: each.description for each in front.client.list_actions()}
    assert listed.keys() == ACTIONS.keys()
    assert listed["create_topic"].startswith("(name, partitions, schema, exist_ok, settings) Makes a topic.")
    front.act("create_topic", {"name": "t", "partitions": 2, "settings": {"sync": "none"}})
    assert [each["name"] for each in front.act("topics")] == ["t"]


def test_a_request_of_a_session_is_done_once_however_often_it_comes(front: Front) -> None:
    topic = front.store.create_topic("t")
    topic.push_many([b"a", b"b", b"c"])
    made = front.act("create_subscriber", {"topic": "t", "name": "s"})
    about = {"handle": 1, "subscriber": [made["name"], made["id"], made["topic_id"]]}

    def pop(number: int, **more: Any) -> list[bytes]:
        told = front.act("pop", {"args": about, "session": "a session", "id": number, **more})
        return [each[6] for each in told["records"]]

    assert [pop(1), pop(1), pop(2), pop(1, again=True)] == [[b"a"], [b"a"], [b"b"], [b"a"]]
    assert pop(3, done=3) == [b"c"]
    with pytest.raises(flight.FlightServerError, match="answered before"):
        pop(1)


def test_a_broker_started_anew_refuses_what_may_have_been_done_before(front: Front) -> None:
    body = {"args": {"name": "t"}, "session": "a session", "id": 1, "once": True, "again": True, "broker": "another"}
    with pytest.raises(flight.FlightServerError, match="may be done or not") as caught:
        front.act("create_topic", body)
    assert code_of(caught.value) == "broker_unavailable"
    assert front.store.topics() == []


# --- errors ----------------------------------------------------------------------------------------------------------


def test_errors_keep_their_code_and_tell_nothing_of_the_machine(front: Front) -> None:
    topic = front.store.create_topic("t")
    with pytest.raises(flight.FlightServerError) as caught:
        front.act("topic", {"name": "tt"})
    assert code_of(caught.value) == "topic_not_found"
    assert "did you mean 't'" in str(caught.value)
    with front.store.stage() as stage:
        stage.write(topic, pa.table({"value": [b"v"]}))
        (file,) = stage.finish()
    front.store.discard([file])
    with pytest.raises(flight.FlightServerError) as missing:
        front.act("commit", {"staged": [file.to_json()]})
    assert code_of(missing.value) == "staged_file_missing"
    for error in (caught.value, missing.value):
        assert str(front.directory) not in str(error) + bytes(error.extra_info).decode()
        assert not any(each in str(error) for each in SECRET_PLACES)


def test_a_fault_of_the_broker_is_told_without_its_inside(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError(f"inside {front.directory}")

    monkeypatch.setitem(ACTIONS, "topics", fail)
    with pytest.raises(flight.FlightInternalError, match="its log tells") as caught:
        front.act("topics")
    assert code_of(caught.value) == "error"
    assert not any(each in str(caught.value) for each in (*SECRET_PLACES, "ZeroDivision", str(front.directory)))


def test_a_batch_that_is_damaged_is_refused_and_read_by_nobody(front: Front) -> None:
    front.act("create_topic", {"name": "t"})
    offsets, data = pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")  # no UTF-8
    batch = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.string(), 1, [None, offsets, data])], names=["value"])
    writer, reader = front.client.do_put(flight.FlightDescriptor.for_path("t"), batch.schema)

    def send() -> None:
        writer.write_batch(batch)
        reader.read()
        writer.close()

    with pytest.raises(flight.FlightServerError, match="the batch is damaged"):
        send()
    assert front.store.topic("t").offsets()[0].end == 0


@pytest.mark.parametrize("how", ["path", "append"])
def test_a_batch_is_held_to_the_bound_by_what_its_columns_come_to(front: Front, how: str) -> None:
    topic = front.store.create_topic("t", schema=pa.schema([(f"c{i}", pa.int64()) for i in range(4096)]))
    one, rows = pa.array(["x" * 1000]), 300_000
    texts = pa.DictionaryArray.from_arrays(
        pa.Array.from_buffers(pa.int8(), rows, [None, pa.py_buffer(bytes(rows))]), one
    )
    command = flight.FlightDescriptor.for_command(wire.encode({"append": topic.id}))
    for column in (texts, pa.nulls(1 << 28), pa.nulls(1 << 20)):
        batch = pa.record_batch({"c0": column, "_key": pa.nulls(len(column)), "_headers": pa.nulls(len(column))})
        batch = batch if how == "append" else batch.select(["c0"])
        where = command if how == "append" else flight.FlightDescriptor.for_path("t")
        writer, reader = front.client.do_put(where, batch.schema)

        def send(batch: pa.RecordBatch = batch, writer: Any = writer, reader: Any = reader) -> None:
            if how == "append":
                writer.write_with_metadata(batch, wire.encode({"partition": 0}))
            else:
                writer.write_batch(batch)
            if (answer := reader.read()) is not None:
                assert wire.decode(answer)["error"]["code"] == "record_too_large"
                writer.close()
                raise flight.FlightServerError(wire.decode(answer)["error"]["message"])
            writer.close()

        with pytest.raises(flight.FlightServerError, match="takes up to"):
            send()
    assert topic.offsets()[0].end == 0


SAFE = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Texts are told again in errors, and Hypothesis takes some from the code: those that would be told from nowhere else are left out.
TEXT = st.text(max_size=8).filter(lambda text: not any(each in text for each in SECRET_PLACES))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.floats() | TEXT | st.sampled_from(["t", "s", "0" * 32]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
NOT_FUZZED = {"close_session", "maintain", "verify"}


@pytest.mark.parametrize("name", sorted(ACTIONS.keys() - NOT_FUZZED))
def test_actions_answer_whatever_they_are_given_and_never_with_their_inside(front: Front, name: str) -> None:
    topic = front.store.create_topic("t", exist_ok=True)
    topic.push(b"v")
    subscriber = front.store.create_subscriber("t", "s")
    channel = front.store.channel("t", "c", create=True)
    # What leads on to the rest: half of the time it is right.
    right = {
        "topic_id": topic.id, "topic": "t", "name": "t", "handle": 1, "subscriber": ["s", subscriber.id, topic.id],
        "channel": [topic.id, "c", channel.id, 10, "host", 7], "interest": [["t"], ["x*"]], "places": [[0, 0, 0]],
    }  # fmt: skip
    taken = [each for each in inspect.signature(ACTIONS[name]).parameters if each not in ("call", "timeout")]
    each_arg = {each: st.just(right[each]) | JSON if each in right else JSON for each in taken}
    given_args = st.fixed_dictionaries(each_arg) | st.dictionaries(st.sampled_from([*taken, "x"]), JSON)

    @settings(SAFE, max_examples=40)  # there are sixty actions
    @given(given_args, st.booleans(), JSON)
    def fuzz(args: dict[str, Any], in_session: bool, more: Any) -> None:
        body: Any = {"args": args, "session": "a session", "id": more} if in_session else args
        if in_session and "handle" in args:
            del body["id"]  # or most would end there
        error = failure(lambda: front.act(name, body))
        if error is not None:
            told = str(error)
            assert not any(each in told for each in SECRET_PLACES), told
            assert str(front.directory) not in told
            assert code_of(error) != "error", told

    fuzz()
    assert front.act("ping") is not None


@SAFE
@given(
    st.fixed_dictionaries(
        {"topic": st.just("t") | JSON},
        optional=dict.fromkeys(("topic_id", "start", "end", "columns", "metadata", "partitions", "x"), JSON),
    )
)
def test_reads_of_anything_are_planned_or_refused(front: Front, command: dict[str, Any]) -> None:
    front.store.create_topic("t", exist_ok=True)
    descriptor = flight.FlightDescriptor.for_command(wire.encode(command))
    error = failure(lambda: front.client.get_flight_info(descriptor))
    assert error is None or code_of(error) != "error"


@pytest.mark.parametrize(
    ("action", "args", "said"),
    [
        ("bounds", {"ranges": [[0, 0, 3, 0], [1, 0, 3, 0], [0, 2, 5, 0]], "columns": ["value"]}, "do not overlap"),
        ("within", {"ranges": [[0, 2, 5, 0], [0, 0, 2, 0]], "since": 0, "until": 1}, "in their order"),
        ("plan_all", {"ranges": [[0, 0, 0, 5, 0]] * 2}, "do not overlap"),
        ("bounds", {"ranges": [], "columns": ["value"] * 2}, "up to 4,096 columns, each named once"),
        ("bounds", {"ranges": [], "columns": [f"c{i}" for i in range(5000)]}, "up to 4,096 columns, each named once"),
        ("resolve", {"position": "latest", "partitions": [1, 0, 1]}, "a partition is named twice"),
    ],
)
def test_who_plans_gets_no_more_than_there_is(front: Front, action: str, args: dict[str, Any], said: str) -> None:
    topic = front.store.create_topic("t", partitions=2)
    for partition in range(2):
        topic.push_many([b"x"] * 5, partition=partition)
    with pytest.raises(flight.FlightError, match=said) as caught:
        front.act(action, {"topic_id": topic.id, **args})
    assert code_of(caught.value) == "invalid_argument"


def test_what_is_planned_is_apart(front: Front) -> None:
    topic = front.store.create_topic("t", partitions=2)
    topic.push_many([b"x"] * 5, partition=1)
    ranges = [[1, 0, 2, 0], [0, 0, 0, 0], [1, 2, 2, 0], [1, 3, 5, 0]]
    told = front.act("within", {"topic_id": topic.id, "ranges": ranges, "since": 0, "until": 1 << 62})
    assert [each[:3] for each in told] == [[1, 0, 2], [1, 3, 5]]


def test_who_pauses_says_true_or_false(front: Front) -> None:
    topic = front.store.create_topic("t")
    channel = front.store.channel("t", "c", create=True)
    about = {"handle": 1, "channel": [topic.id, "c", channel.id, 10, "host", 7]}
    for action, args in (("pause_topic", {"topic_id": topic.id}), ("pause_channel", about)):
        with pytest.raises(flight.FlightError, match="paused must be true or false"):
            front.act(action, {"args": {**args, "paused": "no"}, "session": "a session"})
    assert not channel.paused


@pytest.mark.parametrize(("host", "pid"), [("h" * 256, 7), ("a\nb", 7), ("\x1b[2J", 7), ("h", -1), ("h", 1 << 31)])
def test_a_consumer_says_a_host_and_a_process_that_can_be(front: Front, host: str, pid: int) -> None:
    topic = front.store.create_topic("t")
    channel = front.store.channel("t", "c", create=True)
    about = {"handle": 1, "channel": [topic.id, "c", channel.id, 10, host, pid]}
    with pytest.raises(flight.FlightError, match="a consumer is of a host and a process"):
        front.act("receive", {"args": about, "session": "a session"})
    assert channel.consumers() == []


@SAFE
@given(data=st.binary(max_size=200))
def test_tickets_and_commands_of_any_bytes_are_refused(front: Front, data: bytes) -> None:
    for ask in (
        lambda: front.client.do_get(flight.Ticket(data)).read_all(),
        lambda: front.client.get_flight_info(flight.FlightDescriptor.for_command(data)),
        lambda: front.act("topic", data),
    ):
        with pytest.raises(flight.FlightError) as caught:
            ask()
        assert code_of(caught.value) in ("invalid_argument", "topic_not_found", "invalid_name")


def test_a_ticket_cannot_name_a_file_or_a_topic_that_is_gone(front: Front) -> None:
    made = wire.Ticket("0" * 32, (wire.Range(0, 0, 5, 0),), pa.schema([]), (), 1000)
    with pytest.raises(flight.FlightServerError) as caught:
        front.client.do_get(flight.Ticket(made.pack())).read_all()
    assert code_of(caught.value) == "topic_deleted"


# --- tokens ----------------------------------------------------------------------------------------------------------

# What each needs on topic `mine`; `operation` is made anew for each token, so each starts from the same store.
Operation = Callable[[jjq.Store], object]
OPERATIONS: dict[str, tuple[str, Operation]] = {
    "read": ("read", lambda store: store.topic("mine").read().read_all()),
    "describe": ("any", lambda store: store.topic("mine").describe()),
    "segments": ("read", lambda store: store.topic("mine").segments()),
    "subscribe": ("read", lambda store: store.create_subscriber("mine").pop()),
    "poll": ("read", lambda store: store.subscriber("theirs").poll()),
    "channel": ("read", lambda store: store.channel("mine", "c", create=True).receive()),
    "follow": ("read", lambda store: next(store.follow(store.topic("mine"), {0: (0, 0)}))),
    "pubsub": ("read", lambda store: store.pubsub().subscribe("mine")),
    "push": ("write", lambda store: store.topic("mine").push(b"v")),
    "push_many": ("write", lambda store: store.topic("mine").push_many([b"v"])),
    "publish": ("write", lambda store: store.publish("mine", b"v")),
    "exactly once": (
        "write",
        lambda store: store.topic("mine").push_table(pa.table({"value": [b"v"]}), writer_id="w", batch_id=1),
    ),
    "create": ("admin", lambda store: store.create_topic("mine2", partitions=2)),
    "alter": ("admin", lambda store: store.alter_topic("mine", partitions=2)),
    "pause": ("admin", lambda store: store.topic("mine").pause()),
    "empty": ("admin", lambda store: store.topic("mine").empty()),
    "delete": ("admin", lambda store: store.delete_topic("mine")),
}
GIVES = {"none": set(), "read": {"read", "any"}, "write": {"write", "any"}, "admin": {"read", "write", "admin", "any"}}


@pytest.mark.parametrize("right", GIVES)
def test_each_kind_of_token_may_do_what_it_says_and_nothing_else(tmp_path: Path, right: str) -> None:
    directory = tmp_path / "store"
    with jjq.open(directory) as store:
        store.create_topic("mine").push(b"v")
        store.create_subscriber("mine", "theirs")
    tokens = TokenFile(directory / "tokens.json")
    rights = {"read": ("other",)} if right == "none" else {right: ("mine*",)}
    secret, _ = tokens.create("ours", **rights)
    allowed = {}
    for name, (_, operation) in OPERATIONS.items():
        made = Front(directory)
        try:
            with jjq.connect(f"jjq://127.0.0.1:{made.port}", token=secret, retry_s=0) as store:
                try:
                    operation(store)
                except jjq.Forbidden:
                    allowed[name] = False
                else:
                    allowed[name] = True
            if name == "delete" and allowed[name]:
                made.store.create_topic("mine").push(b"v")
        finally:
            made.close()
    assert allowed == {name: needs in GIVES[right] for name, (needs, _) in OPERATIONS.items()}


def test_without_a_token_or_with_a_wrong_one_nobody_gets_in(tmp_path: Path) -> None:
    TokenFile(tmp_path / "store" / "tokens.json").path.parent.mkdir()
    jjq.open(tmp_path / "store").close()
    secret, _ = TokenFile(tmp_path / "store" / "tokens.json").create("ours", read=("*",))
    made = Front(tmp_path / "store")
    try:
        for token in (None, "", "jjq_wrong", secret[:-1]):
            with pytest.raises(jjq.Unauthorized):
                jjq.connect(f"jjq://127.0.0.1:{made.port}", token=token, retry_s=0)
            for ask in (
                lambda token=token: made.act("ping", token=token),
                lambda token=token: list(made.client.list_actions(made.options(token))),
                lambda token=token: list(made.client.list_flights(options=made.options(token))),
                lambda token=token: made.client.do_get(flight.Ticket(b"x"), made.options(token)).read_all(),
            ):
                with pytest.raises(flight.FlightUnauthenticatedError):
                    ask()
        with jjq.connect(f"jjq://127.0.0.1:{made.port}", token=secret) as store:
            assert store.topics() == []
    finally:
        made.close()


def test_a_session_is_of_the_token_that_began_it(tmp_path: Path) -> None:
    jjq.open(tmp_path / "store").close()
    tokens = TokenFile(tmp_path / "store" / "tokens.json")
    mine, _ = tokens.create("mine", read=("*",))
    other, _ = tokens.create("other", read=("*",))
    made = Front(tmp_path / "store")
    try:
        body = {"args": {}, "session": "a session"}
        made.act("ping", body, mine)
        with pytest.raises(flight.FlightUnauthorizedError, match="another caller's"):
            made.act("close_session", body, other)
    finally:
        made.close()


# --- stopping --------------------------------------------------------------------------------------------------------


def test_a_broker_that_stops_tells_who_waits_and_cuts_off_who_says_nothing(front: Front) -> None:
    front.store.create_topic("t")
    table = pa.table({"value": [b"a"]})
    writer, reader = front.client.do_put(flight.FlightDescriptor.for_path("t"), table.schema)
    writer.write_table(table)
    assert reader.read() is not None  # and now it says nothing, and ends nothing
    states: list[str] = []
    with jjq.connect(f"jjq://127.0.0.1:{front.port}", retry_s=0, on_state=states.append) as store:
        waiting = store.create_subscriber("t", start="latest")
        waited: list[BaseException] = []

        def wait() -> None:
            try:
                waiting.pop(timeout=None)
            except jjq.JjqError as error:
                waited.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        while not store.connection._outstanding:
            pass
        front.front.stop(0.1)
        thread.join(60)
    assert [type(each) for each in waited] == [jjq.BrokerUnavailable]
    assert states == ["connected", "reconnecting", "closed"]
    with pytest.raises(flight.FlightError):
        writer.close()


def test_a_broker_that_cuts_off_clients_keeps_no_file_of_the_store_open(tmp_path: Path) -> None:
    """Or its locks would be held for as long as this process lives."""
    made = Front(tmp_path / "store")
    made.store.create_topic("t")
    table = pa.table({"value": [b"a"]})
    writer, reader = made.client.do_put(flight.FlightDescriptor.for_path("t"), table.schema)
    writer.write_table(table)
    assert reader.read() is not None  # and now it says nothing
    made.front.stop(0.1)
    made.store.close()
    with pytest.raises(flight.FlightError):
        writer.close()
    made.client.close()
    opened = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            opened.append(os.readlink(f"/proc/self/fd/{number}"))
    assert [each for each in opened if each.startswith(str(tmp_path))] == []


# --- what is asked of a topic ----------------------------------------------------------------------------------------


def test_a_topic_that_may_not_be_read_any_more_is_not_followed_on_by_the_name_of_another(tmp_path: Path) -> None:
    made = Front(tmp_path / "store")
    tokens = TokenFile(tmp_path / "store" / "tokens.json")
    try:
        mine, other = made.store.create_topic("mine"), made.store.create_topic("other")
        mine.push(b"a")
        secret, _ = tokens.create("reader", read=("mine", "other"))
        body = {"session": "a session", "args": {"handle": 1, "topic_id": mine.id, "places": [[0, 0, 0]]}}
        assert len(made.act("follow", body, secret)["records"]) == 1
        mine.push(b"b")
        tokens.revoke("reader")
        secret, _ = tokens.create("reader", read=("other",))
        body["args"] = {"handle": 1, "topic_id": other.id, "places": [[0, 0, 0]]}
        with pytest.raises(flight.FlightUnauthorizedError, match="no read right for topic 'mine'"):
            made.act("follow", body, secret)
    finally:
        made.close()


@pytest.mark.parametrize(
    "columns",
    [
        [("wide", pa.binary(1 << 20))],
        [("value", pa.binary(1 << 20))],
        [("value", pa.binary()), ("value", pa.binary())],
    ],
    ids=["of no file", "of another type", "twice"],
)
def test_a_ticket_has_columns_of_its_topic(front: Front, columns: list[Any]) -> None:
    """What no file has is made of nulls, and a ticket is a client's own word: a few bytes of it would be any number in memory."""
    topic = front.store.create_topic("t")
    topic.push_many([b"v"] * 1000)
    made = wire.Ticket(topic.id, (wire.Range(0, 0, 1000, 0),), pa.schema(columns), (), 1000)
    with pytest.raises(flight.FlightServerError, match="get a ticket with GetFlightInfo") as caught:
        front.client.do_get(flight.Ticket(made.pack())).read_all()
    assert code_of(caught.value) == "schema_mismatch"


def test_a_ticket_may_have_a_column_that_was_added_a_moment_ago(front: Front) -> None:
    topic = front.store.create_topic("t", schema=pa.schema([("a", pa.int64())]))
    topic.push({"a": 1})
    front.act("describe", {"topic_id": topic.id})  # the broker knows it as it is now
    with jjq.open(front.directory) as elsewhere:
        elsewhere.alter_topic("t", add_columns=pa.schema([("b", pa.string())]))
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    made = wire.Ticket(topic.id, (wire.Range(0, 0, 1, 0),), schema, (), 1000)
    assert front.client.do_get(flight.Ticket(made.pack())).read_all().to_pylist() == [{"a": 1, "b": None}]


def test_an_answer_has_only_so_many_bytes_of_records(front: Front) -> None:
    """It is in memory whole, here and at the client, and gRPC takes up to 2 GiB."""
    topic = front.store.create_topic("t", sync="none")
    for _ in range(4):
        topic.push_many([bytes(1 << 20)] * 10)
    with jjq.connect(f"jjq://127.0.0.1:{front.port}") as store:
        subscriber = store.create_subscriber("t", "s")
        polls = []
        while records := subscriber.poll(500):
            polls.append([each.offset for each in records])
        assert [offset for each in polls for offset in each] == list(range(40))
        assert max(map(len, polls)) <= 16
        followed: list[int] = []
        for some in store.follow(store.topic("t"), {0: (0, 0)}):
            assert len(some) <= 16
            followed += [each.offset for each in some]
            if len(followed) == 40:
                break
        assert followed == list(range(40))


def test_an_answer_has_one_record_that_is_larger_and_no_more(front: Front) -> None:
    topic = front.store.create_topic("t", sync="none")
    topic.push_many([bytes(9 << 20)] * 3 + [b"small"] * 3)
    with jjq.connect(f"jjq://127.0.0.1:{front.port}") as store:
        subscriber = store.create_subscriber("t", "s")
        assert [[each.offset for each in subscriber.poll(max_bytes=None)] for _ in range(5)] == [
            [0],
            [1],
            [2],
            [3, 4, 5],
            [],
        ]
        follow = store.follow(store.topic("t"), {0: (0, 0)})
        assert [[each.offset for each in next(follow)] for _ in range(3)] == [[0], [1], [2]]
