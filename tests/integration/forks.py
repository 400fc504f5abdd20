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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

PROGRAM = Path(__file__).with_name("forking.py")
AT_START = ("PYTHON", "LANG", "LC_")  # the variables by which an interpreter sets itself up


class Forks:
    """The process, from the first command on. One command at a time; one that is waited for in vain is killed, with it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def run(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str], data: bytes
    ) -> subprocess.CompletedProcess[bytes]:
        """The finished command, as `subprocess.run` gives it."""
        assert _at_start(environment) == _at_start(self._environment), "this needs an interpreter of its own"
        asked = {"arguments": list(command), "directory": str(directory), "environment": dict(environment)}
        (stdin, feed), (out, stdout), (err, stderr) = os.pipe(), os.pipe(), os.pipe()
        theirs = (stdin, stdout, stderr)
        with (
            open(feed, "wb") as given,
            open(out, "rb") as said,
            open(err, "rb") as errors,
            ThreadPoolExecutor(3) as threads,
        ):
            try:
                try:
                    answers = self._started()
                    socket.send_fds(answers, [json.dumps(asked).encode() + b"\n"], theirs)
                finally:
                    for each in theirs:
                        os.close(each)
                threads.submit(_feed, given, data)
                read = [threads.submit(each.read) for each in (said, errors)]
                code = int(answers.recv(16))
                return subprocess.CompletedProcess(command, code, *(each.result() for each in read))
            except BaseException:
                self.end()  # which ends what the threads wait for
                raise

    def _started(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", PROGRAM], stdin=theirs, stdout=subprocess.PIPE, env=self._environment,
                    start_new_session=True,
                )  # fmt: skip
        return self._socket

    def end(self) -> None:
        if self._socket is None or self._process is None:
            return
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:  # closes its output, a pipe only so that forks find one there, and waits
            self._socket = self._process = None


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(AT_START)}


def _feed(stdin: IO[bytes], data: bytes) -> None:
    """All of it, unless the command ends without having read it."""
    with contextlib.suppress(BrokenPipeError), stdin:
        stdin.write(data)
