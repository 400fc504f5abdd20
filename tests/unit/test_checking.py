"""`check`: what it would notice, on made-up reports; and a short run that is killed for real."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import jjq
from jjq import checking
from jjq.checking import CheckReport, Marks, check, value, wrong
from jjq.model import Record
from tests.stores import assert_whole


def record(offset: int, data: bytes) -> Record:
    return Record("t", 0, offset, 0, None, None, data)


def test_reports_that_follow_one_another_are_in_order() -> None:
    marks = Marks("c")
    for partition, first, count in ((0, 0, 5), (1, 0, 2), (0, 5, 1), (1, 2, 100)):
        marks.read(partition, first, count)
    assert marks.problems == []
    assert marks.next == {0: 6, 1: 102}


@pytest.mark.parametrize(("first", "what"), [(3, "again, 5 was next"), (9, "and not those before, 5 was next")])
def test_what_comes_twice_or_is_left_out_is_noticed(first: int, what: str) -> None:
    marks = Marks("c")
    marks.read(0, 0, 5)
    marks.read(0, first, 10)
    assert marks.problems == [f"c: partition 0: offsets from {first} came {what}"]
    assert marks.next == {0: first + 10}


def test_a_record_at_another_offset_than_it_was_pushed_for_is_noticed() -> None:
    assert wrong([record(7, value(7)), record(8, value(8))]) == []
    assert wrong([record(7, value(8))]) == [f"partition 0: offset 7 holds {value(8)!r}"]


def test_a_report_says_in_its_first_word_whether_all_is_well() -> None:
    report = CheckReport(2, 3, records=1000, read=3000, kills=5)
    assert str(report).startswith(
        "ok: in order, whole, without duplicates. 2 producers pushed 1,000 records, 3 consumers"
    )
    report.problems.append("partition 0: ...")
    assert str(report).splitlines()[0].startswith("NOT OK: 1 problem. ")
    assert (report.ok, report.to_dict()["ok"]) == (False, False)


@pytest.mark.slow
@pytest.mark.crash
def test_a_stream_arrives_in_order_whole_and_once_while_everybody_is_killed(tmp_path: Path) -> None:
    report = check(tmp_path / "store", seconds=6, producers=2, consumers=2, seed=7)
    assert report.ok, str(report)
    assert report.kills > 0
    assert report.records >= report.acknowledged > 0
    assert report.read == 2 * report.records
    with jjq.open(tmp_path / "store") as store:
        assert store.topics() == []
        assert_whole(store)


@pytest.mark.slow
def test_records_that_are_lost_make_it_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log loses its beginning under way, as by a fault in retention: consumers and the last look say so."""
    look = checking._look_at_the_log

    def lose(store: jjq.Store, topic: jjq.Topic, report: CheckReport) -> None:
        with store.logs[topic.id, 0].exclusive():
            store.logs[topic.id, 0].roll_locked()
        (first, *_) = topic.segments(0)
        store.catalog.advance_start(topic.id, 0, first.end, [], 0)
        look(store, topic, report)

    monkeypatch.setattr(checking, "_look_at_the_log", lose)
    report = check(tmp_path / "store", seconds=1, producers=1, consumers=1, kills=False)
    assert not report.ok
    assert "partition 0: the log does not hold what was pushed, in order, once" in report.problems


@pytest.mark.slow
def test_a_process_that_fails_by_itself_ends_it_and_says_why(tmp_path: Path) -> None:
    began = threading.Event()

    def run(reports: list[CheckReport]) -> None:
        began.set()
        reports.append(check(tmp_path / "store", seconds=60, producers=1, consumers=1, kills=False))

    reports: list[CheckReport] = []
    thread = threading.Thread(target=run, args=(reports,), daemon=True)
    thread.start()
    with jjq.open(tmp_path / "store") as store:
        pause = threading.Event()
        while not (topics := store.topics()) or not topics[0].offsets()[0].end:
            pause.wait(0.01)
        for each in store.subscribers():
            store.delete_subscriber(each.name)
        thread.join()
    assert not reports[0].ok
    assert "SubscriberNotFound" in "\n".join(reports[0].problems)


@pytest.mark.slow
def test_its_processes_do_not_outlive_it(tmp_path: Path) -> None:
    code = "import sys; from jjq.checking import check; check(sys.argv[1], seconds=600, kills=False)"
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "store")])
    pause = threading.Event()
    with jjq.open(tmp_path / "store") as store:
        while not (topics := store.topics()) or not all(each.end for each in topics[0].offsets()):
            pause.wait(0.01)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        pids = [int(each) for each in children.read_text().split()] if children.exists() else []
        process.kill()
        process.wait()
        for pid in pids:
            while _is_alive(pid):
                pause.wait(0.01)


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
