"""What the crash tests share: a directory where an fsync costs nothing, since it proves nothing there either."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """An empty directory, in memory where the system has such a place."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="jjq-crash-", dir=MEMORY) as name:
        yield Path(name)
