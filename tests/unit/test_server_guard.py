"""Who may do what: tokens, rates, numbers of subscriptions, and what is written down."""

import contextlib
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from jjq.errors import Forbidden, InvalidArgument, TooManyRequests, Unauthorized
from jjq.server.guard import ANY, ANYBODY, NEEDS, Caller, Guard
from jjq.server.logs import JsonLines, masked
from jjq.server.settings import ServerSettings
from jjq.server.tokens import ACTIONS, Token, TokenFile


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.s = 1_000.0

    def seconds(self) -> float:
        return self.s

    def us(self) -> int:
        return int(self.s * 1_000_000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path, clock: Clock) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json", clock=clock.us)


@pytest.fixture
def make(tmp_path: Path, clock: Clock) -> Callable[..., Guard]:
    def guard(**settings: object) -> Guard:
        return Guard(ServerSettings(store=tmp_path, **settings), clock=clock.seconds, now=clock.us)  # type: ignore[arg-type]

    return guard


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_without_tokens_anybody_may_do_everything(make: Callable[..., Guard]) -> None:
    guard = make()
    for token in (None, "", "whatever"):
        caller = guard.caller(token)
        assert caller.name == ANYBODY
        assert all(caller.can(action, topic) for action in ACTIONS for topic in ("t", None))
    assert not guard.needs_tokens


def test_with_tokens_who_has_none_or_another_is_not_let_in(make: Callable[..., Guard], file: TokenFile) -> None:
    file.create("a", read=("*",))
    guard = make()
    for token in (None, "", "jjq_" + "x" * 43, "a", "\udcff"):
        with pytest.raises(Unauthorized):
            guard.caller(token)


@pytest.mark.parametrize(
    ("rights", "allowed"),
    [
        ({"read": ("orders.*",)}, {("read", "orders.new")}),
        ({"write": ("orders.*",)}, {("write", "orders.new")}),
        ({"read": ("*",)}, {("read", "orders.new"), ("read", "other"), ("read", None)}),
        ({"admin": ("orders.*",)}, {(action, "orders.new") for action in ACTIONS}),
        ({"admin": ("*",)}, {(action, topic) for action in ACTIONS for topic in ("orders.new", "other", None)}),
        ({"read": ("other",), "write": ("orders.?ew",)}, {("read", "other"), ("write", "orders.new")}),
        ({"read": ("[o]*",)}, {("read", "orders.new"), ("read", "other")}),
    ],
)  # fmt: skip
def test_a_token_may_what_its_patterns_say_and_nothing_else(
    make: Callable[..., Guard], file: TokenFile, rights: dict[str, tuple[str, ...]], allowed: set[tuple[str, str | None]]
) -> None:  # fmt: skip
    secret, _ = file.create("a", **rights)  # type: ignore[arg-type]
    caller = make().caller(secret)
    asked = [(action, topic) for action in ACTIONS for topic in ("orders.new", "other", None)]
    assert {each for each in asked if caller.can(*each)} == allowed
    for each in asked:
        if each in allowed:
            caller.may(*each)
        else:
            with pytest.raises(Forbidden, match=f"token 'a' has no {each[0]} right for "):
                caller.may(*each)


def test_a_pattern_matches_whole_names(make: Callable[..., Guard], file: TokenFile) -> None:
    secret, _ = file.create("a", read=("order",))
    caller = make().caller(secret)
    assert [topic for topic in ("order", "orders", "my.order", "order\n", "Order") if caller.can("read", topic)] == [
        "order"
    ]


def test_who_has_not_been_let_in_may_nothing() -> None:
    nobody = Caller("nobody")
    for ask in (lambda: nobody.can("read", "t"), lambda: nobody.may("read", "t"), lambda: nobody.spend(1, 1)):
        with pytest.raises(Unauthorized):
            ask()


@pytest.mark.parametrize("action", ACTIONS)
def test_who_may_do_anything_with_a_topic_may_see_it(make: Callable[..., Guard], file: TokenFile, action: str) -> None:
    secret, _ = file.create("a", **{action: ("mine", "our*")})  # type: ignore[arg-type]
    caller = make().caller(secret)
    assert [topic for topic in ("mine", "ours", "yours", None) if caller.can(ANY, topic)] == ["mine", "ours"]
    with pytest.raises(Forbidden, match="has no right for topic 'yours'"):
        caller.may(ANY, "yours")


