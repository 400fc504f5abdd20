"""What a broker keeps for one client while that lives: its handles, and the answers that it may ask for again.

A client names its session and numbers its requests. A request that comes again, since the connection broke before its answer
had come, gets the answer that there was: nothing is done twice. A client that is not heard from for a while is taken for dead:
its handles are closed, so that others may poll, and get what it had in hand.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Set
from typing import Any, NoReturn, Protocol, TypeVar

from jjq.errors import BrokerUnavailable, Forbidden, InvalidArgument, StoreClosed, TooManyRequests
from jjq.values import size_of, whole

SILENCE_S = 30.0  # clients show that they live four times in that time
_LOOK_S = 2.0
_MOST_ANSWERS = 100_000  # that a client does not say it has got
_MOST_ANSWER_BYTES = 256 << 20  # of all clients together: then one that has more than its share is refused
_SHARE_BYTES = 1 << 20  # which each may have in any case
_ANSWER_BYTES = 100  # of one that says nothing
_ERROR_BYTES = 500  # of an error beside its text
_MOST_HANDLES = 10_000  # of one client
_REMEMBERED = 10_000  # sessions, and handles of one, that were closed: what of theirs comes late opens nothing again

log = logging.getLogger("jjq.server")


class Handle(Protocol):
    def close(self) -> None: ...


Made = TypeVar("Made", bound=Handle)


class _Answer:
    """What a request gave or raised; `there` when it has ended."""

    __slots__ = ("error", "got", "size", "there", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.size = 0  # in bytes
        self.got = False
        self.error: BaseException | None = None
        self.there = False


class Session:
    """One client's. Safe among the threads that serve its requests."""

    def __init__(
        self, session_id: str, caller: str, forgotten: int = 0, is_full: Callable[[int], bool] = lambda kept: False
    ) -> None:
        """`forgotten`: up to that number, what was answered to a session of that id that was given up. `is_full`: whether one
        that keeps so many bytes of answers keeps too many."""
        self.id, self.caller = session_id, caller
        self._is_full = is_full
        self.answer_bytes = 0
        self._mutex = threading.Lock()
        self._answered = threading.Condition(self._mutex)
        self._handles: dict[int, Handle] = {}
        self._closed_handles: dict[int, None] = {}
        self._answers: dict[int, _Answer] = {}  # by number, in that order but for those that come late
        self._done = 0  # below that number the client has all answers
        self._highest = 0
        self._forgotten = forgotten
        self._running = 0
        self._seen = time.monotonic()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Session {self.id} of {self.caller}, {len(self._handles)} handles>"

    def __enter__(self) -> Session:
        """Held while a request is served: so long it lives."""
        with self._mutex:
            if self._closed:
                raise StoreClosed("this connection to the broker was closed; connect again with jjq.connect")
            self._running += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._running -= 1
            self._seen = time.monotonic()

    def seen(self) -> None:
        self._seen = time.monotonic()

    def silent_s(self) -> float:
        with self._mutex:
            return 0.0 if self._running else time.monotonic() - self._seen

    @property
    def forgotten(self) -> int:
        return self._forgotten

    @property
    def highest(self) -> int:
        """The highest number of a request so far."""
        return max(self._highest, self._forgotten)

    def once(
        self, number: int, done: int, act: Callable[[], Any], instead: Callable[[], Any] | None = None,
        waiting: Set[int] | None = None,
    ) -> Any:  # fmt: skip
        """What `act` gives or raises, done once however often this number comes; `done`: below it all answers have come, and
        of those between it and this number all but `waiting`, where that is known.

        `instead` is for a request that comes again to who may not know that it was done: a broker that was started anew, or
        a session that was given up meanwhile.
        """
        with self._mutex:
            if done > self._done:
                self._done = done
                for old in [each for each in self._answers if each < done]:
                    self.answer_bytes -= self._answers.pop(old).size
            if waiting is not None and self.answer_bytes >= _SHARE_BYTES:
                self._let_go_locked(number, waiting)
            if number < self._done:
                raise InvalidArgument(f"request {number} was answered before")
            if number > self._highest:
                self._highest = number
            answer = self._answers.get(number)
            if answer is not None:
                while not answer.there:
                    self._answered.wait()
                if answer.got:
                    raise InvalidArgument(f"request {number} was answered before")
                if answer.error is not None:
                    raise copy.copy(answer.error)
                return answer.value
            if len(self._answers) >= _MOST_ANSWERS:
                raise TooManyRequests(
                    f"the broker keeps {_MOST_ANSWERS:,} answers for this client, which waits for an earlier one; try again later",
                    retry_after=1.0,
                )
            if self._is_full(self.answer_bytes):
                raise TooManyRequests(
                    f"the broker keeps {self.answer_bytes:,} bytes of answers for this client, which waits for an earlier one; try again later",
                    retry_after=1.0,
                )
            answer = self._answers[number] = _Answer()
        size = _ANSWER_BYTES
        try:
            value = answer.value = (instead or act)()
            size += size_of(value)
            return value
        except BaseException as error:
            answer.error = error
            # A copy, if there is one: this one keeps the frames that it went through, and with them all that was sent.
            answer.error = copy.copy(error)
            size += _ERROR_BYTES + size_of([*map(str, error.args), getattr(error, "details", None)])
            raise
        finally:
            with self._mutex:
                answer.there = True
                if number in self._answers:  # else the client has given it up meanwhile
                    answer.size = size
                    self.answer_bytes += size
                self._answered.notify_all()

    def _let_go_locked(self, number: int, waiting: Set[int]) -> None:
        """Keeps of answers that have come that there was one, so that nothing is done twice."""
        for each, answer in self._answers.items():
            if each < number and answer.there and not answer.got and each not in waiting:
                self.answer_bytes -= answer.size - _ANSWER_BYTES
                answer.value, answer.error, answer.size, answer.got = None, None, _ANSWER_BYTES, True

    def handle(self, number: int, kind: type[Made], make: Callable[[], Made]) -> Made:
        """The handle of that number, made at its first use."""
        whole(number, "handle")
        with self._mutex:
            if self._is_closed_locked(number):
                raise StoreClosed("this handle was closed; get another from the store")
            found = self._handles.get(number)
            if found is None and len(self._handles) >= _MOST_HANDLES:
                raise TooManyRequests(
                    f"this client has {_MOST_HANDLES:,} subscribers, channels and the like open, as many as the broker keeps for one; "
                    f"close those that it does not use",
                    retry_after=1.0,
                )
        if found is None:
            made = make()
            with self._mutex:
                if not self._is_closed_locked(number):
                    found = self._handles.setdefault(number, made)
            if found is not made:
                made.close()
            if found is None:
                raise StoreClosed("this handle was closed; get another from the store")
        if not isinstance(found, kind):
            raise InvalidArgument(f"handle {number} is no {kind.__name__}")
        return found

    def _is_closed_locked(self, number: int) -> bool:
        return self._closed or number in self._closed_handles

    def close_handle(self, number: int) -> None:
        whole(number, "handle")
        with self._mutex:
            self._closed_handles[number] = None
            if len(self._closed_handles) > _REMEMBERED:
                del self._closed_handles[next(iter(self._closed_handles))]
            found = self._handles.pop(number, None)
        if found is not None:
            found.close()

    def close(self) -> None:
        """Closes all handles: who waits in one raises at once. Quiet when repeated."""
        with self._mutex:
            self._closed = True
            handles, self._handles = list(self._handles.values()), {}
        for each in handles:
            try:
                each.close()
            except Exception:  # the others are to be closed all the same
                log.warning("a handle of session %s did not close as it should", self.id, exc_info=True)


