"""The Spark that jobs are submitted to: the installed one, but for the packed copy of its Python code."""

import sys
from pathlib import Path

import pyspark
import pytest

from spark_jobs.submit import spark_home

INSTALLED = Path(pyspark.__file__).parent


def test_all_is_linked_but_the_packed_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / ".spark").mkdir()
    (tmp_path / ".spark" / "jars").symlink_to(tmp_path / "gone")  # of an installation that is no more
    for _ in range(2):
        home = spark_home()
        assert home == tmp_path / ".spark"
        assert (home / "jars").samefile(INSTALLED / "jars")
        assert (home / "bin" / "spark-submit").is_file()
        assert not (home / "python").exists()


def test_where_nothing_can_be_linked_it_is_the_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "gone"))
    assert spark_home() == INSTALLED
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)  # no virtual environment
    assert spark_home() == INSTALLED
