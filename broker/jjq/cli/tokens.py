"""`jjq token ...`"""

from __future__ import annotations

import argparse
from typing import Any

import jjq
from jjq.cli import output
from jjq.cli.arguments import Commands, Parser, add_command, add_group, add_yes, at_least_one, confirm, or_none, typed
from jjq.cli.exits import OK
from jjq.cli.serving import add_config, settings_of
from jjq.clock import iso, now_us, parse_duration
from jjq.server.tokens import ACTIONS, Token, TokenFile
from jjq.values import size

_TIMES = ("created_at", "expires_at", "rotated_at", "previous_until")


def add_commands(commands: Commands) -> None:
    group = add_group(commands, "token", "who may ask a broker for what: make, list, rotate and revoke tokens")
    parser = _add(
        group, "create", _create, "make a token and print it, this once; makes the store if there is none",
        "  jjq token create loader --write 'orders.*'\n"
        "  jjq token create dashboard --read '*' --expires '90 days'\n"
        "  jjq token create operator --admin '*' --json",
    )  # fmt: skip
    parser.add_argument("name", metavar="NAME")
    for action, what in (("read", "read"), ("write", "push to"), ("admin", "do everything with")):
        parser.add_argument(
            f"--{action}", action="append", default=[], metavar="GLOB",
            help=f"topics it may {what}, such as 'orders.*'; repeat it for each",
        )  # fmt: skip
    parser.add_argument(
        "--expires",
        type=typed(or_none(_duration)),
        metavar="TIME",
        help="how long it is good (default: none, for ever)",
    )
    parser.add_argument(
        "--records-per-s", type=typed(at_least_one), metavar="N", help="pushes beyond this are refused (default: none)"
    )
    parser.add_argument("--bytes-per-s", type=typed(size), metavar="SIZE", help="the same in bytes (default: none)")

    _add(group, "list", _list, "every token and what it may; never the token itself", "  jjq token list")

    parser = _add(
        group, "rotate", _rotate, "make a new token in the place of an old one, and print it this once",
        "  jjq token rotate loader\n  jjq token rotate loader --keep none      # the old one is known to others",
    )  # fmt: skip
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--keep", type=typed(or_none(_duration)), default="1 hour", metavar="TIME",
        help="how long the old one is good for; none ends it at once (default: 1 hour)",
    )  # fmt: skip

    parser = _add(group, "revoke", _revoke, "end a token at once", "  jjq token revoke loader --yes")
    parser.add_argument("name", metavar="NAME")
    add_yes(parser)


def _add(group: Commands, name: str, run: Any, summary: str, examples: str) -> Parser:
    parser = add_command(group, name, run, summary, examples, broker=False)
    parser.add_argument(
        "--tokens", metavar="FILE", default=argparse.SUPPRESS,
        help="the file they are in (default: $JJQ_TOKENS, what --config says, or tokens.json in the store)",
    )  # fmt: skip
    add_config(parser)
    return parser


def _duration(text: str) -> int | None:
    return parse_duration(text, "the time")


def _file(arguments: argparse.Namespace, *, create: bool = False) -> TokenFile:
    given = getattr(arguments, "tokens", None)
    settings = settings_of(arguments, **({} if given is None else {"tokens": given}))
    if settings.tokens is None:
        store = settings.store.absolute()
        jjq.open(store, create=create, maintenance=False).close()  # not into any directory whose name was mistyped
    return TokenFile(settings.tokens_file)


def _create(arguments: argparse.Namespace) -> int:
    file = _file(arguments, create=True)
    secret, made = file.create(
        arguments.name, read=tuple(arguments.read), write=tuple(arguments.write), admin=tuple(arguments.admin),
        expires_in_us=arguments.expires, records_per_s=arguments.records_per_s, bytes_per_s=arguments.bytes_per_s,
    )  # fmt: skip
    return _show(arguments, secret, made)


def _rotate(arguments: argparse.Namespace) -> int:
    return _show(arguments, *_file(arguments).rotate(arguments.name, keep_us=arguments.keep or 0))


def _show(arguments: argparse.Namespace, secret: str, token: Token) -> int:
    if arguments.json:
        output.document({"token": secret, **_facts(token)})
    else:
        print(secret)
    return OK


def _facts(token: Token) -> dict[str, Any]:
    return output.with_instants({**token.to_dict(), "previous_until": token.previous_until or None}, *_TIMES)


def _list(arguments: argparse.Namespace) -> int:
    found = _file(arguments).tokens()
    if arguments.json:
        output.document([_facts(each) for each in found])
        return OK
    output.table(
        ("TOKEN", "READ", "WRITE", "ADMIN", "RECORDS/S", "BYTES/S", "MADE", "EXPIRES", "OLD ONE UNTIL"),
        [
            (
                each.name, *(" ".join(getattr(each, action)) or None for action in ACTIONS),
                output.number(each.records_per_s), output.size(each.bytes_per_s), iso(each.created_at),
                output.instant(each.expires_at), output.instant(each.previous_until if each.previous_until > now_us() else None),
            )
            for each in found
        ],
        output.none_of("tokens", None, "`jjq token create NAME --read '*'`"),
    )  # fmt: skip
    return OK


def _revoke(arguments: argparse.Namespace) -> int:
    file = _file(arguments)
    confirm(arguments, f"This ends token {arguments.name} at once.")
    gone = file.revoke(arguments.name)
    if arguments.json:
        output.document(_facts(gone))
    else:
        print(f"token {gone.name} revoked")
    return OK