def refuse_unknown() -> NoReturn:
    """For what may not be done twice."""
    raise BrokerUnavailable(
        "the broker was started anew, or gave this client up, before its answer came: what was asked may be done or not; look "
        "before you ask again",
        outcome="unknown",
    )


def _numbers(waiting: object) -> frozenset[int]:
    """As a set: each answer that is kept is looked up in them."""
    if not isinstance(waiting, list) or len(waiting) > _MOST_ANSWERS:
        raise InvalidArgument(f"waiting is a list of up to {_MOST_ANSWERS:,} numbers whose answers have not come")
    return frozenset(whole(each, "waiting") for each in waiting)


class Sessions:
    """Those of one broker. A thread of its own looks for clients that died."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._mutex = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._ended: dict[str, None] = {}
        self._given_up: dict[str, int] = {}  # and the highest number of their requests
        self.broker = uuid.uuid4().hex  # a broker that is started anew has another
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jjq-sessions", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: str, caller: str) -> Session:
        """The session of that id, made if there is none."""
        if not 8 <= len(session_id) <= 64:
            raise InvalidArgument("a session's id has 8 to 64 characters, as random as can be")
        with self._mutex:
            found = self._sessions.get(session_id)
            if found is None:
                if session_id in self._ended:
                    raise StoreClosed("this connection to the broker was closed; connect again with jjq.connect")
                if len(self._sessions) >= self._most:
                    raise TooManyRequests(
                        f"the broker has {self._most} clients, as many as it takes; try again later", retry_after=5.0
                    )
                found = self._sessions[session_id] = Session(
                    session_id, caller, self._given_up.pop(session_id, 0), self._is_full
                )
            if found.caller != caller:
                raise Forbidden("this session is another caller's")
            found.seen()  # so that it is not given up between here and its use
            return found

    def once(
        self, session: Session, about: Mapping[str, Any], act: Callable[[], Any],
        instead: Callable[[], Any] | None = None,
    ) -> Any:  # fmt: skip
        """`Session.once` of a request that says `id`, `done`, `waiting`, `broker` and `again` of itself. `instead` is done when it may have
        been done by who is not there any more to ask; None: then it is done again."""
        number, done = whole(about.get("id"), "id"), whole(about.get("done", 0), "done")
        doubtful = about.get("again") and (about.get("broker") != self.broker or number <= session.forgotten)
        waiting = None if about.get("waiting") is None else _numbers(about["waiting"])
        return session.once(number, done, act, instead if doubtful else None, waiting)

    def _is_full(self, kept: int) -> bool:
        """Without the mutex, as it is asked for each request: a sum that is a little off does no harm."""
        if kept < _SHARE_BYTES:
            return False
        sessions = list(self._sessions.values())
        return (
            kept * len(sessions) > _MOST_ANSWER_BYTES / 2
            and sum(each.answer_bytes for each in sessions) > _MOST_ANSWER_BYTES
        )

    def end(self, session_id: str) -> None:
        """A client has said that it is gone."""
        with self._mutex:
            found = self._sessions.pop(session_id, None)
            self._ended[session_id] = None
            while len(self._ended) > _REMEMBERED:
                del self._ended[next(iter(self._ended))]
        if found is not None:
            found.close()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            with self._mutex:
                dead = [each for each in self._sessions.values() if each.silent_s() > SILENCE_S]
                for each in dead:
                    del self._sessions[each.id]
                    self._given_up[each.id] = each.highest
                while len(self._given_up) > _REMEMBERED:
                    del self._given_up[next(iter(self._given_up))]
            for each in dead:
                log.info("a client was not heard from for %.0f s: %r is closed", SILENCE_S, each)
                each.close()

    def close(self) -> None:
        self._stop.set()
        with self._mutex:
            sessions, self._sessions = list(self._sessions.values()), {}
        for each in sessions:
            each.close()
        self._thread.join()
