"""`jjq writer ...`"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from jjq.cli import output
from jjq.cli.arguments import Commands, add_command, add_group, add_yes, confirm, open_store
from jjq.cli.exits import OK
from jjq.errors import JjqError
from jjq.hints import which


class WriterNotFound(JjqError):
    code = "writer_not_found"


def add_commands(commands: Commands) -> None:
    group = add_group(commands, "writer", "list and reset the exactly-once writers, Spark's among them")
    add_command(group, "list", _list, "every writer, with its last batch", "  jjq writer list")
    parser = add_command(
        group, "reset", _reset, "forget what a writer has committed, so that its batch ids begin anew",
        "  jjq writer reset loader --yes",
    )  # fmt: skip
    parser.add_argument("writer", metavar="WRITER")
    add_yes(parser)


def _list(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        found = store.writers()
    if arguments.json:
        output.document([output.with_instants(asdict(each), "updated_at") for each in found])
        return 0
    output.table(
        ("WRITER", "QUERY", "LAST BATCH", "UPDATED"),
        [(each.id, each.query_id, each.last_batch, output.ago(each.updated_at)) for each in found],
        output.none_of("writers", None, "the first push with a writer, such as `jjq push --writer ID --batch N`,"),
    )
    return OK


def _reset(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        known = {each.id: each for each in store.writers()}
        writer = known.get(arguments.writer)
        if writer is None:
            raise WriterNotFound(
                f"there is no writer {arguments.writer!r}; {which(arguments.writer, sorted(known)) or 'there are none'}"
            )
        confirm(
            arguments,
            f"Writer {writer.id} has committed up to batch {writer.last_batch}; batches it sends again will be there twice.",
        )
        store.reset_writer(writer.id)
    if arguments.json:
        output.document(output.with_instants(asdict(writer), "updated_at"))
    else:
        print(f"writer {writer.id} reset; it had committed up to batch {writer.last_batch}")
    return OK
