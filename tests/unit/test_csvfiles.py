"""What `ingest.py` sees of CSV files before Spark is started."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from spark_jobs import csvfiles, ingest, running

COLUMNS = ["carrier", "delay"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def refusal(files: Path, checkpoint: str = "nowhere", separator: str = ",") -> str:
    """What is said of a file whose first line does not fit; nothing where Spark may see it."""
    try:
        csvfiles.require_header(files, separator, checkpoint, COLUMNS, "topic 't'")
    except running.Refused as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("carrier,delay\n", ""),
        ('\ufeffCarrier,"DELAY"\r\n1,2\r\n', ""),
        ("", ""),
        ("\n\n", ""),
        ("carrier\n", "lacks delay; the columns"),
        ("carrier,delay,dest\n", "has dest too many; the columns of topic 't' are carrier, delay:"),
        ("carrier,dalay\n", "lacks delay and has dalay too many;"),
        ("carrier, delay\n", "lacks delay and has ' delay' too many;"),
        ("delay,carrier\n", "has them in another order;"),
        ("carrier,delay,delay\n", "names a column twice;"),
        ("carrier;delay\n", "lacks carrier, delay and has carrier;delay too many (is ',' the --separator?);"),
        (",".join(map(str, range(20))), "has 0, 1, 2, 3, 4, 5, 6, 7 and 12 more too many;"),
    ],
)
def test_a_first_line_is_that_of_the_columns_or_it_is_said_what_it_is_not(files: Path, text: str, said: str) -> None:
    (files / "1.csv").write_text(text, newline="")
    found = refusal(files)
    assert said in found
    assert (not said) == (not found)
    assert "\n" not in found


def test_the_separator_is_that_of_the_flag_and_files_may_be_packed(files: Path) -> None:
    (files / "1.csv.gz").write_bytes(gzip.compress(b"carrier\tdelay\n"))
    assert refusal(files, separator="\t") == refusal(files, separator="\\t") == ""
    assert "1.csv.gz lacks" in refusal(files)
    assert refusal(files, separator="||") == ""  # Python's reader takes one character
    (files / "1.csv.gz").write_bytes(gzip.compress(b"carrier\n")[:12])
    assert refusal(files) == ""


def test_it_is_the_oldest_file_that_was_not_read_and_that_spark_takes(files: Path, tmp_path: Path) -> None:
    for age, name in enumerate(("new.csv", "old.csv", "read before%.csv", "_hidden.csv", ".hidden.csv", "x._COPYING_")):
        (files / name).write_text(f"{name.partition('.')[0]}\n")
        os.utime(files / name, (1000 - age, 1000 - age))
    log = tmp_path / "checkpoint" / "sources" / "0"
    log.mkdir(parents=True)
    entry = {"path": (files / "read before%.csv").as_uri(), "timestamp": 1, "batchId": 0}
    (log / "0").write_text(f"v1\n{json.dumps(entry)}\n")
    assert f"{files}/old.csv lacks" in refusal(files, str(tmp_path / "checkpoint"))
    assert "read before%.csv lacks" in refusal(files)
    # What cannot be told is Spark's to say.
    assert refusal(files, "s3a://bucket/checkpoint") == ""
    (log / "1").write_text("v1\nnot as it is written\n")
    assert refusal(files, str(tmp_path / "checkpoint")) == ""
    (files / "year=2013").mkdir()
    assert refusal(files) == ""


def test_ingest_refuses_in_one_line_before_spark_is_started(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(*_: Any) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(running, "session", started)
    with jjq.open(tmp_path / "store") as store:
        store.create_topic("t", schema=pa.schema([("carrier", pa.string()), ("delay", pa.int32())]))
    (files / "1.csv").write_text("carrier,dest\n")
    words = [
        "--store",
        str(tmp_path / "store"),
        "--files",
        str(files),
        "--output",
        "t",
        "--checkpoint",
        str(tmp_path / "c"),
    ]
    assert running.run("ingest", lambda: ingest.main(words)) == running.REFUSED
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"ingest: --files: the first line of {files}/1.csv lacks delay and has dest too many; ")
    for more in (["--format", "json"], ["--format", "parquet"]):
        with pytest.raises(AssertionError, match="Spark was started"):
            ingest.main([*words, *more])
