"""Jobs that are run again: with a checkpoint that is in use or another's, with an output that is there already, and with
flags that mean elsewhere than it looks."""

import argparse
import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import jjq
from spark_jobs import archive, ingest, mirror, replay, route, running
from tests.stores import assert_whole

NUMBERS = pa.schema([("n", pa.int64())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        opened.create_topic("t", schema=NUMBERS).push_many([{"n": n} for n in range(3)])
        yield opened
    assert_whole(tmp_path / "store")


def refused(job: Any, words: list[str], spark: SparkSession) -> str:
    with pytest.raises(running.Refused) as error:
        job.main(words, spark)
    return str(error.value)


def archived(spark: SparkSession, output: Path) -> list[int]:
    return [row.n for row in spark.read.parquet(str(output)).orderBy("n").collect()]


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_a_run_beside_another_one_of_the_same_query_is_refused(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "made" / "checkpoint"
    words = ["--store", str(store.path), "--topic", "t", "--to", "all=true", "--checkpoint", str(checkpoint)]
    checkpoint.mkdir(parents=True)
    other = os.open(checkpoint, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another run uses" in refused(route, words, spark)
    finally:
        os.close(other)
    for _ in range(2):
        route.main(words, spark)
    assert store.topic("all").offsets()[0].end == 3
    (tmp_path / "file").touch()
    assert "cannot be a directory" in refused(route, [*words[:-1], str(tmp_path / "file")], spark)


def test_a_checkpoint_in_the_store_is_refused_whatever_the_sink(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    common = ["--store", str(store.path), "--topic", "t", "--checkpoint", f"file:{store.path}/checkpoint"]
    for job, more in ((archive, ["--output", str(tmp_path / "archive")]), (route, ["--to", "all=true"])):
        assert "is in the store" in refused(job, [*common, *more], spark)
    assert not (store.path / "checkpoint").exists()


def test_the_checkpoint_of_another_job_is_refused_and_does_not_pass_over_what_that_one_has_read(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    common = ["--store", str(store.path), "--topic", "t", "--checkpoint"]
    archive.main([*common, f"file:{tmp_path}/a", "--output", str(tmp_path / "archive")], spark)
    routes = ["--to", "all=true"]
    assert "is that of archive" in refused(route, [*common, str(tmp_path / "a"), *routes], spark)
    route.main([*common, str(tmp_path / "b"), *routes], spark)
    assert store.topic("all").offsets()[0].end == 3
    with jjq.open(tmp_path / "other") as other:
        other.create_topic("t", schema=store.topic("t").schema)
    words = ["--store", str(tmp_path / "other"), *common[2:], str(tmp_path / "b"), *routes]
    assert "is that of another store" in refused(route, words, spark)


def test_an_archive_of_another_checkpoint_is_not_added_to(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    """Spark's sink for files goes by the number of the micro-batch: it would leave out the first ones of another query."""
    words = ["--store", str(store.path), "--topic", "t", "--output", str(tmp_path / "archive"), "--checkpoint"]
    archive.main([*words, str(tmp_path / "first")], spark)
    store.topic("t").push({"n": 3})
    assert "another than" in refused(archive, [*words, str(tmp_path / "second")], spark)
    compact = "spark.sql.streaming.fileSink.log.compactInterval"
    spark.conf.set(compact, 2)
    for _ in range(2):
        archive.main([*words, str(tmp_path / "first")], spark)
        store.topic("t").push({"n": store.topic("t").offsets()[0].end})
    spark.conf.unset(compact)
    assert (tmp_path / "archive" / "_spark_metadata" / "1.compact").exists()
    assert archived(spark, tmp_path / "archive") == list(range(5))
    assert "another than" in refused(archive, [*words, str(tmp_path / "second")], spark)
    nowhere = [*words[:-3], "--output", "nofs://bucket/a", "--checkpoint", str(tmp_path / "third")]
    assert "nofs" in refused(archive, nowhere, spark)
    second = [*words[:-3], "--output", f"file://{tmp_path}/second-archive", "--checkpoint", str(tmp_path / "second")]
    archive.main(second, spark)
    assert archived(spark, tmp_path / "second-archive") == list(range(6))


def test_files_go_into_a_store_that_is_made_in_an_empty_directory(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("files", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "files" / "1.json").write_text('{"n": 1}\n')
    words = ["--files", str(tmp_path / "files"), "--format", "json", "--output", "t"]
    for name in ("empty", "missing"):
        place = ["--store", str(tmp_path / name), "--checkpoint", str(tmp_path / f"{name}-checkpoint")]
        ingest.main([*words, *place], spark)
        with jjq.open(tmp_path / name, read_only=True) as made:
            assert made.topic("t").read().read_all().to_pylist() == [{"n": 1}]


def test_what_is_gone_before_it_was_read_stops_a_job_that_says_how_to_go_on(
    spark: SparkSession, store: jjq.Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--store", str(store.path), "--topic", "t", "--output", str(tmp_path / "archive")]
    words += ["--checkpoint", str(tmp_path / "checkpoint")]
    archive.main(words, spark)
    for n in (3, 4):
        store.topic("t").push({"n": n})
        if n == 3:
            store.topic("t").empty()
    assert running.run("archive", lambda: archive.main(words, spark)) == running.FAILED
    said = capfd.readouterr().err
    assert "1 record is gone. To go on all the same, give --skip-lost" in said
    archive.main([*words, "--skip-lost"], spark)
    assert archived(spark, tmp_path / "archive") == [0, 1, 2, 4]


# --- outputs that are there -------------------------------------------------------------------------------------------


def test_files_go_into_a_topic_that_is_there_whatever_its_partitions(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    common = ["--store", str(store.path), "--files", str(tmp_path / "files"), "--schema", "n LONG"]
    store.create_topic("two", schema=NUMBERS, partitions=2)
    for output, partitions, there in (("two", "1", 2), ("two", "3", 2), ("three", "3", 3), ("three", "1", 3)):
        (tmp_path / "files" / f"{output}-{partitions}.csv").write_text(f"n\n{partitions}\n")
        words = ["--output", output, "--partitions", partitions, "--checkpoint", str(tmp_path / output)]
        ingest.main([*common, *words], spark)
        assert store.topic(output).partitions == there
    found = Counter(row["n"] for row in store.topic("two").read().read_all().to_pylist())
    assert found == Counter({1: 1, 3: 1})


def test_a_replay_goes_into_a_topic_that_is_there_as_it_is(spark: SparkSession, store: jjq.Store) -> None:
    store.create_topic("bytes", partitions=3).push_many([b"a", b"b"], keys=[b"1", b"2"])
    store.create_topic("few", partitions=2)  # with the broker's times
    store.create_topic("wide", schema=NUMBERS.append(pa.field("more", pa.string())), partitions=4)
    common = ["--store", str(store.path), "--topic"]
    for source, output, rows in (("bytes", "few", 2), ("t", "wide", 3), ("bytes", "new", 2), ("bytes", "new", 4)):
        replay.main([*common, source, "--output", output], spark)
        assert sum(each.end for each in store.topic(output).offsets()) == rows
    assert store.topic("few").config.timestamps == "broker"
    assert (store.topic("new").partitions, store.topic("new").config.timestamps) == (3, "producer")
    assert "has a schema" in refused(replay, [*common, "t", "--output", "few"], spark)


def test_a_mirror_writes_to_a_topic_that_is_there_as_it_is(
    store: jjq.Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.create_topic("copy", partitions=2)
    words = ["from-kafka", "--store", str(store.path), "--checkpoint", "c", "--topic", "t", "--output", "copy"]
    options = mirror.parser().parse_args([*words, "--bootstrap-servers", "localhost:1", "--partitions", "3"])
    assert mirror.made_topic(options).partitions == 2
    assert "Kafka's are not kept" in capsys.readouterr().err


def test_a_record_that_two_conditions_send_to_one_topic_comes_there_once(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    words = ["--store", str(store.path), "--topic", "t", "--checkpoint", str(tmp_path / "c")]
    route.main([*words, "--to", "x=n > 0", "--to", "x=n > 1", "--to", "y=n = 2", "--else", "x"], spark)
    values = {
        name: [json.loads(v)["n"] for v in store.topic(name).read().read_all()["value"].to_pylist()] for name in "xy"
    }
    assert {name: sorted(found) for name, found in values.items()} == {"x": [0, 1, 2], "y": [2]}


# --- places -----------------------------------------------------------------------------------------------------------


def test_a_store_is_a_directory_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def parsed(*words: str) -> argparse.Namespace:
        return replay.parser().parse_args([*words, "--topic", "t", "--output", "u"])

    assert parsed("--store", "s").store == tmp_path / "s"
    for text in (f"file:{tmp_path}/s", f"file://{tmp_path}/s", "file:s"):
        assert parsed("--store", text).store == tmp_path / "s"
    for text in ("jjq://localhost:4750", "s3a://bucket/store", ""):
        with pytest.raises(SystemExit):
            parsed("--store", text)
        assert f"{text!r} is no directory or file of this machine" in capsys.readouterr().err
    monkeypatch.setenv("JJQ_STORE", "from-environment")
    assert parsed().store == tmp_path / "from-environment"
    monkeypatch.setenv("JJQ_STORE", "")
    with pytest.raises(SystemExit):
        parsed()
    assert "required: --store (or JJQ_STORE in the environment)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sicne", "-1 hour"], "there is no flag --sicne; did you mean --since?"),
        (["--sicne=-1 hour", "--topic", "t", "--output", "u", "--nothing-like"], "; there is no flag --nothing-like"),
        (["--since", "yesterday"], "'yesterday' is no time; write 2013-01-01T10:00:00Z, with a zone"),
        (["--until", "2013-01-01"], "has no time zone"),
        (["--since", "-1h"], "as in --since=-1h"),
    ],
)
def test_what_is_wrong_with_a_flag_is_said_in_two_lines_before_spark_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        replay.main(words)
    assert ended.value.code == running.REFUSED
    lines = capsys.readouterr().err.splitlines()
    assert said in lines[0]
    assert lines[1:] == ["see replay.py --help"]


def test_an_archive_may_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text, place in (
        ("a", f"{tmp_path}/a"),
        ("s3a://bucket/a", "s3a://bucket/a"),
        (f"file:{tmp_path}/a", f"{tmp_path}/a"),
    ):
        words = ["--store", "s", "--topic", "t", "--checkpoint", "c", "--output", text]
        assert archive.parser().parse_args(words).output == place
