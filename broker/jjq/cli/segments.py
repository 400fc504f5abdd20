"""`jjq segment ...`"""

from __future__ import annotations

import argparse
from typing import Any

from jjq.cli import output
from jjq.cli.arguments import Commands, UsageError, add_command, add_group, open_store, typed, whole
from jjq.cli.exits import OK
from jjq.errors import JjqError
from jjq.model import SegmentInfo
from jjq.stats import Damaged, those_there


class SegmentNotFound(JjqError):
    code = "segment_not_found"


def add_commands(commands: Commands) -> None:
    group = add_group(commands, "segment", "the files that hold the records")
    parser = add_command(
        group, "list", _list, "the segments of a topic, by partition and offset",
        "  jjq segment list flights\n  jjq segment list flights --partition 2 --json",
    )  # fmt: skip
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("--partition", type=typed(whole), metavar="N", help="of one partition only")
    parser = add_command(
        group, "show", _show, "everything about one segment, its neighbours included", "  jjq segment show 3f2a91"
    )
    parser.add_argument("segment", metavar="SEGMENT", help="its id, or the beginning of it")
    parser.add_argument("--topic", metavar="TOPIC", help="look in this topic only")


def _list(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        found = store.topic(arguments.topic).segments(arguments.partition)
    if arguments.json:
        output.document([_document(each) for each in found])
        return 0
    output.table(
        ("PARTITION", "SEGMENT", "STATE", "START", "END", "RECORDS", "SIZE", "FROM", "TO", "APPENDED"),
        [
            (
                each.partition, each.id, each.state, each.start, each.end, output.number(each.rows),
                output.size(each.bytes), output.instant(each.min_timestamp), output.instant(each.max_timestamp),
                output.ago(each.appended_at or None),
            )
            for each in found
        ],
        output.none_of("segments", arguments.topic, "the first push"),
    )  # fmt: skip
    return OK


def _show(arguments: argparse.Namespace) -> int:
    with open_store(arguments) as store:
        topics = [store.topic(arguments.topic)] if arguments.topic else store.topics()
        damaged: Damaged = []
        held = those_there(topics, lambda each: each.segments(), damaged)
        found = [each for segments in held for each in segments if each.id.startswith(arguments.segment)]
        code = output.left_out(damaged, as_json=arguments.json)
        if not found:
            raise SegmentNotFound(f"no segment begins with {arguments.segment!r}; see `jjq segment list TOPIC`")
        if len(found) > 1:
            names = ", ".join(each.id for each in found[:3])
            raise UsageError(f"{len(found)} segments begin with {arguments.segment!r} ({names}, ...); write more of it")
    _print(arguments, found[0])
    return code


def _document(segment: SegmentInfo) -> dict[str, Any]:
    facts = {**segment.to_dict(), "appended_at": segment.appended_at or None}
    return output.with_instants(facts, "min_timestamp", "max_timestamp", "appended_at")


def _print(arguments: argparse.Namespace, segment: SegmentInfo) -> None:
    if arguments.json:
        output.document(_document(segment))
        return
    output.pairs(
        [
            ("segment", segment.id), ("topic", segment.topic), ("partition", segment.partition), ("state", segment.state),
            ("offsets", f"{segment.start} to {segment.end - 1}" if segment.rows else "none"),
            ("records", output.number(segment.rows)), ("size", output.size(segment.bytes)),
            ("from", output.instant(segment.min_timestamp)), ("to", output.instant(segment.max_timestamp)),
            ("appended", output.instant(segment.appended_at or None)), ("schema version", segment.schema_version),
            ("checksum", segment.checksum), ("path", segment.path), ("previous", segment.previous),
            ("next", segment.next),
        ]
    )  # fmt: skip
