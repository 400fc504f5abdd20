"""Does a stream arrive in order, whole and without duplicates, while those who push and read it are killed?

`check` runs producers and consumers as processes of their own and ends them with SIGKILL at random moments, again and
again. Each producer has a partition, where record n must get offset n: pushed one by one or a few at once, going on from
the log's end after a kill; or in batches of an exactly-once writer, where what was not acknowledged is tried again. Each
consumer reads all partitions and goes on where it had got to.
"""

from __future__ import annotations

import abc
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from jjq.model import Record
from jjq.store import Store, open_store
from jjq.topic import Topic
from jjq.values import counted

_BATCH = 200  # records of an exactly-once batch
_VALUE_BYTES = 100
_BETWEEN_KILLS_S = (0.1, 0.6)
_STILL_S = 60.0  # how long consumers may stand still although records are left, and how long all may take to begin
_LOOK_S = 0.02
_SEGMENT_BYTES = 256 << 10  # small, so that files are rolled and compacted meanwhile


@dataclass(slots=True)
class CheckReport:
    """What `check` saw. `problems` is empty when every consumer got every record once, in order."""

    producers: int
    consumers: int
    records: int = 0
    acknowledged: int = 0
    read: int = 0
    kills: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def __str__(self) -> str:
        did = (
            f"{counted(self.producers, 'producer')} pushed {counted(self.records, 'record')}, {counted(self.consumers, 'consumer')} read "
            f"{self.read:,}, {counted(self.kills, 'kill')}, {self.seconds:.1f} s"
        )
        if self.ok:
            return f"ok: in order, whole, without duplicates. {did}"
        return "\n".join([f"NOT OK: {counted(len(self.problems), 'problem')}. {did}", *self.problems])


class Marks:
    """How far a stream has come in each partition, by what is reported of it."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.next: dict[int, int] = {}
        self.problems: list[str] = []

    def read(self, partition: int, first: int, count: int) -> None:
        expected = self.next.get(partition, 0)
        if first != expected:
            what = "again" if first < expected else "and not those before"
            self.problems.append(
                f"{self.who}: partition {partition}: offsets from {first} came {what}, {expected} was next"
            )
        self.next[partition] = max(expected, first + count)


def value(number: int) -> bytes:
    return b"%0*d" % (_VALUE_BYTES, number)


def wrong(records: Iterator[Record] | list[Record]) -> list[str]:
    """What is not as it was pushed: in each partition record n has offset n."""
    return [
        f"partition {each.partition}: offset {each.offset} holds {each.value[:120]!r}"
        for each in records
        if each.value != value(each.offset)
    ]


def check(
    path: str | os.PathLike[str], *, seconds: float = 10.0, producers: int = 2, consumers: int = 2, kills: bool = True,
    seed: int | None = None,
) -> CheckReport:  # fmt: skip
    """Runs for about `seconds` in a store, on a topic of its own that is deleted at the end; they count from when every
    process is at work. See the module."""
    report = CheckReport(producers, consumers)
    began = time.monotonic()
    with open_store(path) as store:
        name = f"jjq-check-{os.getpid()}-{time.time_ns()}"
        topic = store.create_topic(name, partitions=producers, segment_bytes=_SEGMENT_BYTES, compression="lz4")
        try:
            _run(store, topic, report, seconds, random.Random(seed) if kills else None)  # noqa: S311
            _look_at_the_log(store, topic, report)
        finally:
            store.delete_topic(topic.name)
    report.seconds = time.monotonic() - began
    return report


def _run(store: Store, topic: Topic, report: CheckReport, seconds: float, chance: random.Random | None) -> None:
    pushing = [_Producing(store.path, topic.name, partition) for partition in range(report.producers)]
    reading = []
    for number in range(report.consumers):
        name = f"{topic.name}-{number}"
        store.create_subscriber(topic.name, name)
        reading.append(_Consuming(store.path, name))
    workers: list[_Worker] = [*pushing, *reading]
    try:
        latest = time.monotonic() + _STILL_S
        while not all(each.at_work or each.failed for each in workers) and time.monotonic() < latest:
            time.sleep(_LOOK_S)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not any(each.failed for each in workers):
            if chance is None:
                time.sleep(_LOOK_S)
                continue
            time.sleep(chance.uniform(*_BETWEEN_KILLS_S))
            working = [each for each in workers if each.at_work]
            if working:
                report.kills += chance.choice(working).kill()
            if chance.random() < 0.2:
                store.maintain(grace_us=0)
        for producer in pushing:
            producer.stop()
        ends = {bounds.partition: bounds.end for bounds in topic.offsets()}
        seen, deadline = None, 0.0
        while any(each.behind(ends) for each in reading) and not any(each.failed for each in workers):
            stand = [dict(each.marks.next) for each in reading]
            if stand != seen:
                seen, deadline = stand, time.monotonic() + _STILL_S
            if time.monotonic() > deadline:
                report.problems += [
                    f"{each.marks.who} stands at {each.marks.next}, the ends are {ends}"
                    for each in reading
                    if each.behind(ends)
                ]
                break
            time.sleep(_LOOK_S)
    finally:
        for each in workers:
            each.stop()
    for worker in workers:
        report.problems += worker.problems()
    report.acknowledged = sum(each.acknowledged for each in pushing)
    report.read = sum(sum(each.marks.next.values()) for each in reading)
    report.problems += [
        f"producer {each.partition}: {counted(each.acknowledged, 'record was', 'records were')} acknowledged, {ends[each.partition]:,} are there"
        for each in pushing
        if ends[each.partition] < each.acknowledged
    ]


def _look_at_the_log(store: Store, topic: Topic, report: CheckReport) -> None:
    for bounds in topic.offsets():
        report.records += bounds.end
        column = topic.read(partitions=[bounds.partition], columns=["value"], metadata=()).read_all().column("value")
        expected = pa.array([value(number) for number in range(bounds.end)], pa.binary())
        if not column.combine_chunks().equals(expected):
            report.problems.append(
                f"partition {bounds.partition}: the log does not hold what was pushed, in order, once"
            )
    report.problems += [problem.message for problem in store.verify().problems]


# --- the processes -----------------------------------------------------------------------------------------------------


class _Worker(abc.ABC):
    """A process that is begun again when it was killed, and a thread that takes what it reports, a JSON line each."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failed = False
        self.at_work = False  # whether this life of it has reported something
        self._errors: list[str] = []
        self._stopping = False
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=f"jjq-check {name}", daemon=True)

    @abc.abstractmethod
    def order(self) -> dict[str, Any]:
        """What the next life is to do."""

    @abc.abstractmethod
    def take(self, report: Any) -> None:
        """What it reports, a line at a time."""

    def _run(self) -> None:
        while True:
            with self._mutex:
                if self._stopping:
                    return
                command = [sys.executable, "-c", "from jjq.checking import work; work()", json.dumps(self.order())]
                process = self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert process.stdout is not None
            assert process.stderr is not None
            with process:
                for line in process.stdout:
                    self.take(json.loads(line))
                    self.at_work = True
                said = process.stderr.read().decode(errors="replace").strip()
            self.at_work = False
            if process.returncode >= 0:
                self._errors.append(f"{self.name} ended by itself: {said[-2000:] or process.returncode}")
                self.failed = True
                return

    def start(self) -> None:
        self._thread.start()

    def kill(self) -> bool:
        with self._mutex:
            self.at_work = False
            if self._process is None or self._process.poll() is not None:
                return False
            self._process.kill()
            return True

    def stop(self) -> None:
        """Kills it for good; what it has reported is taken when this returns."""
        with self._mutex:
            self._stopping = True
        self.kill()
        self._thread.join()

    def problems(self) -> list[str]:
        return self._errors


