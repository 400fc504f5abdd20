"""What the demo says, without its job."""

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs import demo


def test_the_records_of_a_whole_store_are_told_by_topic(tmp_path: Path) -> None:
    place = demo.Place.under(tmp_path)
    tables = {"flights": pa.table({"n": list(range(1001))}), "weather": pa.table({"n": [1]})}
    demo.push(place, tables, lambda *_: None)
    said = demo.require_whole(place)
    assert said == "1,002 records (1,001 in flights, 1 in weather) in 2 segments, every checksum right"


@pytest.mark.parametrize("more", [[], ["--keep"], ["--store", "stores"]])
def test_the_end_names_the_picture_and_how_to_keep_the_stores(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Any] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo, "demo", lambda *given: made.append(given))
    monkeypatch.setattr(sys, "argv", ["demo.py", "--picture", "delays.png", *more])
    assert demo.main() == 0
    said = capsys.readouterr().out
    assert f"The picture is {tmp_path}/delays.png" in said
    ((directory, _, _),) = made
    assert directory.exists() == bool(more)
    assert said.endswith("; the stores are removed, --keep leaves them to look at.\n") != bool(more)
