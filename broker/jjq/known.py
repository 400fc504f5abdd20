"""Which files of a store belong to it, and which nobody can name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jjq import layout, topicfile
from jjq.catalog.base import Catalog
from jjq.errors import TopicDeleted
from jjq.log.check import holds_nothing

if TYPE_CHECKING:
    from jjq.store import Store

_ROOT = (
    "jjq.json", "store.lock", "catalog.lock", layout.MAINTENANCE_LOCK, layout.OBJECTS_LOCK, layout.BACKUP, layout.REBUILT,
    layout.TOKENS, *layout.CATALOG_FILES,
)  # fmt: skip


def in_use(catalog: Catalog, path: str) -> bool:
    """Whether a path that waits for its removal is of a segment or topic that is there; relative to the store."""
    if layout.is_topic_path(path):
        return catalog.topic_by_id(path.rpartition("/")[2]) is not None
    if not layout.is_segment_path(path):
        return False
    _, topic_id, partition, name = path.split("/")
    file = layout.segment_file(name)
    return file is not None and is_named(catalog, topic_id, int(partition), file.uuid)


def is_named(catalog: Catalog, topic_id: str, partition: int, uuid: str) -> bool:
    """Whether a segment is part of a partition: by a row, or as the file being appended to."""
    for _ in range(2):  # it may get its row between the first two questions
        if catalog.segment(uuid) is not None:
            return True
        with contextlib.suppress(TopicDeleted):
            if catalog.partition(topic_id, partition).active == uuid:
                return True
    return False


def forgotten_topics(store: Path, catalog: Catalog) -> Iterator[tuple[Path, str]]:
    """(directory, name) of topics that have files of records and were not deleted, and that the catalog does not know, as one does
    not that is older than they are, or of another store: a topic is in the catalog before anything is pushed to it."""
    for directory in layout.topic_directories(store):
        if catalog.topic_by_id(directory.name) is not None or catalog.is_garbage(f"topics/{directory.name}"):
            continue
        found = topicfile.read(store, directory.name)
        # Last: of a topic that was deleted and removed since the catalog was asked, nothing is left.
        if found is not None and not found.deleted and any(directory.glob("*/*.arrow*")):
            yield directory, found.row.name


class Known:
    """Tells the files that belong to a store, now, from others. The catalog is asked about each anew, so that one that
    was made or named a moment ago is known."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._catalog = store.catalog

    def unknown(self) -> list[Path]:
        """The files of the store, but for those in quarantine, that nobody can name."""
        return [path for path in layout.walk(self._store.path) if not self.knows(path) and path.exists()]

    def knows(self, path: Path) -> bool:
        parts = path.relative_to(self._store.path).parts
        if layout.is_object("/".join(parts)) or layout.is_presence("/".join(parts)):
            return True
        name = parts[-1].removesuffix(layout.UNFINISHED)
        if len(parts) == 1:
            return any(name == each or name.startswith(f"{each}-") for each in _ROOT)
        if parts[0] == "links" and len(parts) == 2:
            return layout.is_id(name.removesuffix(".json"))
        if parts[0] == "subscribers":
            return layout.is_subscriber_lock("/".join(parts))
        if parts[0] != "topics" or not layout.is_id(parts[1]):
            return False
        if len(parts) == 4 and parts[2].isdecimal() and layout.segment_file(name) is not None:
            return self._knows_segment(path, parts[1], int(parts[2]))
        lock = len(parts) == 4 and parts[2].isdecimal() and name in layout.PARTITION_FILES
        if lock or (len(parts) == 3 and name == layout.TOPIC_FILE):
            return self._catalog.topic_by_id(parts[1]) is not None or self._catalog.is_garbage(f"topics/{parts[1]}")
        return False

    def _knows_segment(self, path: Path, topic_id: str, partition: int) -> bool:
        file = layout.segment_file(path.name)
        if file is None:
            return False
        if is_named(self._catalog, topic_id, partition, file.uuid):
            return True
        if self._catalog.is_garbage("/".join(path.relative_to(self._store.path).parts)):
            return True
        if self._catalog.is_garbage(f"topics/{topic_id}"):
            return True
        note = layout.read_json(path.with_name(f"{file.uuid}.json"))
        if (
            layout.is_stillborn(path, note)
            or layout.is_staged(note)
            or layout.is_unfinished(note)
            or layout.read_sidecar(note) is not None
        ):
            return True
        return file.suffix in (".arrows", ".index") and holds_nothing(path.parent, file.uuid)
