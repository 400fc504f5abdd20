"""What somebody meant who wrote the name of an option, a setting or a command that is not there."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SOME = 5  # names that are told of many
# At some 40 µs each: who asks for a topic that is not there, also to make it, is not to wait for seconds.
_COMPARED = 500

# What Kafka, NSQ, Redis, Delta and Unix call it, and what it may be here: the first that is there is meant, with `|` between two
# that may both be. Names are compared without capitals, dashes, dots and underscores.
_SYNONYMS = {
    "since": "start startingtimestamp", "from": "start startingoffsets", "after": "start startingtimestamp",
    "frombeginning": "start startingoffsets", "beginning": "start startingoffsets", "earliest": "start startingoffsets",
    "offset": "start startingoffsets", "offsets": "start startingoffsets", "autooffsetreset": "start startingoffsets",
    "seek": "start startingoffsets", "o": "start output",
    "until": "end endingtimestamp", "to": "end endingoffsets", "before": "end endingtimestamp",
    "bootstrapserver": "broker", "bootstrapservers": "broker", "brokerlist": "broker", "server": "broker", "url": "broker",
    "b": "broker", "host": "host broker", "port": "port flightport|httpport broker", "listen": "host",
    "dir": "store path", "directory": "store path", "datadir": "store path", "data": "store path", "db": "store path",
    "path": "path store", "s": "store", "topic": "topic name", "topics": "topic subscribe", "t": "topic", "table": "topic",
    "group": "subscriber channel name", "groupid": "subscriber channel name", "consumergroup": "subscriber channel name",
    "subscription": "subscriber name", "consumer": "subscriber channel name", "id": "name subscriber",
    "n": "count max", "count": "max", "c": "count columns", "limit": "count max maxoffsetspertrigger", "lines": "count",
    "max": "count", "maxmessages": "count max", "maxrecords": "count max maxoffsetspertrigger", "number": "count", "f": "follow format", "watch": "follow interval", "tail": "follow tail",
    "wait": "timeout follow", "timeoutms": "timeout", "block": "timeout", "p": "partition partitions",
    "fields": "columns column schema addcolumns", "columns": "column schema addcolumns", "select": "columns",
    "schema": "column schemafrom addcolumns", "k": "key", "keyfield": "key keycolumn",
    "key": "keycolumn", "keycol": "keycolumn key", "partitionkey": "keycolumn key", "numpartitions": "partitions", "shards": "partitions",
    "separator": "delimiter", "sep": "delimiter", "out": "output", "outputformat": "output", "pretty": "output",
    "force": "yes", "y": "yes", "ifnotexists": "existok", "retentionms": "retention", "ttl": "retention expires",
    "maxage": "retention", "maxbytes": "retentionbytes", "maxlen": "retentionbytes|retentionsegments", "visibilitytimeout": "acktimeout", "msgtimeout": "acktimeout",
    "retries": "maxattempts", "dlq": "deadletter", "producerid": "writer writerid", "transactionalid": "writer writerid",
    "txnappid": "writerid", "txnversion": "batchid", "epoch": "batch batchid", "batchsize": "batchbytes",
    "maxrecordspertrigger": "maxoffsetspertrigger", "maxrowspertrigger": "maxoffsetspertrigger",
    "ls": "list", "rm": "delete", "remove": "delete", "drop": "delete", "new": "create", "add": "create", "make": "create",
    "truncate": "empty", "purge": "empty", "get": "show describe", "info": "show describe", "consume": "tail", "read": "tail",
    "cat": "tail", "dump": "tail", "export": "tail", "import": "push", "load": "push",
    "produce": "push", "write": "push", "send": "push", "start": "serve", "run": "serve", "doctor": "verify",
    "consoleconsumer": "tail", "consoleproducer": "push", "lag": "list subscriber",
    "reset": "seek", "show": "describe list", "describe": "show list", "set": "alter", "update": "alter", "compact": "maintain", "vacuum": "maintain",
}  # fmt: skip
_NEAR = 0.7  # of difflib: `prot` is near `port` (0.75), and `since` is not near `json`


def meant(given: str, names: Iterable[str]) -> list[str]:
    """Those of `names` that may be meant by `given`, the best first: the same but for its spelling, what others call so, or
    the nearest."""
    ours = {_plain(each): [each] for each in names}
    words = {said: found for said, choices in _SYNONYMS.items() if (found := _first(choices, ours))} | ours
    said = _plain(given)
    near = [said] if said in words else difflib.get_close_matches(said, words, 1, _NEAR)
    return words[near[0]] if near else []


def did_you_mean(given: str, names: Iterable[str], quote: str = "") -> str:
    """`did you mean topic?`, or nothing."""
    found = meant(given, names)
    return f"did you mean {either([f'{quote}{each}{quote}' for each in found])}?" if found else ""


def either(names: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`"""
    return " or ".join([part for part in (", ".join(names[:-1]), *names[-1:]) if part])


def which(name: str, names: Sequence[str]) -> str:
    """What there is in the place of a name of a user's own that is not there; nothing where there is none."""
    alike = names if len(names) <= _COMPARED else [each for each in names if each[:2] == name[:2]][:_COMPARED]
    near = difflib.get_close_matches(name, alike, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = f" and {len(names) - _SOME} more" if len(names) > _SOME else ""
    return f"there are {', '.join(names[:_SOME])}{more}" if names else ""


def keywords(called: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For a function that is called by this name: a keyword that it does not have is an error that names the one it has."""

    def explained(function: Callable[P, T]) -> Callable[P, T]:
        # A store's own method gives the store.
        known = tuple(name for name in inspect.signature(function).parameters if name not in {"self", "store"})

        @functools.wraps(function)
        def explaining(*arguments: P.args, **given: P.kwargs) -> T:
            for name in given:
                if name not in known:
                    hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
                    raise TypeError(f"{called} takes no argument {name!r}; {hint}")
            return function(*arguments, **given)

        return explaining

    return explained


def keywords_of(*methods: str) -> Callable[[type[T]], type[T]]:
    """For a class: the same for these of its methods, and not for those that a program calls for each record."""

    def explained(kind: type[T]) -> type[T]:
        for name in methods:
            called = kind.__name__.removeprefix("Remote") if name == "__init__" else name
            setattr(kind, name, keywords(called)(vars(kind)[name]))
        return kind

    return explained


def _plain(name: str) -> str:
    return "".join(each for each in name.lower() if each.isalnum()) or name


def _first(choices: str, ours: dict[str, list[str]]) -> list[str]:
    for choice in choices.split():
        if found := [name for each in choice.split("|") for name in ours.get(each, ())]:
            return found
    return []
