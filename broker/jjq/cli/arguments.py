"""What commands have in common on the command line: the store, sizes, starts, columns."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

import jjq
from jjq.cli.exits import USAGE
from jjq.clock import is_unit
from jjq.errors import InvalidArgument
from jjq.founding import directory_of
from jjq.hints import did_you_mean, either, meant
from jjq.typenames import data_type

DEFAULT_STORE = "jjq-data"
STORE_HELP = f"directory of the store (default: $JJQ_STORE, else ./{DEFAULT_STORE})"
_PATIENCE_S = 5.0  # with a broker that cannot be reached, where somebody sits and waits
_LONG_PATIENCE_S = 30.0  # of those that outlast a broker that is started anew


_BROKER = re.compile(r"(jjq(?:\+tls)?:)/+")  # a Path has made one slash of two


class UsageError(InvalidArgument):
    """The command line cannot be followed."""

    code = "usage"


class Misused(Exception):
    """The command line could not even be taken apart. `str` of it is all there is to say."""


class Parser(argparse.ArgumentParser):
    """Errors in two lines: what is wrong, and where the help is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)
        # No option of ours begins so: `-1h` is a value, as `-1` is to argparse by itself.
        self._negative_number_matcher = re.compile(r"-\d")
        self._given: list[str] = []

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it, but what a command does not know is the command's to tell."""
        found, unknown = self.parse_known_args(args, namespace)
        parser: Parser = getattr(found, "parser", self)
        if unknown and not parser._placed(found, unknown):
            hint = misplaced(found, unknown) or parser._hint(unknown)
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found

    def _placed(self, found: argparse.Namespace, unknown: Sequence[str]) -> bool:
        """Whether this is what may follow the others, behind an option: `push TOPIC --key COLUMN FILE`. To argparse, what may be left
        out is left out where an option comes."""
        for action in self._get_positional_actions():
            if action.nargs == "?" and getattr(found, action.dest) == action.default:
                if len(unknown) > 1 or (unknown[0].startswith("-") and unknown[0] != "-"):
                    return False
                try:
                    setattr(found, action.dest, self._get_value(action, unknown[0]))
                except argparse.ArgumentError as error:
                    self.error(str(error))
                return True
        return False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def _has(self, given: str) -> bool:
        return given == "--" or given.partition("=")[0] in self._option_string_actions

    def _hint(self, unknown: Sequence[str]) -> str:
        if is_unit(unknown[0]) and self._given[self._given.index(unknown[0]) - 1][-1:].isdigit():
            return f". A time of two words is quoted: '-10 {unknown[0]}'"
        options = [each.partition("=")[0] for each in unknown if each.startswith("-")]
        places = [str(each.metavar) for each in self._get_positional_actions() if each.metavar]
        if not options:
            return f"; write {' '.join((self.prog, *places))}"
        found = meant(options[0], [*self._option_string_actions, *places])
        if not found and (commands := meant(options[0], self._commands())):
            return f"; did you mean {self.prog} {either(commands)}?"
        for theirs, has, instead in _NOT_OURS:
            if not found and options[0] in theirs and has in ("", *self._option_string_actions, *places):
                return f"; {instead}"
        if found and found[0] in places:
            return f"; {found[0]} has no option before it: {' '.join((self.prog, *places))}"
        return f"; did you mean {either(found)}?" if found else ""

    def _below(self, given: str, known: bool) -> list[str]:
        """The commands of groups that are called so: `topic list` for `list`. Unless the word is `known` to mean another
        command, also those that it may mean, as for `ls`."""
        groups = {name: group._commands() for name, group in self._commands().items()}
        words = {word for group in groups.values() for word in group}
        means = [given] if given in words or known else meant(given, words)
        return [f"{name} {word}" for name, group in groups.items() for word in means if word in group]

    def _commands(self) -> dict[str, Parser]:
        found: dict[str, Parser] = {}
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                found |= action.choices
        return found

    def error(self, message: str) -> NoReturn:
        choice = _CHOICE.fullmatch(message)
        if choice is not None:
            place, given, names = choice[1], choice[2], [each.strip("'") for each in choice[3].split(", ")]
            hint = did_you_mean(given, names)
            if place == "COMMAND":
                if below := self._below(given, bool(hint)):
                    hint = f"did you mean {either(below)}?"
                elif first := [each for each in self._given[:1] if each.startswith("--") and not self._has(each)]:
                    hint = self._hint(first).removeprefix("; ")  # Kafka's commands are options: topic --create
                message = f"there is no command {given!r}; {hint or 'there are ' + ', '.join(names)}"
            elif hint:
                message += f"; {hint}"
        unknown = [each for each in self._given if each.startswith("--") and not self._has(each)]
        if message.startswith(_LACKING) and unknown:  # what is lacking was given, in the way of another system
            message = f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown)}"
        raise Misused(f"{self.prog}: {message}\nsee `{self.prog} --help`")


