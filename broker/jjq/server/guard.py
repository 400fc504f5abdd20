"""Who may do what, how fast, and what is written down of it. Both fronts ask here before they call the store."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from jjq.clock import now_us
from jjq.errors import Forbidden, JjqError, SubscriberNotFound, TooManyRequests, TopicNotFound, Unauthorized
from jjq.interest import glob
from jjq.server.settings import ServerSettings
from jjq.server.tokens import ACTIONS, Token, TokenFile, hashed
from jjq.values import counted

ANY = "any"  # beside the actions: the right to any of them
ANYBODY = "anybody"  # the caller's name where there are no tokens
EVERY_TOPIC = "*"

log = logging.getLogger("jjq.server")
audit_log = logging.getLogger("jjq.audit")

# What each operation needs, on the topic it touches. Without a topic it is about the whole store, and needs the right to
# every topic. Who may write need not be able to read, nor the other way round; who may admin may do both. Whoever may do
# anything with a topic may see that it is there, and what its columns and settings are.
NEEDS = {
    "topic.list": ANY,
    "topic.describe": ANY,
    "topic.create": "admin",
    "topic.alter": "admin",
    "topic.delete": "admin",
    "topic.empty": "admin",
    "topic.pause": "admin",  # and unpause
    "push": "write",  # in every way, also publish; makes the topic on first use
    "commit": "write",  # and stage and discard
    "read": "read",  # also segments, subscriptions, events
    "subscriber.list": "read",
    "subscriber.create": "read",  # subscribers and channels belong to those who read
    "subscriber.use": "read",
    "subscriber.delete": "read",
    "channel.list": "read",
    "channel.create": "read",
    "channel.use": "read",  # receive, ack, requeue, touch, counts
    "channel.pause": "admin",
    "channel.empty": "admin",
    "channel.delete": "admin",
    "writer.list": "read",
    "writer.reset": "admin",
    "stats": "read",
    "maintain": "admin",
    "verify": "admin",
}


class Caller:
    """Who a request comes from. What it may is looked up anew each time: a stream that goes on for days asks again.

    `Guard.caller` makes those that may something; one without a guard has not been let in.
    """

    def __init__(self, name: str, guard: Guard | None = None, secret_hash: str | None = None) -> None:
        self.name = name
        self._guard = guard
        self._hash = secret_hash
        self.begun: list[tuple[str, str | None]] = []  # what was written down, and may yet fail

    def __repr__(self) -> str:
        return f"<Caller {self.name}>"

    def can(self, action: str, topic: str | None) -> bool:
        """Whether it may `read`, `write`, `admin` a topic, or `any` of these; None: the whole store.

        Raises Unauthorized when its token has expired or was revoked.
        """
        if action not in (*ACTIONS, ANY):
            raise ValueError(f"no action {action!r}")
        token = self._known().token(self._hash)
        return token is None or allows(token, action, topic)

    def may(self, action: str, topic: str | None) -> None:
        """Raises Forbidden unless it can, and Unauthorized like `can`."""
        if not self.can(action, topic):
            self._refuse(action, topic)

    def may_somewhere(self, action: str) -> None:
        """Raises Forbidden unless it can with some topic, and Unauthorized."""
        token = self._known().token(self._hash)
        if token is not None and not patterns_of(token, action):
            raise Forbidden(f"token {self.name!r} has no {action} right for any topic")

    def _refuse(self, action: str, topic: str | None) -> NoReturn:
        right = "right" if action == ANY else f"{action} right"
        where = f"topic {topic!r}" if topic is not None else f"every topic (the pattern {EVERY_TOPIC!r})"
        if action == "admin":
            audit_log.warning("refused", extra={"fields": {"caller": self.name, "needs": action, "topic": topic}})
        raise Forbidden(f"token {self.name!r} has no {right} for {where}")

    def failed(self, error: Exception) -> None:
        """Writes down that what this request began was not done, or not all of it."""
        for action, topic in self.begun:
            fields = {"caller": self.name, "action": action, "topic": topic, "code": getattr(error, "code", "internal")}
            audit_log.warning("failed", extra={"fields": fields})

    def told(self, error: JjqError) -> JjqError:
        """An error as the caller may see it: who may not see every topic is given no names to choose from."""
        if isinstance(error, (TopicNotFound, SubscriberNotFound)) and not self.can(ANY, None):
            return type(error)(error.message.partition("; ")[0], **error.details)
        return error

    def spend(self, records: int, bytes_: int) -> None:
        """Counts what is about to be pushed; raises TooManyRequests, whose `retry_after` is in seconds."""
        guard = self._known()
        guard.spend(guard.token(self._hash), records, bytes_)

    def may_push(self, topic: str, records: int, bytes_: int) -> None:
        """`may` write and `spend`, with one look at the tokens."""
        guard = self._known()
        token = guard.token(self._hash)
        if token is not None and not allows(token, "write", topic):
            self._refuse("write", topic)
        guard.spend(token, records, bytes_)

    def _known(self) -> Guard:
        if self._guard is None:
            raise Unauthorized(f"{self.name} has not been let in")
        return self._guard


def patterns_of(token: Token, action: str) -> tuple[str, ...]:
    """Of the topics with which a token allows an action; who may admin a topic may read and write it too."""
    if action == "admin":
        return token.admin
    return (*(token.read if action != "write" else ()), *(token.write if action != "read" else ()), *token.admin)


def allows(token: Token, action: str, topic: str | None) -> bool:
    """Whether a token's patterns allow an action."""
    patterns = patterns_of(token, action)
    if topic is None:
        return EVERY_TOPIC in patterns
    return any(_matcher(pattern).match(topic) for pattern in patterns)


