"""Where the `jjq` command begins. Not in the package: importing that takes a good part of a second, and who presses Ctrl-C in it
should see no traceback."""

INTERRUPTED = 130  # as in jjq.cli.exits, which cannot be asked before the package is there


def main() -> int:
    """Runs one command; returns its exit code."""
    try:
        from jjq.cli import main as run

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
