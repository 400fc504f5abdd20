"""Exit codes; `docs/cli.md` says what they mean."""

OK = 0
ERROR = 1
USAGE = 2
DAMAGE = 3
NOTHING = 4
INTERRUPTED = 130  # 128 + the signal, as shells have it
PIPE_CLOSED = 141
TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, where a command has something to say before it ends."""