@functools.lru_cache(maxsize=4096)
def _matcher(pattern: str) -> re.Pattern[str]:
    return glob(pattern)


class _Bucket:
    """What a token may still spend. It fills at its rate up to what one second brings; a request may take it below zero, so
    that one of any size goes through, and the next waits until it is above."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = self._left = rate
        self._at = now

    def wait_s(self, now: float) -> float:
        """How long until something may be taken; 0: now."""
        self._left = min(self.rate, self._left + (now - self._at) * self.rate)
        self._at = now
        return 0.0 if self._left > 0 else (1 - self._left) / self.rate

    def take(self, amount: float) -> None:
        self._left -= amount


class Guard:
    """Asked by all threads of both fronts.

    As long as there is no file of tokens, everybody may do everything. From when there is one, every request needs a token
    from it. A file that is gone, or damaged, later opens nothing: the last tokens that were read stay.
    """

    def __init__(
        self, settings: ServerSettings, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], int] = now_us
    ) -> None:
        """Raises InvalidArgument for a file that holds no tokens, and StoreError for one that cannot be read."""
        self._settings = settings
        self._clock, self._now = clock, now
        self._mutex = threading.Lock()
        self._subscriptions = 0
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        self._file = TokenFile(settings.tokens_file)
        self._tokens: dict[str, Token] | None = None  # by the hash of a secret that is good for it
        self._seen = self._file.signature()  # of the file that was read last
        self._read(self._seen)

    def __repr__(self) -> str:
        return f"<Guard {'open' if self._tokens is None else counted(len(self._tokens), 'token')}>"

    @property
    def needs_tokens(self) -> bool:
        return self._current() is not None

    def caller(self, token: str | None) -> Caller:
        """Whose token it is; without tokens anybody. Raises Unauthorized."""
        if self._current() is None:
            return Caller(ANYBODY, self)
        if not token:
            raise Unauthorized(
                "this broker needs a token: give it as token=, to the command line and Spark as JJQ_TOKEN, or as the header "
                "Authorization: Bearer; who runs the broker makes one with `jjq token create`"
            )
        secret_hash = hashed(token)
        found = self.token(secret_hash)
        return Caller(ANYBODY if found is None else found.name, self, secret_hash)

    def token(self, secret_hash: str | None) -> Token | None:
        """The token that a secret is good for now; None where there are no tokens. Raises Unauthorized."""
        tokens = self._current()
        if tokens is None:
            return None
        found = tokens.get(secret_hash) if secret_hash is not None else None
        now = self._now()
        if found is None or (secret_hash == found.previous_hash and now >= found.previous_until):
            raise Unauthorized("the token is none of this broker's: it may have been rotated or revoked")
        if found.expired(now):
            raise Unauthorized(
                f"token {found.name!r} has expired; `jjq token rotate` does not prolong it, make a new one"
            )
        return found

    def _current(self) -> dict[str, Token] | None:
        if self._file.signature() != self._seen:
            with self._mutex:
                seen = self._file.signature()
                if seen != self._seen:
                    try:
                        self._read(seen)
                    except JjqError as error:
                        # Whoever put a file there wants it to be asked: until it can be, nobody new gets in.
                        self._tokens = self._tokens or {}
                        log.error("the tokens cannot be read; those known before stay: %s", error.message)  # noqa: TRY400
                    # Also of a file that is damaged: it is read again when it has changed, and said once. Not before: until then
                    # who asks waits for what the file says.
                    self._seen = seen
        return self._tokens

    def _read(self, seen: object) -> None:
        if seen is None:
            if self._tokens is not None:
                log.error("the file of tokens is gone: %s; those known before stay", self._file.path)
            return
        found: dict[str, Token] = {}
        for each in self._file.tokens():
            found[each.hash] = each
            if each.previous_hash is not None:
                found[each.previous_hash] = each
        self._tokens = found
        log.info("tokens read", extra={"fields": {"tokens": sorted({each.name for each in found.values()})}})

    def spend(self, token: Token | None, records: int, bytes_: int) -> None:
        """See `Caller.spend`. Without tokens the rates are those of everybody together."""
        records_per_s = (token and token.records_per_s) or self._settings.token_records_per_s
        bytes_per_s = (token and token.bytes_per_s) or self._settings.token_bytes_per_s
        if records_per_s is None and bytes_per_s is None:
            return
        name = ANYBODY if token is None else token.name
        rates = {"records": records_per_s, "bytes": bytes_per_s}
        limited = {what: rate for what, rate in rates.items() if rate is not None}
        amounts = {"records": records, "bytes": bytes_}
        with self._mutex:
            now = self._clock()
            buckets = {what: self._bucket(name, what, rate, now) for what, rate in limited.items()}
            waits = {what: bucket.wait_s(now) for what, bucket in buckets.items()}
            slowest = max(waits, key=lambda what: waits[what])
            if waits[slowest] > 0:
                raise TooManyRequests(
                    f"{name} may push {limited[slowest]:,} {slowest} a second; try again in {waits[slowest]:.3g} s",
                    retry_after=waits[slowest],
                )
            for what, bucket in buckets.items():
                bucket.take(amounts[what])

    def _bucket(self, name: str, what: str, rate: float, now: float) -> _Bucket:
        bucket = self._buckets.get((name, what))
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[name, what] = _Bucket(rate, now)
        return bucket

    @contextlib.contextmanager
    def subscription(self, caller: Caller) -> Iterator[None]:
        """Held while a client is being sent what comes; raises TooManyRequests when there are as many as may be."""
        with self._mutex:
            if self._subscriptions >= self._settings.max_subscriptions:
                raise TooManyRequests(
                    f"{counted(self._subscriptions, 'subscription is', 'subscriptions are')} open, as many as this broker takes (max_subscriptions)",
                    retry_after=1.0,
                )
            self._subscriptions += 1
        try:
            yield
        finally:
            with self._mutex:
                self._subscriptions -= 1

    def audit(self, caller: Caller, action: str, topic: str | None, **details: Any) -> None:
        """Writes down that `caller` does something that needs `admin`, before it is done; `action` is a key of NEEDS."""
        caller.begun.append((action, topic))
        audit_log.info(action, extra={"fields": {"caller": caller.name, "topic": topic, **details}})
