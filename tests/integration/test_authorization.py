"""Each operation with each kind of token, on both fronts: who may, does; who may not, is told so; and nobody else gets in."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pytest
from pyarrow import flight

import jjq
from jjq.errors import Forbidden, InvalidArgument, JjqError, Unauthorized
from jjq.server.guard import NEEDS
from jjq.server.http_app import all_operations
from jjq.server.http_operations import Operation
from jjq.server.settings import tokens_in
from jjq.server.tokens import TokenFile
from tests.brokers import Served, serving

# What each kind of token may: (action, whether it is about the topic `t` or the whole store).
RIGHTS: dict[str, dict[str, tuple[str, ...]]] = {
    "read": {"read": ("t*",)}, "write": {"write": ("t*",)}, "admin": {"admin": ("t*",)},
    "read all": {"read": ("*",)}, "write all": {"write": ("*",)}, "admin all": {"admin": ("*",)},
    "of another": {"admin": ("other",)},
}  # fmt: skip
MAY: dict[tuple[str, str], set[str]] = {
    ("any", "topic"): {"read", "write", "admin", "read all", "write all", "admin all"},
    ("read", "topic"): {"read", "admin", "read all", "admin all"},
    ("write", "topic"): {"write", "admin", "write all", "admin all"},
    ("admin", "topic"): {"admin", "admin all"},
    ("read", "store"): {"read all", "admin all"},
    ("admin", "store"): {"admin all"},
}  # fmt: skip
STRANGERS = ("none", "wrong", "expired", "revoked")
KINDS = (*STRANGERS, *RIGHTS)


@dataclass
class World:
    """A broker, a token of each kind, and a way to the store behind the broker's back."""

    broker: Served
    tokens: dict[str, str | None]
    store: jjq.Store

    def prepare(self, topic: str = "t") -> None:
        """Makes what operations act on, again where an operation took it away."""
        made = self.store.create_topic(topic, exist_ok=True)
        made.push(b"x")
        made.push_file(topic.encode())
        self.store.create_subscriber(topic, f"{topic}-s", exist_ok=True).close()
        self.store.channel(topic, "c", create=True).close()
        self.store.reset_writer("t-w")
        made.push_table(pa.table({"value": [b"x"]}), writer_id="t-w", batch_id=0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    path = tmp_path_factory.mktemp("world") / "store"
    with jjq.open(path) as store:
        file = TokenFile(tokens_in(path))
        tokens: dict[str, str | None] = {"none": None, "wrong": "jjq_" + "x" * 43}
        tokens |= {kind: file.create(kind.replace(" ", "-"), **rights)[0] for kind, rights in RIGHTS.items()}
        tokens["expired"] = file.create("expired", admin=("*",), expires_in_us=1)[0]
        tokens["revoked"] = file.create("revoked", admin=("*",))[0]
        file.revoke("revoked")
        with serving(path, "--events-topic", "t") as broker:
            yield World(broker, tokens, store)


def test_the_kinds_of_tokens_are_all_there(world: World) -> None:
    assert set(world.tokens) == set(KINDS)


# --- Flight ----------------------------------------------------------------------------------------------------------


def test_a_token_may_be_what_was_read_of_a_file(world: World) -> None:
    world.prepare()
    with jjq.connect(world.broker.flight, token=f" {world.tokens['read']}\r\n") as remote:
        assert remote.topic("t").name == "t"


_ONE = pa.table({"value": [b"x"]})
ByFlight = Callable[[Any, str], Any]  # of a remote store, and the name of a topic of its own
BY_FLIGHT: dict[str, tuple[str, str, ByFlight]] = {
    "topic.describe": ("any", "topic", lambda r, t: r.topic(t).describe()),
    "topic.describe, offsets": ("any", "topic", lambda r, t: r.topic(t).offsets()),
    "topic.create": ("admin", "topic", lambda r, t: r.create_topic(f"{t}-new", partitions=2)),
    "topic.alter": ("admin", "topic", lambda r, t: r.alter_topic(t, retention_bytes=1 << 30)),
    "topic.delete": ("admin", "topic", lambda r, t: r.delete_topic(t)),
    "topic.empty": ("admin", "topic", lambda r, t: r.topic(t).empty()),
    "topic.pause": ("admin", "topic", lambda r, t: r.topic(t).pause()),
    "topic.pause, unpause": ("admin", "topic", lambda r, t: r.topic(t).unpause()),
    "push": ("write", "topic", lambda r, t: r.topic(t).push(b"x")),
    "push, many": ("write", "topic", lambda r, t: r.topic(t).push_many([b"x", b"y"])),
    "push, table": ("write", "topic", lambda r, t: r.topic(t).push_table(pa.table({"value": [b"x"]}))),
    "push, first use": ("write", "topic", lambda r, t: r.create_topic(f"{t}-used")),
    "push, exactly once": ("write", "topic", lambda r, t: r.topic(t).push_table(_ONE, writer_id=t[:99], batch_id=0)),
    "push, producer": ("write", "topic", lambda r, t: _by_producer(r, t)),
    "push, publish": ("write", "topic", lambda r, t: r.publish(t, b"x")),
    "commit": ("write", "topic", lambda r, t: _by_commit(r, t)),
    "push, object": ("write", "topic", lambda r, t: r.topic(t).push_file(b"pushed")),
    "read": ("read", "topic", lambda r, t: r.topic(t).read().read_all()),
    "read, object": ("read", "topic", lambda r, t: r.open_object(f"sha256:{sha256(t.encode()).hexdigest()}").close()),
    "read, objects": ("read", "store", lambda r, _: r.list_objects()),
    "read, segments": ("read", "topic", lambda r, t: r.topic(t).segments()),
    "read, slices": ("read", "topic", lambda r, t: list(r.read_slices(r.topic(t).plan(0, 0, 1)))),
    "read, times": ("read", "topic", lambda r, t: r.topic(t).reader.within(_one_slice(r, t), 0, 1)),
    "read, plans": ("read", "topic", lambda r, t: r.topic(t).reader.plan_all([(0, 0, 0, 1, 0)])),
    "read, bounds": ("read", "topic", lambda r, t: r.connection.ask("bounds", topic_id=r.topic(t).id, ranges=[], columns=[])),
    "read, awaited": ("read", "topic", lambda r, t: r.await_records([(r.topic(t).id, 0, 99)], 1.0)),
    "read, subscription": ("read", "topic", lambda r, t: _by_subscription(r, t)),
    "subscriber.create": ("read", "topic", lambda r, t: r.create_subscriber(t)),
    "subscriber.use": ("read", "topic", lambda r, t: r.subscriber(f"{t}-s").pop(timeout=0)),
    "subscriber.use, lag": ("read", "topic", lambda r, t: r.subscriber(f"{t}-s").lag()),
    "subscriber.use, seek": ("read", "topic", lambda r, t: r.subscriber(f"{t}-s").seek("earliest")),
    "subscriber.delete": ("read", "topic", lambda r, t: r.delete_subscriber(f"{t}-s")),
    "channel.create": ("read", "topic", lambda r, t: r.channel(t, "new", create=True)),
    "channel.use": ("read", "topic", lambda r, t: r.channel(t, "c").receive(timeout=0)),
    "channel.use, counts": ("read", "topic", lambda r, t: r.channel(t, "c").counts()),
    "channel.pause": ("admin", "topic", lambda r, t: r.channel(t, "c").pause()),
    "channel.empty": ("admin", "topic", lambda r, t: r.channel(t, "c").empty()),
    "channel.delete": ("admin", "topic", lambda r, t: r.delete_channel(t, "c")),
    "writer.list": ("read", "store", lambda r, t: r.writers()),
    "writer.reset": ("admin", "store", lambda r, t: r.reset_writer("t-w")),
    "stats": ("read", "store", lambda r, t: r.stats()),
    "maintain": ("admin", "store", lambda r, t: r.maintain()),
    "verify": ("admin", "store", lambda r, t: r.verify()),
    "stats, of a topic": ("read", "topic", lambda r, t: r.stats(t)),
}  # fmt: skip
# Lists leave out what may not be seen instead of refusing.
BY_LIST: dict[str, tuple[str, Callable[[Any], set[str]]]] = {
    "topic.list": ("any", lambda r: {each.name for each in r.topics()}),
    "topic.list, offsets": ("any", lambda r: set(r.offsets())),
    "subscriber.list": ("read", lambda r: {each.topic.name for each in r.subscribers()}),
    "channel.list": ("read", lambda r: {each.topic.name for each in r.channels()}),
}


def _one_slice(remote: Any, topic: str) -> list[jjq.Slice]:
    return [jjq.Slice(remote.topic(topic).id, topic, 0, 0, 1, 0, 0)]


def _by_producer(remote: Any, topic: str) -> None:
    with remote.producer() as producer:
        producer.push(topic, b"x").result()


def _by_commit(remote: Any, topic: str) -> None:
    with remote.stage() as stage:
        stage.write(remote.topic(topic), pa.table({"value": [b"x"]}))
        remote.commit(stage.finish())


def _by_subscription(remote: Any, topic: str) -> None:
    with remote.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(topic)


@pytest.fixture(scope="module")
def remotes(world: World) -> Iterator[dict[str, Any]]:
    """A connection with each token that there is; of strangers none comes about."""
    with contextlib.ExitStack() as opened:
        found = {}
        for kind, token in world.tokens.items():
            if kind not in STRANGERS:
                found[kind] = opened.enter_context(jjq.connect(world.broker.flight, token=token))
        yield found


def test_the_table_of_flight_has_every_operation() -> None:
    covered = {name.partition(",")[0] for name in (*BY_FLIGHT, *BY_LIST)}
    assert covered == set(NEEDS)
    for name, (action, _, _) in BY_FLIGHT.items():
        assert NEEDS[name.partition(",")[0]] == action


@pytest.mark.parametrize("operation", BY_FLIGHT)
def test_by_flight_a_token_does_what_it_may_and_nothing_else(
    world: World, remotes: dict[str, Any], operation: str
) -> None:  # fmt: skip
    action, scope, run = BY_FLIGHT[operation]
    allowed = set()
    for kind in RIGHTS:
        topic = f"t-{operation}-{kind}".translate({ord(each): "-" for each in " ,"})
        world.prepare(topic)
        with contextlib.suppress(Forbidden):
            run(remotes[kind], topic)
            allowed.add(kind)
    assert allowed == MAY[action, scope]


@pytest.mark.parametrize("kind", RIGHTS)
@pytest.mark.parametrize("operation", BY_LIST)
def test_by_flight_lists_show_what_may_be_seen(
    world: World, remotes: dict[str, Any], operation: str, kind: str
) -> None:  # fmt: skip
    world.prepare("t")
    world.prepare("other")
    action, run = BY_LIST[operation]
    seen = {topic for topic in run(remotes[kind]) if topic in ("t", "other")}
    right, _, all_ = kind.partition(" ")
    if kind == "of another":
        assert seen == {"other"}
    elif right == "write" and action == "read":
        assert seen == set()
    else:
        assert seen == ({"t", "other"} if all_ else {"t"})


@pytest.mark.parametrize("kind", STRANGERS)
def test_by_flight_a_stranger_gets_nothing_out_of_any_call(world: World, kind: str) -> None:
    token = world.tokens[kind]
    with pytest.raises(Unauthorized), jjq.connect(world.broker.flight, token=token) as remote:
        remote.topics()
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    options = flight.FlightCallOptions(headers=headers)
    path = flight.FlightDescriptor.for_path("t")
    with flight.connect(world.broker.flight.replace("jjq://", "grpc://")) as client:
        known = _actions(world)
        assert len(known) > 30
        calls: list[Callable[[], Any]] = [
            *(lambda name=name: list(client.do_action(flight.Action(name, b"{}"), options)) for name in known),
            lambda: client.list_actions(options), lambda: list(client.list_flights(b"", options)),
            lambda: client.get_flight_info(path, options),
            lambda: client.do_get(flight.Ticket(b"{}"), options).read_all(), lambda: _put(client, path, options),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(flight.FlightUnauthenticatedError) as refusal:
                call()
            assert "Traceback" not in str(refusal.value)
        # What is not served at all says so to anybody, and nothing more.
        for call in (lambda: client.get_schema(path, options), lambda: _exchange(client, path, options)):
            with pytest.raises((OSError, flight.FlightError), match=r"GetFlightInfo|DoExchange") as refusal:
                call()
            assert "Traceback" not in str(refusal.value)


def _actions(world: World) -> list[str]:
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {world.tokens['admin all']}".encode())])
    with flight.connect(world.broker.flight.replace("jjq://", "grpc://")) as client:
        return [each.type for each in client.list_actions(options)]


def _put(client: Any, path: Any, options: Any) -> None:
    writer, _ = client.do_put(path, pa.schema([("value", pa.binary())]), options)
    with contextlib.suppress(pa.ArrowException):
        writer.write_batch(pa.record_batch({"value": [b"x"]}))
    writer.close()


def _exchange(client: Any, path: Any, options: Any) -> None:
    writer, reader = client.do_exchange(path, options)
    with writer:
        reader.read_chunk()


# --- HTTP ------------------------------------------------------------------------------------------------------------

OPERATIONS = {f"{each.method} {each.path}": each for each in all_operations() if each.action is not None}
SAMPLES = {
    "topic": "t", "channel": "c", "subscriber": "t-s", "writer": "t-w", "name": "t", "type": "x", "partition": "0",
    "offset": "0", "start": "0", "end": "1", "topics": "t*,other*",
}  # fmt: skip


def sample(operation: Operation) -> str:
    """A path with what it must have, and nothing else."""
    path, given = operation.path, {}
    for each in operation.parameters:
        value = SAMPLES.get(each.name, "x")
        if each.where == "path":
            path = path.replace(f"{{{each.name}}}", quote(value, safe=""))
        elif each.where == "query" and each.required:
            given[each.name] = value
    return f"{path}?{urlencode(given)}" if given else path


BODIES = {
    "POST /api/subscribers": b'{"topic": "t"}', "POST /api/topics": b'{"name": "t-new"}',
    "PATCH /api/topics/{topic}": b'{"retention_bytes": 1073741824}',
    "POST /api/subscribers/{subscriber}/seek": b'{"start": 0}',
    "POST /api/subscribers/{subscriber}/commit": b'{"next": ""}',
    "POST /api/commit": b'{"staged": [{"topic": "t"}]}', "POST /api/discard": b'{"staged": [{"topic": "t"}]}',
}  # fmt: skip


def ask(world: World, operation: Operation, token: str | None) -> int:
    """The status of the answer, of which nothing more is read: some have no end."""
    host, _, port = world.broker.http.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port))
    try:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        default = None if operation.method in ("GET", "HEAD", "DELETE") else b"{}"
        body = BODIES.get(f"{operation.method} {operation.path}", default)
        if body is not None:
            kinds = operation.body or {}
            headers["Content-Type"] = (
                "application/json" if "application/json" in kinds else next(iter(kinds), "text/plain")
            )
        connection.request(operation.method, sample(operation), body=body, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_http_has_operations_for_every_action_of_a_token() -> None:
    assert {NEEDS[str(each.action)] for each in OPERATIONS.values()} == {"any", "read", "write", "admin"}


@pytest.mark.parametrize("name", OPERATIONS)
def test_by_http_a_stranger_is_asked_for_a_token(world: World, name: str) -> None:
    world.prepare()
    assert {kind: ask(world, OPERATIONS[name], world.tokens[kind]) for kind in STRANGERS} == dict.fromkeys(
        STRANGERS, 401
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_by_http_a_token_does_what_it_may_and_nothing_else(world: World, name: str) -> None:
    operation = OPERATIONS[name]
    action = NEEDS[str(operation.action)]
    names_topic = any(each.name == "topic" for each in operation.parameters)
    if operation.scope == "list":  # of what may be seen
        allowed = set(RIGHTS)
    else:
        allowed = MAY[action, "topic" if operation.scope or names_topic else "store"]
    refused = {}
    # Who may comes last: it may take away what the others are refused.
    for kind in sorted(RIGHTS, key=lambda kind: kind in allowed):
        world.prepare()
        status = ask(world, operation, world.tokens[kind])
        assert status != 401
        assert status < 500, f"{kind}: {status}"
        refused[kind] = status == 403
    assert refused == {kind: kind not in allowed for kind in RIGHTS}


def test_the_store_is_whole_after_all_of_it(world: World) -> None:
    assert world.store.verify().ok
    with contextlib.suppress(JjqError):
        world.store.delete_topic("t")


def fetch(
    world: World, method: str, path: str, token: str | None, body: bytes | None = None, kind: str = "application/json"
) -> tuple[int, bytes]:  # fmt: skip
    host, _, port = world.broker.http.removeprefix("http://").partition(":")
    with contextlib.closing(http.client.HTTPConnection(host, int(port))) as connection:
        connection.request(method, path, body, headers={"Authorization": f"Bearer {token}", "Content-Type": kind})
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.mark.parametrize(("kind", "named"), [("of another", False), ("read all", True)])
def test_what_is_not_there_names_nothing_that_may_not_be_seen(world: World, kind: str, named: bool) -> None:
    world.prepare()
    with contextlib.suppress(jjq.TopicNotFound):
        world.store.delete_topic("other")
    token = world.tokens[kind]
    with jjq.connect(world.broker.flight, token=token) as store:
        for ask in (lambda: store.topic("other"), lambda: store.subscriber("t-x")):
            with pytest.raises((jjq.TopicNotFound, jjq.SubscriberNotFound)) as caught:
                ask()
            assert ("; " in str(caught.value)) is named
    for path in ("/api/topics/other", "/api/subscribers/t-x"):
        status, body = fetch(world, "GET", path, token)
        assert status == 404
        assert (b"; " in body) is named


def test_a_channel_writes_nothing_that_its_maker_may_not_write(world: World) -> None:
    """Neither its topic, at first use, nor dead letters to a topic of others."""
    world.prepare()
    token = world.tokens["read"]
    with jjq.connect(world.broker.flight, token=token) as store:
        with pytest.raises(jjq.TopicNotFound):
            store.connection.act("channel", topic="t-none", name="c", create=True, settings={})
        for create in (False, True):
            with pytest.raises(Forbidden, match="has no write right for topic 'other'"):
                store.channel("t", "c", create=create, dead_letter="other")
        assert store.channel("t", "c", dead_letter="t.c.dead").dead_letter == "t.c.dead"
    assert fetch(world, "PUT", "/api/topics/t-none/channels/c", token, b"{}")[0] == 404
    assert fetch(world, "PUT", "/api/topics/t/channels/c", token, b'{"dead_letter": "other"}')[0] == 403
    assert fetch(world, "PUT", "/api/topics/t/channels/c", token, b'{"dead_letter": "t.c.dead"}')[0] == 200
    with jjq.connect(world.broker.flight, token=world.tokens["admin all"]) as store:
        assert store.channel("t", "c", dead_letter="other").dead_letter == "other"


@pytest.mark.parametrize(("kind", "seen"), [("read", ["t"]), ("read all", ["elsewhere", "t"])])
def test_numbers_of_a_topic_name_no_other_that_may_not_be_seen(world: World, kind: str, seen: list[str]) -> None:
    world.prepare()
    with jjq.connect(world.broker.flight, token=world.tokens["admin all"]) as store:
        for name in ("t", "elsewhere"):
            subscriber = store.create_subscriber(
                store.create_topic(name, exist_ok=True).name, f"{name}-near", exist_ok=True
            )
            store.topic(name).push(b"x" * 100)
            subscriber.poll()
        listening = store.pubsub()
        listening.subscribe("t", "elsewhere")
        with jjq.connect(world.broker.flight, token=world.tokens[kind]) as other:
            stats = other.stats("t")
        assert [each["names"] for each in stats["subscriptions"]] == [sorted(seen)]
        in_memory = {each["topic"] for each in stats["hot"]["segments"]}
        assert sorted(in_memory & {"t", "elsewhere"}) == seen
        listening.close()
        for name in ("t-near", "elsewhere-near"):
            store.delete_subscriber(name)


def test_a_header_that_names_an_object_does_not_give_it(world: World) -> None:
    """It is of a topic that was pushed to by `push_file`; who knows its hash can push a header to a topic of his own."""
    world.prepare()
    world.store.create_topic("other", exist_ok=True).push_file(b"secret")
    reference = f"sha256:{sha256(b'secret').hexdigest()}"
    offset = world.store.topic("t").push(b"", headers={"jjq-object": reference.encode()}).offset
    path = f"/api/topics/t/partitions/0/records/{offset}/object"
    assert fetch(world, "GET", path, world.tokens["admin"])[0] == 403
    assert fetch(world, "GET", path, world.tokens["read all"]) == (200, b"secret")
    with jjq.connect(world.broker.flight, token=world.tokens["admin"]) as store, pytest.raises(Forbidden):
        store.open_object(reference)


def test_a_subscription_that_is_refused_holds_nothing(world: World) -> None:
    with jjq.connect(world.broker.flight, token=world.tokens["read"]) as store:
        for interest, error in (([["t", "other"], []], Forbidden), ([["t"], [""]], InvalidArgument)):
            with pytest.raises(error):
                store.connection.act("get_message", handle=900, interest=interest, timeout=0)
        assert world.store.pubsub_channels() == []


@pytest.mark.parametrize("path", ["records", "partitions/0/records/0/object"])
def test_what_is_being_sent_by_http_ends_when_the_token_is_revoked(world: World, path: str) -> None:
    topic = world.store.create_topic("t-large", sync="none", exist_ok=True)
    topic.push_file(bytes(32 << 20))
    for _ in range(32):
        topic.push(bytes(1 << 20))
    file = TokenFile(tokens_in(world.store.path))
    token, _ = file.create("reads", read=("t-large",))
    host, _, port = world.broker.http.removeprefix("http://").partition(":")
    with contextlib.closing(http.client.HTTPConnection(host, int(port))) as connection:
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.apache.arrow.stream, */*"}
        connection.request("GET", f"/api/topics/t-large/{path}", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200
        answer.read(1000)
        file.revoke("reads")
        with pytest.raises(http.client.IncompleteRead):
            answer.read()


def test_a_wait_over_http_ends_when_its_token_is_revoked(world: World) -> None:
    """And takes nothing: the record is there for the next."""
    world.prepare()
    file = TokenFile(tokens_in(world.store.path))
    token, _ = file.create("waits", read=("t",))
    subscriber = world.store.create_subscriber("t", "t-waits", start="latest")
    answers: list[tuple[int, bytes]] = []
    waiting = threading.Thread(
        target=lambda: answers.append(fetch(world, "POST", "/api/subscribers/t-waits/pop?timeout=60", token))
    )
    waiting.start()
    while (
        b'jjq_http_running{operation="pop_records"} 1'
        not in fetch(world, "GET", "/metrics", world.tokens["admin all"])[1]
    ):
        assert waiting.is_alive()
    file.revoke("waits")
    world.store.topic("t").push(b"after")
    waiting.join()
    assert answers[0][0] == 401
    record = subscriber.pop()
    assert record is not None
    assert record.value == b"after"


def test_a_writer_is_of_those_who_may_write_where_it_does(world: World) -> None:
    """A batch of it that others commit, be it one without rows, would have its owner refused."""
    world.prepare()
    for name in ("other", "t"):
        world.store.create_topic(name, exist_ok=True)
    world.store.reset_writer("theirs")
    world.store.topic("other").push_table(_ONE, writer_id="theirs", batch_id=7)
    with jjq.connect(world.broker.flight, token=world.tokens["read all"]) as store:
        for writer in ("theirs", "nobodys"):
            with pytest.raises(Forbidden, match="'read-all' has no write right"):
                store.commit([], writer, 99)
    with jjq.connect(world.broker.flight, token=world.tokens["write"]) as store:
        for commit in (
            lambda: store.commit([], "theirs", 99),
            lambda: store.commit([], "theirs", 7, rows_may_differ=True),
            lambda: store.topic("t").push_table(_ONE, writer_id="theirs", batch_id=99),
        ):
            with pytest.raises(Forbidden, match="writer 'theirs'") as refusal:
                commit()
            assert "'other'" not in str(refusal.value)
        store.commit([], "t-nothing", 1)
        with store.stage() as stage:
            stage.write("t", _ONE)
            (file,) = stage.finish()
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, _ONE.schema) as writer:
        writer.write_table(_ONE)
    body = {"staged": [json.loads(file.to_json())], "writer_id": "theirs", "batch_id": 99}
    for path, kind, data in (
        ("/api/topics/t/records?writer_id=theirs&batch_id=99", "application/vnd.apache.arrow.stream", sink.getvalue()),
        ("/api/commit", "application/json", json.dumps(body).encode()),
    ):
        status, answer = fetch(world, "POST", path, world.tokens["write"], data, kind)
        assert (status, json.loads(answer)["code"]) == (403, "forbidden")
    assert world.store.topic("other").push_table(_ONE, writer_id="theirs", batch_id=8).ranges
    world.store.discard([file])
