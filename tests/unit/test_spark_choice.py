"""What a read is of: topics by name, by pattern, by partition."""

import json
from pathlib import Path

import pytest

import jjq
from jjq.errors import InvalidArgument
from pyspark_jjq.choice import Choice, compiled, parse_choice
from pyspark_jjq.options import parse_source
from pyspark_jjq.stores import open_topics
from tests.readers import close_stores


def pattern(text: str) -> Choice:
    return parse_choice({"subscribepattern": text})


@pytest.mark.parametrize(
    ("expression", "matches", "others"),
    [
        ("flights", ["flights"], ["flights2", "aflights"]),
        ("flights-.*", ["flights-", "flights-a"], ["flights", "a-flights-b"]),
        ("a|bc", ["a", "bc"], ["abc", "ab", "c"]),
        (r"t\d{2}", ["t12"], ["t1", "t123"]),
        (r"\Qa.b\E.*", ["a.b", "a.bc"], ["axb"]),
        (r"\Qa.b", ["a.b"], ["axb"]),
        (r"\p{Alpha}+", ["abc"], ["ab1"]),
        (r"[\p{Lower}_]+", ["a_b"], ["A"]),
        (r"\P{Digit}+", ["abc"], ["ab1"]),
        (r"(?<day>\w)-\k<day>", ["a-a"], ["a-b"]),
        (r"(?i)FLIGHTS", ["flights", "Flights"], ["flight"]),
        (r"(?!x).*(?<=z)\z", ["abz"], ["xz", "ab"]),
        (r"a\.b", ["a.b"], ["a\\b", "axb"]),
        (r"[^.]+", ["ab"], ["a.b"]),
        (r"a++b", ["aab"], ["b"]),
        (r"[\[\]]*a", ["a"], ["b"]),
    ],
)
def test_a_pattern_reads_as_javas_and_matches_whole_names(
    expression: str, matches: list[str], others: list[str]
) -> None:
    chosen = pattern(expression)
    assert [name for name in matches + others if chosen.wants(name)] == matches


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("a(", "cannot be read: missing )"),
        ("*", "cannot be read: nothing to repeat"),
        ("(?u)a", "cannot be read: ASCII and UNICODE flags"),
        ("[a-z&&[^b]]", "class in a class"),
        ("[a&&b]", "cannot be read: Possible set intersection"),
        (r"\p{IsGreek}", r"\p{IsGreek} is not known here"),
        (r"[\P{Alpha}]", r"\P{Alpha} is not known here"),
    ],
)
def test_a_pattern_that_cannot_be_meant_or_is_javas_alone_is_refused(expression: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        pattern(expression)
    assert says in str(caught.value)
    assert "write an expression such as 'flights-.*'" in str(caught.value)


def test_a_pattern_is_read_once() -> None:
    assert compiled("flights-.*") is compiled("flights-.*")


def test_assigned_partitions() -> None:
    found = parse_choice({"assign": '{"a":[2,0],"b":[1]}'})
    assert found == Choice(names=("a", "b"), assigned={"a": (0, 2), "b": (1,)})
    assert found.partitions("a", 3) == (0, 2)
    with pytest.raises(InvalidArgument, match="assign names partition 2 of topic 'a', which has 0 to 1"):
        found.partitions("a", 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a", "assign is JSON of topics and partitions such as"),
        ("[0]", "assign is JSON of topics and partitions such as"),
        ("{}", "assign names no topic"),
        ('{"a":0}', "topic 'a' has 0; write it as in"),
        ('{"a":[]}', "topic 'a' has []; write it as in"),
        ('{"a":["0"]}', 'a partition is a number from 0 to 1023, not "0"'),
        ('{"a":[-1]}', "a partition is a number from 0 to 1023, not -1"),
        ('{"a":[true]}', "a partition is a number from 0 to 1023, not true"),
        ('{"a":[0,0]}', "assign names a partition of topic 'a' twice"),
        ('{"a":[0],"a":[1]}', "the name 'a' stands there twice"),
    ],
)
def test_an_assignment_that_cannot_be_meant_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_choice({"assign": text})
    assert says in str(caught.value)


def test_exactly_one_option_says_what_to_read() -> None:
    with pytest.raises(InvalidArgument, match=r'\.option\("subscribePattern", "flights-\.\*"\)'):
        parse_choice({})
    for other in ({"topic": "a"}, {"subscribepattern": "a"}, {"assign": '{"a":[0]}'}):
        with pytest.raises(InvalidArgument, match=r"subscribe and .* give one of them"):
            parse_choice({"subscribe": "a"} | other)


def test_offsets_by_topic_must_be_of_what_is_read() -> None:
    base = {"path": "p", "startingOffsets": json.dumps({"flights": {"0": 1}})}
    with pytest.raises(InvalidArgument, match="'flights', which is not read; it reads subscribePattern 'weather"):
        parse_source(base | {"subscribePattern": "weather.*"})
    with pytest.raises(InvalidArgument, match="missing: weather"):
        parse_source(base | {"assign": '{"flights":[0],"weather":[0]}'})
    assert parse_source(base | {"subscribePattern": "f.*"}).choice.pattern == "f.*"


def test_a_pattern_of_names_of_files_that_matches_nothing_is_told_that_it_is_none(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "store") as store:
        for name in ("log.web", "log-app", "other"):
            store.create_topic(name)
    try:
        for given, written in (("log*", "log.*"), ("log?app", "log.app"), ("log.w*", r"log\.w.*")):
            with pytest.raises(InvalidArgument, match="is a regular expression, and matches no topic; ") as told:
                open_topics(str(store.path), pattern(given))
            assert f"; {written!r} matches log" in str(told.value)
            assert open_topics(str(store.path), pattern(written))
        for neither in ("logs*", "log[.-]*x"):
            assert open_topics(str(store.path), pattern(neither)) == []
    finally:
        close_stores()
