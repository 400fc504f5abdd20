"""Every benchmark runs, in its smallest form, so that none rots. What it measures then means nothing and is not looked at."""

import importlib
import json
import os
from pathlib import Path

import pytest

from tests.bench import MODULES, Benchmark, kafka
from tests.bench.__main__ import main
from tests.bench.kafka import MEASURED, environment
from tests.bench.kafka.artifacts import Artifacts, Missing, jars
from tests.bench.kafka.broker import free_ports
from tests.bench.run import Run
from tests.bench.table import Row, at_least, at_most_more, plain

# Those with Spark take as long as Spark takes to start; those beside Kafka fetch it.
BENCHMARKS: dict[str, Benchmark] = {}
for module in MODULES:
    if not module.startswith(("spark", "kafka")):
        BENCHMARKS |= importlib.import_module(f"tests.bench.{module}").BENCHMARKS


@pytest.mark.parametrize("name", BENCHMARKS)
def test_runs_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    rows = BENCHMARKS[name](Run(tmp_path, quick=True))
    assert rows
    for row in rows:
        assert row.skipped or (len(row.ours) == len(row.peers) > 0 and min(row.ours) > 0 and min(row.peers) > 0)
    assert not list(tmp_path.iterdir())


def test_the_command_prints_a_row_and_writes_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push-always", "--quick", "--dir", str(tmp_path), "--json", str(tmp_path / "figures.json")]) == 0
    assert "write + fdatasync of the same bytes" in capsys.readouterr().out
    row = json.loads((tmp_path / "figures.json").read_text())["rows"][0]
    assert row["what"] == "push of 100 B, always, one thread"
    assert len(row["ours"]) == len(row["peers"]) == 1


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pusch"])
    assert "push-always" in capsys.readouterr().err


def test_a_row_is_judged_by_the_median_of_the_rounds_ratios() -> None:
    row = Row("a", "b", "/s", ours=[10, 10, 90], peers=[10, 20, 10], target=at_least(1))
    assert row.ok
    assert "1.00 (0.50 to 9.00)" in plain([row])
    memory = Row("a", "b", "B", ours=[300e6], peers=[250e6], target=at_most_more(40e6))
    assert memory.ok is False
    assert "+50 MB" in plain([memory])
    assert Row("a", "b", "/s", skipped="why").ok is None


def test_what_kafka_needs_and_cannot_be_had_is_the_reason_to_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in MEASURED:
        (row,) = kafka.BENCHMARKS[name](Run(tmp_path / "run", quick=True, cache=tmp_path / "cache"))
        assert "Maven (mvn)" in row.skipped
    assert not list(tmp_path.iterdir())


def test_what_was_fetched_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    there = tmp_path / "kafka_2.13-1.0"
    there.mkdir()
    assert jars(tmp_path, "org.apache.kafka", "kafka_2.13", "1.0") == there
    with pytest.raises(Missing):
        jars(tmp_path, "org.apache.kafka", "kafka_2.13", "2.0")


def test_both_sides_get_the_spark_that_the_connector_belongs_to(tmp_path: Path) -> None:
    connector = tmp_path / "connector"
    connector.mkdir()
    (connector / "a.jar").touch()
    other = environment(Artifacts(tmp_path, connector, "1.0", tmp_path / "pyspark-1.0"))
    assert other["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "pyspark-1.0")
    assert str(connector / "a.jar") in other["PYSPARK_SUBMIT_ARGS"]
    same = environment(Artifacts(tmp_path, connector, "1.0", None))
    assert "pyspark" not in same["PYTHONPATH"]


def test_ports_are_free_and_not_the_same() -> None:
    first, second = free_ports(2)
    assert first != second
