"""Which files of a store belong to it, and which nobody can name."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from jjq import layout
from jjq.errors import TopicDeleted
from jjq.log.check import holds_nothing

if TYPE_CHECKING:
    from jjq.store import Store

_ROOT = (
    "jjq.json", "store.lock", "catalog.lock", layout.MAINTENANCE_LOCK, layout.BACKUP, layout.REBUILT,
    *layout.CATALOG_FILES,
)  # fmt: skip


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
        lock = len(parts) == 4 and parts[2].isdecimal() and name == "lock"
        if lock or (len(parts) == 3 and name == layout.TOPIC_FILE):
            return self._catalog.topic_by_id(parts[1]) is not None or self._catalog.is_garbage(f"topics/{parts[1]}")
        return False

    def _knows_segment(self, path: Path, topic_id: str, partition: int) -> bool:
        file = layout.segment_file(path.name)
        if file is None:
            return False
        # In this order: a file goes from no name to the active one, to a row, to garbage, and none is passed unseen
        # when the first two are asked for twice.
        for _ in range(2):
            if self._catalog.segment(file.uuid) is not None:
                return True
            with contextlib.suppress(TopicDeleted):
                if self._catalog.partition(topic_id, partition).active == file.uuid:
                    return True
        if self._catalog.is_garbage("/".join(path.relative_to(self._store.path).parts)):
            return True
        if self._catalog.is_garbage(f"topics/{topic_id}"):
            return True
        note = layout.read_json(path.with_name(f"{file.uuid}.json"))
        if layout.is_staged(note) or layout.is_unfinished(note) or layout.read_sidecar(note) is not None:
            return True
        return file.suffix in (".arrows", ".index") and holds_nothing(path.parent, file.uuid)
