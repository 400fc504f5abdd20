"""Staged files as clients of both fronts name them: what they say of a file is not believed, it is looked at."""

from __future__ import annotations

import pyarrow as pa

from jjq.catalog.rows import staged_segment
from jjq.errors import DamagedSegment, StagedFileMissing
from jjq.log.check import check_segment
from jjq.log.format import NO_TS
from jjq.model import StagedFile
from jjq.store import Store


def check_staged(store: Store, file: StagedFile) -> None:
    """That a file holds what a client says of it: its rows get offsets by that. Raises StagedFileMissing."""
    directory = store.partition_dir(file.topic_id, file.partition)
    row = staged_segment(file, 0, NO_TS, 0)
    try:
        check_segment(directory, file.topic_id, file.partition, row, store.facts(file.topic_id))
    except FileNotFoundError:
        pass  # committed before, or gone: the commit looks
    except (DamagedSegment, pa.ArrowException) as error:
        raise StagedFileMissing(f"the staged file {file.uuid} is not what was staged; write the batch again") from error
