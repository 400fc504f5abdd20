"""Which files a store has, by name, and what the small ones beside the data say.

`<uuid>.json` beside a sealed file is one of three: the note of a *staged* file that no commit has taken yet, the note of
a file that compaction is *writing*, or the *sidecar* of a compacted file. `links/<transaction>.json` is the manifest of
a commit. From these and `topic.json` repair makes the catalog again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from jjq import files
from jjq.log.format import crc32c
from jjq.model import Segment

SUFFIXES = (".arrows", ".index", ".arrow", ".json")
# Made by `files.write_small` and gone after it, unless the process died in between.
UNFINISHED = ".new"
TOPIC_FILE = "topic.json"
PARTITION_FILES = ("lock", "waiting")  # of a partition's directory, beside its segments
CATALOG_FILES = ("catalog.db", "catalog.db-wal", "catalog.db-shm")
BACKUP = "catalog.backup.db"
REBUILT = "catalog.rebuilt.db"
MAINTENANCE_LOCK = "maintenance.lock"
OBJECTS_LOCK = "objects.lock"
TOKENS = "tokens.json"  # of a broker, unless it was told of another file; see jjq.server.tokens

_CHECKSUM = "crc32c"
_ID = re.compile(r"[0-9a-f]{32}")
_SEGMENT = re.compile(r"([0-9a-f]{32})(\.arrows|\.index|\.arrow|\.json)")
_OBJECT = re.compile(r"[0-9a-f]{64}")
_PRESENCE = re.compile(
    r"pubsub/[0-9a-f]{32}\.(lock|json|new)|channels/\d+/(ring|[0-9a-f]{32}\.lock)"
    r"|topics/[0-9a-f]{32}/(dropped|holders/[0-9a-f]{32})"
)
_DIRECTORY = re.compile(
    r"topics(/[0-9a-f]{32}(/\d+|/holders)?)?|links|quarantine|subscribers|pubsub|channels(/\d+)?|objects(/[0-9a-f]{2})?"
)
_ROOT_FILES = frozenset(
    ("jjq.json", "store.lock", "catalog.lock", MAINTENANCE_LOCK, OBJECTS_LOCK, BACKUP, TOKENS, *CATALOG_FILES)
)
_SEGMENT_FIELDS = tuple(field.name for field in fields(Segment))


class SegmentFile(NamedTuple):
    """A file of a partition's directory that belongs to a segment."""

    uuid: str
    suffix: str


def is_id(name: str) -> bool:
    """Whether a name is that of a topic's directory, or of a segment or transaction without its suffix."""
    return _ID.fullmatch(name) is not None


def segment_file(name: str) -> SegmentFile | None:
    """The segment a file of a partition's directory belongs to by its name, None for any other file."""
    match = _SEGMENT.fullmatch(name.removesuffix(UNFINISHED))
    return SegmentFile(match.group(1), match.group(2)) if match else None


def is_topic_path(path: str) -> bool:
    """Whether a path relative to the store is a topic's directory."""
    head, _, name = path.partition("/")
    return head == "topics" and is_id(name)


def is_segment_path(path: str) -> bool:
    """Whether a path relative to the store is a file of a segment."""
    parts = path.split("/")
    return (
        len(parts) == 4
        and parts[0] == "topics"
        and is_id(parts[1])
        and parts[2].isdecimal()
        and segment_file(parts[3]) is not None
    )


def is_subscriber_lock(path: str) -> bool:
    """Whether a path relative to the store is the lock file of a subscriber."""
    head, _, name = path.partition("/")
    return head == "subscribers" and name.endswith(".lock") and is_id(name.removesuffix(".lock"))


def is_object(path: str) -> bool:
    """Whether a path relative to the store is a big object, or one on its way in."""
    parts = path.split("/")
    if parts[0] != "objects":
        return False
    if len(parts) == 2:
        return parts[1].endswith(UNFINISHED) and is_id(parts[1].removesuffix(UNFINISHED))
    return len(parts) == 3 and _OBJECT.fullmatch(parts[2]) is not None and parts[2].startswith(parts[1])


