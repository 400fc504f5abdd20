"""Ways in which a catalog is lost."""

from pathlib import Path
from typing import Any

import pyarrow as pa

import jjq


def lose_catalog(path: Path) -> None:
    for each in path.glob("catalog.db*"):
        each.unlink()


def damage_catalog(path: Path) -> None:
    data = bytearray((path / "catalog.db").read_bytes())
    data[len(data) // 3 :: 7] = b"\x55" * len(data[len(data) // 3 :: 7])
    (path / "catalog.db").write_bytes(data)


def empty_catalog(path: Path) -> None:
    (path / "catalog.db").write_bytes(b"")


def contradict_catalog(path: Path) -> None:
    with jjq.open(path) as store, store.catalog.driver.write(durable=True) as tx:
        tx.connection.execute("DELETE FROM segments WHERE base = 0")


def link(store: jjq.Store, name: str, rows: int = 2, **commit: Any) -> jjq.Commit:
    with store.stage(owner=(commit["writer_id"], commit["batch_id"]) if commit else None) as stage:
        stage.write(name, pa.table({"value": [b"linked %d" % i for i in range(rows)]}))
        return store.commit(stage.finish(), **commit)
