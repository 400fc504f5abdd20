"""Commands run in forks of one process that has imported `jjq`: starting Python and importing takes longer than most commands.

What a command is given and what it leaves are those of a process of its own: arguments, directory, environment, pipes, exit code,
signals, and what Python does at exit. What is not: a fresh interpreter. Tests of that run the installed command.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

PROGRAM = Path(__file__).with_name("forking.py")
AT_START = ("PYTHON", "LANG", "LC_")  # the variables by which an interpreter sets itself up


class Forks:
    """The process, from the first command on. One command at a time; one that is waited for in vain is killed, with it."""

    def __init__(self, environment: Mapping[str, str], *modules: str) -> None:
        """`modules` are those that its commands need beside `jjq.cli`."""
        self._environment = dict(environment)
        self._modules = modules
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._answers: IO[bytes] | None = None
        self.command = 0  # the process of the last one

    def run(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str], data: bytes
    ) -> subprocess.CompletedProcess[bytes]:
        """The finished command, as `subprocess.run` gives it."""
        (stdin, feed), (out, stdout), (err, stderr) = os.pipe(), os.pipe(), os.pipe()
        theirs = (stdin, stdout, stderr)
        with (
            open(feed, "wb") as given,
            open(out, "rb") as said,
            open(err, "rb") as errors,
            ThreadPoolExecutor(3) as threads,
        ):
            try:
                self._begin(command, directory, environment, theirs)
                threads.submit(_feed, given, data)
                read = [threads.submit(each.read) for each in (said, errors)]
                code = self._answer()
                return subprocess.CompletedProcess(command, code, *(each.result() for each in read))
            except BaseException:
                self.end()  # which ends what the threads wait for
                raise

    @contextlib.contextmanager
    def running(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str], log: Path
    ) -> Iterator[IO[bytes]]:
        """The output of a command that goes on, and is killed in the end; its errors go to `log`."""
        out, stdout = os.pipe()
        stdin, stderr = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT, 0o644)
        with open(out, "rb") as said:
            try:
                self._begin(command, directory, environment, (stdin, stdout, stderr))
                yield said
                with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(self.command, signal.SIGKILL)
                self._answer()
            except BaseException:
                self.end()
                raise

    def _begin(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str], streams: Sequence[int]
    ) -> None:
        """Closes the streams here."""
        asked = {"arguments": list(command), "directory": str(directory), "environment": dict(environment)}
        try:
            assert _at_start(environment) == _at_start(self._environment), "this needs an interpreter of its own"
            socket.send_fds(self._started(), [json.dumps(asked).encode() + b"\n"], streams)
        finally:
            for each in streams:
                os.close(each)
        self.command = self._answer()

    def _answer(self) -> int:
        assert self._answers is not None
        return int(self._answers.readline())

    def _started(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair()
            self._answers = self._socket.makefile("rb")
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", PROGRAM, *self._modules], stdin=theirs, stdout=subprocess.PIPE, env=self._environment,
                    start_new_session=True,
                )  # fmt: skip
        return self._socket

    def end(self) -> None:
        if self._socket is None or self._process is None or self._answers is None:
            return
        self._answers.close()
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:  # closes its output, a pipe only so that forks find one there, and waits
            self._socket = self._process = self._answers = None


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(AT_START)}


def _feed(stdin: IO[bytes], data: bytes) -> None:
    """All of it, unless the command ends without having read it."""
    with contextlib.suppress(BrokenPipeError), stdin:
        stdin.write(data)
