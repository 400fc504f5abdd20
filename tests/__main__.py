"""All tests, as `./run test` runs them: `python -m tests`.

Two runs of pytest side by side, as one keeps little more than one core busy. They share the tests by `sharing.py` and nothing else:
each has its own Spark, temporary directories and report. What the first says is shown at once, what the second says when both have
ended; the last line sums both up. It comes to an end whatever they do: a run that does not is ended, says where it stood, and
counts as failed.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree as ET

LONGEST_S = 3600.0
LAST_S = 180.0  # from a run's report, which it makes when its last test is done, to its end
END_S = 20.0  # for what it says when it is ended
LOOK_S = 1.0
COUNTED = ("tests", "failures", "errors", "skipped")  # attributes of a report


class Run:
    """One run of pytest, in a process group of its own. What it says goes to a file, unless it is `live`."""

    def __init__(self, name: str, arguments: Sequence[str], directory: Path, live: bool) -> None:
        self.name = name
        self._report, self._said = directory / f"{name}.xml", directory / f"{name}.txt"
        command = [sys.executable, "-X", "faulthandler", "-m", "pytest", f"--junitxml={self._report}"]
        command += ["-o", f"cache_dir=.pytest_cache/{name}", *arguments]
        with contextlib.nullcontext() if live else self._said.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    def wait(self, deadline: float, last_s: float) -> None:
        """Until it has ended, or was made to."""
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._report.exists():
                deadline = min(deadline, time.monotonic() + last_s)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LOOK_S)
        if self._process.poll() is None:
            print(f"the {self.name} run of pytest does not come to its end", file=sys.stderr, flush=True)
            self.end(signal.SIGABRT)  # on which Python tells where each thread is

    def end(self, how: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def show(self) -> None:
        sys.stdout.flush()
        if self._said.exists():
            with self._said.open("rb") as said:
                shutil.copyfileobj(said, sys.stdout.buffer)
            sys.stdout.flush()

    def counts(self) -> Counter[str]:
        """How many tests passed, failed and were skipped. A run that failed in another way counts as a test that did."""
        found: Counter[str] = Counter()
        try:
            for suite in ET.parse(self._report).getroot().iter("testsuite"):
                tests, failures, errors, skipped = (int(suite.attrib[each]) for each in COUNTED)
                found.update(passed=tests - failures - errors - skipped, failed=failures + errors, skipped=skipped)
        except (OSError, ET.ParseError):  # it did not get as far
            found["failed"] = 1
        if self._process.returncode and not found["failed"]:
            found["failed"] = 1
        return found


def run(*tests: str, longest_s: float = LONGEST_S, last_s: float = LAST_S) -> bool:
    """Runs all tests, or those in the given places, and says what came of them; whether all is well."""
    deadline = time.monotonic() + longest_s
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="jjq-tests-") as name:
        share = Path(name) / "share"
        share.mkdir()
        shared = ["-p", "tests.sharing", f"--share={share}", *tests]
        try:
            runs.append(Run("first", shared, Path(name), live=True))
            runs.append(Run("second", [*shared, "--from-the-end"], Path(name), live=False))
            for each in runs:
                each.wait(deadline, last_s)
        finally:
            for each in runs:
                each.end(signal.SIGINT)
                each.show()
        total = sum((each.counts() for each in runs), Counter())
        if total.total() < len(list(share.iterdir())):  # a test that was taken, and of which nothing is known
            total["failed"] = max(1, total["failed"])
    print()  # one that was ended leaves its line unfinished
    print(f"total: {total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped", flush=True)
    return not total["failed"]


def _terminated(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    try:
        sys.exit(not run())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
