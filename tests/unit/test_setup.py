"""`./run setup`: what it says while it installs, with a pip that fetches nothing."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What pip says, in the words of 23 to 26; and what it was asked.
PIP = """#!/usr/bin/env bash
case "$*" in
    *"-m pip"*) ;;
    *) exec "$REAL" "$@" ;;
esac
printf '%s\\n' "$*" >>"$ASKED"
case "$*" in *--quiet*) exit 0 ;; esac
echo "Collecting pytest==0.1 (from -r requirements.lock (line 1))"
echo "  Downloading pytest-0.1-py3-none-any.whl (1.2 MB)"
echo "Requirement already satisfied: pyarrow"
echo "Collecting nothing-like-it==2.0 (from -r requirements.lock (line 2))"
echo "Installing collected packages: pytest, nothing-like-it"
[ -z "${PIP_FAILS:-}" ] || { echo "ERROR: no space left" >&2; exit 1; }
echo "Successfully installed pytest-0.1 nothing-like-it-2.0"
"""


@pytest.fixture
def setup(tmp_path: Path) -> Callable[..., "subprocess.Popen[bytes]"]:
    """Starts `./run setup` in a repository of its own, with these requirements in its lock."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(PIP)
    python.chmod(0o755)
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(0o755)
    (java.parents[1] / "release").write_text('JAVA_VERSION="17.0.1"\n')
    (tmp_path / "run").write_bytes((ROOT / "run").read_bytes())
    (tmp_path / "pyproject.toml").touch()
    environment = os.environ | {
        "REAL": sys.executable, "ASKED": str(tmp_path / "asked"), "JAVA_HOME": str(tmp_path / "java"),
    }  # fmt: skip

    def start(*lines: str, stderr: int = subprocess.PIPE, **more: str) -> "subprocess.Popen[bytes]":
        (tmp_path / "requirements.lock").write_text("".join(f"{each} \\\n    --hash=sha256:0\n" for each in lines))
        return subprocess.Popen(
            ["bash", str(tmp_path / "run"), "setup"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=environment | more,
        )  # fmt: skip

    return start


LOCKED = ("pytest==0.1", "nothing-like-it==2.0", "elsewhere==1.0 ; sys_platform == 'nowhere'")
HERE = f"pytest=={pytest.__version__}"


def asked(directory: Path) -> list[str]:
    """What pip was asked since the last time."""
    path = directory / "asked"
    lines = path.read_text().splitlines()
    path.unlink()
    return lines


def test_in_a_log_there_is_a_line_for_each_package_that_is_fetched(
    setup: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    process = setup(*LOCKED)
    _, said = process.communicate()
    assert process.returncode == 0
    assert said.decode().splitlines()[2:-1] == [
        "==> 1 of 2: pytest==0.1", "==> 2 of 2: nothing-like-it==2.0", "==> unpacking them, in silence",
        "==> installing jjq itself, editable",
    ]  # fmt: skip
    assert b"installing 2 of the locked packages" in said
    assert b"1.4 GB" in said
    assert all("--require-hashes" in each for each in asked(tmp_path)[:-1])


def test_nothing_is_said_of_packages_where_all_are_there_and_a_second_run_asks_pip_nothing(
    setup: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    process = setup(HERE, LOCKED[2])
    _, said = process.communicate()
    assert said.decode().splitlines()[:-1] == ["==> installing jjq itself, editable"]
    assert ["--editable" in each for each in asked(tmp_path)] == [True]
    _, said = setup(HERE, LOCKED[2]).communicate()
    assert [line[:10] for line in said.decode().splitlines()] == ["==> ready:"]
    assert not (tmp_path / "asked").exists()


def test_at_a_terminal_it_is_pip_that_shows_how_far_it_is(
    setup: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    ours, its = pty.openpty()
    process = setup(*LOCKED, stderr=its)
    os.close(its)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # EIO, where the other side is closed
        pass
    os.close(ours)
    process.communicate()
    assert process.returncode == 0
    assert b"Downloading pytest-0.1" in said
    assert b" of 2: " not in said
    assert [each for each in asked(tmp_path) if "progress-bar" in each] == []


def test_a_pip_that_fails_ends_it_with_what_pip_said(
    setup: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    process = setup(*LOCKED, PIP_FAILS="1")
    _, said = process.communicate()
    assert process.returncode == 1
    assert b"ERROR: no space left" in said
    assert not (tmp_path / ".venv" / ".installed").exists()
