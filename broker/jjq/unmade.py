"""A topic that its first use is about to make: on it the use is tried, so that one which cannot be leaves no topic behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jjq.catalog.rows import TopicRow
from jjq.clock import now_us
from jjq.config import TopicConfig
from jjq.facts import Facts
from jjq.log.requests import Append
from jjq.model import PartitionOffsets, PositionRange, Positions
from jjq.pushing import prepared
from jjq.topic import Topic

if TYPE_CHECKING:
    from jjq.store import Store


class Unmade(Topic):
    """Checks what is pushed to it as the topic would, and keeps nothing. It holds no records."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(store, TopicRow("", name, 1, TopicConfig().to_dict(), 1, now_us(), None), Facts(store, ""))
        self._plain_bytes = -1  # no push is short enough to go without checks

    def refresh(self) -> None:
        """There is nobody who could have altered it."""

    def catch_up(self) -> None:
        """See `refresh`."""

    def append_all(self, requests: Mapping[int, Append], among: int) -> list[PositionRange] | None:
        return [PositionRange(place, 0, each.rows, 0) for place, each in requests.items()]

    def push_table(
        self, data: Any, *, key: str | None = None, partition: int | None = None, timestamp: str | None = None,
        writer_id: str | None = None, batch_id: int | None = None,
    ) -> Positions:  # fmt: skip
        self.choose(partition, None)
        prepared(self, data, key, timestamp)
        return Positions([])

    def offsets(self) -> list[PartitionOffsets]:
        return [_NOTHING.offsets(0)]

    @property
    def reader(self) -> Any:
        return _NOTHING


class _Nothing:
    """What starts ask of a reader."""

    def offsets(self, partition: int) -> PartitionOffsets:
        return PartitionOffsets(partition, 0, 0, 0)

    def closed_offsets(self, partition: int) -> PartitionOffsets:
        return self.offsets(partition)

    def seek_time(self, partition: int, ts: int, *, closed: bool = False) -> int | None:
        return None


_NOTHING = _Nothing()
