"""What processes that push to one partition at the same time ask of the one that has its lock: to write for them, too.

Each of them has a slot in the partition's file `waiting`, where it puts the value that it waits with. Who has the lock writes the
values of all in one message, with one sync. Before the entry by which that message counts it puts into each slot which entry
that will be, and where. So who waits knows what became of its value, whoever dies when: it counts if that entry is in the
index, and else nobody has written it. docs/decisions/0027 says why, docs/format.md draws the file.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jjq import files
from jjq.interrupts import surely
from jjq.log.format import ENTRY_SIZE, crc32c
from jjq.log.requests import OneValue
from jjq.log.stream import stream_paths

NAME = "waiting"
SLOTS = 64
SLOT_BYTES = 4096
# Locks of bytes of the file: who has one of the first 64 has the slot of that number, and who has one of the next 64 is at a round, for
# whose end others wait.
_SLOT_LOCKS = [files.bytes_lock(number) for number in range(SLOTS)]
_BEGIN = [files.bytes_lock(SLOTS + number) for number in range(SLOTS)]
_AWAIT = [files.bytes_lock(SLOTS + number, files.SHARED) for number in range(SLOTS)]
END_ROUND = files.bytes_lock(SLOTS, files.UNLOCKED, SLOTS)
# The numbers of the requests, by slot (0 for none), and the byte of the last round
NUMBERS = struct.Struct(f"<{SLOTS}Q")
_NUMBER = struct.Struct("<Q")
# number, active file, position in its index, offset, timestamp, the entry; then the CRC
ANSWER = struct.Struct(f"<Q16sQQq{ENTRY_SIZE}s")
# number, `among`, length of the key, or _NO_KEY, and of the value, which follow, and the CRC of them all
REQUEST = struct.Struct("<QIIII")
_SAID = struct.Struct("<QIII")
_NO_KEY = (1 << 32) - 1
REQUEST_AT = 256  # in a slot
_KEY_AT = REQUEST_AT + REQUEST.size
MOST_BYTES = SLOT_BYTES - _KEY_AT  # of a key and a value


class Answer(NamedTuple):
    """The entry that a value is to count by, in which file, and at which byte of its index; with the value's offset and timestamp."""

    number: int
    uuid: bytes
    position: int
    offset: int
    ts: int
    entry: bytes


class Asked(OneValue):
    """What another process waits with."""

    __slots__ = ("number", "slot")

    def __init__(self, slot: int, number: int, value: bytes, among: int, key: bytes | None) -> None:
        super().__init__(value, among, key)
        self.slot, self.number = slot, number


def _start(slot: int) -> int:
    return (1 + slot) * SLOT_BYTES


