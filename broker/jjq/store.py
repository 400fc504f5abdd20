"""A store: a directory with topics in it, used by any number of processes at once."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from jjq import channel, channels, ephemeral, files, founding, objects, staging, subscriber, subscribers, topics
from jjq.background import Caretaker, Syncer
from jjq.catalog.base import Catalog
from jjq.catalog.rows import TopicRow
from jjq.catalog.sqlite import SqliteDriver
from jjq.channel import Channel
from jjq.clock import boot_id, now_us
from jjq.config import Duration
from jjq.errors import InvalidArgument, JjqError, StoreClosed, StoreReadOnly, TopicNotFound
from jjq.facts import Facts
from jjq.feed import Place, follow
from jjq.hints import keywords, keywords_of, which
from jjq.hot import DEFAULT_BYTES, HotStore
from jjq.interest import check_pattern, glob, subscriptions
from jjq.log.reader import LogReader
from jjq.log.sealed import BATCH_BYTES
from jjq.model import Commit, Record, Slice, StagedFile, TopicOffsets, WriterInfo, check_name
from jjq.parts import Logs, StoreParts
from jjq.producer import Producer, close_all
from jjq.pubsub import PubSub, publish
from jjq.subscriber import Subscriber
from jjq.topic import Topic
from jjq.values import each_of, flag, living
from jjq.wake import Listener

if TYPE_CHECKING:
    from jjq.reports import MaintenanceReport, Progress, VerifyReport

_stores: weakref.WeakSet[Store] = weakref.WeakSet()


@keywords("jjq.open")
def open_store(
    path: str | os.PathLike[str], *, create: bool = True, read_only: bool | None = None, maintenance: bool = True,
    hot_bytes: int = DEFAULT_BYTES, create_topics: bool = True,
) -> Store:  # fmt: skip
    """The store in a directory, made if missing (unless `create` is false).

    `read_only=None` decides by whether the directory may be written. Many processes may have a store open at once, on
    one machine. With `maintenance` this process takes its turn at rolling, compacting and expiring in the background.
    `hot_bytes` is how much of the segments near its subscribers it keeps in memory at most; see `jjq.hot`.
    A topic is made when a producer first pushes to it, its first channel is made, or something is published to it, unless
    `create_topics` is false.
    Raises StoreNotFound, StoreFormat (no store, or one of a later version), StoreError.
    """
    flags = {"create": create, "maintenance": maintenance, "create_topics": create_topics}
    for name, value in flags.items() if read_only is None else [*flags.items(), ("read_only", read_only)]:
        flag(value, name)
    store = Store(path, create=create, read_only=read_only, hot_bytes=hot_bytes, create_topics=create_topics)
    if maintenance and not store.read_only:
        store.begin_maintenance()
    return store


@keywords_of("create_subscriber", "channel", "stage", "commit", "verify")
class Store(StoreParts):
    """An open store; safe among threads, usable in forked children. Close it, or use it in a `with` block."""

    # A larger table is staged and linked: that is atomic, and holds no lock while it is written.
    _append_bytes = 32 << 20

    def __init__(
        self, path: str | os.PathLike[str], *, create: bool = True, read_only: bool | None = None, lock_fd: int | None = None,
        hot_bytes: int = DEFAULT_BYTES, create_topics: bool = True,
    ) -> None:  # fmt: skip
        """See `jjq.open`, which begins maintenance, too. `lock_fd`: a descriptor by which the caller holds `store.lock` alone
        (repair); from now on the store's."""
        self.path = founding.directory_of(path)
        self._mutex = threading.RLock()
        self._closed = False
        self._lock_fd = -1 if lock_fd is None else lock_fd
        self.logs = Logs(self._make_log)
        self._readers: dict[str, LogReader] = {}
        self._facts: dict[str, Facts] = {}
        self.hot = HotStore(hot_bytes)
        self.create_topics = create_topics
        self._syncer: Syncer | None = None
        self._caretaker: Caretaker | None = None
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        driver: SqliteDriver | None = None
        try:
            with files.translated("open", self.path):
                self.read_only = founding.prepare(self.path, create, read_only)
                if lock_fd is None:
                    self._lock_fd = self._open_lock()
            if lock_fd is None and self._lock_fd >= 0:
                founding.share(self.path, self._lock_fd)
            self.boot_id = boot_id()
            driver = SqliteDriver(self.path / "catalog.db", self.path / "catalog.lock", read_only=self.read_only)
            self.catalog = Catalog(driver)
            self.id = str(founding.read_identity(self.path)["id"])
            with files.translated("open", self.path):
                founding.refuse_lost_catalog(self.path)
            if not self.read_only:
                founding.upgrade(self.path, driver, self._lock_fd, alone=lock_fd is not None)
        except BaseException:
            if driver is not None:
                driver.close()
            if self._lock_fd >= 0:
                files.close(self._lock_fd)
            raise
        _stores.add(self)
        if not self.read_only:
            ephemeral.forget_other_boots(self)

    def _open_lock(self) -> int:
        try:
            return files.open_lock(self.path / "store.lock", self.read_only)
        except FileNotFoundError:
            if self.read_only:  # a copy, or a store after a power cut: its locks are nothing that has to be there
                return -1
            raise

    # --- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes its producers, which write what was pushed, and ends this process's use of the store; a second close is quiet.
        Records of `interval` topics are synced."""
        try:
            self._closing = True
            close_all(self)
        finally:
            self._close()

    def _close(self) -> None:
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            syncer, self._syncer = self._syncer, None
            caretaker, self._caretaker = self._caretaker, None
            logs, self.logs = self.logs, Logs(self._make_log)  # who asks for one from now on is told that it is closed
        for listener in living(self._listeners):
            listener.wake()  # whoever waits looks, and finds the store closed
        with contextlib.ExitStack() as rest:  # each part is closed though another fails
            if self._lock_fd >= 0:
                rest.callback(files.close, self._lock_fd)
            rest.callback(self.catalog.close)
            for reader in self._readers.values():
                rest.callback(reader.close)
            rest.callback(self.hot.close)
            for log in logs.values():
                rest.callback(log.close)
            if syncer is not None:
                rest.callback(syncer.stop)
            if caretaker is not None:
                rest.callback(caretaker.stop)
            for each in subscriber.handles(self):
                rest.callback(each.close)
            for consumer in channel.handles(self):
                rest.callback(consumer.close)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "read-only" if self.read_only else "open"
        return f"<Store {str(self.path)!r} {state}>"

    def check_open(self, write: bool = False) -> None:
        """Raises StoreClosed, and StoreReadOnly if something is to be written and cannot be."""
        if self._closed:
            raise StoreClosed(f"the store at {self.path} was closed; open it again with jjq.open")
        if write and self.read_only:
            raise StoreReadOnly(f"the store at {self.path} is read-only: it can be read, but nothing can be changed")

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
        """Makes a topic, of one partition unless more are asked for. `settings` are those of `jjq.config.TopicConfig`, with
        `retention` and `segment_age` as durations.

        With `exist_ok` an existing topic is returned, if it has what is given here: the partitions, the schema (or one
        that has grown from it), the settings. Raises TopicExists, InvalidName, SchemaMismatch, InvalidArgument.
        """
        self.check_open(write=True)
        return self._topic(topics.create(self, name, partitions, schema, exist_ok, settings))

    def topic(self, name: str) -> Topic:
        """The topic of that name now; raises TopicNotFound, which names the nearest one."""
        self.check_open()
        check_name(name, "topic")
        row = self.catalog.topic(name)
        if row is None:
            hint = which(name, self.catalog.topic_names())
            raise TopicNotFound(f"there is no topic {name!r} in {self.path}{hint and f'; {hint}'}")
        return self._topic(row)

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        self.check_open()
        return [self._topic(row) for row in self.catalog.topics()]

    def offsets(
        self, names: Sequence[str] | None = None, *, matching: Callable[[str], bool] | None = None
    ) -> dict[str, TopicOffsets]:
        """What topics hold now, by name: the named ones, those whose name `matching` is true of, or all; those that are not
        there are left out.

        For who follows many: one look at the catalog however many there are, and no file stays open. One that is damaged is
        an error that names it, since who follows would take one that is left out for deleted; `stats` leaves it out.
        """
        self.check_open()
        return topics.offsets(self, names, matching)

    def _topic(self, row: TopicRow) -> Topic:
        return Topic(self, row, self.facts(row.id))

    def alter_topic(
        self, name: str, *, partitions: int | None = None, add_columns: pa.Schema | None = None, **settings: Any
    ) -> Topic:
        """Changes settings, adds columns (nullable, at the end) to the schema, or partitions; nobody needs to restart.

        `partitions` is how many there are to be, not fewer than there are. Keys choose among all of them from then on, so
        what comes with a key may go to another partition than what came before. Whoever reads the topic reads the new
        ones from offset 0 on.

        Raises SchemaMismatch for any other change of the schema, InvalidArgument for fewer partitions.
        """
        self.check_open(write=True)
        topic = self.topic(name)
        topics.alter(self, topic, partitions, add_columns, settings)
        if "retention_waits" in settings:
            topics.say_unknown(self, topic)
        return topic

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, its records, subscribers and channels. Who pushes to it or waits on it gets TopicDeleted."""
        self.check_open(write=True)
        topics.delete(self, self.topic(name))

    def pause_topic(self, topic: Topic, paused: bool) -> None:
        """See `Topic.pause`."""
        self.check_open(write=True)
        channels.pause_topic(self, topic, paused)

    def empty_topic(self, topic: Topic) -> None:
        """See `Topic.empty`."""
        self.check_open(write=True)
        topics.empty(self, topic)

    # --- subscribers -------------------------------------------------------------------------------------------------

    def create_subscriber(
        self, topic: str, name: str | None = None, *, start: Any = "earliest", on_data_loss: str | None = None,
        exist_ok: bool = False,
    ) -> Subscriber:  # fmt: skip
        """Makes a durable cursor on a topic, at a start in any form (see `jjq.start`); without a name it gets one.

        `on_data_loss`: `error` (default), or `skip` to go on past records that retention removed unread or repair could not
        save; damage is an error in either case, until `jjq repair` has kept what is whole. With `exist_ok` a subscriber of that
        name and topic is returned where it is, whatever `start` says, if its `on_data_loss` is the one given. Raises
        SubscriberExists, TopicNotFound, InvalidName, InvalidArgument, OffsetOutOfRange, and DataLoss for a start that has
        expired.
        """
        self.check_open(write=True)
        return subscribers.create(self, self.topic(topic), name, start, on_data_loss, exist_ok)

    def subscriber(self, name: str) -> Subscriber:
        """A handle of the subscriber of that name; raises SubscriberNotFound, which names the nearest one."""
        self.check_open()
        return subscribers.find(self, name)

    def subscribers(self, topic: str | None = None) -> list[Subscriber]:
        """Every subscriber (of one topic), by name."""
        self.check_open()
        return subscribers.find_all(self, topic)

    def delete_subscriber(self, name: str) -> None:
        """Deletes a subscriber, also while it is used: who waits on it gets SubscriberNotFound. Records stay."""
        self.check_open(write=True)
        subscribers.delete(self, name)

    # --- channels ----------------------------------------------------------------------------------------------------

    def channel(
        self, topic: str, name: str, *, create: bool = False, start: Any = None,
        max_attempts: int | None = channels.NOT_GIVEN, ack_timeout: Duration = None, ordered: bool | None = None,
        dead_letter: str | None = None, max_in_flight: int = channels.MAX_IN_FLIGHT, clock: Callable[[], int] = now_us,
    ) -> Channel:  # fmt: skip
        """A handle of a topic's channel, which is one consumer of it; with `create` the channel is made if there is none,
        and so is its topic.

        `start` (any form, by default the earliest record) and `ordered` (records with the same key one after the other)
        are for the making. `max_attempts` (5; None: no limit), `ack_timeout` (a minute) and `dead_letter` (the name of a
        topic, `<topic>.<channel>.dead`) hold for all its consumers and are changed where they are given. `max_in_flight`
        is this consumer's: how many records it has in hand at most. `clock` (microseconds) is for tests.
        Raises ChannelNotFound, TopicNotFound, InvalidName, InvalidArgument, and for a start OffsetOutOfRange and DataLoss.
        """
        self.check_open()
        new = functools.partial(
            channels.new, name=name, start=start, max_attempts=max_attempts, ack_timeout=ack_timeout, ordered=ordered,
            dead_letter=dead_letter, max_in_flight=max_in_flight,
        )  # fmt: skip
        target = topics.at_first_use(self, topic, new) if flag(create, "create") else self.topic(topic)
        return channels.get(
            self, target, name, create=create, start=start, max_attempts=max_attempts, ack_timeout=ack_timeout,
            ordered=ordered, dead_letter=dead_letter, max_in_flight=max_in_flight, clock=clock,
        )  # fmt: skip

    def channels(self, topic: str | None = None) -> list[Channel]:
        """Every channel (of one topic), by topic and name."""
        self.check_open()
        return channels.get_all(self, topic)

    def delete_channel(self, topic: str, name: str) -> None:
        """Deletes a channel, also while it is used: who waits in it, or settles what it has in hand, gets ChannelNotFound."""
        self.check_open(write=True)
        channels.delete(self, self.topic(topic), name)

    # --- reading -----------------------------------------------------------------------------------------------------

    def read_slices(
        self, slices: Sequence[Slice], columns: Sequence[str] | None = None, metadata: Sequence[str] = (),
        *, schema: pa.Schema | None = None, target_bytes: int = BATCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """The rows of slices of one topic, in order, in verified batches of about `target_bytes`: [*columns, *metadata].

        `schema` fixes the topic's columns as they were when the slices were planned.
        """
        self.check_open()
        slices = each_of(slices, Slice, "give a list of slices, as topic.plan made them")
        if not slices:
            return iter(())
        first = slices[0]
        if any(each.topic_id != first.topic_id for each in slices):
            raise InvalidArgument("the slices belong to several topics; read those of each topic apart")
        self.catalog.remember(first.topic_id, first.topic)  # it may be gone by now
        topic = self._topic(self.facts(first.topic_id).row())
        if not isinstance(schema, pa.Schema | None):
            raise InvalidArgument(f"schema must be a pyarrow.Schema, not {type(schema).__name__}")
        user = topic.select(columns) if schema is None else schema
        return self.reader(first.topic_id, first.topic).read(slices, user, topic.check_metadata(metadata), target_bytes)

    def follow(
        self, topic: Topic, places: Mapping[int, Place], columns: Sequence[str] | None = None,
        *, new_partitions: bool = True,
    ) -> Iterator[list[Record]]:  # fmt: skip
        """The records of a topic from there on, then each new one as it comes, for ever: see `jjq.feed.follow`."""
        self.check_open()
        return follow(self, topic, places, columns, new_partitions=flag(new_partitions, "new_partitions"))

    # --- exactly-once writing ----------------------------------------------------------------------------------------

    def stage(self, *, default_partition: int = 0, owner: tuple[str, int] | None = None) -> staging.Stage:
        """Begins files that a commit will take: see `jjq.staging.Stage`.

        `default_partition` (modulo the topic's partitions) is for rows without a key. `owner` is the writer and batch the
        files are for, so that maintenance can remove what was left behind.
        """
        self.check_open(write=True)
        return staging.Stage(self, default_partition, owner)

    def commit(
        self, staged: Sequence[StagedFile], writer_id: str | None = None, batch_id: int | None = None,
        query_id: str | None = None, *, run_id: str | None = None, rows_may_differ: bool = False,
    ) -> Commit:  # fmt: skip
        """Makes staged files visible in one transaction, over all topics and partitions, in the order given.

        With `writer_id` and `batch_id` it happens once: a batch that is known returns its first positions, its files are
        discarded, and `duplicate` is true. One with another number of rows, or for other topics, is refused unless
        `rows_may_differ`. `run_id` names a run that commits each batch once, and repeats only what an earlier one has
        committed: other files for a batch that it has committed itself are refused, too.
        Raises WriterConflict, StagedFileMissing; then nothing changed.
        """
        self.check_open(write=True)
        return staging.commit(
            self, staged, writer_id, batch_id, query_id, run_id=run_id, rows_may_differ=rows_may_differ
        )

    def discard(self, staged: Sequence[StagedFile]) -> None:
        """Removes staged files that no commit has taken; others are left alone."""
        staging.discard(self, staged)

    def writers(self) -> list[WriterInfo]:
        """Exactly-once writers, by id."""
        self.check_open()
        return self.catalog.writers()

    def reset_writer(self, writer_id: str) -> bool:
        """Forgets what a writer has committed, so that its batch ids begin anew; False when it is not known."""
        self.check_open(write=True)
        return self.catalog.drop_writer(check_name(writer_id, "writer"))

    # --- objects, producers, publish and subscribe -------------------------------------------------------------------

    def open_object(self, record: Record | str | bytes) -> IO[bytes]:
        """The object that a record refers to, as an open binary file, checked whole before; see `Topic.push_file`."""
        self.check_open()
        return objects.open_object(self, record)

    def list_objects(self) -> list[objects.ObjectInfo]:
        """The objects that records refer to, by hash."""
        self.check_open()
        return objects.list_objects(self)

    def pubsub(self, **settings: Any) -> PubSub:
        """A subscription to topics by name and pattern: see `jjq.pubsub.PubSub`."""
        self.check_open(write=True)
        return PubSub(self, **settings)

    def publish(self, name: str, data: bytes | str) -> int:
        """Pushes a message to a topic, made ephemeral if there is none; returns how many live subscriptions it reached.

        One that matches by its name and by a pattern counts, and gets it, both ways.
        """
        self.check_open(write=True)
        return publish(self, name, data)

    def pubsub_channels(self, pattern: str = "*") -> list[str]:
        """Names that live subscriptions are subscribed to, of those that match."""
        matches = glob(check_pattern(pattern))
        return sorted({name for names, _ in subscriptions(self) for name in names if matches.match(name)})

    def pubsub_numsub(self, *names: str) -> dict[str, int]:
        """How many live subscriptions each name has."""
        live = subscriptions(self)
        checked = each_of(names, str, "give names of topics")
        return {name: sum(name in found for found, _ in live) for name in checked}

    def pubsub_numpat(self) -> int:
        """How many patterns live subscriptions have, each pattern counted once."""
        return len({pattern for _, patterns in subscriptions(self) for pattern in patterns})

    def producer(self, **settings: Any) -> Producer:
        """Pushes that gather into batches: see `jjq.producer.Producer` for `linger_ms`, `batch_bytes`, `window`."""
        self.check_open(write=True)
        return Producer(self, **settings)

    # --- care --------------------------------------------------------------------------------------------------------

    def maintain(self, progress: Progress | None = None, *, grace_us: int | None = None) -> MaintenanceReport:
        """Rolls, compacts, expires and removes what is due; one process at a time. See `jjq.maintenance`."""
        from jjq.maintenance import maintain

        return maintain(self, progress, grace_us=grace_us)

    def stats(self, topic: str | None = None) -> dict[str, Any]:
        """What goes on in the store (or in one topic of it), in numbers; `docs/operations.md` says what each means.

        What cannot be described since its files are damaged is left out and named in `damaged`.
        """
        from jjq.stats import stats

        self.check_open()
        return stats(self, topic)

    def begin_maintenance(self) -> None:
        """Takes turns at the store's maintenance in the background, until it is closed; see `jjq.background`."""
        self.check_open(write=True)
        with self._mutex:
            if self._caretaker is None:
                self._caretaker = Caretaker.begun(self)

    def verify(self, progress: Progress | None = None, *, sample: float | None = None) -> VerifyReport:
        """Checks every file against the catalog; what is wrong is in the report. See `jjq.verify`."""
        from jjq.verify import verify

        self.check_open()
        return verify(self, progress, sample=sample)

    def _after_fork(self) -> None:
        """In a forked child: every lock and descriptor is made anew, and nothing of the parent's is given up."""
        self._mutex = threading.RLock()
        self._syncer = self._caretaker = None  # their threads stayed with the parent
        for log in self.logs.values():
            log.after_fork()
        for reader in self._readers.values():
            reader.after_fork()
        self.hot.after_fork()
        if not self._closed:
            with contextlib.suppress(OSError):
                files.close(self._lock_fd)
            self._lock_fd = -1
            # It may be gone, or another be in its place: who uses it is told so, and the other stores go on.
            with contextlib.suppress(OSError, JjqError):
                if not self.read_only:
                    self.catalog.check_named()  # before a file is made
                self._lock_fd = self._open_lock()
                if self._lock_fd >= 0:
                    files.lock(self._lock_fd, shared=True, wait=False)


def _after_fork_in_child() -> None:
    for store in list(_stores):
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
