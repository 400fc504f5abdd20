"""What Spark shows of an error begins with what it is."""

import traceback

import pytest

pytest.importorskip("pyspark_jjq.telling", reason="pyspark is not installed")

from jjq.errors import DataLoss, InvalidArgument
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