class _Producing(_Worker):
    def __init__(self, store: Path, topic: str, partition: int) -> None:
        super().__init__(f"producer {partition}")
        self._order = {"do": "push", "store": str(store), "topic": topic, "partition": partition}
        self.partition = partition
        self.acknowledged = 0
        self.start()

    def order(self) -> dict[str, Any]:
        return {**self._order, "acknowledged": self.acknowledged}

    def take(self, report: Any) -> None:
        self.acknowledged = report


class _Consuming(_Worker):
    def __init__(self, store: Path, subscriber: str) -> None:
        super().__init__(f"consumer {subscriber}")
        self._order = {"do": "read", "store": str(store), "subscriber": subscriber}
        self.marks = Marks(self.name)
        self.start()

    def order(self) -> dict[str, Any]:
        return {**self._order, "from": self.marks.next}

    def take(self, report: Any) -> None:
        if isinstance(report, str):
            self._errors.append(f"{self.name}: {report}")
        else:
            self.marks.read(*report)

    def behind(self, ends: Mapping[int, int]) -> bool:
        return any(self.marks.next.get(partition, 0) < end for partition, end in ends.items())

    def problems(self) -> list[str]:
        return [*self._errors, *self.marks.problems]


def work() -> None:
    """What a process does, by the order in its first argument, until it is killed or whoever began it is gone."""
    order = json.loads(sys.argv[1])
    parent = os.getppid()
    with open_store(order["store"], create=False, maintenance=False) as store:
        reports: Iterator[Any] = _push(store, order) if order["do"] == "push" else _read(store, order)
        for report in reports:
            if os.getppid() != parent:
                return
            if report is not None:  # one write of less than a page: a kill leaves a whole line, or none
                os.write(sys.stdout.fileno(), json.dumps(report).encode() + b"\n")


def _push(store: Store, order: Mapping[str, Any]) -> Iterator[int | None]:
    """Pushes for ever; yields how many records of its partition are acknowledged."""
    topic, partition = store.topic(order["topic"]), order["partition"]
    if partition % 2:
        number = order["acknowledged"]
        while True:
            table = pa.table({"value": pa.array([value(n) for n in range(number, number + _BATCH)], pa.binary())})
            topic.push_table(
                table, partition=partition, writer_id=f"{topic.name}-{partition}", batch_id=number // _BATCH
            )
            number += _BATCH
            yield number
    number = topic.offsets()[partition].end
    chance = random.Random(number)  # noqa: S311
    while True:
        if chance.random() < 0.5:
            topic.push(value(number), partition=partition)
            number += 1
        else:
            count = chance.randrange(1, 100)
            topic.push_many([value(n) for n in range(number, number + count)], partition=partition)
            number += count
        yield number


def _read(store: Store, order: Mapping[str, Any]) -> Iterator[list[int] | str | None]:
    """Polls for ever; yields (partition, first offset, count) of what came, what is wrong with it, or that nothing came."""
    with store.subscriber(order["subscriber"]) as subscriber:
        if order["from"]:
            subscriber.seek({int(partition): offset for partition, offset in order["from"].items()})
        while True:
            records = subscriber.poll(500, timeout=1.0)
            if not records:
                yield None
            yield from wrong(records)
            for partition in sorted({each.partition for each in records}):
                offsets = [each.offset for each in records if each.partition == partition]
                first = offsets[0]
                if offsets != list(range(first, first + len(offsets))):
                    yield f"partition {partition}: one poll gave the offsets {offsets[:50]}"
                yield [partition, first, len(offsets)]
            subscriber.commit()
