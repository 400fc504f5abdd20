"""Finding a message that may have been appended already: who sent it did not get the acknowledgement, and sends it again.

A client of a broker marks its messages with bytes of its own and a number. A broker that was started anew, and so remembers
nothing, finds a message by that mark in the files that hold what was appended since the client last knew the partition's end.
"""

from __future__ import annotations

from jjq.errors import DataLoss
from jjq.log import flat
from jjq.log.reader import LogReader
from jjq.log.recovery import fields_of


class Unknowable(Exception):
    """Of what was appended since, not all is in files that keep marks: it cannot be told."""


def find(reader: LogReader, partition: int, producer: bytes, sequence: int, since: int) -> tuple[int, int] | None:
    """The offset and timestamp of the marked message's first record, if it lies at offset `since` or beyond; else None."""
    end = reader.offsets(partition).end
    try:
        slices = reader.plan(partition, since, end)
    except DataLoss as error:
        raise Unknowable from error
    for each in slices:
        segment = each.segment
        if segment is None or segment.kind != "arrows":
            raise Unknowable  # compacted meanwhile, or linked
        try:
            with reader.open_stream(partition, segment) as stream:
                entries = stream.batches_from(each.start)
                for entry, field in zip(entries, fields_of(stream, entries), strict=True):
                    if (field.producer, field.sequence) == (producer, sequence):
                        return entry.base, entry.min_ts
        except (FileNotFoundError, flat.NotAMessage) as error:
            raise Unknowable from error
    return None
