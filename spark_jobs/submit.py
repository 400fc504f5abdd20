"""Runs a job under spark-submit as a process of its own, and can kill it with all that it started."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[1]
POLL_SECONDS = 0.005  # short, to kill between the sink's commit and the checkpoint's, which are some 100 ms apart

ENDING_SECONDS = 10  # for the last output of a process that has ended


class JobError(Exception):
    """The job ended otherwise than expected; its own output says more."""


@dataclass(frozen=True)
class Figures:
    """What a run of the job says of itself; the seconds are the query's, without the start of Spark."""

    batches: int
    rows: int
    seconds: float


class Submitted:
    """One run of spark-submit with these arguments, from the root of the repository. A context manager that leaves no
    process behind.

    Its output goes where this process's goes, or to `log`.
    """

    def __init__(self, arguments: Sequence[str], log: Path | None = None) -> None:
        self._log = log.open("a") if log else None
        sys.stdout.flush()
        self._process = subprocess.Popen(
            [spark_submit(), *arguments],
            cwd=ROOT,
            env=os.environ | spark_environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log or subprocess.PIPE,
            start_new_session=True,
        )
        self._errors = threading.Thread(target=self._show_errors, daemon=True)
        self._errors.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._errors.join(ENDING_SECONDS)
        if self._log:
            self._log.close()

    def finish(self, timeout: float) -> None:
        """Waits for the job's end. Raises JobError when it failed or takes more than `timeout` seconds."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise JobError(f"the job has not ended after {timeout:.0f} s") from None
        if code != 0:
            raise JobError(f"the job failed with exit code {code}")

    def kill_when(self, condition: Callable[[], bool], timeout: float) -> None:
        """Kills the job as soon as the condition holds. Raises JobError when the job ends before that, or when the
        condition does not hold after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not condition():
            try:
                code = self._process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise JobError(f"the job had not come so far after {timeout:.0f} s") from None
            else:
                raise JobError(f"the job ended, with exit code {code}, before it was to be killed")
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the JVM, the driver and the Python workers at once; returns when none of them runs any more."""
        if self._process.poll() is not None:
            return
        while running := _processes_of_session(self._process.pid):
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_SECONDS)
        self._process.kill()
        self._process.wait()

    def _show_errors(self) -> None:
        """Passes on what the job writes to its standard error, without what the JVM says at each start of Spark."""
        if self._process.stderr is None:
            return
        with self._process.stderr as lines:
            for line in lines:
                if not line.startswith(b"WARNING: Using incubator modules"):
                    sys.stderr.write(line.decode(errors="replace"))


class Job(Submitted):
    """One run of delays.py."""

    def __init__(self, store: Path, checkpoint: Path, rows_per_batch: int, log: Path | None = None) -> None:
        self._report = Path(tempfile.mkdtemp(prefix="jjq-report-")) / "figures.json"
        arguments = [
            *["--properties-file", "conf/spark-delays.conf"],
            str(ROOT / "spark_jobs" / "delays.py"),
            *["--store", str(store), "--checkpoint", str(checkpoint)],
            *["--rows", str(rows_per_batch), "--report", str(self._report)],
        ]
        super().__init__(arguments, log)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._report.unlink(missing_ok=True)
        self._report.parent.rmdir()

    def wait(self, timeout: float) -> Figures:
        """Its figures, at its end. Raises JobError when it failed or takes more than `timeout` seconds."""
        self.finish(timeout)
        return Figures(**json.loads(self._report.read_text()))


def _processes_of_session(session: int) -> list[int]:
    """Those that run, without the dead that nobody has waited for. Spark's Python workers have a process group of
    their own, so killing the JVM's group would spare them; the session is the same. Empty where there is no /proc:
    there the workers end by themselves when the JVM no longer holds their input open."""
    running = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, _group, its_session, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(its_session) == session and state not in "ZX":
            running.append(int(stat.parent.name))
    return running


def spark_submit() -> str:
    """The command of the Spark that is installed beside this Python. Raises JobError where there is none."""
    return str(spark_home() / "bin" / "spark-submit")


def spark_environment() -> dict[str, str]:
    """What such a Spark needs to find in its environment."""
    return {
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,  # the data source is installed here, and Spark's workers must see it
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",  # else Spark asks the network for this machine's name
        "PYTHONWARNINGS": "ignore",  # pyspark warns about the version of pandas, which the job does not use
    }


def spark_home() -> Path:
    """The Spark that is installed beside this Python, with all that it has but a packed copy of its Python code: its workers, of which
    each query starts some, would import that, and compile what they import each time, where the installed code is compiled.

    Links in this Python's virtual environment; without one, Spark as it is installed. Raises JobError where there is none.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JobError("pyspark is not installed: pip install 'jjq[spark]', or call ./run setup")
    installed, home = Path(spec.origin).parent, Path(sys.prefix) / ".spark"
    if sys.prefix == sys.base_prefix:
        return installed
    try:
        home.mkdir(exist_ok=True)
        for part in installed.iterdir():
            link = home / part.name
            if part.name in ("python", "work") or (link.exists() and link.samefile(part)):
                continue
            link.unlink(missing_ok=True)
            with contextlib.suppress(FileExistsError):  # another process did it
                link.symlink_to(part)
    except OSError:
        return installed
    return home
