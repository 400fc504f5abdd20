"""The `jjq` command: see `docs/cli.md`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from jjq.cli.arguments import Misused, UsageError, misplaced
from jjq.cli.commands import build_parser
from jjq.cli.exits import ERROR, INTERRUPTED, PIPE_CLOSED, TERMINATED, USAGE, Terminated
from jjq.cli.wording import for_command_line
from jjq.errors import (
    InvalidArgument,
    InvalidName,
    JjqError,
    RecordTooLarge,
    SchemaMismatch,
    StoreNotFound,
    SubscriberNotFound,
    TopicNotFound,
)

_NOT_THERE = (InvalidName, StoreNotFound, SubscriberNotFound, TopicNotFound)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code (documented in `docs/cli.md`)."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["help"]:
        given = [*given[1:], "--help"]
    as_json = "--json" in given
    arguments = argparse.Namespace()
    try:
        arguments = build_parser().parse_args(given)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except Terminated:
        return TERMINATED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _give_output_up()  # whoever read it has gone (`| head`)
        return PIPE_CLOSED
    except Misused as error:
        return _report(UsageError.code, str(error), USAGE, as_json, by="")
    except JjqError as error:
        said = for_command_line(error.message)
        if isinstance(error, _NOT_THERE) and (hint := misplaced(arguments)):
            said += hint.removeprefix(";") if said.endswith("?") else hint
        return _report(error.code, said, _exit_code(error), as_json)
    except OSError as error:
        # Those of the store are JjqErrors: this is a file that was named, or where the output goes.
        try:
            sys.stdout.flush()
        except OSError:
            _give_output_up()
        where = f" {error.filename}" if error.filename is not None else ""
        return _report("io", f"cannot read or write{where}: {error.strerror or error}", ERROR, as_json)
    except Exception as error:
        if os.environ.get("JJQ_DEBUG"):
            raise
        said = f"{type(error).__name__}: {error}".replace("\n", " ")
        return _report("internal", f"a fault in jjq itself: {said}\nset JJQ_DEBUG=1 to see where", ERROR, as_json)
    return code


def _give_output_up() -> None:
    """Python would complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_code(error: JjqError) -> int:
    # What can be put right on the command line is its use; data that do not fit are not.
    if isinstance(error, UsageError):
        return USAGE
    return (
        USAGE
        if isinstance(error, InvalidArgument) and not isinstance(error, (SchemaMismatch, RecordTooLarge))
        else ERROR
    )


def _report(code: str, message: str, exit_code: int, as_json: bool, by: str = "jjq: ") -> int:
    if as_json:
        print(json.dumps({"error": {"code": code, "message": message}}), file=sys.stderr)
    else:
        print(f"{by}{message}", file=sys.stderr)
    return exit_code
