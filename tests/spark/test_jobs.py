"""The jobs: every command of docs/jobs.md on a few hundred flights, and what each job does beyond that."""

import argparse
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import jjq
from jjq.errors import JjqError, TopicNotFound
from spark_jobs import archive, ingest, mirror, nyc2013, replay, route, running, sessionize
from spark_jobs.submit import spark_environment, spark_submit
from tests.examples import blocks
from tests.stores import assert_whole

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "jobs.md"
LINES = 900  # of each month's file: all of its first day, where some flights are cancelled and some planes return
JOBS = [archive, ingest, mirror, replay, route, sessionize]
pytestmark = pytest.mark.timeout(600)  # the first test waits for all commands of the page

TEN = datetime(2013, 1, 1, 10, tzinfo=UTC)
SUBMIT_SECONDS = 480


def commands() -> list[list[str]]:
    """The words of each command of the page, in order."""
    text = "\n".join(block.code for block in blocks(PAGE, "sh")).replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines()]


def job_of(command: list[str]) -> tuple[ModuleType, list[str]]:
    place = next(i for i, word in enumerate(command) if word.startswith("spark_jobs/"))
    return importlib.import_module(f"spark_jobs.{Path(command[place]).stem}"), command[place + 1 :]


def write_months(directory: Path) -> None:
    """The first flights of January and February, as nyc2013.py writes them."""
    nyc2013.write_csv(directory)
    for number, path in enumerate(sorted((directory / "flights").iterdir())):
        if number < 2:
            path.write_text("".join(path.read_text().splitlines(keepends=True)[: LINES + 1]))
        else:
            path.unlink()


