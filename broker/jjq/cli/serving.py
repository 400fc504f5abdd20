"""`jjq serve`"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jjq.cli.arguments import DEFAULT_STORE, Commands, Parser, UsageError, add_command
from jjq.cli.exits import OK
from jjq.server.settings import FIELDS, ServerSettings, is_size, load

if TYPE_CHECKING:
    from jjq.server.run import Addresses

_PREFIX = "serve_"  # of the names under which argparse keeps settings


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands, "serve", _serve, "serve a store over the network, with Arrow Flight and HTTP, until interrupted",
        "  jjq serve --store /srv/jjq\n"
        "  jjq serve --config /etc/jjq/jjq.toml --http-port 8080\n"
        "  jjq serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem      # with tokens: `jjq token create`\n"
        "Each setting may also be in the environment, as JJQ_HTTP_PORT, or in the file of --config.",
        broker=False,
    )  # fmt: skip
    add_config(parser)
    for name, field in FIELDS.items():
        if name != "store":  # which all commands take
            _add_setting(parser, name, str(field.type), field.default, field.metadata["about"])


def add_config(parser: Parser) -> None:
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="settings in TOML, as in conf/jjq.toml (default: $JJQ_CONFIG)"
    )


def _add_setting(parser: Parser, name: str, kind: str, default: Any, about: str) -> None:
    option, destination = f"--{name.replace('_', '-')}", _PREFIX + name
    if kind == "bool":
        shown = option if default else f"--no-{option[2:]}"
        parser.add_argument(
            option, dest=destination, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS,
            help=f"{about} (default: {shown})",
        )  # fmt: skip
        return
    metavar = {"Path": "FILE", "int": "N", "float": "SECONDS", "str": "TEXT"}.get(kind.removesuffix(" | None"), "LIST")
    if is_size(name):
        metavar = "SIZE"
    parser.add_argument(
        option, dest=destination, metavar=metavar, default=argparse.SUPPRESS,
        help=f"{about} (default: {shown_default(default)})",
    )  # fmt: skip


def shown_default(default: Any) -> str:
    """`64MB`, `none`: as it could be typed."""
    if default is None or default == ():
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int) and default >= 1 << 20 and default % (1 << 20) == 0:
        return f"{default >> 20}MB"
    return f"{default:g}" if isinstance(default, float) else str(default)


def settings_of(arguments: argparse.Namespace, **flags: Any) -> ServerSettings:
    """The settings that the command line, the environment and the file come to."""
    if getattr(arguments, "broker", None):
        raise UsageError("this needs the store's directory: run it where that is, with --store DIR")
    if getattr(arguments, "store", None):
        flags["store"] = arguments.store
    config = arguments.config or os.environ.get("JJQ_CONFIG")
    return load(flags, os.environ, Path(config) if config else None, store=Path(DEFAULT_STORE))


def _serve(arguments: argparse.Namespace) -> int:
    given = {
        name.removeprefix(_PREFIX): value for name, value in vars(arguments).items() if name.startswith(_PREFIX)
    }  # fmt: skip
    settings = settings_of(arguments, **given)
    from jjq.server import logs
    from jjq.server.run import serve

    logs.begin(settings)

    def ready(addresses: Addresses) -> None:
        found = {"store": str(settings.store.absolute()), "flight": addresses.flight, "http": addresses.http}
        if arguments.json:
            print(json.dumps({**found, "pid": os.getpid()}), flush=True)
        else:
            where = " and ".join(each for each in (addresses.flight, addresses.http) if each is not None)
            print(f"serving {settings.store.absolute()} at {where}", flush=True)

    serve(settings, ready)
    return OK