# How argparse says it: names with or without quotes.
_CHOICE = re.compile(r"argument ([^:]+): invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)


# What others have and we do not, which place or option a command has that it is told to, and what is told. First Kafka's word where
# no option has another for it.
_NOT_OURS = (
    (("--group", "--group-id", "--consumer-group", "-G"), "", "a subscriber has a position that is kept: jjq pop SUBSCRIBER"),
    (("--topic", "-t"), "SUBSCRIBER", "a subscriber is of one topic, said as it is made: jjq subscriber create TOPIC SUBSCRIBER"),
    (("--replication-factor", "--replicas", "-r"), "--partitions", "a store lies on one machine and has no replicas: leave it out"),
    (("--config",), "--retention", "each setting has an option of its own, as --retention '7 days'"),
)  # fmt: skip
_LACKING = "the following arguments are required"

Commands = Any  # argparse has no public name for what add_subparsers returns
Run = Callable[[argparse.Namespace], int]


def add_command(
    commands: Commands, name: str, run: Run | None, summary: str, examples: str = "",
    *, store: str = STORE_HELP, broker: bool = True,
) -> Parser:  # fmt: skip
    """A command, or (without `run`) a group of commands. `store` is what its help says of --store; without `broker` it needs
    the store's directory itself."""
    epilog = f"examples:\n{examples}" if examples else None
    parser: Parser = commands.add_parser(name, help=summary, description=summary, epilog=epilog)
    if run is not None:
        add_common(parser, store, broker)
        parser.set_defaults(run=run, parser=parser)
    return parser


def add_group(commands: Commands, name: str, summary: str) -> Commands:
    return add_subcommands(add_command(commands, name, None, summary))


def add_subcommands(parser: Parser) -> Commands:
    """What stands without a command shows its help, where errors go."""
    parser.set_defaults(run=_show_help, parser=parser)
    return parser.add_subparsers(metavar="COMMAND", prog=parser.prog)  # not its usage, as argparse has it


def _show_help(arguments: argparse.Namespace) -> int:
    if arguments.json:
        arguments.parser.error(f"{_LACKING}: COMMAND")
    arguments.parser.print_help(sys.stderr)
    return USAGE


def add_common(parser: argparse.ArgumentParser, store: str = STORE_HELP, broker: bool = True) -> None:
    """A command that asks no broker takes --broker all the same, to say that it needs the directory."""
    parser.add_argument("--store", metavar="DIR", type=typed(_place), default=argparse.SUPPRESS, help=store)
    parser.add_argument(
        "--broker", metavar="URL", type=typed(_place), default=argparse.SUPPRESS,
        help="or the broker that serves it, as jjq://host:4750 (default: $JJQ_BROKER); its token is in $JJQ_TOKEN"
        if broker else argparse.SUPPRESS,
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="answers, and errors, as JSON"
    )  # fmt: skip


def _place(text: str) -> str:
    """What is typed: an empty text, as of a variable that is not set, is not taken for the place that the environment names."""
    if not text:
        raise InvalidArgument("it is empty; name a place, or leave the option out for the default")
    return text


def misplaced(found: argparse.Namespace, unknown: Sequence[str] = ()) -> str:
    """What to say where a store or a broker stands in the place of something else; nothing where none does."""
    parser: Parser | None = getattr(found, "parser", None)
    places = [] if parser is None else parser._get_positional_actions()
    words = (*unknown, *(getattr(found, each.dest, None) for each in places))
    return next((hint for each in words if isinstance(each, (str, Path)) and (hint := place_hint(each))), "")


def place_hint(word: str | Path) -> str:
    """How the store or the broker that a word names is given; nothing where it names none."""
    text = str(word)
    if scheme := _BROKER.match(text):
        return f"; a broker is named by --broker {scheme[1]}//{text[scheme.end() :]}"
    # Of a name that no file can have, Path.is_file would raise.
    if text and os.path.isfile(os.path.join(text, "jjq.json")):
        return f"; a store is named by --store {text}"
    return ""


def broker_url(arguments: argparse.Namespace) -> str | None:
    """The broker to ask, if not a directory. What is typed comes before the environment."""
    broker, store = getattr(arguments, "broker", None), getattr(arguments, "store", None)
    if broker and store:
        raise UsageError("--store and --broker are two places; say one of them")
    if broker or store:
        return broker or None
    broker = os.environ.get("JJQ_BROKER")
    if broker and os.environ.get("JJQ_STORE"):
        raise UsageError("JJQ_STORE and JJQ_BROKER are both in the environment; say --store or --broker, or unset one")
    return broker or None


def store_path(arguments: argparse.Namespace) -> Path:
    """The store's directory; raises UsageError where the command line names a broker."""
    if broker_url(arguments):
        raise UsageError("this needs the store's directory: run it where that is, with --store DIR")
    return directory_of(getattr(arguments, "store", None) or os.environ.get("JJQ_STORE") or DEFAULT_STORE)


def open_store(
    arguments: argparse.Namespace, *, create: bool = False, stays: bool = False, patient: bool = False,
    create_topics: bool = False, quiet: bool = False,
) -> jjq.Store:  # fmt: skip
    """`stays` for commands that may run for long and write: they take their turn at the store's maintenance. They and those that
    are `patient` outlast a broker that is started anew, and say that they wait for it unless `quiet`. A name typed wrongly makes no topic, unless that is what the command
    is for."""
    url = broker_url(arguments)
    if url is not None:
        if not (stays or patient):
            return _connect(url, _PATIENCE_S)
        told = quiet or arguments.json
        return _connect(url, _LONG_PATIENCE_S, None if told else _Waiting(url))
    return jjq.open(store_path(arguments), create=create, maintenance=stays, create_topics=create_topics)


def waits(timeout: float | None) -> bool:
    """Whether a command that waits so long for a record is patient: a broker that is started anew does not end it."""
    return timeout is None or timeout > _PATIENCE_S


class _Waiting:
    """Says on the standard error that a broker is gone, and that it is there again."""

    def __init__(self, url: str) -> None:
        self._url, self._gone = url, False

    def __call__(self, state: str) -> None:
        if state == "reconnecting":
            self._say(f"the broker at {self._url} cannot be reached; trying again for {_LONG_PATIENCE_S:.0f} s")
        elif state == "connected" and self._gone:
            self._say("it is there again")
        self._gone = state == "reconnecting"

    def _say(self, what: str) -> None:
        print(f"jjq: {what}", file=sys.stderr, flush=True)


def _connect(url: str, retry_s: float, on_state: Callable[[str], None] | None = None) -> jjq.Store:
    # By the environment, where other processes do not see them as they see a command line.
    given = os.environ.get
    return jjq.connect(
        url, token=given("JJQ_TOKEN") or None, tls_ca=given("JJQ_TLS_CA") or None,
        tls_cert=given("JJQ_CLIENT_CERT") or None, tls_key=given("JJQ_CLIENT_KEY") or None, retry_s=retry_s,
        on_state=on_state,
    )  # fmt: skip


def confirm(arguments: argparse.Namespace, question: str) -> None:
    """Asks on a terminal; elsewhere `--yes` must have been given. Raises UsageError unless it is a yes."""
    if arguments.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} Nothing was changed; add --yes to do it")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was changed")


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", "-y", action="store_true", help="do it without asking")


