"""The actions of the Flight front on topics and the store: each is one call of the store. Those of writers are in
`flight_staging.py`, those of consumers in `flight_consuming.py`, those for who plans reads in `flight_planning.py`."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jjq
from jjq import wire
from jjq.catalog.rows import TopicRow
from jjq.errors import (
    DamagedSegment,
    InvalidArgument,
    JjqError,
    StoreError,
    StoreFormat,
    TooManyRequests,
    TopicNotFound,
)
from jjq.model import SegmentInfo, StagedFile
from jjq.server.counters import Requests
from jjq.server.flight_sessions import SILENCE_S, Session, Sessions
from jjq.server.guard import NEEDS, Caller, Guard
from jjq.server.settings import ServerSettings
from jjq.server.staged import check_staged
from jjq.store import Store
from jjq.topic import Topic
from jjq.values import counted, flag, shown

_TOPICS = 4096  # handles of topics that are kept,
_FRESH_S = 2.0  # and how long: others may alter a topic's limits
_STAGED = 100_000
MOST_RANGES = 100_000  # of one request, or ticket
Action = Callable[..., Any]
ACTIONS: dict[str, Action] = {}

log = logging.getLogger("jjq.server")


def action(function: Action) -> Action:
    """Makes a function an action of its name. Its arguments are those of the message, by name."""
    ACTIONS[function.__name__] = function
    return function


class Served:
    """A store as the Flight front serves it, to all callers."""

    def __init__(self, store: Store, settings: ServerSettings, guard: Guard, requests: Requests) -> None:
        self.store, self.settings, self.guard, self.requests = store, settings, guard, requests
        self.sessions = Sessions(settings.max_connections)
        self.stopping = False
        self._streams = 0  # on which somebody sends
        self._topics: dict[str, tuple[Topic, float]] = {}  # and when it was made
        self._staged: dict[str, StagedFile] = {}
        self._mutex = threading.Lock()

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """While a client sends batches: each such stream keeps a thread here, however little comes."""
        most = self.settings.max_connections
        with self._mutex:
            if self._streams >= most:
                raise TooManyRequests(
                    f"{counted(most, 'stream of batches is', 'streams of batches are')} open, as many as the broker takes (max_connections); try again later",
                    retry_after=5.0,
                )
            self._streams += 1
        try:
            yield
        finally:
            with self._mutex:
                self._streams -= 1

    def topic_by_id(self, topic_id: object) -> Topic:
        """A handle of the topic, kept among calls; raises TopicDeleted."""
        if not isinstance(topic_id, str):
            raise InvalidArgument(f"topic_id is the id of a topic, not {shown(topic_id)}")
        found, made_at = self._topics.get(topic_id, (None, 0.0))
        if found is None or time.monotonic() - made_at > _FRESH_S:
            row = self.store.catalog.topic_by_id(topic_id)
            if row is None:
                raise self.store.catalog.deleted(topic_id)
            if len(self._topics) >= _TOPICS:
                self._topics.clear()
            found = self.store._topic(row)
            self._topics[topic_id] = found, time.monotonic()
        return found

    def remember(self, files: Sequence[StagedFile]) -> None:
        """What this broker has staged, it need not look at again when it is committed."""
        with self._mutex:
            self._staged |= {each.uuid: each for each in files}
            while len(self._staged) > _STAGED:
                del self._staged[next(iter(self._staged))]

    def check_staged(self, file: StagedFile) -> None:
        """As `jjq.server.staged.check_staged`, of what this broker has not staged itself."""
        if self._staged.get(file.uuid) != file:
            check_staged(self.store, file)

    def forget(self, topic_id: str) -> None:
        """Its settings were changed."""
        self._topics.pop(topic_id, None)


@dataclasses.dataclass(slots=True)
class Call:
    """One request: who asks, and of what."""

    served: Served
    caller: Caller
    session: Session | None = None

    @property
    def store(self) -> Store:
        return self.served.store

    def may(self, operation: str, topic: str | None) -> None:
        """Raises Forbidden unless the caller may do that; what changes more than records is written down."""
        needed = NEEDS[operation]
        self.caller.may(needed, topic)
        if needed == "admin":
            self.served.guard.audit(self.caller, operation, topic)

    def can(self, operation: str, topic: str | None) -> bool:
        return self.caller.can(NEEDS[operation], topic)

    def topic(self, operation: str, topic_id: object) -> Topic:
        """The topic of that id, on which the caller may do that."""
        found = self.served.topic_by_id(topic_id)
        self.may(operation, found.name)
        return found

    def pushed_to(self, topic_id: object, records: int, bytes_: int) -> Topic:
        """The topic of that id, to which the caller may push so much. Asked for each push of a stream: rights may be taken
        back, and limits altered."""
        found = self.served.topic_by_id(topic_id)
        self.caller.may_push(found.name, records, bytes_)
        return found

    def named(self, operation: str, name: Any) -> Topic:
        """The topic of that name. Who may not see it is not told whether it is there."""
        if isinstance(name, str):
            self.may(operation, name)
        try:
            return self.store.topic(name)
        except TopicNotFound as error:
            raise self.caller.told(error) from None

    def own_session(self) -> Session:
        if self.session is None:
            raise InvalidArgument("this action needs a session: a text of the client's own, as random as can be")
        return self.session


def run(name: str, call: Call, args: object) -> Any:
    """Does an action; raises InvalidArgument for one that there is not, or that takes other arguments."""
    function = ACTIONS.get(name)
    if function is None:
        raise InvalidArgument(f"there is no action {shown(name)}; ListActions names all")
    if not isinstance(args, Mapping) or not all(isinstance(each, str) for each in args):
        raise InvalidArgument(f"the arguments of {name} are an object, by their names")
    try:
        inspect.signature(function).bind(call, **args)
    except TypeError as error:
        raise InvalidArgument(f"{name}: {error}; it takes {', '.join(arguments(function)) or 'nothing'}") from error
    try:
        return function(call, **args)
    except JjqError as error:
        raise call.caller.told(error) from error.__cause__


def arguments(function: Action) -> list[str]:
    return list(inspect.signature(function).parameters)[1:]


def listed(given: object, what: str) -> list[Any]:
    if isinstance(given, list):
        return given
    raise InvalidArgument(f"{what} is a list, not {shown(given)}")


def texts(given: object, what: str) -> list[str]:
    if all(isinstance(each, str) for each in listed(given, what)):
        return listed(given, what)
    raise InvalidArgument(f"{what} is a list of texts, not {shown(given)}")


def named_values(given: object, what: str) -> dict[str, Any]:
    """What a client gives by names, or nothing."""
    if given is None:
        return {}
    if isinstance(given, dict) and all(isinstance(each, str) for each in given):
        return given
    raise InvalidArgument(f"{what} is an object with names, not {shown(given)}")


def pack_topic(row: TopicRow) -> dict[str, Any]:
    return {
        "id": row.id, "name": row.name, "partitions": row.partitions, "config": row.config,
        "schema_version": row.schema_version, "created_at": row.created_at, "schema": wire.pack_schema(row.schema),
    }  # fmt: skip


# --- the connection --------------------------------------------------------------------------------------------------


@action
def hello(call: Call) -> dict[str, Any]:
    """What a client needs to know first."""
    return {
        "protocol": wire.PROTOCOL, "version": jjq.__version__, "store": call.store.id, "read_only": call.store.read_only,
        "create_topics": call.store.create_topics, "silence_s": SILENCE_S,
        "max_request_bytes": call.served.settings.max_request_bytes, "broker": call.served.sessions.broker,
    }  # fmt: skip


@action
def ping(call: Call) -> dict[str, Any]:
    """Shows that a session lives."""
    return {"stopping": call.served.stopping, "broker": call.served.sessions.broker}


@action
def close_handle(call: Call, handle: int) -> None:
    call.own_session().close_handle(handle)


@action
def close_session(call: Call) -> None:
    """Closes all handles of a client that is about to go."""
    call.served.sessions.end(call.own_session().id)


# --- topics ----------------------------------------------------------------------------------------------------------


@action
def topic(call: Call, name: Any) -> dict[str, Any]:
    return pack_topic(call.named("topic.describe", name).row)


@action
def topic_by_id(call: Call, topic_id: Any) -> dict[str, Any]:
    found = call.topic("topic.describe", topic_id)
    found.refresh()
    return pack_topic(found.row)


@action
def topics(call: Call) -> list[dict[str, Any]]:
    return [pack_topic(each.row) for each in call.store.topics() if call.can("topic.list", each.name)]


@action
def create_topic(
    call: Call, name: Any, partitions: Any = None, schema: bytes | None = None, exist_ok: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Makes a topic. Who may push to it may make it on first use, where that is not switched off."""
    given = named_values(settings, "settings")
    plain = partitions in (None, 1) and schema is None and given.keys() <= {"ephemeral"}
    call.may("push" if plain and call.store.create_topics else "topic.create", name if isinstance(name, str) else None)
    made = call.store.create_topic(
        name, partitions=partitions, schema=wire.unpack_schema(schema), exist_ok=exist_ok, **given
    )
    return pack_topic(made.row)


