"""Processes that push to a topic and consume one of its channels until they are told to stop, or killed.

A file tells them: a lock in shared memory, which is what multiprocessing's Event is, stays locked when its holder is
killed. Each writes what happened to a file of its own, a line at a time, which a SIGKILL does not take back.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import jjq

TOPIC, CHANNEL = "load", "work"
ACK_TIMEOUT_S = 2.0


class Journal:
    """Lines that are there when `write` returns. Times in seconds of the system's monotonic clock."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, what: str, values: list[str]) -> None:
        now = time.monotonic()
        os.write(self._fd, "".join(f"{what} {now:.6f} {value}\n" for value in values).encode())


def push(store_path: Path, journal_path: Path, name: str, stop: Path) -> None:
    journal = Journal(journal_path)
    choice = random.Random(name)
    with jjq.open(store_path) as store:
        topic = store.topic(TOPIC)
        count = 0
        while not stop.exists():
            values = [f"{name}:{count + i}" for i in range(choice.choice((1, 1, 5, 50)))]
            count += len(values)
            delay = 0.3 if choice.random() < 0.1 else None
            topic.push_many(values, delay=delay)
            journal.write("pushed", values)


def consume(store_path: Path, journal_path: Path, name: str, stop: Path) -> None:
    journal = Journal(journal_path)
    choice = random.Random(name)
    with jjq.open(store_path) as store:
        channel = store.channel(TOPIC, CHANNEL)
        while not stop.exists():
            got = channel.receive(choice.choice((1, 10, 100)), timeout=0.2)
            journal.write("got", [_line(each) for each in got])
            back = [each for each in got if choice.random() < 0.02]
            keep = [each for each in got if each not in back]
            try:
                if back:
                    journal.write("requeuing", [_line(each) for each in back])
                    channel.requeue_many(back, choice.choice((0.0, 0.1)))
                if len(keep) == 1:
                    keep[0].ack()
                else:
                    channel.ack_many(keep)
                journal.write("acked", [_line(each) for each in keep])
            except jjq.DeliveryExpired as error:
                journal.write("expired", [f"{p}:{o}" for p, o in error.expired])


def _line(delivery: jjq.Delivery) -> str:
    record = delivery.record
    return f"{record.partition}:{record.offset} {delivery.attempts} {delivery._lease.due} {record.value.decode()}"
