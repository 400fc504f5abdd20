"""Whom retention waits for: what subscribers and channels have yet to read of a partition."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from jjq.catalog.rows import Driver, Statements

Waits = bool | Collection[str]  # everybody, nobody, or those of these names


@dataclass(frozen=True, slots=True)
class Floor:
    """The lowest offset that somebody has yet to read, and who that is."""

    offset: int
    who: str


def floor(reads: Statements | Driver, topic_id: str, partition: int, waits: Waits) -> Floor | None:
    """Of those who are waited for, the one furthest behind; None when there is nobody. Names that nobody has count for
    nothing: who was deleted is not waited for."""
    if not waits:
        return None
    found: list[Floor] = []
    for name, offset in reads.rows("cursors_of_partition", topic_id=topic_id, partition=partition):
        if waits is True or name in waits:
            found.append(Floor(offset, f"subscriber {name}"))
    for name, offset, lowest in reads.rows("channels_of_partition", topic_id=topic_id, partition=partition):
        if waits is True or name in waits:
            found.append(Floor(offset if lowest is None else min(offset, lowest), f"channel {name}"))
    return min(found, key=lambda each: each.offset, default=None)