def is_presence(path: str) -> bool:
    """Whether a path relative to the store belongs to who is subscribed or consumes: gone with them, never data."""
    return _PRESENCE.fullmatch(path) is not None


def names_of(uuid: str, kind: str) -> list[str]:
    """The files of a segment of a kind."""
    suffixes = {"arrows": (".arrows", ".index"), "arrow": (".arrow", ".json")}.get(kind, ())
    return [uuid + suffix for suffix in suffixes]


def topic_directories(store: Path) -> list[Path]:
    """The directories of topics, known to the catalog or not."""
    return [path for path in _listed(store / "topics") if is_id(path.name) and path.is_dir()]


def partition_directories(topic: Path) -> list[Path]:
    return [path for path in _listed(topic) if path.name.isdecimal() and path.is_dir()]


def _listed(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def catalog_is_lost(store: Path) -> bool:
    """Whether a store that has topics, or lost them all, has no catalog, or an empty file for one."""
    path = store / CATALOG_FILES[0]
    try:
        if path.stat().st_size:
            return False
    except (FileNotFoundError, NotADirectoryError):
        pass
    # A store is founded with an empty `topics/`, before it has a catalog.
    return bool(topic_directories(store)) or not (store / "topics").is_dir()


def walk(store: Path) -> Iterator[Path]:
    """Every file below a store but those in `quarantine/`, directory by directory, in order of names.

    A directory of the store may be a link to one elsewhere, on a larger disk for example; other links are not followed.
    """
    return _walk_below(store, "")


def _walk_below(directory: Path, relative: str) -> Iterator[Path]:
    for path in _listed(directory):
        name = f"{relative}{path.name}"
        if not path.is_dir() or (path.is_symlink() and _DIRECTORY.fullmatch(name) is None):
            yield path
        elif name != "quarantine":
            yield from _walk_below(path, f"{name}/")


def misplaced(store: Path) -> list[Path]:
    """What is no file (but a directory, a pipe, a link to nothing) where the store has one, and no directory where it has
    one. No reader and no writer could do anything with it."""
    known = [path for path in _listed(store) if path.name in _ROOT_FILES or _DIRECTORY.fullmatch(path.name)]
    for topic in topic_directories(store):
        known += [p for p in _listed(topic) if p.name.isdecimal() or p.name == TOPIC_FILE]
        for partition in partition_directories(topic):
            known += [p for p in _listed(partition) if p.name in PARTITION_FILES or segment_file(p.name) is not None]
    for directory in _listed(store / "objects"):
        if _DIRECTORY.fullmatch(f"objects/{directory.name}"):
            known += [directory, *(p for p in _listed(directory) if is_object(p.relative_to(store).as_posix()))]
    found = []
    for path in known:
        belongs = path.is_dir if _DIRECTORY.fullmatch(path.relative_to(store).as_posix()) else path.is_file
        if not belongs():
            found.append(path)
    return found


def to_json(body: dict[str, Any]) -> bytes:
    """A small file's text, with a checksum over all it says: a flipped bit in a number would pass for another number."""
    plain = json.loads(json.dumps(body))  # as it is read back: keys are strings, and in their order
    return json.dumps(plain | {_CHECKSUM: _checksum(plain)}, indent=1, sort_keys=True).encode()


def _checksum(body: dict[str, Any]) -> str:
    return f"{crc32c(json.dumps(body, sort_keys=True).encode()):08x}"


def read_json(path: Path) -> dict[str, Any] | None:
    """What a small file says; None when it is not there or does not hold what was written."""
    try:
        body = json.loads(files.read(path))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or body.pop(_CHECKSUM, None) not in (None, _checksum(body)):
        return None
    return body


def write_json(path: Path, body: dict[str, Any]) -> None:
    """Replaces a small file atomically and durably."""
    with files.translated("write", path):
        files.write_small(path, to_json(body))


# --- notes and sidecars ----------------------------------------------------------------------------------------------


class Sidecar(NamedTuple):
    """What compaction says of a file it made: the row, the rows of all files made with it, and what they replace."""

    segment: Segment
    outputs: list[Segment]
    replaces: list[str]


def is_staged(note: dict[str, Any] | None) -> bool:
    return note is not None and "staged" in note


def is_unfinished(note: dict[str, Any] | None) -> bool:
    """Whether a note says that compaction or repair was still writing the file beside it."""
    return note is not None and "writing" in note


def is_stillborn(path: Path, note: dict[str, Any] | None) -> bool:
    """Whether who wrote a note died while it did, before it began the file that the note is about."""
    return note is None and path.suffix == ".json" and not path.with_suffix(".arrow").exists()


def write_note(path: Path, topic_id: str, partition: int) -> None:
    """Marks a file that is about to be written, so that it is known for what it is when its writer dies. Not synced:
    without the note the file is merely unknown, which repair quarantines."""
    body = {"writing": path.stem, "topic": topic_id, "partition": partition}
    fd = files.create(path)
    try:
        files.pwrite(fd, json.dumps(body).encode(), 0)
    finally:
        files.close(fd)


def write_sidecar(
    path: Path, topic_id: str, partition: int, segment: Segment, outputs: Sequence[Segment], replaces: Sequence[str]
) -> None:
    """Replaces the note of a finished file by its sidecar, durably."""
    body = {
        "sealed": segment.uuid,
        "topic": topic_id,
        "partition": partition,
        "segment": segment_to_json(segment),
        "outputs": [segment_to_json(each) for each in outputs],
        "replaces": list(replaces),
    }
    files.write_small(path, to_json(body))


def read_sidecar(note: dict[str, Any] | None) -> Sidecar | None:
    """The sidecar in a `<uuid>.json`, None for a note of another kind."""
    if note is None or "sealed" not in note:
        return None
    try:
        return Sidecar(
            segment_from_json(note["segment"]),
            [segment_from_json(each) for each in note["outputs"]],
            [str(each) for each in note["replaces"]],
        )
    except (KeyError, TypeError, ValueError):
        return None


def segment_to_json(segment: Segment) -> dict[str, Any]:
    """A segment as its row in the catalog has it."""
    values = {name: getattr(segment, name) for name in _SEGMENT_FIELDS}
    values["end_offset"] = values.pop("end")
    return values


def segment_from_json(values: dict[str, Any]) -> Segment:
    """Raises KeyError, TypeError or ValueError for what is no segment. Names of later versions are left out."""
    known = {name: values["end_offset" if name == "end" else name] for name in _SEGMENT_FIELDS}
    segment = Segment(**known)
    if not is_id(segment.uuid) or not 0 <= segment.base < segment.end:
        raise ValueError(f"no segment: {segment}")
    return segment


# --- manifests -------------------------------------------------------------------------------------------------------


class Placed(NamedTuple):
    """A segment and the partition it is in."""

    topic_id: str
    partition: int
    segment: Segment


class Manifest(NamedTuple):
    """What a commit was: its segments in order, (writer id, batch id, query id), when (microseconds), and the positions
    it gave, by topic name and partition."""

    transaction: str
    writer: tuple[str, int, str | None] | None
    at: int
    positions: dict[str, dict[int, tuple[int, int]]]
    segments: list[Placed]


def read_manifest(body: dict[str, Any] | None) -> Manifest | None:
    """None for what is no manifest."""
    try:
        if body is None:
            return None
        writer = body["writer"]
        return Manifest(
            str(body["transaction"]),
            None if writer is None else (str(writer[0]), int(writer[1]), writer[2]),
            int(body["at"]),
            {
                name: {int(partition): (int(span[0]), int(span[1])) for partition, span in each.items()}
                for name, each in body["positions"].items()
            },
            [Placed(str(e["topic"]), int(e["partition"]), segment_from_json(e)) for e in body["segments"]],
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None
