"""A source and a sink whose Python worker is killed amid its first task, by SIGKILL, as Linux does when memory is short.

Spark gets these classes by value, so no worker needs to find this module.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_jjq import DefaultSource
from pyspark_jjq.stream import StreamReader
from pyspark_jjq.writer import Staged, StreamWriter

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def killed_amid(batches: Iterator[pa.RecordBatch], store: str) -> Iterator[pa.RecordBatch]:
    """The batches; before the third one the process dies, if none did before."""
    mark = Path(store).with_name("killed")
    for number, batch in enumerate(batches):
        if number == 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


class KilledReader(StreamReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return killed_amid(super().read(partition), self.options.path)


class KilledWriter(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return super().write(killed_amid(iterator, self.options.path))


class KilledSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "killed"

    def streamReader(self, schema: StructType) -> Any:
        reader = super().streamReader(schema)
        reader.__class__ = KilledReader
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return KilledWriter(self.options, schema, overwrite)
