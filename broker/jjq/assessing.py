"""Whether a catalog can be believed, before repair relies on it or makes it again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa

from jjq import layout, topicfile
from jjq.catalog.base import Catalog
from jjq.catalog.rows import PartitionRow
from jjq.catalog.sqlite import SqliteDriver, migrations
from jjq.errors import StoreError, StoreFormat, TopicDeleted
from jjq.known import forgotten_topics, is_named
from jjq.log.format import BATCH
from jjq.log.reader import LOST
from jjq.log.salvage import read_index

_EVER = 1 << 62
_UNREADABLE = (ValueError, KeyError, TypeError, pa.ArrowException)


def assess(root: Path) -> tuple[str | None, Catalog | None]:
    """Why the catalog has to be made again, None if it is sound; and the catalog where its contents can be believed."""
    if layout.catalog_is_lost(root):
        return "it is missing", None
    driver = SqliteDriver(root / layout.CATALOG_FILES[0], root / "catalog.lock")
    catalog = Catalog(driver)
    try:
        if driver.version() > migrations()[-1][0]:
            raise StoreFormat(f"{driver.path} was made by a later jjq; repair it with that one")
        driver.migrate()
        if problems := catalog.problems():
            catalog.close()
            return problems[0], None
        return _contradiction(root, catalog), catalog
    except (StoreFormat, StoreError) as error:
        catalog.close()
        if not _is_damage(error):
            raise
        return error.message, None
    except _UNREADABLE as error:
        catalog.close()
        return f"a row cannot be read: {error}", None
    except BaseException:
        catalog.close()
        raise


def _is_damage(error: StoreFormat | StoreError) -> bool:
    if isinstance(error, StoreFormat):
        return "path" in error.details  # otherwise it is of a later version
    return any(words in error.message for words in ("no such table", "no such column", "disk I/O error"))


def _contradiction(root: Path, catalog: Catalog) -> str | None:
    """What in a sound database cannot be true. A catalog that names files which are gone may be an old copy of it."""
    from jjq.verify import chain_problems

    for topic_id in catalog.ids_without_topic():
        return f"it has rows of topic {topic_id}, which it does not know"
    for directory, name in forgotten_topics(root, catalog):
        return f"it does not know topic {name!r}, which has records in {directory}"
    for topic in catalog.topics():
        schemas = catalog.schemas(topic.id)
        try:
            rows = catalog.partitions(topic.id)
        except TopicDeleted:
            rows = []
        if [row.partition for row in rows] != list(range(topic.partitions)):
            return f"it lacks partitions of topic {topic.name!r}"
        written = topicfile.read(root, topic.id)  # after the catalog, so it is never ahead of it
        if written is not None and written.row.partitions > topic.partitions:
            return f"it knows {topic.partitions} of the {written.row.partitions} partitions of topic {topic.name!r}"
        for row in rows:
            _, segments = catalog.segments(topic.id, row.partition, 0, _EVER)
            for _, what, _, _ in chain_problems(row, segments):
                return f"partition {row.partition} of topic {topic.name!r}: {what}"
            directory = root / "topics" / topic.id / str(row.partition)
            named = [f"{each.uuid}.{each.kind}" for each in segments if each.kind != LOST]
            if row.active is not None:
                named.append(f"{row.active}.arrows")
            for name in named:
                if not (directory / name).exists():
                    return f"{directory / name} is missing"
            if (stranger := _forgotten(root, catalog, row)) is not None:
                return f"it does not know {stranger}, which has records behind those it knows"
            if any(each.schema_version not in schemas for each in segments):
                return f"it lacks a schema of topic {topic.name!r}"
            numbers = [number for number, _ in catalog.lineages(topic.id, row.partition, -1)]
            if max(numbers, default=0) != row.lineage:
                return f"partition {row.partition} of topic {topic.name!r} is in a lineage without beginning"
    return None


def _forgotten(root: Path, catalog: Catalog, row: PartitionRow) -> Path | None:
    """A file with records behind the partition's end that nobody names. Records are only ever appended to a file that the
    catalog names, so it named it."""
    directory = root / "topics" / row.topic_id / str(row.partition)
    for path in sorted(directory.glob("*.arrows")):
        relative = str(path.relative_to(root))
        if layout.segment_file(path.name) is None or is_named(catalog, row.topic_id, row.partition, path.stem):
            continue
        bases = [entry.base for entry in read_index(path.with_suffix(".index")).entries if entry.kind == BATCH]
        if bases and min(bases) >= row.end_offset and not catalog.is_garbage(relative):
            return path
    return None


def open_backup(root: Path) -> Catalog | None:
    """A copy of the backup that maintenance made, as this version would have it; None where there is none or it is
    damaged too."""
    path = root / layout.BACKUP
    if not path.exists():
        return None
    copy = root / f"{layout.REBUILT}-backup"
    shutil.copyfile(path, copy)
    driver = SqliteDriver(copy, root / "catalog.lock")
    catalog = Catalog(driver)
    try:
        driver.migrate()
        if not catalog.problems():
            for topic in catalog.topics():
                catalog.partitions(topic.id)
                catalog.schemas(topic.id)
            return catalog
    except (StoreFormat, StoreError, TopicDeleted, *_UNREADABLE):
        pass
    catalog.close()
    return None
