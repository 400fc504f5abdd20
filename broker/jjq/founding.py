"""The directory of a store: making one, telling whether one is there, and whether it may live where it is."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from jjq import files
from jjq.clock import now_us
from jjq.errors import StoreError, StoreFormat, StoreNotFound

FORMAT = 1
DIRECTORIES = ("topics", "links", "quarantine")
# What may be there before `jjq.json` is: another process is founding the store, or one has died at it.
_FOUNDING = (*DIRECTORIES, "store.lock", "catalog.lock", "jjq.json.new")
# File systems whose locks or mappings do not hold among hosts.
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs", "fuse.glusterfs"}


def prepare(path: Path, create: bool, read_only: bool | None) -> bool:
    """Makes sure that there is a store at `path`; True when it can only be read. See `Store` for what it raises."""
    identity = path / "jjq.json"
    exists = identity.exists()
    made: list[Path] = []
    if not exists and (not create or read_only):
        if path.exists() and not path.is_dir():
            raise StoreNotFound(f"{path} is a file, and a store is a directory; name another place")
        raise StoreNotFound(f"there is no store at {path}; make one with jjq.open(path) or `jjq topic create`")
    if not exists:
        if path.exists() and _has_other_files(path) and not identity.exists():
            raise StoreFormat(f"{path} has files of something else in it; choose an empty or a new directory")
        made = [path, *(each for each in path.parents if not each.exists())]
        files.make_dirs(path)
    writable = os.access(path, os.W_OK) and _can_write(path) if read_only is None else not read_only
    if not writable:
        return True
    kind = file_system(path)
    if kind in _NETWORK:
        raise StoreError(
            f"{path} is on {kind}, where the locks that keep a store whole do not hold; use a local disk, or "
            f"open it with read_only=True"
        )
    if not exists:
        _found(path, identity)
        for each in made:
            files.sync_dir(each.parent)
    return False


def _has_other_files(path: Path) -> bool:
    return any(entry.name not in _FOUNDING or (entry.is_dir() and any(entry.iterdir())) for entry in path.iterdir())


def _found(path: Path, identity: Path) -> None:
    # Not the store's own lock: who comes a moment later wants that, and does not wait for it.
    fd = files.open_lock(path / "catalog.lock")
    try:
        files.lock(fd)  # whoever comes first founds it
        if not identity.exists():
            for name in DIRECTORIES:
                files.make_dirs(path / name)
            files.sync_dir(path)  # what has its identity and no `topics/` has lost them
            body = {"format": FORMAT, "id": uuid.uuid4().hex, "created_at": now_us()}
            files.write_small(identity, json.dumps(body, indent=1).encode())
    finally:
        files.close(fd)


def read_identity(path: Path) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.loads(files.read(path / "jjq.json"))
        version = int(body["format"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise StoreFormat(f"{path / 'jjq.json'} cannot be read: {error}; is this a jjq store?") from error
    if version > FORMAT:
        raise StoreFormat(f"{path} has store format {version}, this jjq knows up to {FORMAT}; upgrade jjq")
    return body


def _can_write(path: Path) -> bool:
    """os.access says yes on a read-only mount to root; only an attempt tells."""
    if not path.exists():
        return True
    try:
        return not os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError:
        return False


def file_system(path: Path) -> str:
    """The type of the file system a path is on, as the kernel names it; empty where that cannot be told."""
    best, kind = "", ""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    except OSError:
        return ""
    where = str(path.resolve())
    for line in mounts.splitlines():
        _, point, name, *_ = line.split(" ")
        point = point.encode().decode("unicode_escape")
        if (where == point or where.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, name
    return kind
