"""The offsets in Spark's checkpoint: one text for one position, and old versions stay readable."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jjq.errors import InvalidArgument
from pyspark_jjq.offsets import Offsets, Position, TopicPositions

positions = st.builds(Position, st.integers(0, 2**63 - 1), st.integers(0, 5))
topics = st.builds(TopicPositions, st.text(max_size=32), st.dictionaries(st.integers(0, 200), positions, max_size=12))
by_name = st.dictionaries(st.text(min_size=1, max_size=8), topics, max_size=4)
offsets = st.builds(Offsets, by_name, by_name)


def test_version_1_is_written_like_this() -> None:
    """Pinned: checkpoints hold it for ever."""
    at = Offsets({"flights": TopicPositions("6f", {0: Position(1200, 0), 1: Position(990, 1)})})
    assert json.dumps(at.to_json()) == '{"v": 1, "topics": {"flights": {"id": "6f", "0": [1200, 0], "1": [990, 1]}}}'


def test_the_beginning_of_a_micro_batch_stands_beside_its_end_and_is_no_part_of_the_position() -> None:
    topics, since = ({"flights": TopicPositions("6f", {0: Position(offset, 0)})} for offset in (1200, 800))
    at = Offsets(topics, since)
    inside = '"id": "6f", "0": '
    assert json.dumps(at.to_json()) == (
        f'{{"v": 1, "topics": {{"flights": {{{inside}[1200, 0]}}}}, "since": {{"flights": {{{inside}[800, 0]}}}}}}'
    )
    assert at == Offsets(topics)


@given(offsets)
def test_reading_gives_back_what_was_written(at: Offsets) -> None:
    read = Offsets.from_json(json.loads(json.dumps(at.to_json())))
    assert (read, read.since) == (at, at.since)


@given(offsets)
def test_the_same_position_is_the_same_text_whatever_order_it_came_in(at: Offsets) -> None:
    topics, since = (
        {
            name: TopicPositions(topic.id, dict(reversed(topic.partitions.items())))
            for name, topic in reversed(each.items())
        }
        for each in (at.topics, at.since)
    )
    shuffled = Offsets(topics, since)
    text = json.dumps(at.to_json())
    assert json.dumps(shuffled.to_json()) == text
    assert json.dumps(Offsets.from_json(json.loads(text)).to_json()) == text


def test_partitions_are_in_numeric_order() -> None:
    at = Offsets({"t": TopicPositions("x", {p: Position(p, 0) for p in (10, 9, 2)})})
    assert list(at.to_json()["topics"]["t"]) == ["id", "2", "9", "10"]


def test_a_later_version_is_refused_and_says_to_upgrade() -> None:
    with pytest.raises(InvalidArgument, match=r"version 2, and this jjq reads up to 1.*upgrade"):
        Offsets.from_json({"v": 2, "whatever": True})


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"flights": {"0": 23}},
        {"v": 0, "topics": {}},
        {"v": True, "topics": {}},
        {"v": 1},
        {"v": 1, "topics": {"t": {"0": [1, 0]}}},
        {"v": 1, "topics": {"t": {"id": 7, "0": [1, 0]}}},
        {"v": 1, "topics": {"t": {"id": "x", "0": 1}}},
        {"v": 1, "topics": {"t": {"id": "x", "0": [-1, 0]}}},
        {"v": 1, "topics": {"t": {"id": "x", "0": ["1", 0]}}},
        {"v": 1, "topics": {"t": {"id": "x", "zero": [1, 0]}}},
        {"v": 1, "topics": {"t": {"id": "x", "0": [2**63, 0]}}},
        {"v": 1, "topics": {"t": {"id": "x", "0": [0, 2**63]}}},
        {"v": 1, "topics": {"t": {"id": "x", "-1": [1, 0]}}},
        {"v": 1, "topics": {"t": {"id": "x", "1024": [1, 0]}}},
        {"v": 1, "topics": {"t": {"id": "x", " 1": [5, 0], "1": [3, 0]}}},
        {"v": 1, "topics": {"t": {"id": "x", "01": [5, 0]}}},
        {"v": 1, "topics": {"t": {"id": "\ud800", "0": [1, 0]}}},
        {"v": 1, "topics": {"\ud800": {"id": "x", "0": [1, 0]}}},
        {"v": 1, "topics": []},
        {"v": 1, "topics": {}, "since": [1]},
        {"v": 1, "topics": {}, "since": {"t": {"0": [1, 0]}}},
        [1],
        "earliest",
    ],
)
def test_what_is_not_ours_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match="not offsets of jjq"):
        Offsets.from_json(value)
