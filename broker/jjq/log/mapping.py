"""Mapping the files of a log into memory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pyarrow as pa


def mapped(path: Path) -> pa.Buffer:
    """All bytes of a file as they are in the page cache; raises OSError, also for what is no regular file."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for who writes to it
        raise OSError(errno.EINVAL, "it is no file", str(path))
    # The name as bytes: of a str Arrow takes only what is UTF-8, and names need not be.
    with pa.memory_map(os.fsencode(path)) as file:
        return file.read_buffer() if file.size() else pa.py_buffer(b"")