def test_every_operation_needs_an_action_that_tokens_give() -> None:
    assert set(NEEDS.values()) == {*ACTIONS, ANY}


def test_the_first_token_closes_an_open_broker_and_no_restart_is_needed(
    make: Callable[..., Guard], file: TokenFile
) -> None:  # fmt: skip
    guard = make()
    before = guard.caller(None)
    assert before.can("admin", None)
    secret, _ = file.create("a", read=("*",))
    with pytest.raises(Unauthorized):
        before.may("read", "t")  # a stream that goes on asks again
    assert guard.caller(secret).name == "a"
    assert guard.needs_tokens


def test_a_rotated_token_is_good_for_its_time_and_no_longer(
    make: Callable[..., Guard], file: TokenFile, clock: Clock
) -> None:  # fmt: skip
    old, _ = file.create("a", read=("*",))
    guard = make()
    held = guard.caller(old)
    new, _ = file.rotate("a", keep_us=10_000_000)
    for secret in (old, new):
        assert guard.caller(secret).name == "a"
    clock.s += 10
    with pytest.raises(Unauthorized):
        guard.caller(old)
    with pytest.raises(Unauthorized):
        held.may("read", "t")
    assert guard.caller(new).can("read", "t")


def test_a_revoked_token_ends_for_who_holds_it_already(make: Callable[..., Guard], file: TokenFile) -> None:
    secret, _ = file.create("a", read=("*",))
    other, _ = file.create("b", read=("*",))
    guard = make()
    held = guard.caller(secret)
    file.revoke("a")
    with pytest.raises(Unauthorized):
        held.can("read", "t")
    assert guard.caller(other).can("read", "t")


