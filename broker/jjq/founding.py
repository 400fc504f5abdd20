"""The directory of a store: making one, telling whether one is there, and whether it may live where it is."""

from __future__ import annotations

import errno
import json
import os
import re
import time
import uuid
from pathlib import Path
from typing import Any

from jjq import files, layout
from jjq.catalog.sqlite import SqliteDriver, migrations
from jjq.clock import now_us
from jjq.errors import InvalidArgument, StoreError, StoreFormat, StoreNotFound
from jjq.values import shown, without_home

FORMAT = 1
_UPGRADE_S = 5.0  # how long who comes to upgrade a store waits for the others
DIRECTORIES = ("topics", "links", "quarantine")
# What may be there before `jjq.json` is: another process is founding the store, or one has died at it.
_FOUNDING = (*DIRECTORIES, "store.lock", "catalog.lock", "jjq.json.new")
# File systems whose locks or mappings do not hold among the hosts that share them.
_NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs", "orangefs",
    "gfs2", "ocfs2", "vboxsf",
    "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.juicefs", "fuse.rclone", "fuse.s3fs",
    "fuse.gcsfuse", "fuse.vmhgfs-fuse",
}  # fmt: skip


_BROKER = "jjq.connect, --broker and Spark's option broker take brokers"
_INSTEAD = {
    "jjq": _BROKER, "jjq+tls": _BROKER, "http": f"{_BROKER}, as jjq://host:port", "https": f"{_BROKER}, as jjq+tls://host:port",
    "file": "write the path alone",
}  # fmt: skip
_OTHERS = "it lies on a local disk, and on other machines behind a broker (jjq.connect)"
_URL = re.compile(r"[A-Za-z][\w+.-]+:/")  # a Path has made one slash of two


def directory_of(given: object) -> Path:
    """The path of a store as somebody wrote it, made absolute; raises InvalidArgument for what would be a directory that nobody
    meant."""
    text = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(text, str) or "\0" in text or not text.strip():
        raise InvalidArgument(f"a store is a directory's path, not {shown(given)}")
    if _URL.match(text):  # as a path it would be a directory named `jjq:` where the program happens to run
        raise InvalidArgument(
            f"a store is a directory's path, not {shown(text)}; {_INSTEAD.get(text.partition(':')[0].lower(), _OTHERS)}"
        )
    return Path(without_home(text)).absolute()  # which may be asked again: `./~x` has become a path of `~x`


def prepare(path: Path, create: bool, read_only: bool | None) -> bool:
    """Makes sure that there is a store at `path`; True when it can only be read. See `Store` for what it raises."""
    identity = path / "jjq.json"
    exists = identity.exists()
    made: list[Path] = []
    if not exists and (not create or read_only):
        if path.exists() and not path.is_dir():
            raise StoreNotFound(f"{path} is a file, and a store is a directory; name another place")
        if not read_only:
            _refuse_network(path)
        raise StoreNotFound(f"there is no store at {path}; make one with jjq.open(path) or `jjq topic create`")
    if not exists:
        other = _other_file(path) if path.exists() else None
        if other is not None and not identity.exists():
            raise StoreFormat(f"{path} has something else in it, {other}; name an empty directory, or a new one in it")
        outer = next((each for each in path.resolve().parents if (each / "jjq.json").exists()), None)
        if outer is not None:
            raise StoreFormat(
                f"{path} is inside the store {outer}, which could delete it with one of its topics; name a place beside that"
            )
        _refuse_network(path)
        made = [path, *(each for each in path.parents if not each.exists())]
        files.make_dirs(path)
    writable = os.access(path, os.W_OK) and _can_write(path) if read_only is None else not read_only
    if not writable:
        if not exists:
            raise StoreError(
                f"cannot make a store at {path}: user {os.geteuid()} may not write there; give it the directory, or "
                f"name another",
                operation="open", path=str(path), errno=errno.EACCES,
            )  # fmt: skip
        return True
    if exists:
        _refuse_network(path)
    else:
        _found(path, identity)
        for each in made:
            files.sync_dir(each.parent)
    return False


def users(path: Path) -> str:
    """The processes that have a store open, as a text."""
    found = files.opened_by(path / "store.lock")
    named = [f"{name} ({'this process' if pid == os.getpid() else pid})" for pid, name in found.items()]
    return ", ".join(named) or "other processes (or in this one)"


def upgrade(path: Path, driver: SqliteDriver, lock_fd: int, alone: bool) -> None:
    """Brings the catalog to this version's schema. One that an older version of jjq has made only while nobody else has the store
    open: programs of that version would not notice. `alone`: the caller has seen to that, and else has the lock shared."""
    latest = migrations()[-1][0]
    if alone or not 0 < driver.version() < latest:
        driver.migrate()
        return
    files.set_lock(lock_fd, files.FREE)  # of several that come to upgrade it each would be in the others' way
    until = time.monotonic() + _UPGRADE_S
    while not files.lock(lock_fd, wait=False):
        if driver.version() == latest:  # one of them has
            break
        if time.monotonic() > until:
            raise StoreError(
                f"{path} is to be upgraded to this version of jjq, and is open in {users(path)}; stop what uses it, then open it again"
            )
        time.sleep(_UPGRADE_S / 100)
    driver.migrate()
    share(path, lock_fd)


def share(path: Path, lock_fd: int) -> None:
    """Holds `store.lock` as everybody does who has the store open."""
    if not files.lock(lock_fd, shared=True, wait=False):
        raise StoreError(f"{path} is being repaired or upgraded by another process; try again later")


def refuse_lost_catalog(path: Path) -> None:
    """SQLite would begin a new one, and the store would look empty."""
    if layout.catalog_is_lost(path):
        catalog = path / layout.CATALOG_FILES[0]
        raise StoreFormat(
            f"{catalog} is missing, and the store has had topics; run `jjq repair`, which builds it again",
            path=str(catalog),
        )


def _refuse_network(path: Path) -> None:
    kind = file_system(path)
    if kind in _NETWORK:
        raise StoreError(
            f"{path} is on {kind}, where the locks that keep a store whole do not hold; use a local disk, or "
            f"open it with read_only=True"
        )


def _other_file(path: Path) -> str | None:
    for entry in path.iterdir():
        if entry.name not in _FOUNDING or (entry.is_dir() and any(entry.iterdir())):
            return entry.name
    return None


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
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, OSError) as error:
        raise StoreFormat(f"{path / 'jjq.json'} cannot be read: {error}; is this a jjq store?") from error
    if version > FORMAT:
        raise StoreFormat(f"{path} has store format {version}, this jjq knows up to {FORMAT}; upgrade jjq")
    if not isinstance(body.get("id"), str):
        raise StoreFormat(f"{path / 'jjq.json'} cannot be read: it has no id; `jjq repair` writes another")
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
    try:
        # A name need not be text.
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    return type_at(str(path.resolve()), mounts)


def type_at(where: str, mounts: str) -> str:
    """The same of an absolute path without links, from the kernel's list of mounts."""
    best, kind = "", ""
    for line in mounts.splitlines():
        _, point, name, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)
        if (where == point or where.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, name
    return kind
