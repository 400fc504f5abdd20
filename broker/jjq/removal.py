"""Removing files: garbage whose time of grace is over, leftovers of dead processes, manifests of old commits.

Only what jjq has made and can tell for certain is removed. For one process at a time: the caller holds the maintenance
lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jjq import files, layout
from jjq.catalog.rows import TopicRow
from jjq.catalog.writers import KEPT_BATCHES
from jjq.clock import now_us
from jjq.config import GRACE_US
from jjq.errors import StoreError
from jjq.known import in_use
from jjq.log.check import holds_nothing
from jjq.reports import MaintenanceReport

if TYPE_CHECKING:
    from jjq.store import Store

STAGED_US = 7 * 86_400_000_000  # how long a staged file waits for its commit


class Removal:
    """Removes what is no longer needed and counts it in `report`.

    `topic_file_agrees` says of a topic whether a catalog made again from the files would not miss what is removed now.
    """

    def __init__(self, store: Store, report: MaintenanceReport, grace_us: int, now: Callable[[], int],
                 topic_file_agrees: Callable[[str], bool]) -> None:  # fmt: skip
        self._store = store
        self._catalog = store.catalog
        self._report = report
        self._grace_us = grace_us
        self._now = now
        self._topic_file_agrees = topic_file_agrees

    # --- what dead processes left ------------------------------------------------------------------------------------

    def leftovers(self, topic: TopicRow) -> int:
        """Removes what was written and never became part of the topic: outputs of a compaction that died, staged files
        that no commit can take any more, files made to be appended to that never were. Returns how many segments."""
        count = 0
        last = {each.id: each.last_batch for each in self._catalog.writers()}
        for partition in range(topic.partitions):
            directory = self._store.partition_dir(topic.id, partition)
            for path in sorted(directory.iterdir()):
                file = layout.segment_file(path.name)
                if file is None:
                    continue
                if path.name.endswith(layout.UNFINISHED):
                    files.unlink(path)  # only this process, which holds the lock, writes any
                elif file.suffix == ".json":
                    count += self._look_at_note(topic, partition, path, file.uuid, last)
                elif file.suffix in (".arrows", ".index"):
                    count += self._look_at_stream(topic, partition, path, file.uuid)
        return count

    def _look_at_note(self, topic: TopicRow, partition: int, path: Path, uuid: str, last: dict[str, int]) -> bool:
        note = layout.read_json(path)
        named = self._catalog.segment(uuid) is not None
        if layout.is_unfinished(note) or layout.read_sidecar(note) is not None:
            # The file of a finished compaction is either named, or garbage that another one replaced.
            if named or self._is_garbage(path):
                return False
            self._remove(path.with_suffix(".arrow"), path)
            self._report.leftovers += 1
            return True
        if layout.is_stillborn(path, note) and not named and self._is_old(path):
            self._remove(path)
            self._report.leftovers += 1
            return True
        if note is None or not layout.is_staged(note):
            return False
        if named:  # committed; who committed it died before the note was gone
            files.unlink(path)
            return False
        if self._is_garbage(path) or not self._given_up(path, note, last):
            return False
        # Under the lock no commit is about to take it.
        with self._store.logs[topic.id, partition].exclusive():
            if self._catalog.segment(uuid) is not None:
                return False
            self._remove(path.with_suffix(".arrow"), path)
        self._report.staged_reaped += 1
        return True

    def _given_up(self, path: Path, note: dict[str, Any], last: dict[str, int]) -> bool:
        """Whether no commit will take a staged file: its writer has gone on, or it is too old."""
        owner = note.get("owner")
        if isinstance(owner, list) and len(owner) == 2 and last.get(owner[0], -1) >= int(owner[1]):
            return True
        newest = 0
        for each in (path, path.with_suffix(".arrow")):
            with contextlib.suppress(FileNotFoundError):
                newest = max(newest, each.stat().st_mtime_ns // 1000)
        return self._now() - newest > STAGED_US

    def _look_at_stream(self, topic: TopicRow, partition: int, path: Path, uuid: str) -> bool:
        if not self._is_old(path) or self._is_used(topic, partition, uuid) or self._is_garbage(path):
            return False
        if not holds_nothing(path.parent, uuid):
            return False
        # Under the lock nobody has made it without having named it yet.
        with self._store.logs[topic.id, partition].exclusive():
            if self._is_used(topic, partition, uuid) or not holds_nothing(path.parent, uuid):
                return False
            self._remove(path.with_suffix(".arrows"), path.with_suffix(".index"))
        self._report.leftovers += 1
        return True

    def _is_old(self, path: Path) -> bool:
        """Whether a file is not just being made."""
        try:
            return now_us() - path.stat().st_mtime_ns // 1000 >= self._grace_us
        except FileNotFoundError:  # a segment has two, and the other one was met first
            return False

    def _is_used(self, topic: TopicRow, partition: int, uuid: str) -> bool:
        if self._catalog.partition(topic.id, partition).active == uuid:
            return True
        return self._catalog.segment(uuid) is not None

    # --- files that no row names any more ----------------------------------------------------------------------------

    def garbage(self) -> int:
        """Removes files whose time of grace is over; returns how many. What jjq does not know is left, and said."""
        now = self._now()
        due = self._catalog.garbage(None if self._grace_us <= 0 else now + GRACE_US - self._grace_us)
        done: list[str] = []
        count = 0
        for path in due:
            try:
                with files.translated("remove", self._store.path / path):
                    count += self._collect(path)
                done.append(path)
            except _Kept as kept:
                self._report.kept.extend(kept.paths)
            except StoreError as error:
                self._report.errors.append(str(error))
            if len(done) >= 1000:
                self._catalog.drop_garbage(done)
                done = []
        if done:
            self._catalog.drop_garbage(done)
        return count

    def _collect(self, path: str) -> int:
        full = self._store.path / path
        if in_use(self._catalog, path):
            raise StoreError(f"{path} is marked for removal and in use; run `jjq verify`", path=path)
        if layout.is_topic_path(path):
            return self._remove_topic(full)
        if not layout.is_segment_path(path) and not layout.is_subscriber_lock(path):
            raise _Kept([path])
        if layout.is_segment_path(path) and not self._topic_file_agrees(path.split("/")[1]):
            raise _Kept([])
        return self._remove(full)

    def _remove_topic(self, directory: Path) -> int:
        """Removes a deleted topic's directory, `topic.json` last, and nothing that jjq has not made."""
        count = 0
        kept: list[str] = []
        if not directory.exists():
            return 0
        for partition in layout.partition_directories(directory):
            for path in sorted(partition.iterdir()):
                if path.name in layout.PARTITION_FILES or layout.segment_file(path.name) is not None:
                    count += self._remove(path)
                else:
                    kept.append(str(path.relative_to(self._store.path)))
            with contextlib.suppress(OSError):
                files.remove_dir(partition)
        for path in sorted(directory.rglob("*")):  # of an ephemeral topic
            if layout.is_presence(str(path.relative_to(self._store.path))):
                count += self._remove(path)
        with contextlib.suppress(OSError):
            files.remove_dir(directory / "holders")
        topic_files = {layout.TOPIC_FILE, layout.TOPIC_FILE + layout.UNFINISHED}
        kept += [
            str(path.relative_to(self._store.path))
            for path in sorted(directory.iterdir())
            if path.name not in topic_files and not path.name.isdecimal()
        ]
        if kept:
            raise _Kept(kept)
        for name in sorted(topic_files):
            count += self._remove(directory / name)
        files.remove_dir(directory)
        return count

    def unborn(self) -> int:
        """Removes the directories of topics whose maker died before anybody could know them; returns how many."""
        count = 0
        for directory in layout.topic_directories(self._store.path):
            if self._catalog.topic_by_id(directory.name) is not None or self._is_garbage(directory):
                continue
            paths = [directory, *directory.rglob("*")]
            newest = max(path.stat().st_mtime_ns // 1000 for path in paths)
            topic_files = (layout.TOPIC_FILE, layout.TOPIC_FILE + layout.UNFINISHED)
            if now_us() - newest < GRACE_US or any(not p.is_dir() and p.name not in topic_files for p in paths):
                continue
            count += self._remove_topic(directory) > 0
        self._report.leftovers += count
        return count

    def manifests(self) -> int:
        """Removes what says what a commit was, when nothing of it would be needed to make the catalog again: its files
        were compacted or are gone, and its writer is far beyond it."""
        count = 0
        last = {each.id: each.last_batch for each in self._catalog.writers()}
        links = self._store.path / "links"
        for path in sorted(links.iterdir()) if links.is_dir() else ():
            manifest = layout.read_manifest(layout.read_json(path))
            if manifest is None or not layout.is_id(path.stem) or self._is_needed(manifest, path, last):
                continue
            with contextlib.ExitStack() as locks:
                # A commit writes its manifest under these locks, and is in the catalog when it gives them back.
                for place in sorted({(each.topic_id, each.partition) for each in manifest.segments}):
                    if self._catalog.topic_by_id(place[0]) is not None:
                        locks.enter_context(self._store.logs[place].exclusive())
                if self._is_needed(manifest, path, last):
                    continue
                files.unlink(path)
            count += 1
        self._report.manifests += count
        return count

    def _is_needed(self, manifest: layout.Manifest, path: Path, last: dict[str, int]) -> bool:
        if manifest.writer is not None:
            writer, batch, _ = manifest.writer
            if writer in last and batch > last[writer] - KEPT_BATCHES:
                return True
        if now_us() - path.stat().st_mtime_ns // 1000 < GRACE_US and not manifest.segments:
            return True  # a batch without records takes no lock, so it may be on its way
        return any(
            self._catalog.segment(each.segment.uuid) is not None or self._is_forgotten(each)
            for each in manifest.segments
        )

    def _is_forgotten(self, linked: layout.Placed) -> bool:
        """Whether a file that was committed, which has no note any more, is there without that the catalog says why: then it is not the
        catalog in which it was, and only the manifest tells repair where its records belong."""
        path = self._store.partition_dir(linked.topic_id, linked.partition)
        path /= f"{linked.segment.uuid}.{linked.segment.kind}"
        if not path.exists() or path.with_suffix(".json").exists():
            return False
        return not self._is_garbage(path) and not self._is_garbage(self._store.path / "topics" / linked.topic_id)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _is_garbage(self, path: Path) -> bool:
        return self._catalog.is_garbage(str(path.relative_to(self._store.path)))

    def _remove(self, *paths: Path) -> int:
        count = 0
        for path in paths:
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                continue
            files.unlink(path)
            count += 1
            self._report.removed += 1
            self._report.removed_bytes += size
        return count


class _Kept(Exception):
    """Files that jjq does not know were left where they are."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(paths)
        self.paths = paths
