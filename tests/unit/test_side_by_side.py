"""`python -m tests`: what it says at the end is what both of its runs of pytest came to, and it has an end."""

import re
from pathlib import Path

import pytest

from tests.__main__ import run

GOOD = """
import pytest

def test_one(): pass
def test_two(): pass
def test_three(): pytest.skip("not here")
"""
BAD = """
import pytest

@pytest.fixture
def broken(): raise ValueError

def test_one(): pass
def test_two(): assert False, "this one"
def test_three(broken): pass
"""
ENDLESS = """
import threading

def test_one(): threading.Thread(target=threading.Event().wait).start()
"""
DYING = """
import os

def test_one(): os._exit(0)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # these need none


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ([GOOD, BAD, GOOD], "2 failed, 5 passed, 2 skipped"),
        ([DYING], "1 failed"),
        (["import nothing_like_it"], "2 failed"),
    ],
    ids=["bad", "dying", "broken"],
)
def test_it_sums_up(tmp_path: Path, capfd: pytest.CaptureFixture[str], files: list[str], line: str) -> None:
    for number, text in enumerate(files):
        (tmp_path / f"test_{number}.py").write_text(text)
    assert not run(str(tmp_path))
    said = capfd.readouterr().out
    assert re.fullmatch(rf"=== {line} in [0-9.]+s ===", said.splitlines()[-1])
    assert ("this one" in said) == (BAD in files)


def test_a_run_that_does_not_end_is_ended_and_has_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_endless.py").write_text(ENDLESS)
    assert not run(str(tmp_path), last_s=1.0)  # a report that is there may not be whole yet
    said = capfd.readouterr()
    # With so little patience the other run may be ended, too.
    assert re.fullmatch("=== [12] failed, 1 passed in .*s ===", said.out.splitlines()[-1])
    assert "does not come to its end" in said.err
    assert "Fatal Python error: Aborted" in said.out + said.err


def test_each_test_is_run_once_whoever_runs_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    for number in range(4):
        text = f"""
import os, pathlib, pytest

@pytest.fixture(scope="module")
def made():
    yield pathlib.Path({str(seen)!r})

@pytest.mark.parametrize("i", range(25))
def test_one(made, i): (made / f"{number} {{i}} {{os.getpid()}}").touch(exist_ok=False)
"""
        (tmp_path / f"test_{number}.py").write_text(text)
    assert run(str(tmp_path))
    assert re.fullmatch("=== 100 passed in .*s ===", capfd.readouterr().out.splitlines()[-1])
    ran = [path.name.split() for path in seen.iterdir()]
    assert sorted((int(number), int(i)) for number, i, _ in ran) == [(n, i) for n in range(4) for i in range(25)]
