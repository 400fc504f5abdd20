"""Errors as people see them through Spark: the cause in the first line.

Spark shows of a Python source's error the whole traceback, the message below twenty lines of it. Python writes the causes of
an error before the error, so each of ours gets its own message, without a traceback, as its first cause. Spark drops
the causes where it simplifies a traceback, which it does unless its setting says otherwise; so that is off for the error.
"""

from __future__ import annotations

import os
from contextlib import ContextDecorator
from types import TracebackType


class telling(ContextDecorator):  # noqa: N801 - reads as a word of the language
    """Around what Spark calls, as a decorator or in a `with`."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            return
        from jjq.errors import JjqError  # not above: Spark imports this with every look-up of a data source

        if isinstance(error, JjqError):
            _put_first(error)
            # Of this process, which has this error to report and then ends (a task, a planner) or is ours alone (a stream).
            os.environ.pop("SPARK_SIMPLIFIED_TRACEBACK", None)


def _put_first(error: BaseException) -> None:
    root: BaseException = error
    while (deeper := root.__cause__ or (None if root.__suppress_context__ else root.__context__)) is not None:
        root = deeper
    if root.__traceback__ is None and type(root) is type(error):
        return  # it was told further inside
    told = type(error).__new__(type(error))
    told.args = error.args
    told.__dict__.update(error.__dict__)  # some write themselves from what they hold
    root.__cause__ = told
