"""A store behind a broker: what `jjq.connect` gives."""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from jjq import wire
from jjq.catalog.rows import SubscriberRow, TopicRow
from jjq.channels import MAX_IN_FLIGHT, NOT_GIVEN
from jjq.client import StateCallback, objects
from jjq.client.channel import RemoteChannel
from jjq.client.connection import ANSWER_S, Address, Connection
from jjq.client.log import RemoteLog, Streams
from jjq.client.near import NearFiles
from jjq.client.pubsub import RemotePubSub
from jjq.client.staging import RemoteStage
from jjq.client.subscriber import RemoteSubscriber
from jjq.client.topic import RemoteReader, RemoteTopic, read_ticket
from jjq.clock import now_us
from jjq.config import Duration
from jjq.errors import InvalidArgument, StoreReadOnly
from jjq.hints import keywords_of
from jjq.interest import glob
from jjq.log.projection import output_schema
from jjq.log.sealed import BATCH_BYTES
from jjq.model import Commit, PartitionOffsets, Record, Slice, StagedFile, TopicOffsets, WriterInfo, check_name
from jjq.objects import ObjectInfo
from jjq.parts import Logs
from jjq.producer import Producer, close_all
from jjq.schema import check_schema
from jjq.skipping import check_on_data_loss
from jjq.store import Store
from jjq.values import flag, whole
from jjq.wire import Ticket

if TYPE_CHECKING:
    from jjq.channel import Channel
    from jjq.pubsub import PubSub
    from jjq.reports import MaintenanceReport, Progress, VerifyReport
    from jjq.staging import Stage
    from jjq.subscriber import Subscriber
    from jjq.topic import Topic


_LONG_S = 86_400.0  # for what reads the whole store
_WAITING = 512  # coroutines that wait at once; more take turns


