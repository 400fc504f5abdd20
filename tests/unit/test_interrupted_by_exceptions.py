"""Handlers of signals that raise an Exception of their own, as those of SIGALRM that end what takes too long: a push that returns
has been done."""

import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import jjq
from jjq.log.partition import PartitionLog
from tests.stores import assert_whole
from tests.tracing import traced


class TooLong(Exception):
    pass


def at_first(code: CodeType, line: int) -> Callable[[FrameType, str, Any], Any]:
    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is code and event in {"call", "line"} and frame.f_lineno == line:
            sys.settrace(None)
            raise TooLong
        return trace

    return trace


WHERE = [
    (function, line)
    for function in (
        PartitionLog._lead,
        PartitionLog._take_queue,
        PartitionLog._write,
        PartitionLog._tell,
        PartitionLog._leave,
    )
    for line in sorted({at for *_, at in function.__code__.co_lines() if at})
]


@pytest.mark.parametrize("function", dict.fromkeys(function for function, _ in WHERE), ids=lambda each: each.__name__)
def test_a_push_that_such_an_exception_meets_is_not_acknowledged_without_being_there(
    tmp_path: Path, function: Any
) -> None:
    with jjq.open(tmp_path / "store", maintenance=False) as store:
        topic = store.create_topic("t", sync="none")
        topic.push_many([b"first", b"second"])
        for number, line in enumerate(line for each, line in WHERE if each is function):
            values, positions = [b"%d %d" % (number, i) for i in range(2)], []
            with contextlib.suppress(TooLong, jjq.StoreError):
                push = functools.partial(topic.push_many, values)
                traced(lambda push=push, to=positions: to.append(push()), at_first(function.__code__, line))
            for each in positions:
                start = each.ranges[0].start
                assert topic.read(start=start, end=start + 2).read_all()["value"].to_pylist() == values, line
        assert topic.push(b"last").offset >= 2  # and nobody holds the lead
        assert_whole(store)
