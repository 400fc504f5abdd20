"""`jjq verify`, `jjq repair` and `jjq maintain`"""

from __future__ import annotations

import argparse

from jjq.cli import output
from jjq.cli.arguments import Commands, add_command, broker_url, open_store, store_path, typed
from jjq.cli.exits import DAMAGE, ERROR, OK
from jjq.cli.output import count
from jjq.cli.progress import Progress
from jjq.errors import InvalidArgument


def add_commands(commands: Commands) -> None:
    parser = add_command(
        commands, "verify", _verify, "check a whole store: every checksum, every catalog row against its file, no gap",
        "  jjq verify\n  jjq verify --sample 10% --json",
    )  # fmt: skip
    parser.add_argument(
        "--sample", type=typed(_share), metavar="SHARE", help="read only this share of the closed files, such as 10%%"
    )

    add_command(
        commands, "repair", _repair,
        "keep what is whole, take what is damaged out of the way, make the catalog again if need be; deletes nothing",
        "  jjq repair --store /srv/jjq", broker=False,
    )  # fmt: skip

    add_command(
        commands, "maintain", _maintain, "do what is due: roll and compact segments, apply retention, remove leftovers",
        "  jjq maintain\n  0 * * * *  jjq maintain --store /srv/jjq      # in a crontab, each hour",
    )  # fmt: skip


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise InvalidArgument(f"{text!r} is no share; write 10% or 0.1")
    return value


def _verify(arguments: argparse.Namespace) -> int:
    with Progress("verify", quiet=arguments.json) as progress:
        if broker_url(arguments) is None:
            from jjq.verify import verify

            # By its path, also where the store cannot be opened.
            report = verify(store_path(arguments), progress.report, sample=arguments.sample)
        else:
            with open_store(arguments) as store:
                report = store.verify(progress.report, sample=arguments.sample)
    if arguments.json:
        output.document(report.to_dict())
    else:
        print(report)
    return OK if report.ok else DAMAGE


def _repair(arguments: argparse.Namespace) -> int:
    from jjq.repair import repair

    with Progress("repair", quiet=arguments.json) as progress:
        report = repair(store_path(arguments), progress.report)
    if arguments.json:
        output.document(report.to_dict())
    else:
        print(report)
    return DAMAGE if report.lost or report.gone else OK


def _maintain(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store, Progress("maintain", quiet=arguments.json) as progress:
        report = store.maintain(progress.report)
    if arguments.json:
        output.document(report.to_dict())
    elif report.busy:
        print("another process maintains this store; nothing was done")
    else:
        found = [
            (f"{count(report.rolled, 'segment')} rolled", report.rolled),
            (f"{count(report.compacted, 'segment')} compacted into {report.compacted_into:,}", report.compacted),
            (
                f"{count(report.expired_records, 'record')} expired ({output.size(report.expired_bytes)})",
                report.expired_records,
            ),
            (f"{count(report.removed, 'file')} removed ({output.size(report.removed_bytes)})", report.removed),
            (f"{count(report.staged_reaped, 'abandoned staged file')} removed", report.staged_reaped),
            (f"{count(report.leftovers, 'leftover')} of dead processes removed", report.leftovers),
            (f"{count(report.objects, 'object')} removed", report.objects),
            (f"{count(report.reaped, 'ephemeral topic')} deleted", report.reaped),
        ]
        print("; ".join(text for text, number in found if number) or "nothing was due")
        for each in report.waiting:
            print(f"retention of {output.plain(each)}")
        for error in report.errors:
            print(f"not done: {output.plain(error)}")
        for path in report.kept:
            print(f"left alone: {output.plain(path)}")
    return ERROR if report.errors else OK