def typed(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argparse `type` whose errors say what ours say."""

    def parse(text: str) -> Any:
        try:
            return convert(text)
        except InvalidArgument as error:
            raise argparse.ArgumentTypeError(error.message) from error

    return parse


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"{text!r} is no whole number") from None


def not_negative(text: str) -> int:
    value = whole(text)
    if value < 0:
        raise InvalidArgument(f"{text} is too few; at least 0")
    return value


def at_least_one(text: str) -> int:
    value = whole(text)
    if value < 1:
        raise InvalidArgument(f"{text} is too few; at least 1")
    return value


def or_none(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """`none` takes a limit away."""
    return lambda text: None if text.strip().lower() == "none" else convert(text)


def seconds(text: str) -> float | None:
    """Seconds from 0; `none` waits for ever."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InvalidArgument(f"{text!r} is no number of seconds; write 0, 2.5 or none (for ever)")
    return value


def seconds_between(low: float, high: float) -> Callable[[str], float]:
    """Takes seconds from `low` to `high`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not low <= value <= high:
            raise InvalidArgument(f"{text!r} is no length of time; write seconds from {low:g} to {high:g}")
        return value

    return parse


def start(text: str) -> Any:
    """A start as `jjq.start` takes it; `0=5,1=latest` is one for each partition."""
    if re.match(r"\s*\d+\s*=", text):
        places: dict[int, Any] = {}
        for part in text.split(","):
            partition, separator, place = part.partition("=")
            if not separator or not partition.strip().isdecimal():
                raise InvalidArgument(f"{text!r} is no start for each partition; write 0=5,1=latest")
            if int(partition) in places:
                raise InvalidArgument(f"{text!r} names partition {int(partition)} twice")
            places[int(partition)] = start(place.strip())
        return places
    try:
        return int(text)
    except ValueError:
        return text


_DEFAULT = re.compile(r" \(default(: [^)]*)?\)")


def without_default(text: str) -> str:
    """The help of a setting, for a command that leaves it as it is where it is not given."""
    return _DEFAULT.sub("", text)


START_HELP = (
    "an offset, a negative number for the last records of each partition, earliest, latest, an ISO-8601 time with a "
    "zone, '-10 minutes', or 0=5,1=latest by partition"
)


def column(text: str) -> pa.Field:
    """A column from `name:type`."""
    name, separator, kind = text.partition(":")
    if not separator or not name.strip():
        raise InvalidArgument(f"{text!r} is no column; write name:type, for example delay:int32")
    return pa.field(name.strip(), data_type(kind))
