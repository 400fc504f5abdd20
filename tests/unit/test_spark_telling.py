"""What Spark shows of an error begins with what it is."""

import io
import traceback

import pytest

pytest.importorskip("pyspark_jjq.telling", reason="pyspark is not installed")

from pyspark.util import handle_worker_exception

from jjq.errors import (
    DamagedSegment,
    DataLoss,
    InvalidArgument,
    JjqError,
    SubscriberNotFound,
    TopicNotFound,
    WriterConflict,
)
from pyspark_jjq.telling import telling


def shown(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()


@telling()
def fail(error: Exception, because: Exception | None = None) -> None:
    if because is None:
        raise error
    try:
        raise because
    except Exception as inner:
        raise error from inner


def test_an_error_of_ours_is_the_first_line_and_the_last() -> None:
    with pytest.raises(DataLoss) as caught:
        fail(DataLoss("records 3 to 5 are gone", asked=3, earliest=5))
    lines = shown(caught.value)
    assert lines[0] == lines[-1] == "jjq.errors.DataLoss: records 3 to 5 are gone"
    assert caught.value.asked == 3


@pytest.mark.parametrize("error", [TopicNotFound, SubscriberNotFound, DamagedSegment, WriterConflict])
def test_errors_of_every_shape_are_told(error: type[JjqError]) -> None:
    with pytest.raises(error) as caught:
        fail(error("what is wrong"))
    assert shown(caught.value)[0] == f"jjq.errors.{error.__name__}: what is wrong"


def test_so_spark_writes_it_though_it_simplifies_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SIMPLIFIED_TRACEBACK", "1")  # as Spark sets it for its workers
    written = io.BytesIO()
    try:
        fail(InvalidArgument("no such day"))
    except InvalidArgument as error:
        handle_worker_exception(error, written)
    text = written.getvalue()[8:].decode()  # behind two numbers: what comes, and how long it is
    assert text.splitlines()[0] == "jjq.errors.InvalidArgument: no such day"


def test_so_it_is_where_another_error_caused_it() -> None:
    with pytest.raises(InvalidArgument) as caught:
        fail(InvalidArgument("no such day"), because=ValueError("day is out of range"))
    lines = shown(caught.value)
    assert lines[0] == lines[-1] == "jjq.errors.InvalidArgument: no such day"
    assert "ValueError: day is out of range" in lines


def test_it_is_told_once_however_often_it_passes() -> None:
    @telling()
    def outer() -> None:
        with telling():
            fail(InvalidArgument("no such day"))

    with pytest.raises(InvalidArgument) as caught:
        outer()
    assert shown(caught.value).count("jjq.errors.InvalidArgument: no such day") == 2


def test_errors_of_others_are_left_alone() -> None:
    with pytest.raises(ValueError) as caught:
        fail(ValueError("x"))
    assert caught.value.__cause__ is None
