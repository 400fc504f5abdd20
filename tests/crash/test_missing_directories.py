"""Directories of a store that are gone as a whole: what was in them is named as lost, by verify and by repair."""

import shutil
from pathlib import Path

import pytest

import jjq
from jjq.cli import main
from jjq.cli.exits import DAMAGE, OK
from jjq.repair import repair
from jjq.reports import RepairReport
from jjq.verify import verify
from tests.stores import assert_whole, roll


def make(path: Path) -> dict[str, Path]:
    """Two topics, one with a sealed file and an active one in each of two partitions; returns their directories."""
    with jjq.open(path) as store:
        topic = store.create_topic("t", partitions=2)
        for partition in (0, 1):
            topic.push_many([b"%d" % i for i in range(10)], partition=partition)
            roll(store, "t", partition)
        for partition in (0, 1):
            topic.push(b"active", partition=partition)
        store.create_subscriber("t", "s").poll(3)
        store.create_topic("other").push(b"x")
        store.maintain(grace_us=0)  # compacts, and backs the catalog up
        return {each.name: path / "topics" / each.id for each in store.topics()}


def found_and_repaired(path: Path) -> RepairReport:
    """The store is not whole, by both commands; then it is, and the next repair has nothing to say."""
    assert not verify(path).ok
    report = repair(path)
    assert_whole(path)
    again = repair(path)
    assert (again.lost, again.gone, again.quarantined) == ([], [], [])
    return report


@pytest.mark.parametrize("replaced", [False, True])
def test_a_store_without_its_topics_loses_their_records_but_not_the_topics(place: Path, replaced: bool) -> None:
    path = place / "store"
    make(path)
    shutil.rmtree(path / "topics")
    if replaced:
        (path / "topics").write_bytes(b"no directory")
    report = found_and_repaired(path)
    assert sorted((each.topic, each.partition, each.start, each.end) for each in report.lost) == [
        ("t", 0, 0, 10),
        ("t", 1, 0, 10),
    ]
    # Of the active files, one of each partition, nobody knows how much there was.
    assert len(report.gone) == 3
    assert {name for name in ("'t'", "'other'") for each in report.gone if name in each} == {"'t'", "'other'"}
    with jjq.open(path) as store:
        topic = store.topic("t")
        assert [(each.start, each.end) for each in topic.offsets()] == [(10, 10), (10, 10)]
        assert [each.name for each in store.subscribers()] == ["s"]
        assert topic.push(b"next", partition=0).offset == 10
        assert store.topic("other").push(b"y").offset == 0


def test_a_topic_without_its_directory_costs_nothing_of_another(place: Path) -> None:
    path = place / "store"
    directories = make(path)
    shutil.rmtree(directories["t"])
    report = found_and_repaired(path)
    assert {(each.topic, each.start, each.end) for each in report.lost} == {("t", 0, 10)}
    assert len(report.lost) == len(report.gone) == 2
    assert all("'t'" in each for each in report.gone)
    with jjq.open(path) as store:
        assert [each.name for each in store.topics()] == ["other", "t"]
        assert store.topic("other").read().read_all()["value"].to_pylist() == [b"x"]


def test_a_partition_without_its_directory_costs_nothing_of_another(place: Path) -> None:
    path = place / "store"
    directories = make(path)
    shutil.rmtree(directories["t"] / "1")
    report = found_and_repaired(path)
    assert [(each.topic, each.partition, each.start, each.end) for each in report.lost] == [("t", 1, 0, 10)]
    (gone,) = report.gone
    assert "partition 1 of topic 't'" in gone
    with jjq.open(path) as store:
        assert [(each.start, each.end) for each in store.topic("t").offsets()] == [(0, 11), (10, 10)]


def test_a_store_without_topics_and_catalog_says_that_all_is_lost(place: Path) -> None:
    path = place / "store"
    make(path)
    shutil.rmtree(path / "topics")
    (path / "catalog.db").unlink()
    (path / "catalog.backup.db").unlink()
    with pytest.raises(jjq.StoreFormat, match="repair"):
        jjq.open(path)
    report = found_and_repaired(path)
    assert report.rebuilt == "it is missing"
    assert str(path / "topics") in report.gone[0]
    with jjq.open(path) as store:
        assert store.topics() == []


def test_a_backup_of_the_catalog_says_which_topics_there_were(place: Path) -> None:
    path = place / "store"
    make(path)
    shutil.rmtree(path / "topics")
    (path / "catalog.db").unlink()
    report = found_and_repaired(path)
    assert {(each.topic, each.end) for each in report.lost} == {("t", 10)}
    assert len(report.gone) == 4
    with jjq.open(path) as store:
        assert [each.name for each in store.topics()] == ["other", "t"]


def test_a_topic_that_was_deleted_after_the_backup_stays_deleted(place: Path) -> None:
    path = place / "store"
    make(path)
    with jjq.open(path) as store:
        store.delete_topic("other")
        store.maintain(grace_us=0)
    (path / "catalog.db").unlink()
    report = found_and_repaired(path)
    assert (report.lost, report.gone) == ([], [])
    with jjq.open(path) as store:
        assert [each.name for each in store.topics()] == ["t"]


def test_what_an_old_copy_of_the_catalog_appended_to_is_not_lost_where_it_was_rewritten(place: Path) -> None:
    path = place / "store"
    with jjq.open(path) as store:
        topic = store.create_topic("t")
        topic.push_many([b"%d" % i for i in range(10)])
    old = (path / "catalog.db").read_bytes()
    with jjq.open(path) as store:
        roll(store, "t")
        store.maintain(grace_us=0)
        store.maintain(grace_us=0)  # removes what was compacted
        store.topic("t").push(b"10")
    (path / "catalog.db").write_bytes(old)
    report = found_and_repaired(path)
    assert report.rebuilt is not None
    assert any("rewritten since" in each for each in report.notes)
    assert (report.lost, report.gone) == ([], [])
    with jjq.open(path) as store:
        assert store.topic("t").read().read_all().num_rows == 11


def test_a_topic_without_records_gets_its_directories_again(place: Path) -> None:
    path = place / "store"
    with jjq.open(path) as store:
        store.create_topic("t", partitions=2)
    shutil.rmtree(path / "topics")
    report = found_and_repaired(path)
    assert (report.lost, report.gone, len(report.notes)) == ([], [], 2)
    with jjq.open(path) as store:
        assert store.topic("t").push(b"x", partition=1).offset == 0


def test_the_commands_end_with_the_exit_code_of_damage(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = place / "store"
    directories = make(path)
    shutil.rmtree(directories["other"])  # it had an active file alone
    assert main(["verify", "--store", str(path)]) == DAMAGE
    assert "offsets 0 and up" in capsys.readouterr().out
    assert main(["repair", "--store", str(path)]) == DAMAGE
    assert "lost: " in capsys.readouterr().out
    assert main(["verify", "--store", str(path)]) == OK
    assert main(["repair", "--store", str(path)]) == OK
