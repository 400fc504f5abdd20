"""The commands of docs/jobs.md under spark-submit, each killed at several moments with all that it has started and given
again until it comes to its end: what they have done is what they do undisturbed, by the tests of test_jobs."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jjq
from spark_jobs.submit import JobError, Submitted
from tests.spark.test_jobs import (  # noqa: F401 - collected here, too
    commands,
    test_a_replay_of_columns_takes_its_key_from_one_of_them,
    test_each_record_is_in_every_topic_whose_condition_holds_with_its_airlines_name,
    test_files_come_into_the_topic_line_by_line_in_the_order_of_the_months,
    test_sessions_are_those_that_pandas_finds,
    test_the_archive_holds_every_record_once_by_the_date_of_its_time,
    write_months,
)
from tests.stores import assert_whole

pytestmark = [pytest.mark.soak, pytest.mark.crash, pytest.mark.timeout(7200)]
PATIENCE_S = 600.0
BOUNDED = ("route.py", "sessionize.py", "archive.py")  # several micro-batches of them


class Progress:
    """How far a job has come, by what lies on the disk."""

    def __init__(self, data: Path, words: list[str]) -> None:
        self.store, self.archive = data / "jjq", data / "archive"
        named = [words[i + 1] for i, word in enumerate(words) if word == "--checkpoint"]
        self.checkpoint = Path(named[0]) if named else None

    def last(self, kind: str) -> int:
        """The last micro-batch that Spark has planned (`offsets`) or has noted as done (`commits`)."""
        assert self.checkpoint is not None
        with contextlib.suppress(FileNotFoundError):
            return max(
                (int(each.name) for each in (self.checkpoint / kind).iterdir() if each.name.isdigit()), default=-1
            )
        return -1

    def amid(self) -> bool:
        """Whether there is a micro-batch that Spark has begun and not noted as done."""
        return self.checkpoint is not None and self.last("offsets") > self.last("commits")

    def written(self) -> int:
        """Grows with each commit of the sink."""
        files = len(list(self.archive.glob("*/_spark_metadata/*")))
        with contextlib.suppress(jjq.StoreNotFound), jjq.open(self.store, read_only=True) as store:
            return files + sum(each.end for topic in store.topics() for each in topic.offsets())
        return files

    def moments(self) -> Iterator[Callable[[], bool]]:
        """Before the first micro-batch, in one, between the sink's commit and Spark's note, twice, and after a note. Each
        begins with what there is when it is asked for."""
        before = self.written()
        if self.checkpoint is None:  # a batch, which has nothing but its commit
            yield lambda: self.written() > before
            return
        checkpoint = self.checkpoint
        yield lambda: (checkpoint / "metadata").exists()
        yield self.amid
        for _ in range(2):
            before = self.written()
            yield lambda: self.amid() and self.written() > before  # noqa: B023
        noted = self.last("commits")
        yield lambda: self.last("commits") > noted


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory `data` after all commands of the page but those that need Kafka, in their order."""
    place = tmp_path_factory.mktemp("killed")
    data, log = place / "data", place / "log"
    write_months(data / "nyc2013")
    killed = amid = 0
    for command in commands():
        if command[0] != "spark-submit" or "--packages" in command:
            continue
        words = [word.replace("data/", f"{data}/") for word in command[1:]] + ["--store", str(data / "jjq")]
        words += ["--rows", "300"] if any(word.endswith(BOUNDED) for word in words) else []
        if "--checkpoint" in words or "--name" in words:  # else what was done is done again
            progress = Progress(data, words)
            for moment in progress.moments():
                with Submitted(words, log) as job:
                    try:
                        job.kill_when(moment, PATIENCE_S)
                        killed += 1
                    except JobError:  # it may come to its end before a moment comes; it may not fail, or hang
                        job.finish(0)
                amid += progress.amid()
        for _ in range(2 if "--checkpoint" in words else 1):  # a second time, with nothing left to do
            with Submitted(words, log) as job:
                job.finish(PATIENCE_S)
    assert killed >= 15
    assert amid >= 8  # of twelve that were to be: in a micro-batch, or between its commit and Spark's note
    yield data
    assert_whole(data / "jjq")