def test_who_asks_while_a_changed_file_is_read_waits_for_what_it_says(
    make: Callable[..., Guard], file: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, _ = file.create("a", read=("*",))
    guard = make()
    held = guard.caller(secret)
    file.revoke("a")
    new, _ = file.create("b", read=("*",))
    tokens, reading, go_on = TokenFile.tokens, threading.Event(), threading.Event()

    def slowly(of: TokenFile) -> list[Token]:
        reading.set()
        assert go_on.wait(60)
        return tokens(of)

    monkeypatch.setattr(TokenFile, "tokens", slowly)
    with ThreadPoolExecutor(3) as asking:
        first = asking.submit(guard.caller, new)
        assert reading.wait(60)
        others = asking.submit(guard.caller, new), asking.submit(held.can, "read", "t")
        assert not wait(others, 0.1).done
        go_on.set()
        assert [each.result().name for each in (first, others[0])] == ["b", "b"]
        with pytest.raises(Unauthorized):
            others[1].result()


def test_a_token_expires(make: Callable[..., Guard], file: TokenFile, clock: Clock) -> None:
    secret, _ = file.create("a", read=("*",), expires_in_us=5_000_000)
    guard = make()
    assert guard.caller(secret).can("read", "t")
    clock.s += 5
    with pytest.raises(Unauthorized, match="has expired"):
        guard.caller(secret)


@pytest.mark.parametrize("what", ["gone", "damaged"])
def test_a_file_that_is_gone_or_damaged_later_opens_nothing(
    make: Callable[..., Guard], file: TokenFile, what: str, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    secret, _ = file.create("a", read=("t",))
    guard = make()
    if what == "gone":
        file.path.unlink()
    else:
        file.path.write_text("{")
    with caplog.at_level(logging.ERROR, "jjq.server"):
        for _ in range(3):
            with pytest.raises(Unauthorized):
                guard.caller(None)
            assert guard.caller(secret).can("read", "t")
    assert len(caplog.records) == 1
    assert "those known before stay" in caplog.text


def test_a_file_that_appears_damaged_lets_nobody_in(make: Callable[..., Guard], file: TokenFile) -> None:
    guard = make()
    file.path.write_text("{")
    with pytest.raises(Unauthorized):
        guard.caller(None)
    file.path.unlink()
    secret, _ = file.create("a", read=("t",))
    assert guard.caller(secret).can("read", "t")


def test_a_broker_does_not_start_with_a_damaged_file(make: Callable[..., Guard], file: TokenFile) -> None:
    file.path.write_text("{")
    with pytest.raises(InvalidArgument, match="no file of tokens"):
        make()


# --- rates and numbers -----------------------------------------------------------------------------------------------


def test_a_token_pushes_as_much_as_its_rate_and_is_told_when_to_come_again(
    make: Callable[..., Guard], file: TokenFile, clock: Clock
) -> None:  # fmt: skip
    secret, _ = file.create("a", write=("*",), records_per_s=10)
    other, _ = file.create("b", write=("*",))
    guard = make()
    caller = guard.caller(secret)
    caller.spend(10, 1)
    with pytest.raises(TooManyRequests, match="10 records a second") as refused:
        caller.spend(1, 1)
    assert refused.value.retry_after == pytest.approx(0.1)
    assert refused.value.retryable
    guard.caller(other).spend(1_000_000, 1_000_000)
    clock.s += refused.value.retry_after
    caller.spend(1, 1)


def test_what_a_stream_pushes_is_asked_and_counted_at_once(make: Callable[..., Guard], file: TokenFile) -> None:
    secret, token = file.create("a", write=("mine.*",), records_per_s=10)
    caller = make().caller(secret)
    with pytest.raises(Forbidden):
        caller.may_push("other", 10, 1)  # and nothing is counted
    caller.may_push("mine.t", 10, 1)
    with pytest.raises(TooManyRequests):
        caller.may_push("mine.t", 1, 1)
    file.revoke(token.name)
    with pytest.raises(Unauthorized):
        caller.may_push("mine.t", 1, 1)


def test_a_push_larger_than_a_second_brings_goes_through_and_the_next_waits_for_it(
    make: Callable[..., Guard], clock: Clock
) -> None:  # fmt: skip
    caller = make(token_bytes_per_s=1_000).caller(None)
    caller.spend(1, 5_000)
    clock.s += 3.9
    with pytest.raises(TooManyRequests, match="1,000 bytes a second"):
        caller.spend(1, 1)
    clock.s += 0.2
    caller.spend(1, 1)


def test_who_waits_long_saves_no_more_than_one_second_of_it(make: Callable[..., Guard], clock: Clock) -> None:
    caller = make(token_records_per_s=10).caller(None)
    clock.s += 3_600
    caller.spend(10, 0)
    with pytest.raises(TooManyRequests):
        caller.spend(1, 0)


def test_a_tokens_own_rate_comes_before_that_of_all(make: Callable[..., Guard], file: TokenFile) -> None:
    secret, _ = file.create("a", write=("*",), records_per_s=100)
    caller = make(token_records_per_s=1).caller(secret)
    for _ in range(100):
        caller.spend(1, 1)
    with pytest.raises(TooManyRequests):
        caller.spend(1, 1)


def test_subscriptions_are_counted_and_given_back(make: Callable[..., Guard]) -> None:
    guard = make(max_subscriptions=2)
    caller = guard.caller(None)
    with guard.subscription(caller), contextlib.suppress(ZeroDivisionError), guard.subscription(caller):
        with pytest.raises(TooManyRequests, match="2 subscriptions are open, as many"), guard.subscription(caller):
            pytest.fail("there were two")
        raise ZeroDivisionError
    with guard.subscription(caller), guard.subscription(caller):
        pass


# --- what is written down --------------------------------------------------------------------------------------------


def test_actions_of_administrators_are_written_down_and_so_are_attempts(
    make: Callable[..., Guard], file: TokenFile, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    secret, _ = file.create("a", admin=("mine",))
    guard = make()
    caller = guard.caller(secret)
    with caplog.at_level(logging.INFO, "jjq.audit"):
        guard.audit(caller, "topic.delete", "mine", records=3)
        with pytest.raises(Forbidden):
            caller.may("admin", "yours")
    done, refused = (json.loads(JsonLines().format(record)) for record in caplog.records)
    assert (done["message"], done["caller"], done["topic"], done["records"]) == ("topic.delete", "a", "mine", 3)
    assert (refused["message"], refused["level"], refused["caller"], refused["topic"]) == (
        "refused", "warning", "a", "yours",
    )  # fmt: skip
    assert secret not in caplog.text


def test_no_token_is_written_down_wherever_it_comes_from(file: TokenFile) -> None:
    secret, _ = file.create("a", read=("*",))
    record = logging.LogRecord("jjq", logging.ERROR, "", 0, "header %s", (f"Authorization: Bearer {secret}",), None)
    record.fields = {"query": f"token={secret}"}
    try:
        raise ValueError(secret)
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    line = JsonLines().format(record)
    assert secret not in line
    assert json.loads(line)["level"] == "error"
    assert "ValueError: ***" in json.loads(line)["error"]
    assert masked("authorization: bearer abc.def") == "authorization: ***"
    assert "\n" not in line
