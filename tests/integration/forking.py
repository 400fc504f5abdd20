"""The program behind `forks.py`: it has imported `jjq`, and runs each command it is asked for in a fork of itself.

It is asked on the socket that is its standard input, with a line of JSON and the command's three streams, and answers with
the number of its process, then with the exit code. A fork leaves this module's loop and ends as the `jjq` command does, so what
is done at exit is done there, too.
"""

import gc
import importlib
import json
import os
import socket
import sys
import warnings
from typing import Any

import pandas as pd  # noqa: F401  as pyarrow imports it when it makes its first array

import jjq.cli  # noqa: F401  as jjq_command does
from jjq_command import main


def become_a_command() -> bool:
    """Returns True in each fork, when it is set up, and False at the end, when nobody asks any more."""
    with socket.socket(fileno=os.dup(0)) as asked:
        while True:
            text, streams, _, _ = socket.recv_fds(asked, 1 << 16, 3)
            while text and not text.endswith(b"\n"):
                text += asked.recv(1 << 16)
            if not text:
                return False
            if not (child := fork()):
                become(json.loads(text), streams)
                return True
            for each in streams:
                os.close(each)
            asked.sendall(b"%d\n" % child)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            asked.sendall(b"%d\n" % code)


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: pyarrow's allocator has one
        return os.fork()


def become(command: dict[str, Any], streams: list[int]) -> None:
    for target, each in enumerate(streams):
        os.dup2(each, target)
        os.close(each)
    os.chdir(command["directory"])
    os.environ.clear()
    os.environ.update(command["environment"])
    sys.argv[:] = command["arguments"]


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # what is there now is not gone through again by each fork
    if become_a_command():
        sys.exit(main())
