"""Reading ahead in the partitions of a topic, and merging them fairly into one stream of single records."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from jjq.errors import DamagedSegment, DataLoss, JjqError, StoreError
from jjq.model import PartitionOffsets, Record, Slice
from jjq.records import METADATA, bytes_of, plain_records, to_records
from jjq.topic import Topic
from jjq.values import MOST
from jjq.wake import wait_for

if TYPE_CHECKING:
    from jjq.hot import Near
    from jjq.store import Store

_BUDGET_BYTES = 8 << 20  # what all partitions together may hold
_LARGE_BYTES = 32 << 20  # and at most of records that were read and did not fit in, each of which may be large
_WINDOW_BYTES = (64 << 10, 1 << 20)  # and each of them, at least and at most
_FIRST_ROWS = 1024
_MOST_ROWS = 64 << 10
_FOLLOW_ROWS = 1000
_DECODE_ROWS = 256  # a batch stays Arrow until its rows are near: as Python objects they take five times the room
_DECODE_BYTES = 2 << 20  # and large ones until they are nearer
_VALUE_BYTES = 8  # what `bytes_of` counts of a value that is no text and no bytes

TAKE_BYTES = 64 << 20  # of records that are given at once: as much as a topic's largest record may have, by default

Place = tuple[int, int]  # (next offset, lineage)


@dataclass(slots=True)
class _Window:
    """What was read ahead of one partition. `ready` begins at `position`, the rest of `batch` follows it."""

    partition: int
    position: int
    lineage: int
    rows: int = _FIRST_ROWS  # to read at once
    batch: pa.RecordBatch | None = None
    batch_bytes: int = 0
    decoded: int = 0  # rows of the batch that went to `ready`
    ready: deque[Record] = field(default_factory=deque)
    bytes: int = 0  # what was made ready at once has no more, as Arrow
    most_bytes: int = 0  # and no more than these, as `bytes_of` counts
    checked: bool = False  # whether the position was held against the catalog: a file that goes on needs it once
    end: int = 0  # of what was read ahead
    low: bool = False  # whether who reads on from there would wait, so that the next take asks for it
    last: bool = False  # whether what is ready was, when it was read, all there is
    crossed: bool = False  # whether what was read ahead is of other segments than the active one

    def clear(self) -> None:
        self.batch, self.decoded, self.checked, self.low, self.last = None, 0, False, False, False
        self.ready.clear()


class _Room:
    """How many bytes one call may give.

    It goes by what windows have at most as long as that is less, and counts record by record only from there on: of small
    records it takes no time.
    """

    __slots__ = ("_counted", "_counted_bytes", "_full", "_most", "_others_bytes")

    def __init__(self, most: int) -> None:
        self._most = most
        self._counted = self._counted_bytes = 0  # of the first so many records that were taken the bytes are counted
        self._others_bytes = 0  # and the others have no more
        self._full = False

    def is_full(self) -> bool:
        """Whether there was a record that did not fit in."""
        return self._full

    @property
    def left(self) -> int:
        """At least so many bytes."""
        return self._most - self._counted_bytes - self._others_bytes

    def fitting(self, taken: list[Record], window: _Window, count: int) -> int:
        """How many of the next `count` records of a window fit in, which are then taken; one does in any case."""
        if window.most_bytes <= self.left:
            self._others_bytes += window.most_bytes
            return count
        self._counted_bytes += sum(map(bytes_of, itertools.islice(taken, self._counted, None)))
        self._others_bytes = fit = 0
        for record in itertools.islice(window.ready, count):
            size = bytes_of(record)
            if size > self.left and (taken or fit):
                self._full = True
                break
            self._counted_bytes += size
            fit += 1
        self._counted = len(taken) + fit
        return fit


class Feed:
    """The records of a topic from given positions on. For one caller at a time.

    With `near`, what it reads is kept in memory, and what follows is loaded in the background when it runs low. `places_now`
    gives the places to begin at, by partition, in partitions that the topic has got meanwhile; without it there come none.

    Methods that look for records raise DataLoss when those at a position are gone (the caller decides, moves the
    position and asks again, or has it held), TopicDeleted and StoreClosed at once. What cannot be read of one partition
    (DamagedSegment, StoreError) holds up no other: it is raised when of the others all was taken that they held when it
    was met, and again when that partition is looked at after.
    """

    def __init__(
        self, topic: Topic, places: Mapping[int, Place], columns: Sequence[str] | None = None,
        near: Near | None = None, places_now: Callable[[], Mapping[int, Place]] | None = None,
    ) -> None:  # fmt: skip
        self._topic, self._columns, self._near = topic, columns, near
        self._places_now = places_now
        self._left_active = False  # whether a file was read to its end since the topic's partitions were counted
        self._raw = topic.schema is None and columns is None
        self._windows = {partition: _Window(partition, *place) for partition, place in sorted(places.items())}
        self._order = list(self._windows)
        # Who is asked first; it moves on with each take, so that none is starved. It begins where it would be had one feed
        # taken all there was before, so that consumers who come for one record each starve none either.
        self._turn = sum(window.position for window in self._windows.values()) % max(1, len(self._order))
        self._bytes = self._share()
        self._held: dict[int, tuple[JjqError, dict[int, int]]] = {}  # by partition an error, and what comes before it
        self._told: JjqError | None = None

    def __repr__(self) -> str:
        return f"<Feed of {self._topic.name!r} at {self.places()}>"

    def _share(self) -> int:
        low, high = _WINDOW_BYTES
        return max(low, min(high, _BUDGET_BYTES // max(1, len(self._windows))))

    def _grow(self) -> bool:
        """Takes in the partitions that were added to the topic; True if there are some."""
        if self._places_now is None:
            self._left_active = False
            return False
        self._topic.catch_up()  # one that raises is to be asked again
        self._left_active = False
        known = len(self._windows)
        if self._topic.partitions != known:
            for partition, place in self._places_now().items():
                if partition not in self._windows:
                    self._add(partition, place)
        return len(self._windows) > known

    def _add(self, partition: int, place: Place) -> None:
        self._windows[partition] = _Window(partition, *place)
        self._order.append(partition)
        self._bytes = self._share()

    def places(self) -> dict[int, Place]:
        return {window.partition: (window.position, window.lineage) for window in self._windows.values()}

    def place(self, partition: int) -> Place:
        window = self._windows[partition]
        return window.position, window.lineage

    def move(self, partition: int, place: Place) -> bool:
        """Goes on from there; True if that is another place. What was read ahead is kept where it still follows."""
        window = self._windows.get(partition)
        if window is None:
            self._add(partition, place)
            return True
        if (window.position, window.lineage) == place:
            return False
        self._held.pop(partition, None)
        offset, lineage = place
        if lineage != window.lineage or offset < window.position:
            window.clear()
        while window.ready and window.ready[0].offset < offset:
            window.ready.popleft()
        if not window.ready:
            window.clear()
        window.position, window.lineage, window.checked = offset, lineage, False
        return True

    def skip_to(self, partition: int, place: Place) -> None:
        """Goes on from there if that lies ahead. A partition that is not here yet begins where it is when it comes."""
        window = self._windows.get(partition)
        if window is not None and window.position < place[0]:
            self.move(partition, place)

    def forget(self, partition: int | None = None) -> None:
        """Lets go of what was read ahead (of one partition, or of all), not of the positions."""
        for window in self._windows.values() if partition is None else (self._windows[partition],):
            window.clear()

    def wake(self) -> None:
        """Reads ahead in all partitions, or in some that have enough for the next take, and asks for what follows."""
        for partition in self._enough(deque(self._in_turn()), MOST, _DECODE_ROWS, TAKE_BYTES):
            if self._windows[partition].low:
                self._ask(self._windows[partition])

    def sleep(self) -> None:
        """Lets go of what was read ahead, and of its segments."""
        self.forget()
        self._held.clear()  # of what was met by reading ahead, too: it may be another by then
        if self._near is not None:
            self._near.leave()

    # --- looking -----------------------------------------------------------------------------------------------------

    def waiting(self) -> int | None:
        """The partition whose turn it is among those that have a record, None when all are read to their ends."""
        if self._left_active:
            self._grow()
        while True:
            self._raise_held()
            found = next((partition for partition in self._in_turn() if self.has(partition)), None)
            if found is None:
                self._raise_held(nothing_else=True)
            if found is not None or not self._grow():
                return found

    def ready(self) -> int | None:
        """The partition whose turn it is among those that have a record in memory, None when reading comes first."""
        return next((partition for partition in self._in_turn() if self._windows[partition].ready), None)

    def _in_turn(self) -> list[int]:
        return self._order[self._turn :] + self._order[: self._turn]

    def _after(self, partition: int) -> None:
        self._turn = (self._order.index(partition) + 1) % len(self._order)

    def _look(self, partition: int, rows: int = _DECODE_ROWS) -> bool:
        window = self._windows[partition]
        return bool(window.ready) or self._decode(window, rows) or (self._fill(window) and self._decode(window, rows))

    def has(self, partition: int, rows: int = _DECODE_ROWS) -> bool:
        """Whether a partition has a record. `rows` is how many the caller is about to take. An error of this partition alone
        is held."""
        if partition in self._held:
            return False
        try:
            return self._look(partition, rows)
        except (DamagedSegment, StoreError) as error:
            self.hold(partition, error)
            return False

    def hold(self, partition: int, error: JjqError) -> bool:
        """Leaves a partition out until the others have given what they hold now; then the error is raised. False for one that
        was raised so."""
        if error is self._told:
            self._told = None
            return False
        before: dict[int, int] = {}
        for other in self._windows:
            if other != partition:
                with contextlib.suppress(JjqError):  # it has an error of its own
                    before[other] = self._topic.reader.offsets(other).end
        self._held[partition] = error.with_traceback(None), before  # which would keep alive whoever asked
        return True

    def _raise_held(self, *, nothing_else: bool = False) -> None:
        """Raises an error whose time has come, those of several partitions in turn."""
        for partition, (error, before) in self._held.items():
            if nothing_else or all(
                other in self._held or self._windows[other].position >= end for other, end in before.items()
            ):
                del self._held[partition]
                self._after(partition)
                self._told = error if isinstance(error, DataLoss) else None
                raise error

    def head(self, partition: int) -> Record:
        """The next record of a partition that has one."""
        return self._windows[partition].ready[0]

    def take(self, partition: int) -> Record:
        window = self._windows[partition]
        record = window.ready[0]
        # Together, with no call between them at whose end an interrupt could come.
        window.position = record.offset + 1
        window.ready.popleft()
        if window.low:
            self._ask(window)
        self._after(partition)
        return record

    def take_many(self, most: int, most_bytes: int = TAKE_BYTES) -> list[Record]:
        """Up to `most` records that have up to `most_bytes` together, or one that has more; of each partition an even share as
        long as it has them, in order within each. It ends with the first that does not fit in, which is the next to come."""
        if self._left_active:
            self._grow()
        self._raise_held()
        even = -(-most // max(1, len(self._order)))
        taken: list[Record] = []
        room = _Room(most_bytes)
        unseen = deque(self._in_turn())
        begun: dict[int, int] = {}
        try:
            while unseen and len(taken) < most and not room.is_full():
                live = self._enough(unseen, most - len(taken), even, room.left)
                begun |= {partition: self._windows[partition].position for partition in live}
                while live and len(taken) < most and not room.is_full():
                    share = -(-(most - len(taken)) // len(live))
                    for partition in list(live):
                        if not self._take_into(taken, partition, min(share, most - len(taken)), room):
                            live.remove(partition)
                        if room.is_full():
                            break
        except JjqError:
            if not taken:
                raise
            return taken  # these have left their windows; whoever asks for more meets the error again
        except BaseException:  # an interrupt: nobody has what was taken
            for partition, position in begun.items():
                self._windows[partition].position = position
                self.forget(partition)
            raise
        if not taken:
            self._raise_held(nothing_else=True)
        return taken if taken or not self._grow() else self.take_many(most, most_bytes)

    def _enough(self, unseen: deque[int], most: int, rows: int, most_bytes: int) -> list[int]:
        """The next partitions that have records, as many as are needed for a record of each, or until they have so many bytes in
        memory: those of others would be for later."""
        found: list[int] = []
        held = 0
        while unseen and (not found or (len(found) < most and held < most_bytes)):
            partition = unseen.popleft()
            if self.has(partition, rows):
                found.append(partition)
                held += self._windows[partition].bytes
        return found

    def _take_into(self, taken: list[Record], partition: int, count: int, room: _Room) -> bool:
        """False when the partition is read to its end."""
        window = self._windows[partition]
        while count and self.has(partition, count):
            part = room.fitting(taken, window, min(count, len(window.ready)))
            if not part:
                self._keep_some(window)
                return True
            if part == len(window.ready):
                taken += window.ready
                window.ready.clear()
            else:
                taken += [window.ready.popleft() for _ in range(part)]
            window.position = taken[-1].offset + 1
            if window.low:
                self._ask(window)
            self._after(partition)
            count -= part
            # Who is woken by a push reads it and has it all: to look again takes longer than that.
            if window.last and not window.ready:
                return False
        return not count

    def _keep_some(self, window: _Window) -> None:
        """What is ready in a window is for the next take; where others have much that is, too, it is read again then."""
        if sum(each.bytes for each in self._windows.values() if each.ready) > _LARGE_BYTES:
            window.clear()

    # --- reading ahead -----------------------------------------------------------------------------------------------

    def _decode(self, window: _Window, rows: int) -> bool:
        while window.batch is not None and not window.ready:
            part, size = window.batch.slice(window.decoded, max(rows, _DECODE_ROWS)), window.batch_bytes
            while size > _DECODE_BYTES and (size := part.nbytes) > _DECODE_BYTES and part.num_rows > 1:
                part = part.slice(0, max(1, min(part.num_rows // 2, part.num_rows * _DECODE_BYTES // size)))
            records = to_records(self._topic.name, part, self._raw)
            window.bytes, window.most_bytes = size, size if self._raw else self._most_bytes(part, size)
            window.decoded += part.num_rows  # as in `take`
            window.ready.extend(records)
            if window.decoded >= window.batch.num_rows:
                window.batch, window.decoded = None, 0
            # A position may have moved past the first rows while they were still Arrow.
            while window.ready and window.ready[0].offset < window.position:
                window.ready.popleft()
        return bool(window.ready)

    def _most_bytes(self, part: pa.RecordBatch, size: int) -> int:
        """What rows of a topic with a schema have at most, as `bytes_of` counts them."""
        own = part.num_columns - len(METADATA)
        # What is in a list or a struct counts one by one, and in Arrow a flag has a bit.
        if any(pa.types.is_nested(part.schema.field(place).type) for place in range(own)):
            return MOST
        values: int = own * part.num_rows
        return size + values * _VALUE_BYTES

    def _fill(self, window: _Window) -> bool:
        """Reads on from the position; False when there is nothing yet."""
        partition, reader = window.partition, self._topic.reader
        window.last = False
        if window.checked and self._raw:
            rows, window.last = reader.live.singles(partition, window.position)
            if rows:
                self._stay(window)
                at = window.position
                stamps, keys, values = zip(*rows, strict=True)
                window.bytes = sum(map(len, filter(None, values))) + sum(map(len, filter(None, keys)))
                window.most_bytes = window.bytes
                window.ready.extend(plain_records(self._topic.name, partition, at, stamps, keys, values))
                window.end, window.low = at + len(rows), False
                return True
        user = self._topic.select(self._columns)
        if window.checked:
            live = reader.live.tail(partition, window.position, window.rows, user, METADATA, self._bytes)
            if live is not None:
                self._stay(window)
                return self._take_in(window, live)
        # Partitions are added with the active files ended, so whoever goes from file to file comes by here.
        self._left_active = True
        bounds = reader.offsets(partition)
        self._check(window, bounds)
        window.checked = True
        end = min(bounds.end, window.position + window.rows)
        if end <= window.position:
            return False
        slices = self._plan(window, end)
        if any(
            each.segment is not None and each.segment.schema_version > self._topic.schema_version for each in slices
        ):
            self._topic.refresh()
            user = self._topic.select(self._columns)
        batch = next(reader.read(slices, user, METADATA, self._bytes, keeper=self._near), None)
        if batch is None:
            return False
        self._take_in(window, batch)
        if self._near is not None:
            segments = [each.segment for each in slices if each.segment is not None and each.start < window.end]
            self._near.enter(reader, partition, segments)
            window.crossed = True
            window.low = window.end < bounds.end and self._is_worth_loading(window, slices)
        return True

    def _plan(self, window: _Window, end: int) -> list[Slice]:
        """What to read: up to `end`, or to records that are lost before. Only who has come to those is told, and of all that
        are lost there, also beyond `end`."""
        partition, reader = window.partition, self._topic.reader
        try:
            return reader.plan(partition, window.position, end)
        except DataLoss as loss:
            if loss.asked <= window.position:
                raise reader.lost(partition, loss.asked, loss.earliest, loss.earliest) from None
            return reader.plan(partition, window.position, loss.asked)

    def _stay(self, window: _Window) -> None:
        """What was read is all of the active segment."""
        if window.crossed and self._near is not None:
            window.crossed = False
            reader = self._topic.reader
            self._near.enter(reader, window.partition, reader.live.segments(window.partition))

    def _is_worth_loading(self, window: _Window, slices: Sequence[Slice]) -> bool:
        """Whether who reads on from a window's end would wait: for another segment, or for a batch to be decompressed."""
        here = next((each.segment for each in slices if each.start <= window.end < each.end), slices[-1].segment)
        if here is None or self._topic.reader.live.mapped(window.partition, here.uuid) is not None:
            return False
        return here.end < window.end + window.rows or self._topic.config.compression is not None

    def _ask(self, window: _Window) -> None:
        window.low = False
        assert self._near is not None
        self._near.ask(self._topic.reader, window.partition, window.end, window.rows)

    def _take_in(self, window: _Window, batch: pa.RecordBatch) -> bool:
        window.batch, window.batch_bytes, window.decoded = batch, batch.nbytes, 0
        window.end, window.low = window.position + batch.num_rows, False
        row_bytes = max(1, window.batch_bytes // batch.num_rows)
        window.rows = max(16, min(_MOST_ROWS, self._bytes // row_bytes))
        return True

    def _check(self, window: _Window, bounds: PartitionOffsets) -> None:
        """Raises DataLoss unless the position still means what it meant when it was taken."""
        partition, position, name = window.partition, window.position, self._topic.name
        if bounds.lineage > window.lineage:
            overtaken = self._topic.reader.check_lineage(partition, position, window.lineage)
            if overtaken is not None:
                raise DataLoss(
                    f"partition {partition} of topic {name!r} lost its end in a power cut or a failed sync: offsets from "
                    f"{overtaken} on were given again, and {position} is past them",
                    topic=name, partition=partition, asked=position, earliest=overtaken, lost=position - overtaken,
                )  # fmt: skip
            window.lineage = bounds.lineage
        if position < bounds.start:
            raise self._topic.reader.lost(partition, position, bounds.start, bounds.end)
        if position > bounds.end:
            raise DataLoss(
                f"partition {partition} of topic {name!r} ends at {bounds.end}, and {position} is past it",
                topic=name, partition=partition, asked=position, earliest=bounds.end, lost=position - bounds.end,
            )  # fmt: skip


def beginnings(topic: Topic) -> dict[int, Place]:
    """Where each partition began when it was made."""
    return dict.fromkeys(range(topic.partitions), (0, 0))


def follow(store: Store, topic: Topic, places: Mapping[int, Place], columns: Sequence[str] | None = None,
           *, new_partitions: bool = True) -> Iterator[list[Record]]:  # fmt: skip
    """The records of a topic from there on, then each new one as it comes, for ever; nothing durable is kept of it.

    Partitions that are added to the topic come in with all they have, unless `new_partitions` is false. Yields what there
    is, at least one record, before it waits. Raises what `Feed` raises.
    """
    feed = Feed(topic, places, columns, places_now=functools.partial(beginnings, topic) if new_partitions else None)
    listener = store.listener(functools.partial(watched, topic))
    try:
        while True:
            found = wait_for(lambda: feed.take_many(_FOLLOW_ROWS), None, listener)
            assert found is not None
            yield found
    finally:
        listener.close()


def watched(topic: Topic) -> list[Path] | None:
    """The files that tell of new records in a topic, of new partitions, or of its end; None where no file does."""
    topic.catch_up()
    found: list[Path] = []
    for partition in range(topic.partitions):
        paths = topic.reader.watched(partition)
        if paths is None:
            return None
        found += paths
    return found
