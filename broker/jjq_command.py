"""Where the `jjq` command begins. Not in the package: importing that takes a good part of a second, and who presses Ctrl-C in it
should see no traceback."""

import os
import sys

INTERRUPTED = 130  # as in jjq.cli.exits, which cannot be asked before the package is there


def main() -> int:
    """Runs one command; returns its exit code."""
    if os.getpid() == 1:
        # The kernel keeps from the first process of a container each signal that it has no handler for.
        import signal

        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    try:
        from jjq.cli import main as run

        code = run()
        inputs = sys.modules.get("jjq.cli.inputs")
        if inputs is not None and inputs.reading_ahead:
            leave(code)
        return code
    except KeyboardInterrupt:
        return INTERRUPTED


def leave(code: int) -> None:
    """Ends the process without what Python does at its end: a thread that calls Python then would abort it."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
