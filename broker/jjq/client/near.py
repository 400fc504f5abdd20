"""Sealed files of a store behind a broker, read where its directory can be seen: a way past the network, and nothing else.

A sealed file never changes, and its checksums, which the broker tells with the plan, say whether it is the one that was
planned. So no lock and no catalog is needed here, and the directory may be a mount of another machine's. Whatever is
amiss with a file, the broker has the records too, and the last word on them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from jjq import files, founding
from jjq.errors import DamagedSegment, InvalidArgument, StoreError, StoreFormat
from jjq.layout import is_id
from jjq.log.mapping import mapped
from jjq.log.projection import columns_of, output_schema, project
from jjq.log.sealed import SealedReader, rebatch, sealed_path
from jjq.model import Segment, Slice

# What reading a file may raise: it went, cannot be read, or is not what was planned.
_AMISS = (OSError, pa.ArrowException, StoreError, DamagedSegment)
log = logging.getLogger("jjq.client")


class NearFiles:
    """The directory of a store, if it can be seen from here. Safe among threads."""

    def __init__(self, directory: str | Path, store_id: str) -> None:
        self.directory, self._store_id = Path(directory), store_id
        self._there = False

    def are_there(self) -> bool:
        """Raises InvalidArgument where another store is there."""
        if not self._there:
            try:
                found = founding.read_identity(self.directory).get("id")
            except StoreFormat:  # nothing is there, or nothing that this user may read
                return False
            if found != self._store_id:
                raise InvalidArgument(
                    f"{self.directory} holds another store (id {found}) than the one that the broker serves "
                    f"({self._store_id}); name the directory of that one, or none"
                )
            self._there = True
        return self._there

    def read(
        self, piece: Slice, user: pa.Schema, metadata: Sequence[str], target_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a slice from the sealed file that it was planned in. It may end early, after any batch: then the broker
        is to be asked for the rest."""
        if piece.segment is None or not is_id(piece.topic_id) or not is_id(piece.segment.uuid):
            return
        try:
            yield from self._read(piece, piece.segment, user, metadata, target_bytes)
        except _AMISS as error:
            log.info("segment %s is fetched from the broker: %s", piece.segment.uuid, error)

    def _read(
        self, piece: Slice, segment: Segment, user: pa.Schema, metadata: Sequence[str], target_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        directory = self.directory / "topics" / piece.topic_id / str(piece.partition)
        path = sealed_path(directory, segment.uuid)
        with files.reading(path), pa.ipc.open_file(mapped(path)) as file:
            physical = file.schema  # in the head, whose checksum the reader compares
        sealed = SealedReader(directory, segment, physical)
        output = output_schema(user, metadata)

        def projected() -> Iterator[pa.RecordBatch]:
            at = piece.start
            for base, batch in sealed.scan(piece.start, piece.end, columns_of(physical, user, metadata)):
                first, last = max(base, at), min(base + batch.num_rows, piece.end)
                if first == at and first < last:
                    cut = batch.slice(first - base, last - first)
                    yield project(cut, physical, first, piece, user, metadata, output)
                    at = last

        return rebatch(projected(), target_bytes)
