"""What holds for the repository as a whole: sizes of files, and a lock that installs the same everywhere."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_FILE_BYTES = 1 << 20
MAX_PYTHON_LINES = 600


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """The files of the repository: those that git has or would take."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    found = [ROOT / name for name in listed.decode().split("\0") if name]
    return [path for path in found if path.is_file()]


# A number, and words of which there may be one: that is what `jjq.values.counted` is for.
NUMBERED = re.compile(
    r"(?:%d|\{[^{}']*\}) (?:rows|records|micro-batches|segments|partitions|columns|files|attempts|problems|batches|tokens|deliveries|subscriptions|topics)\b(?!/)"
)
# Where there is never one, where it stands in a column, and in a comment of an event stream.
NEVER_ONE = {
    "{len(found)} segments", "{rows} records", "{len(reader)} batches", "{row[2]} partitions", "{written.row.partitions} partitions",
    "{batch.num_columns:,} columns", "{MOST_COLUMNS:,} columns", "{MOST_AWAITED} partitions", "{count:,} partitions", "%d files",
    "{rows:9,} records", "{asked} deliveries", "{len(found):,} topics", "{len(written)} files", "{len(self.schema)} columns",
}  # fmt: skip


def locked_requirements() -> list[str]:
    """Each requirement of the lock on one line, with its hashes, without comments."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    joined = "\n".join(line for line in lines if not line.lstrip().startswith("#")).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip()]


def test_no_file_is_over_one_mebibyte(files: list[Path]) -> None:
    assert not [str(path) for path in files if path.stat().st_size > MAX_FILE_BYTES]


def test_no_python_file_is_too_long_to_read(files: list[Path]) -> None:
    lines = {str(path.relative_to(ROOT)): path.read_bytes().count(b"\n") for path in files if path.suffix == ".py"}
    assert not {name: count for name, count in lines.items() if count > MAX_PYTHON_LINES}


def test_no_message_says_1_records(files: list[Path]) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {match}"
        for path in files
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in ("broker", "connector", "spark_jobs")
        for match in NUMBERED.findall(path.read_text(encoding="utf-8"))
        if match not in NEVER_ONE
    }
    assert found == set()


def test_every_locked_requirement_is_pinned_and_hashed() -> None:
    requirements = locked_requirements()
    assert requirements
    pinned = re.compile(r"[a-z0-9][a-z0-9._-]*==\S+( ; .+?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*")
    assert not [line[:80] for line in requirements if not pinned.fullmatch(line)]


def test_the_lock_names_no_address_or_index_and_no_path() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert not re.findall(r"\w+://\S+|--(?:extra-)?index-url|--find-links|--trusted-host|(?:^|\s)/\S+", text)