@action
def alter_topic(
    call: Call, name: Any, partitions: Any = None, add_columns: bytes | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    call.named("topic.alter", name)
    altered = call.store.alter_topic(
        name, partitions=partitions, add_columns=wire.unpack_schema(add_columns), **named_values(settings, "settings")
    )
    call.served.forget(altered.id)
    return pack_topic(altered.row)


@action
def delete_topic(call: Call, name: Any) -> None:
    gone = call.named("topic.delete", name)
    call.store.delete_topic(name)
    call.served.forget(gone.id)


@action
def empty_topic(call: Call, topic_id: Any) -> None:
    call.topic("topic.empty", topic_id).empty()


@action
def pause_topic(call: Call, topic_id: Any, paused: bool) -> None:
    call.store.pause_topic(call.topic("topic.pause", topic_id), flag(paused, "paused"))


@action
def topic_is_paused(call: Call, topic_id: Any) -> bool:
    return call.topic("topic.describe", topic_id).paused


@action
def offsets(call: Call, topic_id: Any) -> list[Any]:
    found = call.topic("topic.describe", topic_id).offsets()
    return [[each.partition, each.start, each.end, each.lineage] for each in found]


@action
def all_offsets(call: Call, names: Sequence[str] | None = None) -> list[Any]:
    """What topics hold, by name: of those that are named, or of all."""
    if names is not None:
        texts(names, "names")
    found = call.store.offsets(names, matching=lambda name: call.can("topic.list", name))
    return [
        [each.id, name, [[p.partition, p.start, p.end, p.lineage] for p in each.partitions]]
        for name, each in found.items()
    ]


@action
def resolve(
    call: Call, topic_id: Any, position: Any, end: bool = False, partitions: Sequence[int] | None = None, closed: bool = False
) -> list[Any]:  # fmt: skip
    """Offsets by partition for a start, or an end; `closed`: of closed files alone."""
    topic = call.topic("topic.describe", topic_id)
    if partitions is not None:
        partitions = topic.check_partitions(listed(partitions, "partitions"))
    return list(topic.resolve(position, end=end, partitions=partitions, closed=closed).items())


@action
def segments(call: Call, topic_id: Any, partition: Any = None) -> list[dict[str, Any]]:
    return [_segment(call.store, each) for each in call.topic("read", topic_id).segments(partition)]


def _segment(store: Store, info: SegmentInfo) -> dict[str, Any]:
    """A client is told where in the store a file is, and not where the store is."""
    path = None if info.path is None else info.path.removeprefix(f"{store.path}/")
    return {**info.to_dict(), "path": path}


@action
def describe(call: Call, topic_id: Any) -> dict[str, Any]:
    found = call.topic("topic.describe", topic_id).describe()
    return {**found, "schema": wire.outgoing(found["schema"])}


# --- the store -------------------------------------------------------------------------------------------------------


@action
def stats(call: Call, topic: Any = None) -> dict[str, Any]:
    call.may("stats", topic if isinstance(topic, str) else None)
    found = call.store.stats(topic)
    del found["store"]["path"]
    found["damaged"] = wire.hidden(found["damaged"], str(call.store.path))
    if not call.can(
        "stats", None
    ):  # what is in memory, listened to or was maintained beside it tells of no other topics
        found["hot"]["segments"] = [each for each in found["hot"]["segments"] if call.can("read", each["topic"])]
        for each in found["subscriptions"]:
            each["names"] = [name for name in each["names"] if call.can("topic.list", name)]
        did = (found["maintenance"] or {}).get("did", {})
        for name in [name for name, value in did.items() if isinstance(value, list)]:
            del did[name]
    return found


@action
def maintain(call: Call, grace_us: Any = None) -> dict[str, Any]:
    """Does what is due, and says what that was."""
    call.may("maintain", None)
    found: dict[str, Any] = wire.hidden(call.store.maintain(grace_us=grace_us).to_dict(), str(call.store.path))
    return found


@action
def verify(call: Call, sample: Any = None) -> dict[str, Any]:
    """Reads everything, or a sample of it, and says what is wrong."""
    call.may("verify", None)
    found: dict[str, Any] = wire.hidden(call.store.verify(sample=sample).to_dict(), str(call.store.path))
    return found


def report(error: JjqError, served: Served) -> dict[str, Any]:
    """An error as it goes to a client. Where the disk or a file is what is wrong, who looks after the broker has to hear it, too."""
    if isinstance(error, (StoreError, DamagedSegment, StoreFormat)):
        log.warning("a request by Flight: %s", error)
    return wire.pack_error(error, str(served.store.path))