class Waiting:
    """The file `waiting` of a partition, as one process has it; made if missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.fd = files.open_lock(directory / NAME)
        self._slot = -1
        self._number = int.from_bytes(os.urandom(7), "little")  # no process comes upon an answer to an earlier one
        self._asks = False

    def close(self) -> None:
        fd, self.fd = self.fd, -1  # first: what is closed again after an interrupt may be another file by then
        if fd >= 0:
            files.close(fd)

    # --- who waits ---------------------------------------------------------------------------------------------------

    def seek_slot_locked(self) -> None:
        """Takes a slot; where there is none, or no room on the disk, this process waits for the lock itself."""
        if self._slot >= 0:
            return
        for slot in range(SLOTS):
            if files.is_held(self.fd, slot):
                continue
            with contextlib.suppress(OSError):
                self._say(slot, 0)  # first: what is left of who had it before counts as soon as somebody has the slot
                files.turn(self.fd, files.TRY, _SLOT_LOCKS[slot])
                self._slot = slot
            return

    def ask(self, value: bytes, among: int, key: bytes | None = None) -> bool:
        """Puts a value and its key into this process's slot, where it has one, they fit it, and there is room on the disk."""
        both = value if key is None else key + value
        if self._slot < 0 or len(both) > MOST_BYTES:
            return False
        self._number += 1
        said = self._number, among, _NO_KEY if key is None else len(key), len(value)
        head = REQUEST.pack(*said, crc32c(both, crc32c(_SAID.pack(*said))))
        try:
            files.pwrite(self.fd, head + both, _start(self._slot) + REQUEST_AT)
        except OSError:
            return False
        self._asks = True
        with contextlib.suppress(OSError):  # it may be there all the same, where the handler of a signal raised it
            self._say(self._slot, self._number)
        return True

    def withdraw(self) -> None:
        """Asks no more. Who has the partition's lock may write its value itself then; who has not knows that nobody does much later."""
        if self._asks:
            try:
                self._say(self._slot, 0)
            except OSError:  # nobody writes for a slot that nobody has
                files.turn(self.fd, files.TRY, files.bytes_lock(self._slot, files.UNLOCKED))
                self._slot = -1
            self._asks = False

    def leave(self) -> None:
        """`withdraw`, for sure: or somebody would write the value at any later time."""
        try:
            self.withdraw()
        except BaseException:
            surely(self.withdraw)
            raise

    def _say(self, slot: int, number: int) -> None:
        files.pwrite(self.fd, _NUMBER.pack(number), slot * _NUMBER.size)

    def await_round(self) -> int:
        """Waits until who has the lock is done, or dead; not at all where it has not said yet that it is at a round. Returns the byte of
        the round, -1 for none. The caller unlocks END_ROUND, also after an interrupt."""
        number = self._last_round()
        if number >= 0:
            files.turn(self.fd, files.WAIT, _AWAIT[number])
            files.turn(self.fd, files.TRY, END_ROUND)
        return number

    def _last_round(self) -> int:
        said = self._look(1, NUMBERS.size)
        return said[0] % SLOTS if said else -1

    def _look(self, length: int, position: int) -> bytes:
        """Of a file that cannot be read as much as of one that says nothing: then each waits for the lock."""
        try:
            return files.look(self.fd, length, position)
        except OSError:
            return b""

    def answer(self) -> Answer | None:
        """What was said to what this process asks. Raises OSError."""
        data = files.look(self.fd, ANSWER.size + 4, _start(self._slot))
        if len(data) < ANSWER.size + 4 or crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
            return None
        answer = Answer._make(ANSWER.unpack_from(data))
        return answer if self._asks and answer.number == self._number else None

    def counts(self, answer: Answer) -> bool:
        """Whether the entry of an answer is in the index."""
        fd = files.open_ro(stream_paths(self._directory, answer.uuid.hex())[1])
        try:
            return files.pread(fd, ENTRY_SIZE, answer.position) == answer.entry
        finally:
            files.close(fd)

    # --- who writes --------------------------------------------------------------------------------------------------

    def begin_round_locked(self) -> None:
        """Says whose end those are to wait for that come from now on; the caller unlocks END_ROUND."""
        self.withdraw()  # nothing, unless interrupts came one after the other
        # Another byte each time: those who waited for the last round's end may not have run yet. One that is held is of a process that
        # was stopped just there.
        last = self._last_round()
        for number in (each % SLOTS for each in range(last + 1, last + SLOTS)):
            try:
                files.turn(self.fd, files.TRY, _BEGIN[number])
            except BlockingIOError:
                continue
            with contextlib.suppress(OSError):  # then those who come wait for the lock
                files.pwrite(self.fd, bytes((number,)), NUMBERS.size)
            return

    def asked_locked(self) -> list[Asked]:
        """What others wait with."""
        data = self._look(NUMBERS.size, 0)
        if len(data) < NUMBERS.size or data.count(0) == len(data):
            return []
        asked = []
        for slot, number in enumerate(NUMBERS.unpack(data)):
            if number and slot != self._slot and (request := self._request(slot, number)) is not None:
                asked.append(request)
        return asked

    def _request(self, slot: int, number: int) -> Asked | None:
        data = self._look(SLOT_BYTES, _start(slot))
        if len(data) < _KEY_AT or _NUMBER.unpack_from(data)[0] == number:
            return None  # it has its answer
        *said, crc = REQUEST.unpack_from(data, REQUEST_AT)
        asked, among, key_length, length = said
        value_at = _KEY_AT + (0 if key_length == _NO_KEY else key_length)
        end = value_at + length
        # Of all: one that gives up and asks anew writes over what is just being read here.
        if asked != number or end > len(data) or crc32c(data[_KEY_AT:end], crc32c(_SAID.pack(*said))) != crc:
            return None
        # Who has died does not wait.
        if not files.is_held(self.fd, slot):
            return None
        return Asked(slot, number, data[value_at:end], among, None if key_length == _NO_KEY else data[_KEY_AT:value_at])

    def reply_locked(
        self, asked: Sequence[Asked], uuid: str, position: int, offset: int, ts: int, entry: bytes
    ) -> None:
        """Before the entry of the message that these have become, from `offset` on, is written at this position of the index.

        Raises OSError; the entry must not be written then, as who has no answer writes its value itself.
        """
        for number, each in enumerate(asked):
            said = ANSWER.pack(each.number, bytes.fromhex(uuid), position, offset + number, ts, entry)
            files.pwrite(self.fd, said + crc32c(said).to_bytes(4, "little"), _start(each.slot))