def flights_of(directory: Path) -> pd.DataFrame:
    frames = [
        pd.read_csv(path, na_values=["NA"], keep_default_na=False, parse_dates=["time_hour"])
        for path in sorted((directory / "flights").iterdir())
    ]
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory `data` after all commands of the page but those that need Kafka, in their order."""
    data = tmp_path_factory.mktemp("jobs") / "data"
    write_months(data / "nyc2013")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JJQ_STORE", str(data / "jjq"))
        for command in commands():
            if command[0] == "spark-submit" and "--packages" not in command:
                job, words = job_of(command)
                job.main([word.replace("data/", f"{data}/") for word in words], spark)
    yield data
    assert_whole(data / "jjq")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        yield opened
    assert_whole(tmp_path / "store")


def read(store: Path | jjq.Store, topic: str, **options: Any) -> pa.Table:
    if isinstance(store, Path):
        with jjq.open(store, read_only=True) as opened:
            return opened.topic(topic).read(**options).read_all()
    return store.topic(topic).read(**options).read_all()


def refused(main: Callable[..., None], words: list[str], *arguments: Any) -> str:
    """The message of a job that refuses what its flags ask for."""
    with pytest.raises((running.Refused, JjqError)) as error:
        main(words, *arguments)
    return str(error.value)


# --- the page ---------------------------------------------------------------------------------------------------------


def test_every_command_of_the_page_is_one_that_its_job_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JJQ_STORE", "data/jjq")
    seen = set()
    for command in commands():
        if command[0] == "spark-submit":
            job, words = job_of(command)
            assert isinstance(job.parser().parse_args(words), argparse.Namespace)
            seen.add(job)
    assert seen == set(JOBS)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.__name__)
def test_help_is_the_jobs_own_docstring_with_a_command_that_it_takes(job: ModuleType) -> None:
    help_text = job.parser().format_help()
    assert job.__doc__ is not None
    assert job.__doc__.strip() in help_text
    lines = job.__doc__.split("spark-submit", 1)[1].split("\n\n")[0].replace("\\\n", " ")
    _, words = job_of(shlex.split("spark-submit" + lines))
    job.parser().parse_args(words)


# --- ingest -----------------------------------------------------------------------------------------------------------


def test_files_come_into_the_topic_line_by_line_in_the_order_of_the_months(data: Path) -> None:
    table = read(data / "jjq", "departures", metadata=["_key"])
    wanted = flights_of(data / "nyc2013")
    assert table.num_rows == 2 * LINES
    for column in ("month", "flight", "carrier", "dest", "time_hour"):
        assert table[column].to_pylist() == wanted[column].tolist(), column
    assert table["dep_delay"].to_pandas().tolist() == pytest.approx(wanted["dep_delay"].tolist(), nan_ok=True)
    assert table["_key"].to_pylist() == [None if pd.isna(tail) else tail.encode() for tail in wanted["tailnum"]]


def test_only_new_files_are_read_by_the_next_run(spark: SparkSession, store: jjq.Store, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "1.json").write_text('{"at": "2013-01-01T10:00:00Z", "n": 1}\n{"n": 2}\n')
    words = ["--store", str(store.path), "--files", str(files), "--format", "json", "--output", "t"]
    words += ["--checkpoint", str(tmp_path / "checkpoint")]
    ingest.main([*words, "--schema", "at TIMESTAMP, n INT"], spark)
    (files / "2.json").write_text('{"n": 3}\n')
    ingest.main(words, spark)  # the columns are the topic's now
    ingest.main([*words, "--schema", "N INT"], spark)  # which it has
    for other in ("n DOUBLE", "m INT"):
        assert f"{other.lower()} is no column of topic 't'" in refused(ingest.main, [*words, "--schema", other], spark)
    assert read(store, "t").to_pylist() == [{"at": TEN, "n": 1}, {"at": None, "n": 2}, {"at": None, "n": 3}]


def test_what_does_not_fit_the_columns_stops_the_job_and_nothing_is_written(
    spark: SparkSession, store: jjq.Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = store.create_topic("t", schema=pa.schema([("n", pa.int32()), ("name", pa.string())]))
    words = ["--store", str(store.path), "--output", "t", "--files"]
    for name, text, wanted in (("value", "n,name\nmany,a\n", "many"), ("column", "n,nmae\n1,a\n", "nmae")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.csv").write_text("n,name\n")  # the first line of the first file is looked at before
        os.utime(tmp_path / name / "0.csv", (1, 1))
        (tmp_path / name / "1.csv").write_text(text)
        checkpoint = ["--checkpoint", str(tmp_path / f"{name}-checkpoint")]
        code = running.run("ingest", lambda: ingest.main([*words, str(tmp_path / name), *checkpoint], spark))  # noqa: B023
        assert code == running.FAILED
        error = capfd.readouterr().err
        (said,) = re.findall(r"^ingest: (?:.+\n)+", error, re.MULTILINE)
        assert wanted in said
        assert "1.csv" in said
    assert topic.offsets()[0].end == 0


def test_of_files_that_were_read_ingest_does_not_ask_what_the_topic_has_now(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    store.create_topic("t", schema=pa.schema([("n", pa.int32())]))
    files = tmp_path / "files of a"
    files.mkdir()
    (files / "1 ä%.csv").write_text("N\n1\n")
    words = ["--store", str(store.path), "--files", str(files), "--checkpoint", str(tmp_path / "c"), "--output", "t"]
    ingest.main(words, spark)
    store.alter_topic("t", add_columns=pa.schema([("m", pa.int32())]))
    (files / "2.csv").write_text("n,m\n2,3\n")
    ingest.main(words, spark)
    assert read(store, "t").to_pylist() == [{"n": 1, "m": None}, {"n": 2, "m": 3}]
    (files / "3.csv").write_text("n\n4\n")
    assert "3.csv lacks m; the columns of topic 't' are n, m:" in refused(ingest.main, words, spark)
    other = [*words[:-3], str(tmp_path / "d"), "--output", "u", "--schema", "n INT, o INT"]
    assert "lacks o; the columns of --schema are n, o:" in refused(ingest.main, other, spark)


def test_ingest_says_what_is_missing(spark: SparkSession, store: jjq.Store, tmp_path: Path) -> None:
    files = tmp_path / "files"
    words = ["--store", str(store.path), "--files", str(files), "--checkpoint", str(tmp_path / "c"), "--output", "t"]
    assert "not a directory" in refused(ingest.main, words, spark)
    files.mkdir()
    for text in (None, "", "n,m\n"):
        if text is not None:
            (files / "1.csv").write_text(text)
        assert "give --schema" in refused(ingest.main, words, spark)
    assert "no column 'o'" in refused(ingest.main, [*words, "--schema", "n INT, m INT", "--key", "o"], spark)
    store.create_topic("t")
    assert "has no schema" in refused(ingest.main, words, spark)


# --- route ------------------------------------------------------------------------------------------------------------


def test_each_record_is_in_every_topic_whose_condition_holds_with_its_airlines_name(data: Path) -> None:
    flights = flights_of(data / "nyc2013")
    names = pd.read_csv(data / "nyc2013" / "airlines.csv", keep_default_na=False).set_index("carrier")["name"]
    late, cancelled = flights["dep_delay"] > 15, flights["dep_time"].isna()
    assert late.any()
    assert cancelled.any()
    for topic, which in (("late", late), ("cancelled", cancelled), ("punctual", ~late & ~cancelled)):
        table = read(data / "jjq", topic, metadata=["_key"])
        values = pd.DataFrame([json.loads(value) for value in table["value"].to_pylist()])
        wanted = flights[which]
        assert values["flight"].tolist() == wanted["flight"].tolist(), topic
        assert values["name"].tolist() == wanted["carrier"].map(names).tolist(), topic
        assert table["_key"].to_pylist() == [None if pd.isna(tail) else tail.encode() for tail in wanted["tailnum"]]


def test_a_micro_batch_that_is_done_again_adds_nothing_to_any_topic(spark: SparkSession, data: Path) -> None:
    checkpoint = data / "checkpoints" / "route"
    before = {topic: read(data / "jjq", topic, metadata=["_offset"]) for topic in ("late", "cancelled", "punctual")}
    (checkpoint / "commits" / "0").unlink()  # as if the driver had died before it
    for checksum in (checkpoint / "commits").glob(".*.crc"):
        checksum.unlink()
    (command,) = [each for each in commands() if "spark_jobs/route.py" in each]
    job, words = job_of(command)
    job.main(["--store", str(data / "jjq"), *[word.replace("data/", f"{data}/") for word in words]], spark)
    assert (checkpoint / "commits" / "0").exists()
    assert {topic: read(data / "jjq", topic, metadata=["_offset"]) for topic in before} == before


def test_of_a_topic_as_a_dimension_the_newest_record_of_each_key_counts(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    store.create_topic("orders", schema=pa.schema([("item", pa.string()), ("n", pa.int32())])).push_table(
        pa.table({"item": ["a", "b", "c"], "n": pa.array([1, 2, 3], pa.int32())})
    )
    store.create_topic("items", schema=pa.schema([("item", pa.string()), ("price", pa.int32())])).push_table(
        pa.table({"item": ["a", "b", "a"], "price": pa.array([10, 20, 11], pa.int32())})
    )
    words = ["--store", str(store.path), "--topic", "orders", "--checkpoint", str(tmp_path / "c"), "--on", "item"]
    words += ["--dimension-topic", "items", "--to", "small=n < 3", "--to", "all=true", "--to", "none=price > 99"]
    route.main(words, spark)
    rows = [b'{"item":"a","n":1,"price":11}', b'{"item":"b","n":2,"price":20}', b'{"item":"c","n":3}']
    assert sorted(read(store, "all")["value"].to_pylist()) == rows
    assert sorted(read(store, "small")["value"].to_pylist()) == rows[:2]
    assert "none" not in {topic.name for topic in store.topics()}


def test_route_says_what_is_wrong(
    spark: SparkSession, store: jjq.Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--store", str(store.path), "--topic", "orders", "--checkpoint", str(tmp_path / "c"), "--to", "x=true"]
    with pytest.raises(TopicNotFound, match="orders"):
        route.main(words, spark)
    store.create_topic("orders", schema=pa.schema([("item", pa.string()), ("price", pa.int32())]))
    twice = tmp_path / "twice.csv"
    twice.write_text("item,price\na,1\na,2\n")
    table = ["--dimension", str(twice), "--on", "item"]
    assert "--on and one of" in refused(route.main, [*words, "--on", "item"], spark)
    assert "no column 'itme'" in refused(route.main, [*words, *table[:3], "itme"], spark)
    assert "item = 'a' is there 2 times" in refused(route.main, [*words, *table], spark)
    twice.write_text("item,price\na,1\n")
    assert "both have price" in refused(route.main, [*words, *table], spark)
    with pytest.raises(SystemExit):
        route.main([*words, "--to", "no condition"], spark)
    store.topic("orders").push({"item": "a"})
    store.create_topic("x", schema=pa.schema([("n", pa.int32())]))
    assert "topic 'x' has a schema, and this job writes JSON" in refused(route.main, words)
    words[-1] = "y=true"
    assert "topic 'x' has a schema" in refused(route.main, [*words, "--else", "x"])
    assert running.run("route", lambda: route.main([*words, "--to", "z=pirce > 1"], spark)) == running.FAILED
    assert "pirce" in capfd.readouterr().err


# --- sessionize -------------------------------------------------------------------------------------------------------


def test_sessions_are_those_that_pandas_finds(data: Path) -> None:
    flights = flights_of(data / "nyc2013").dropna(subset=["tailnum"]).sort_values(["tailnum", "time_hour"])
    pause = flights.groupby("tailnum")["time_hour"].diff() > timedelta(hours=12)
    flights["session"] = pause.groupby(flights["tailnum"]).cumsum()
    found = flights.groupby(["tailnum", "session"])
    wanted = found.agg(first=("time_hour", "min"), last=("time_hour", "max"), records=("flight", "size"))
    wanted["sum_distance"] = found["distance"].sum()
    wanted["until"] = wanted.pop("last") + timedelta(hours=12)
    wanted = wanted[wanted["until"] <= flights_of(data / "nyc2013")["time_hour"].max() - timedelta(days=2)]
    assert (wanted["records"] > 1).any()
    columns = ["tailnum", "first", "until", "records", "sum_distance"]
    rows = read(data / "jjq", "duties").to_pandas()[columns].sort_values(["tailnum", "first"])
    assert rows.values.tolist() == wanted.reset_index()[columns].values.tolist()


def test_a_record_without_a_key_is_in_no_session_and_says_that_time_has_passed(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    topic = store.create_topic("t", schema=pa.schema([("at", pa.timestamp("us", "UTC")), ("who", pa.string())]))
    times = [TEN, TEN + timedelta(minutes=29), None, TEN + timedelta(days=1)]
    topic.push_table(pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "who": ["a", "a", "a", None]}))
    words = ["--store", str(store.path), "--topic", "t", "--time", "at", "--key", "who", "--output", "sessions"]
    sessionize.main([*words, "--checkpoint", str(tmp_path / "c")], spark)
    until = TEN + timedelta(minutes=59)
    assert read(store, "sessions").to_pylist() == [{"who": "a", "first": TEN, "until": until, "records": 2}]
    assert "must be a timestamp" in refused(sessionize.main, [*words, "--checkpoint", "c", "--time", "who"], spark)
    assert "no column 'whom'" in refused(sessionize.main, [*words, "--checkpoint", "c", "--key", "whom"], spark)


# --- archive ----------------------------------------------------------------------------------------------------------


def test_the_archive_holds_every_record_once_by_the_date_of_its_time(spark: SparkSession, data: Path) -> None:
    rows = spark.read.parquet(str(data / "archive" / "departures")).orderBy("_offset").toPandas()
    table = read(data / "jjq", "departures", metadata=["_offset"]).to_pandas()
    assert rows["_offset"].tolist() == table["_offset"].tolist()
    assert rows["flight"].tolist() == table["flight"].tolist()
    assert rows["date"].tolist() == table["time_hour"].dt.date.tolist()
    directories = {path.name for path in (data / "archive" / "departures").glob("date=*")}
    assert directories == {f"date={day}" for day in table["time_hour"].dt.date}


def test_each_run_archives_what_is_new_headers_and_keys_included(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    topic = store.create_topic("t", timestamps="producer")
    words = ["--store", str(store.path), "--topic", "t", "--output", str(tmp_path / "archive")]
    for day in (1, 2):
        topic.push(b"v", key=b"k", headers={"h": b"1"}, timestamp=TEN + timedelta(days=day))
        archive.main([*words, "--checkpoint", str(tmp_path / "c")], spark)
    rows = spark.read.parquet(str(tmp_path / "archive")).orderBy("offset").collect()
    assert [(row.offset, bytes(row.key), bytes(row.value), str(row.date)) for row in rows] == [
        (0, b"k", b"v", "2013-01-02"),
        (1, b"k", b"v", "2013-01-03"),
    ]
    assert [[(each.key, bytes(each.value)) for each in row.headers] for row in rows] == [[("h", b"1")]] * 2
    assert "leave it out" in refused(archive.main, [*words, "--checkpoint", "c", "--time", "timestamp"], spark)
    delta = [*words, "--checkpoint", "c", "--format", "delta"]
    assert "io.delta:delta-spark_2.13" in refused(archive.main, delta, spark)


# --- replay -----------------------------------------------------------------------------------------------------------


def test_a_replay_keeps_keys_headers_partitions_and_times_and_is_done_once(
    spark: SparkSession, store: jjq.Store
) -> None:
    topic = store.create_topic("t", partitions=2, timestamps="producer")
    for hour in range(6):
        topic.push(b"%d" % hour, key=b"k%d" % hour, headers={"h": b"1"}, timestamp=TEN + timedelta(hours=hour))
    words = ["--store", str(store.path), "--topic", "t", "--output", "again", "--name", "once"]
    words += ["--since", "2013-01-01T11:00:00Z", "--until", "2013-01-01T15:00:00+00:00"]
    for _ in range(2):
        replay.main(words, spark)
    names = ["_partition", "_timestamp", "_key", "_headers"]
    wanted = [row for row in read(store, "t", metadata=names).to_pylist() if row["value"] not in (b"0", b"5")]
    assert len(wanted) == 4
    assert read(store, "again", metadata=names).to_pylist() == wanted


def test_a_replay_of_columns_takes_its_key_from_one_of_them(data: Path) -> None:
    flights = flights_of(data / "nyc2013")
    wanted = flights[flights["origin"] == "JFK"]
    table = read(data / "jjq", "departures-jfk", metadata=["_key"])
    assert table["flight"].to_pylist() == wanted["flight"].tolist()
    assert table["_key"].to_pylist() == [None if pd.isna(tail) else tail.encode() for tail in wanted["tailnum"]]
    assert read(data / "jjq", "late-again")["value"].equals(read(data / "jjq", "late")["value"])


def test_a_replay_says_what_it_refuses(spark: SparkSession, store: jjq.Store) -> None:
    store.create_topic("t")
    store.create_topic("typed", schema=pa.schema([("n", pa.int32())]))
    words = ["--store", str(store.path), "--topic", "t", "--output"]
    assert "same topic" in refused(replay.main, [*words, "t"], spark)
    assert "has a schema" in refused(replay.main, [*words, "typed"], spark)
    assert "keys are kept" in refused(replay.main, [*words, "other", "--key", "n"], spark)
    with pytest.raises(AnalysisException, match="nothing"):
        replay.main([*words, "other", "--where", "nothing > 1"], spark)
    assert [topic.name for topic in store.topics()] == ["t", "typed"]


# --- mirror -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["from-kafka", "to-kafka"])
def test_without_its_connector_the_mirror_says_what_to_add(
    direction: str, spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    words = [direction, "--store", str(store.path), "--checkpoint", str(tmp_path / "c"), "--topic", "t"]
    message = refused(mirror.main, [*words, "--output", "t", "--bootstrap-servers", "localhost:1"], spark)
    assert f"--packages org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}" in message
    assert not store.topics()  # nothing was made


def test_records_become_rows_for_kafka(spark: SparkSession, store: jjq.Store) -> None:
    store.create_topic("plain").push(b"v", key=b"k", headers={"h": b"1"})
    store.create_topic("typed", schema=pa.schema([("n", pa.int32())])).push({"n": 7})
    source = spark.read.format("jjq").option("path", str(store.path))
    plain = source.option("topic", "plain").option("includeHeaders", "true").load()
    typed = (
        spark.read.format("jjq").option("topic", "typed").option("metadata", ",".join(mirror.METADATA))
        .load(str(store.path))
    )  # fmt: skip
    columns = f"key binary, value binary, headers {mirror.HEADERS}"
    assert_df_equality(
        mirror.to_kafka(plain, keep_partitions=False, position=False),
        spark.createDataFrame([(b"k", b"v", [("h", b"1")])], columns),
        ignore_nullable=True,
    )
    assert_df_equality(
        mirror.to_kafka(plain, keep_partitions=True, position=True),
        spark.createDataFrame([(b"k", b"v", [("h", b"1"), ("jjq-position", b"0:0")], 0)], f"{columns}, partition int"),
        ignore_nullable=True,
    )
    assert_df_equality(
        mirror.to_kafka(typed, keep_partitions=False, position=True),
        spark.createDataFrame([(None, '{"n":7}', [("jjq-position", b"0:0")])], columns.replace("value binary", "value string")),
        ignore_nullable=True,
    )  # fmt: skip


def test_the_topic_of_a_mirror_is_made_with_the_producers_times(store: jjq.Store) -> None:
    words = ["from-kafka", "--store", str(store.path), "--checkpoint", "c", "--topic", "t", "--output", "copy"]
    options = mirror.parser().parse_args([*words, "--bootstrap-servers", "localhost:1", "--partitions", "3"])
    made = mirror.made_topic(options)
    assert (made.partitions, made.config.timestamps) == (3, "producer")
    store.create_topic("typed", schema=pa.schema([("n", pa.int32())]))
    options.output = "typed"
    with pytest.raises(running.Refused, match="has a schema"):
        mirror.made_topic(options)


# --- running ----------------------------------------------------------------------------------------------------------


def test_a_job_that_follows_takes_what_comes_until_it_is_stopped(
    spark: SparkSession, store: jjq.Store, tmp_path: Path
) -> None:
    topic = store.create_topic("t", schema=pa.schema([("n", pa.int32())]))
    store.create_topic("all")
    topic.push({"n": 1})
    seen = []

    def push_two_more_and_stop() -> None:
        try:
            with store.create_subscriber("all", "watch") as watch:
                for n in (2, 3):
                    record = watch.pop(timeout=60)
                    seen.append(record and record.value)
                    topic.push({"n": n})
        finally:
            for query in spark.streams.active:
                query.stop()

    watcher = threading.Thread(target=push_two_more_and_stop)
    watcher.start()
    words = ["--store", str(store.path), "--topic", "t", "--checkpoint", str(tmp_path / "c"), "--to", "all=true"]
    route.main([*words, "--follow", "0.1"], spark)
    watcher.join()
    assert seen == [b'{"n":1}', b'{"n":2}']


@pytest.mark.soak
@pytest.mark.timeout(SUBMIT_SECONDS + 30)
def test_spark_submit_runs_a_job_as_the_page_says(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "1.csv").write_text("carrier,delay\nAA,4\nUA,NA\n")
    words = ["--store", str(tmp_path / "store"), "--files", str(files), "--null", "NA", "--output", "flights"]
    words += ["--checkpoint", str(tmp_path / "checkpoint")]
    done = subprocess.run(
        [spark_submit(), "--properties-file", "conf/spark-defaults.conf", "spark_jobs/ingest.py", *words],
        cwd=ROOT,
        env=os.environ | spark_environment(),
        capture_output=True,
        text=True,
        timeout=SUBMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert "ingest: 2 rows in 1 micro-batch\n" in done.stdout
    assert not [line for line in done.stderr.splitlines() if " INFO " in line or "ERROR" in line]
    assert read(tmp_path / "store", "flights").to_pylist() == [
        {"carrier": "AA", "delay": 4},
        {"carrier": "UA", "delay": None},
    ]
    assert_whole(tmp_path / "store")


@pytest.mark.parametrize("job", [archive, replay, route, sessionize], ids=lambda job: job.__name__)
def test_a_store_that_is_not_there_is_said_without_a_stack(
    job: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JJQ_STORE", str(tmp_path / "nowhere"))
    (words,) = [words for found, words in map(job_of, commands()[3:]) if found is job][-1:]
    monkeypatch.setattr(sys, "argv", ["job", *[word.replace("data/", f"{tmp_path}/") for word in words]])
    (tmp_path / "nyc2013").mkdir()
    (tmp_path / "nyc2013" / "airlines.csv").write_text("carrier,name\n")
    assert running.run("job", job.main) == running.REFUSED
    assert str(tmp_path / "nowhere") in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