@keywords_of("create_subscriber", "channel", "stage", "commit", "verify")
class RemoteStore(Store):
    """A store that a broker serves; safe among threads. Close it, or use it in a `with` block.

    It is used like an embedded one. What it cannot do, since that takes the store's files, says so. Not for forked children of
    the process that connected.
    """

    def __init__(
        self, url: str, *, token: str | None = None, tls_ca: str | os.PathLike[str] | None = None,
        tls_cert: str | os.PathLike[str] | None = None, tls_key: str | os.PathLike[str] | None = None,
        retry_s: float = 30.0, on_state: StateCallback | None = None,
    ) -> None:  # fmt: skip
        address = Address.parse(url)
        self.url = str(address)
        self.path = Path(self.url)  # as messages name it; there is nothing there
        self.connection = Connection(
            address, token=token, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, retry_s=retry_s, on_state=on_state
        )
        told = self.connection.ask("hello")
        if told["protocol"] != wire.PROTOCOL:
            raise InvalidArgument(
                f"the broker at {self.url} (jjq {told['version']}) speaks another protocol, {told['protocol']} and not "
                f"{wire.PROTOCOL}; install the same version at both ends"
            )
        self.connection.broker = told["broker"]
        self.id = told["store"]
        self.read_only = told["read_only"]
        self.create_topics = told["create_topics"]
        self._append_bytes = min(Store._append_bytes, told["max_request_bytes"])
        self.near: NearFiles | None = None  # where sealed files may be read, instead of being fetched
        self.handle_numbers = itertools.count(1)
        self.let_go: deque[int] = deque()  # handles that nobody has any more, and that were not closed
        self.connection.idle.append(self._close_let_go)
        self.streams = Streams(self.connection)
        self.logs = Logs(self._make_log)
        # A coroutine that waits has a thread wait for it. One is started for each that there is no idle one for.
        self.executor = ThreadPoolExecutor(_WAITING, thread_name_prefix="jjq-wait")
        self.connection.start()

    # --- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes its producers, which write what was pushed, and ends the connection: who waits raises StoreClosed. A second
        close is quiet."""
        try:
            self._closing = True
            close_all(self)
        finally:
            self.streams.close()
            self.connection.close()
            self.executor.shutdown(wait=False)

    def _close_let_go(self) -> None:
        while self.let_go:
            self.connection.tell("close_handle", handle=self.let_go.popleft())

    def __enter__(self) -> RemoteStore:
        return self

    def __repr__(self) -> str:
        return f"<Store {self.url!r} {'closed' if self.connection.closed else 'connected'}>"

    def check_open(self, write: bool = False) -> None:
        self.connection.check_open()
        if write and self.read_only:
            raise StoreReadOnly(f"the store at {self.url} is read-only: it can be read, but nothing can be changed")

    # --- topics ------------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        exist_ok: bool = False,
        **settings: Any,
    ) -> Topic:
        checked = None if schema is None else check_schema(schema)
        return self._made(
            self.connection.act(
                "create_topic", once=not exist_ok, name=name, partitions=partitions, schema=wire.pack_schema(checked),
                exist_ok=exist_ok, settings=settings,
            )
        )  # fmt: skip

    def topic(self, name: str) -> Topic:
        self.check_open()
        return self._made(self.connection.ask("topic", name=check_name(name, "topic")))

    def topics(self) -> list[Topic]:
        return [self._made(each) for each in self.connection.ask("topics")]

    def _made(self, packed: dict[str, Any]) -> RemoteTopic:
        return RemoteTopic(self, unpack_topic(packed))

    def offsets(
        self, names: Sequence[str] | None = None, *, matching: Callable[[str], bool] | None = None
    ) -> dict[str, TopicOffsets]:
        wanted = None if names is None else list(names)
        found = {}
        for topic_id, name, partitions in self.connection.ask("all_offsets", names=wanted):
            if matching is None or matching(name):
                found[name] = TopicOffsets(topic_id, name, tuple(PartitionOffsets(*each) for each in partitions))
        return found

    def alter_topic(
        self, name: str, *, partitions: int | None = None, add_columns: pa.Schema | None = None, **settings: Any
    ) -> Topic:
        added = None if add_columns is None else check_schema(add_columns, "add_columns")
        return self._made(
            self.connection.act(
                "alter_topic", name=name, partitions=partitions, add_columns=wire.pack_schema(added), settings=settings
            )
        )

    def delete_topic(self, name: str) -> None:
        self.connection.act("delete_topic", once=True, name=check_name(name, "topic"))

    def pause_topic(self, topic: Topic, paused: bool) -> None:
        self.connection.act("pause_topic", topic_id=topic.id, paused=paused)

    def empty_topic(self, topic: Topic) -> None:
        self.connection.act("empty_topic", topic_id=topic.id)

    # --- subscribers -------------------------------------------------------------------------------------------------

    def create_subscriber(
        self, topic: str, name: str | None = None, *, start: Any = "earliest", on_data_loss: str | None = None,
        exist_ok: bool = False,
    ) -> Subscriber:  # fmt: skip
        if on_data_loss is not None:
            check_on_data_loss(on_data_loss)
        if name is not None:
            check_name(name, "subscriber")
        return self._subscriber(
            self.connection.act(
                "create_subscriber", once=not exist_ok, topic=topic, name=name, start=wire.pack_start(start),
                on_data_loss=on_data_loss, exist_ok=exist_ok,
            )
        )  # fmt: skip

    def subscriber(self, name: str) -> Subscriber:
        return self._subscriber(self.connection.ask("subscriber", name=check_name(name, "subscriber")))

    def subscribers(self, topic: str | None = None) -> list[Subscriber]:
        topics = self._by_id(topic)
        found = self.connection.ask("subscribers", topic=topic)
        return [
            RemoteSubscriber(self, topics[each["topic_id"]], SubscriberRow(**each))
            for each in found
            if each["topic_id"] in topics
        ]

    def _by_id(self, topic: str | None) -> dict[str, Topic]:
        """All topics, or one; what else is listed is of another one that was made or deleted meanwhile."""
        return {each.id: each for each in (self.topics() if topic is None else [self.topic(topic)])}

    def _subscriber(self, packed: dict[str, Any]) -> Subscriber:
        topic = self._made(self.connection.ask("topic_by_id", topic_id=packed["topic_id"]))
        return RemoteSubscriber(self, topic, SubscriberRow(**packed))

    def delete_subscriber(self, name: str) -> None:
        self.connection.act("delete_subscriber", once=True, name=check_name(name, "subscriber"))

    # --- channels ----------------------------------------------------------------------------------------------------

    def channel(
        self, topic: str, name: str, *, create: bool = False, start: Any = None,
        max_attempts: int | None = NOT_GIVEN, ack_timeout: Duration = None, ordered: bool | None = None,
        dead_letter: str | None = None, max_in_flight: int = MAX_IN_FLIGHT, clock: Callable[[], int] = now_us,
    ) -> Channel:  # fmt: skip
        if clock is not now_us:
            raise InvalidArgument("a broker has its own clock: a channel over the network takes none")
        flag(create, "create")
        whole(max_in_flight, "max_in_flight", 1)
        given = {"ack_timeout": ack_timeout, "ordered": ordered, "dead_letter": dead_letter}
        settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if start is not None:
            settings["start"] = wire.pack_start(start)
        if max_attempts is not NOT_GIVEN:
            settings["max_attempts"] = max_attempts
        packed = self.connection.act("channel", topic=topic, name=name, create=create, settings=settings)
        return RemoteChannel(self, self.topic(packed["topic"]), packed, max_in_flight)

    def channels(self, topic: str | None = None) -> list[Channel]:
        topics = self._by_id(topic)
        found = self.connection.ask("channels", topic=topic)
        return [
            RemoteChannel(self, topics[each["topic_id"]], each, MAX_IN_FLIGHT)
            for each in found
            if each["topic_id"] in topics
        ]

    def delete_channel(self, topic: str, name: str) -> None:
        self.connection.act("delete_channel", once=True, topic=topic, name=name)

    # --- reading -----------------------------------------------------------------------------------------------------

    def read_slices(
        self, slices: Sequence[Slice], columns: Sequence[str] | None = None, metadata: Sequence[str] = (),
        *, schema: pa.Schema | None = None, target_bytes: int = BATCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        self.check_open()
        if not slices:
            return iter(())
        topic_id = slices[0].topic_id
        if any(each.topic_id != topic_id for each in slices):
            raise InvalidArgument("the slices belong to several topics; read those of each topic apart")
        added = RemoteTopic.check_metadata(metadata)
        if schema is None:
            schema = self._made(self.connection.ask("topic_by_id", topic_id=topic_id)).select(columns)
        if self.near is None or not self.near.are_there():
            return self._fetch(slices, schema, added, target_bytes)
        return self._read_near(self.near, slices, schema, added, target_bytes)

    def see_files(self, directory: str | os.PathLike[str]) -> None:
        """From here on sealed files are read from a directory, where this store is there. Raises InvalidArgument where another
        one is."""
        near = NearFiles(Path(directory), self.id)
        near.are_there()
        self.near = near

    def _fetch(
        self, slices: Sequence[Slice], schema: pa.Schema, metadata: Sequence[str], target_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        ticket = Ticket(slices[0].topic_id, wire.ranges_of(slices), schema, tuple(metadata), target_bytes)
        return read_ticket(self.connection, ticket, output_schema(schema, metadata))

    def _read_near(
        self, near: NearFiles, slices: Sequence[Slice], schema: pa.Schema, metadata: Sequence[str], target_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """Sealed files by themselves; what is in no such file, or in one that is amiss, from the broker."""
        far: list[Slice] = []
        for each in slices:
            at = each.start
            for batch in near.read(each, schema, metadata, target_bytes):
                if far:
                    yield from self._fetch(far, schema, metadata, target_bytes)
                    far = []
                at += batch.num_rows
                yield batch
            if at < each.end:
                far.append(each if at == each.start else each.part(at, each.end))
        if far:
            yield from self._fetch(far, schema, metadata, target_bytes)

    def await_records(self, ends: Sequence[tuple[str, int, int]], seconds: float) -> bool:
        """Waits until one of the partitions, each as topic id, number and end, has another end than that, or `seconds` are
        over: then False. Raises TopicDeleted."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            wait = self.connection.wait_s(left)
            packed = [list(each) for each in ends]
            if self.connection.ask("await_records", answer_s=wait + ANSWER_S, ends=packed, timeout=wait):
                return True
        return False

    # --- writing -----------------------------------------------------------------------------------------------------

    def stage(self, *, default_partition: int = 0, owner: tuple[str, int] | None = None) -> Stage:
        self.check_open(write=True)
        return RemoteStage(self, default_partition, owner)

    def commit(
        self, staged: Sequence[StagedFile], writer_id: str | None = None, batch_id: int | None = None,
        query_id: str | None = None, *, run_id: str | None = None, rows_may_differ: bool = False,
    ) -> Commit:  # fmt: skip
        told = self.connection.act(
            "commit", once=writer_id is None, staged=[each.to_json() for each in staged], writer_id=writer_id,
            batch_id=batch_id, query_id=query_id, run_id=run_id, rows_may_differ=rows_may_differ,
        )  # fmt: skip
        positions = {name: {p: (start, end) for p, start, end in spans} for name, spans in told["positions"]}
        return Commit(positions, told["duplicate"], told["transaction"])

    def discard(self, staged: Sequence[StagedFile]) -> None:
        self.connection.act("discard", staged=[each.to_json() for each in staged])

    def writers(self) -> list[WriterInfo]:
        return [WriterInfo(*each) for each in self.connection.ask("writers")]

    def reset_writer(self, writer_id: str) -> bool:
        return bool(self.connection.act("reset_writer", once=True, writer_id=check_name(writer_id, "writer")))

    def producer(self, **settings: Any) -> Producer:
        self.check_open(write=True)
        return Producer(self, **settings)

    # --- publish and subscribe ---------------------------------------------------------------------------------------

    def pubsub(self, **settings: Any) -> PubSub:
        self.check_open(write=True)
        return RemotePubSub(self, **settings)

    def publish(self, name: str, data: bytes | str) -> int:
        return int(self.connection.act("publish", once=True, name=check_name(name, "topic"), data=data))

    def pubsub_channels(self, pattern: str = "*") -> list[str]:
        glob(pattern)
        return list(self.connection.ask("pubsub_channels", pattern=pattern))

    def pubsub_numsub(self, *names: str) -> dict[str, int]:
        return dict(self.connection.ask("pubsub_numsub", names=names))

    def pubsub_numpat(self) -> int:
        return int(self.connection.ask("pubsub_numpat"))

    # --- care --------------------------------------------------------------------------------------------------------

    def stats(self, topic: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = self.connection.ask("stats", topic=topic)
        found["store"]["path"] = self.url
        return found

    def maintain(self, progress: Progress | None = None, *, grace_us: int | None = None) -> MaintenanceReport:
        from jjq.reports import MaintenanceReport

        return MaintenanceReport(**self.connection.ask("maintain", answer_s=_LONG_S, grace_us=grace_us))

    def verify(self, progress: Progress | None = None, *, sample: float | None = None) -> VerifyReport:
        from jjq.reports import Problem, VerifyReport

        found = self.connection.ask("verify", answer_s=_LONG_S, sample=sample)
        del found["ok"]
        return VerifyReport(**{**found, "path": self.url, "problems": [Problem(**each) for each in found["problems"]]})

    def begin_maintenance(self) -> None:
        """The broker takes its turn at it; a client has none."""

    def open_object(self, record: Record | str | bytes) -> IO[bytes]:
        self.check_open()
        return objects.fetch(self, record)

    def list_objects(self) -> list[ObjectInfo]:
        return objects.list_all(self)

    def follow(
        self, topic: Topic, places: Mapping[int, tuple[int, int]], columns: Sequence[str] | None = None,
        *, new_partitions: bool = True,
    ) -> Iterator[list[Record]]:  # fmt: skip
        handle = next(self.handle_numbers)
        now = [[partition, *place] for partition, place in places.items()]
        chosen = None if columns is None else list(columns)
        try:
            while True:
                wait = self.connection.wait_s(None)
                told = self.connection.act(
                    "follow", wait_s=wait, handle=handle, topic_id=topic.id, places=now, columns=chosen,
                    new_partitions=new_partitions, timeout=wait,
                )  # fmt: skip
                now = told["places"]
                if told["records"]:
                    yield wire.unpack_records(told["records"])
        finally:
            self.connection.tell("close_handle", handle=handle)

    # --- for the parts of a store ------------------------------------------------------------------------------------

    def _make_log(self, topic_id: str, partition: int) -> Any:
        """What topics append to."""
        return self.logs.setdefault((topic_id, partition), RemoteLog(self.streams, topic_id, partition))  # type: ignore[arg-type]

    def reader(self, topic_id: str, name: str) -> Any:
        """What plans reads of a topic."""
        return RemoteReader(self, topic_id, name)

    def topic_row(self, topic_id: str) -> TopicRow:
        """Raises TopicDeleted."""
        return unpack_topic(self.connection.ask("topic_by_id", topic_id=topic_id))


def unpack_topic(packed: dict[str, Any]) -> TopicRow:
    return TopicRow(**{**packed, "schema": wire.unpack_schema(packed["schema"])})
