"""What the Flight front keeps for a client: answers, so that a request that comes again is done once."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import jjq
from jjq.errors import TooManyRequests
from jjq.server import flight_sessions
from jjq.server.flight_sessions import Session


def test_answers_that_a_client_never_says_it_has_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_sessions, "_MOST_ANSWERS", 10)
    session = Session("a session", "anybody")
    for number in range(10):
        assert session.once(number, 0, lambda number=number: number) == number
    with pytest.raises(TooManyRequests):
        session.once(10, 0, lambda: 10)
    assert session.once(3, 0, lambda: "again") == 3
    assert session.once(11, 9, lambda: 11) == 11


def test_an_answer_that_comes_when_its_client_has_given_up_is_not_kept() -> None:
    session = Session("a session", "anybody")

    def act() -> bytes:
        assert session.once(2, 2, lambda: b"next") == b"next"
        return bytes(1 << 20)

    session.once(1, 1, act)
    assert 0 < session.answer_bytes < 1000


def test_an_error_that_is_kept_as_an_answer_does_not_keep_what_was_sent() -> None:
    session = Session("a session", "anybody")

    def ask() -> weakref.ref[Any]:
        sent = pa.record_batch({"value": pa.array([b"refused"])})

        def act(sent: pa.RecordBatch = sent) -> None:
            raise jjq.SchemaMismatch(f"{sent.num_rows} row does not fit")

        for _ in range(2):
            with pytest.raises(jjq.SchemaMismatch, match="1 row does not fit"):
                session.once(1, 1, act)
        return weakref.ref(sent)

    gone = ask()
    gc.collect()
    assert gone() is None


def test_errors_and_empty_answers_are_bounded_as_others_are() -> None:
    """They take memory too: of those that have come only that they came is kept, and that counts."""
    session = Session("a session", "anybody", is_full=lambda kept: kept > 1 << 20)

    def refuse() -> None:
        raise jjq.SchemaMismatch("no" * 500)

    def ask(first: int, what: Callable[[], None], waiting: set[int] | None = None) -> int:
        """How many were taken."""
        for number in range(first, first + 20_000):
            try:
                session.once(number, 0, what, waiting=waiting)
            except jjq.SchemaMismatch:
                pass
            except TooManyRequests:
                return number - first
        return 20_000

    assert ask(1, refuse) < 2000
    assert 1000 < ask(100_000, lambda: None, waiting=set()) < 20_000
    with pytest.raises(jjq.InvalidArgument, match="answered before"):
        session.once(1, 0, refuse)


def test_a_request_that_comes_again_while_it_is_done_waits_for_its_answer() -> None:
    session = Session("a session", "anybody")
    begun, go_on, told = threading.Event(), threading.Event(), []

    def act() -> str:
        assert not begun.is_set()
        begun.set()
        assert go_on.wait(30)
        raise jjq.TopicNotFound("there is none")

    def ask() -> None:
        try:
            session.once(1, 1, act)
        except jjq.TopicNotFound as error:
            told.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for each in threads:
        each.start()
    assert begun.wait(30)
    go_on.set()
    for each in threads:
        each.join()
    assert len(told) == 3
