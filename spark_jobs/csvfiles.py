"""The first line of CSV files, looked at before Spark is started: what Spark says of one that does not fit are pages."""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import unquote, urlsplit

from spark_jobs import running

SHOWN = 8  # names in a message
LONGEST_LINE = 1 << 20  # of what may be no text at all
PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
OTHERWISE_PACKED = {".deflate", ".lz4", ".snappy", ".xz", ".zst", ".zstd"}  # Spark may read them, and Python not


def require_header(files: Path, separator: str, checkpoint: str, columns: Sequence[str], of: str) -> None:
    """Raises Refused where the first line of the next file to be read does not name these columns, which are those `of` a topic
    or flag. What cannot be told without Spark is left to Spark."""
    path = next_file(files, checkpoint)
    names = None if path is None else header(path, separator)
    if names is None or [each.lower() for each in names] == [each.lower() for each in columns]:
        return
    alone = len(names) == 1 < len(columns) and names[0].lower() not in map(str.lower, columns)
    separators = f" (is {separator!r} the --separator?)" if alone else ""
    raise running.Refused(
        f"--files: the first line of {path} {difference(names, columns)}{separators}; the columns of {of} are {some(columns)}: take "
        f"files that name these in this order, or another {'--schema' if of == '--schema' else '--output'}"
    )


def difference(names: Sequence[str], columns: Sequence[str]) -> str:
    """Of a file's first line, in words: what is too few, too many, or in another order. Case does not count, as for Spark."""
    have, want = ({each.lower() for each in some} for some in (names, columns))
    missing = [each for each in columns if each.lower() not in have]
    surplus = [each for each in names if each.lower() not in want]
    told = [f"lacks {some(missing)}"] if missing else []
    told += [f"has {some(surplus)} too many"] if surplus else []
    return " and ".join(told) or ("names a column twice" if len(names) > len(columns) else "has them in another order")


def some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(each if each and each == each.strip() else repr(each) for each in names[:SHOWN]) + more


def next_file(files: Path, checkpoint: str) -> Path | None:
    """Of the files that the checkpoint does not know the oldest, with which Spark begins. None where there is none, or it cannot
    be told."""
    known = files_read(checkpoint)
    if known is None:
        return None
    found = []
    for path in files.iterdir():
        if path.is_dir():
            if "=" in path.name:  # Spark takes a column from it
                return None
        elif not path.name.startswith(("_", ".")) and not path.name.endswith("._COPYING_") and str(path) not in known:
            with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                found.append((path.stat().st_mtime_ns, path))
    return min(found)[1] if found else None


def files_read(checkpoint: str) -> set[str] | None:
    """The paths of the files that the checkpoint's query has begun to read; None where it is not of this machine, or not as
    Spark writes it."""
    directory = running.local(checkpoint)
    if directory is None:
        return None
    found = set()
    try:
        for log in (directory / "sources" / "0").glob("[0-9]*"):
            for line in log.read_text(encoding="utf-8").splitlines()[1:]:  # the first is the version
                found.add(unquote(urlsplit(json.loads(line)["path"]).path))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return found


def header(path: Path, separator: str) -> list[str] | None:
    """The names in a file's first line that is not blank. None where there is none, or Python does not read it as Spark does."""
    separator = {"\\t": "\t"}.get(separator, separator)
    if len(separator) != 1 or path.suffix.lower() in OTHERWISE_PACKED:
        return None
    try:
        with opened(path) as lines:
            while line := lines.readline(LONGEST_LINE):
                if line.strip():
                    return next(csv.reader([line], delimiter=separator, escapechar="\\"))
    except (OSError, EOFError, csv.Error):
        pass
    return None


def opened(path: Path) -> IO[str]:
    take: Callable[..., Any] = PACKED.get(path.suffix.lower(), open)
    return cast(IO[str], take(path, "rt", encoding="utf-8-sig", errors="replace"))
