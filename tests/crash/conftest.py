"""What the crash tests share: a directory where an fsync costs nothing, since it proves nothing there either."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jjq.log import active

MEMORY = Path("/dev/shm")
ROOM_BYTES = 1 << 30  # containers may have as little as 64 MiB there


@pytest.fixture(autouse=True)
def laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros are laid out ahead from the first push that syncs, so that small files have them, too."""
    monkeypatch.setattr(active, "AHEAD_LEAST", 0)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """An empty directory, in memory where the system has such a place, with room."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM_BYTES:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="jjq-crash-", dir=MEMORY) as name:
        yield Path(name)
