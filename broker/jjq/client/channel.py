"""A channel behind a broker: this handle's consumer is there, and so is what it has in hand."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from jjq import wire
from jjq.channel import Channel, Delivery, too_late
from jjq.client.handle import RemoteHandle
from jjq.clock import host
from jjq.deferral import delay_us
from jjq.errors import InvalidArgument, StoreReadOnly
from jjq.model import ChannelCounts, ConsumerInfo, Record
from jjq.values import timeout_s, whole

if TYPE_CHECKING:
    from jjq.client.store import RemoteStore
    from jjq.topic import Topic


class RemoteDelivery(Delivery):
    """See `jjq.channel.Delivery`."""

    __slots__ = ("number",)

    _channel: RemoteChannel

    def __init__(self, channel: RemoteChannel, record: Record, number: str, attempts: int) -> None:
        self._channel = channel
        self._settled = None
        self.record, self.number, self.attempts = record, number, attempts


class RemoteChannel(RemoteHandle, Channel):
    """See `jjq.channel.Channel`."""

    def __init__(self, store: RemoteStore, topic: Topic, packed: dict[str, Any], max_in_flight: int) -> None:
        super().__init__(store)
        self._topic, self._packed = topic, packed
        self._max_in_flight = whole(max_in_flight, "max_in_flight", 1)
        self._consumes = False
        self._mutex = threading.RLock()
        self._ahead: deque[Delivery] = deque()  # received for an iteration that was cancelled before it had them

    @property
    def id(self) -> int:
        return int(self._packed["id"])

    @property
    def name(self) -> str:
        return str(self._packed["name"])

    @property
    def ack_timeout(self) -> float:
        return float(self._packed["ack_timeout"])

    @property
    def max_attempts(self) -> int | None:
        found = self._packed["max_attempts"]
        return None if found is None else int(found)

    @property
    def ordered(self) -> bool:
        return bool(self._packed["ordered"])

    @property
    def dead_letter(self) -> str:
        return str(self._packed["dead_letter"])

    @property
    def created_at(self) -> int:
        return int(self._packed["created_at"])

    def __repr__(self) -> str:
        state = "closed" if self._closed else "consuming" if self._consumes else "open"
        return f"<Channel {self.name!r} of topic {self._topic.name!r} {state}>"

    def _about(self) -> dict[str, Any]:
        return {"channel": [self._topic.id, self.name, self.id, self._max_in_flight, host(), os.getpid()]}

    def _closed_message(self) -> str:
        return f"this handle of channel {self.name!r} was closed; get another with store.channel"

    # --- receiving ---------------------------------------------------------------------------------------------------

    def receive(self, max_records: int = 1, timeout: float | None = 0.0) -> list[Delivery]:
        most, seconds = whole(max_records, "max_records", 1), timeout_s(timeout)
        self._check_receiving()
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            with self._mutex:
                if self._ahead:
                    return [self._ahead.popleft() for _ in range(min(most, len(self._ahead)))]
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            wait = self._remote.connection.wait_s(left)
            found = self._receive(most, wait)
            if found or (left is not None and left <= wait):
                return found

    def _check_receiving(self) -> None:
        self._check_open()
        if self._remote.read_only:
            raise StoreReadOnly(
                f"the store at {self._remote.url} is read-only, so nothing can be received; a subscriber can poll"
            )

    def _receive(self, most: int, wait: float) -> list[Delivery]:
        told = self._act("receive", wait, max_records=most, timeout=wait)
        self._consumes = True
        records = wire.unpack_records(told["records"])
        return [RemoteDelivery(self, record, *each) for record, each in zip(records, told["deliveries"], strict=True)]

    async def _deliveries_async(self) -> AsyncIterator[Delivery]:
        self._check_receiving()
        while True:
            while (delivery := self._take_ahead()) is None:
                await self._wait_once(self._receive_ahead)
            yield delivery

    def _take_ahead(self) -> Delivery | None:
        with self._mutex:
            self._check_open()
            return self._ahead.popleft() if self._ahead else None

    def _receive_ahead(self, wait: float) -> None:
        """What a wait that is cancelled has received comes next."""
        found = self._receive(1, wait)
        with self._mutex:
            self._ahead.extend(found)

    def __iter__(self) -> Iterator[Delivery]:
        while True:
            yield from self.receive(timeout=None)

    # --- settling ----------------------------------------------------------------------------------------------------

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        self._settle_many(deliveries, "acknowledged")

    def requeue_many(
        self, deliveries: Iterable[Delivery], delay: float | timedelta = 0.0, reason: str | None = None
    ) -> None:
        delay_us(delay)
        self._settle_many(deliveries, "requeued", delay=delay, reason=reason)

    def touch_many(self, deliveries: Iterable[Delivery]) -> None:
        self._settle_many(deliveries, "touched")

    def _settle_many(self, deliveries: Iterable[Delivery], how: str, **args: Any) -> None:
        chosen: dict[str, RemoteDelivery] = {}
        owners: dict[RemoteChannel, list[str]] = {}  # other handles of this channel, maybe, whose consumers have them
        for each in self._unsettled(deliveries, how):
            assert isinstance(each, RemoteDelivery)
            chosen[each.number] = each
            owners.setdefault(each._channel, []).append(each.number)
        gone = set()
        for owner, numbers in owners.items():
            late = owner._act("settle", deliveries=numbers, how=how, **args)
            gone.update(late)
            for number in numbers:
                if number in late:
                    chosen[number]._settled = "expired"
                elif how != "touched":
                    chosen[number]._settled = how
        if gone:
            records = [chosen[each].record for each in gone]
            raise too_late(self.name, len(chosen), len(gone), [(each.partition, each.offset) for each in records])

    def _unsettled(self, deliveries: Iterable[Delivery], how: str) -> list[Delivery]:
        self._check_open()
        found = list(deliveries)
        for each in found:
            channel = each._channel
            if not isinstance(channel, RemoteChannel) or (channel.id, channel._remote.id) != (self.id, self._remote.id):
                raise InvalidArgument(f"{each!r} is not of channel {self.name!r} of topic {self._topic.name!r}")
            if each._settled not in (None, how):
                raise InvalidArgument(f"{each!r} cannot be {how}")
        return [each for each in found if each._settled is None]

    # --- the channel itself ------------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        return bool(self._act("channel_is_paused"))

    def pause(self) -> None:
        self._act("pause_channel", paused=True)

    def unpause(self) -> None:
        self._act("pause_channel", paused=False)

    def empty(self) -> None:
        self._act("empty_channel")

    def revive(self) -> int:
        return int(self._act("revive"))

    def counts(self) -> ChannelCounts:
        return ChannelCounts(**self._act("channel_counts"))

    def consumers(self) -> list[ConsumerInfo]:
        return [ConsumerInfo(**each) for each in self._act("channel_consumers")]
