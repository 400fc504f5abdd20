"""The options of `format("jjq")`, parsed once into values. Nothing here touches a store or Spark.

Names and meanings are those of Spark's Kafka source where it has the same thing. Every error says what to write.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jjq import clock
from jjq.errors import InvalidArgument

log = logging.getLogger("jjq.spark")

LONG_MAX = 2**63 - 1  # Spark keeps offsets and limits as JVM longs

METADATA_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_headers")


@dataclass(frozen=True, slots=True)
class Option:
    """A documented option: its name as people write it, its default as text, and what it means."""

    name: str
    default: str
    meaning: str


SOURCE_OPTIONS = (
    Option("path", "-", "the store's directory; also as .load(path)"),
    Option("subscribe", "-", "the topics to read, separated by commas"),
    Option("topic", "-", "the same, short"),
    Option("startingOffsets", "stream latest, batch earliest", "earliest, latest, or JSON by topic and partition"),
    Option("startingTimestamp", "-", "epoch milliseconds, ISO-8601 with a zone, or relative such as -10 minutes"),
    Option("startingOffsetsByTimestamp", "-", "JSON of epoch milliseconds by topic and partition"),
    Option("startingOffsetsByTimestampStrategy", "error", "no record at or after the time: error or latest"),
    Option("endingOffsets", "latest", "where a batch or an AvailableNow query ends, exclusive"),
    Option("endingTimestamp", "-", "the same by time: the first record at or after it is not read"),
    Option("endingOffsetsByTimestamp", "-", "JSON of epoch milliseconds by topic and partition"),
    Option("failOnDataLoss", "true", "true: stop when records are gone; false: say so once and go on"),
    Option("maxOffsetsPerTrigger", "-", "rows a micro-batch, shared over the partitions in proportion to what waits"),
    Option("minPartitions", "-", "how many tasks a batch should have at least, for more cores than the driver's"),
    Option("maxRecordsPerPartition", "-", "the most rows that one task reads"),
    Option("columns", "all", "the only columns to read, separated by commas"),
    Option("metadata", "-", f"for topics with a schema, which of {','.join(METADATA_COLUMNS)} to add"),
    Option("includeHeaders", "false", "adds the headers column"),
)

SINK_OPTIONS = (
    Option("path", "-", "the store's directory; also as .save(path) or .start(path)"),
    Option("topic", "-", "the topic to write; beats a topic column"),
    Option("createTopic", "true", "make a missing topic, with the DataFrame's schema"),
    Option("partitions", "1", "how many partitions a topic made by this write has"),
    Option("keyColumn", "-", "for topics with a schema: the column that is the key and chooses the partition"),
    Option("writerId", "-", "the name under which batches are counted once, across checkpoints"),
    Option("batchId", "-", "batch writes: the number of this batch of writerId"),
)

# What Spark itself passes along with the user's options, and what Kafka's sink accepts without needing it.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "includeheaders"})
_KAFKAS_OWN = ("kafka.", "kafkaconsumer.", "fetchoffset.", "groupidprefix")


@dataclass(frozen=True, slots=True)
class Edge:
    """An end of a topic: `earliest` or `latest`."""

    word: str


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time, as written: resolved when it is used, since a relative one means "before now"."""

    text: str

    def at_us(self) -> int:
        """Microseconds since the epoch."""
        return _instant_us(self.text, "the time")


@dataclass(frozen=True, slots=True)
class ByTopic:
    """Offsets by topic and partition (-2 earliest, -1 latest), or an edge for a whole topic."""

    topics: Mapping[str, Edge | Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class TimesByTopic:
    """Microseconds since the epoch by topic and partition."""

    topics: Mapping[str, Mapping[int, int]]


Bound = Edge | Instant | ByTopic | TimesByTopic
EARLIEST = Edge("earliest")
LATEST = Edge("latest")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a read was asked for. `starting` and `ending` are None where the default of the mode applies."""

    path: str
    topics: tuple[str, ...]
    starting: Bound | None = None
    starting_without_match: str = "error"
    ending: Bound | None = None
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    columns: tuple[str, ...] | None = None
    metadata: tuple[str, ...] = ()
    include_headers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a write was asked for."""

    path: str
    topic: str | None = None
    create_topic: bool = True
    partitions: int | None = None
    key_column: str | None = None
    writer_id: str | None = None
    batch_id: int | None = None


def parse_source(options: Mapping[str, str]) -> SourceOptions:
    """Raises InvalidArgument with what to write instead."""
    given = _known(options, SOURCE_OPTIONS, SINK_OPTIONS, "read")
    topics = _topics(given)
    return SourceOptions(
        path=_path(given, options),
        topics=topics,
        starting=_bound(given, "starting", topics),
        starting_without_match=_one_of(given, "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"),
        ending=_bound(given, "ending", topics),
        fail_on_data_loss=_bool(given, "failOnDataLoss", True),
        max_offsets_per_trigger=_positive(given, "maxOffsetsPerTrigger"),
        min_partitions=_positive(given, "minPartitions"),
        max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
        columns=_names(given, "columns"),
        metadata=_metadata(given),
        include_headers=_bool(given, "includeHeaders", False),
    )


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """Raises InvalidArgument with what to write instead."""
    given = _known(options, SINK_OPTIONS, SOURCE_OPTIONS, "write")
    batch_id = given.get("batchid")
    if batch_id is not None and not (batch_id.isascii() and batch_id.isdigit() and int(batch_id) <= LONG_MAX):
        raise InvalidArgument(f"batchId is a whole number from 0, such as the one foreachBatch gives, not {batch_id!r}")
    return SinkOptions(
        path=_path(given, options),
        topic=given.get("topic"),
        create_topic=_bool(given, "createTopic", True),
        partitions=_positive(given, "partitions"),
        key_column=given.get("keycolumn"),
        writer_id=given.get("writerid"),
        batch_id=None if batch_id is None else int(batch_id),
    )


def nearest(name: str, names: tuple[str, ...] | list[str]) -> str:
    """A sentence part that names the closest of `names`, or all of them when nothing is close."""
    lowered = {each.lower(): each for each in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    if close:
        return f"did you mean {lowered[close[0]]}?"
    return "there are: " + ", ".join(names) if names else "there are none"


def _known(
    options: Mapping[str, str], mine: tuple[Option, ...], others: tuple[Option, ...], deed: str
) -> dict[str, str]:
    """The options that mean something here, by lower-cased name; what only Kafka needs is dropped with one warning."""
    known = {each.name.lower() for each in mine}
    elsewhere = {each.name.lower(): each.name for each in others}
    given: dict[str, str] = {}
    ignored: list[str] = []
    for name, value in options.items():
        lowered = name.lower()
        if lowered in known:
            given[lowered] = str(value).strip()
        elif lowered.startswith(_KAFKAS_OWN):
            ignored.append(name)
        elif lowered in elsewhere and lowered not in _SPARKS_OWN:
            side = "read" if deed == "write" else "write"
            raise InvalidArgument(f"{elsewhere[lowered]} is an option for a {side}, and this is a {deed}; remove it")
        elif lowered not in _SPARKS_OWN:
            names = tuple(each.name for each in mine)
            raise InvalidArgument(f'there is no option {name!r} to {deed} with format("jjq"); {nearest(name, names)}')
    _warn_once(ignored)
    return given


_warned: set[str] = set()


def _warn_once(ignored: list[str]) -> None:
    # A micro-batch constructs its writer anew in the same worker process: once there is enough.
    text = ", ".join(sorted(ignored))
    if ignored and text not in _warned:
        _warned.add(text)
        log.warning("ignored, since there are no Kafka clients here: %s", text)


def _path(given: Mapping[str, str], options: Mapping[str, str]) -> str:
    path = given.get("path", "")
    if path:
        return path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")
    instead = ""
    if any(name.lower() == "kafka.bootstrap.servers" for name in options):
        instead = " instead of kafka.bootstrap.servers"
    raise InvalidArgument(f'no store is named: write .option("path", "/data/jjq"){instead}, the directory of the store')


def _topics(given: Mapping[str, str]) -> tuple[str, ...]:
    named = [name for name in ("subscribe", "topic") if given.get(name)]
    if len(named) == 2:
        raise InvalidArgument("subscribe and topic say the same thing; give one of them")
    if not named:
        raise InvalidArgument('no topic is named: write .option("subscribe", "flights"), or "a,b" for several')
    topics = _names(given, named[0])
    assert topics is not None
    return topics


def _names(given: Mapping[str, str], option: str) -> tuple[str, ...] | None:
    text = given.get(option.lower())
    if text is None:
        return None
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise InvalidArgument(f"{option} is a list of names separated by commas, without empty ones, not {text!r}")
    if len(set(names)) != len(names):
        raise InvalidArgument(f"{option} names something twice: {text!r}")
    return names


def _metadata(given: Mapping[str, str]) -> tuple[str, ...]:
    names = _names(given, "metadata") if given.get("metadata") else ()
    for name in names or ():
        if name not in METADATA_COLUMNS:
            raise InvalidArgument(f"{name!r} is no metadata column; {nearest(name, METADATA_COLUMNS)}")
    return names or ()


def _bool(given: Mapping[str, str], option: str, default: bool) -> bool:
    text = given.get(option.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidArgument(f"{option} is true or false, not {text!r}")
    return text.lower() == "true"


def _one_of(given: Mapping[str, str], option: str, choices: tuple[str, ...], default: str) -> str:
    text = given.get(option.lower(), default).lower()
    if text not in choices:
        raise InvalidArgument(f"{option} is {' or '.join(choices)}, not {text!r}")
    return text


def _positive(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= LONG_MAX):
        raise InvalidArgument(f"{option} is a whole number from 1 to {LONG_MAX}, not {text!r}")
    return int(text)


def _bound(given: Mapping[str, str], side: str, topics: tuple[str, ...]) -> Bound | None:
    """Kafka's precedence: one time for all, then times by partition, then offsets."""
    one, many, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if (text := given.get(one.lower())) is not None:
        _instant_us(text, one)
        return Instant(text)
    if (text := given.get(many.lower())) is not None:
        return _times_by_topic(text, many, topics)
    if (text := given.get(offsets.lower())) is not None:
        return parse_offsets(text, offsets, topics)
    return None


def parse_offsets(text: str, option: str, topics: tuple[str, ...]) -> Edge | ByTopic:
    """`earliest`, `latest`, or JSON such as `{"t":{"0":23,"1":-1}}` or `{"t":"earliest"}`.

    Whether every partition is named can only be told where the topic is known, so that is checked later.
    """
    edge = _edge(text)
    if edge is not None:
        if side_forbids(option, edge):
            raise InvalidArgument(
                f"{option} cannot be earliest: nothing would be read; leave it out to read to the end"
            )
        return edge
    example = '{"flights":{"0":23,"1":-1}}'
    by_topic: dict[str, Edge | Mapping[int, int]] = {}
    for topic, inside in _json_object(text, option, f"earliest, latest or JSON such as {example}").items():
        if isinstance(inside, str) and (edge := _edge(inside)) is not None:
            by_topic[topic] = edge
        elif isinstance(inside, dict):
            by_topic[topic] = {
                _partition(partition, option): _offset(offset, option, topic) for partition, offset in inside.items()
            }
        else:
            raise InvalidArgument(f"{option}: topic {topic!r} has {json.dumps(inside)}; write it as in {example}")
        if option.startswith("ending") and _asks_earliest(by_topic[topic]):
            raise InvalidArgument(
                f"{option} cannot be earliest (-2) for topic {topic!r}: an end is an offset or latest"
            )
    _check_topics(by_topic, option, topics)
    return ByTopic(by_topic)


def side_forbids(option: str, edge: Edge) -> bool:
    return option.startswith("ending") and edge == EARLIEST


def _asks_earliest(inside: Edge | Mapping[int, int]) -> bool:
    return inside == EARLIEST if isinstance(inside, Edge) else -2 in inside.values()


def _times_by_topic(text: str, option: str, topics: tuple[str, ...]) -> TimesByTopic:
    example = '{"flights":{"0":1357034400000}}'
    by_topic: dict[str, Mapping[int, int]] = {}
    for topic, inside in _json_object(text, option, f"JSON such as {example}").items():
        if not isinstance(inside, dict):
            raise InvalidArgument(f"{option}: topic {topic!r} has {json.dumps(inside)}; write it as in {example}")
        by_topic[topic] = {
            _partition(partition, option): _instant_us(_whole(ms, option, example), option)
            for partition, ms in inside.items()
        }
    _check_topics(by_topic, option, topics)
    return TimesByTopic(by_topic)


def _whole(ms: object, option: str, example: str) -> str:
    if isinstance(ms, bool) or not isinstance(ms, int):
        raise InvalidArgument(f"{option} takes epoch milliseconds as numbers, as in {example}, not {json.dumps(ms)}")
    return str(ms)


def _check_topics(by_topic: Mapping[str, object], option: str, topics: tuple[str, ...]) -> None:
    for topic in by_topic:
        if topic not in topics:
            raise InvalidArgument(f"{option} names topic {topic!r}, which is not read; {nearest(topic, topics)}")
    missing = [topic for topic in topics if topic not in by_topic]
    if missing:
        raise InvalidArgument(f"{option} must name every topic that is read; missing: {', '.join(missing)}")


def _edge(text: str) -> Edge | None:
    word = text.strip().lower()
    return Edge(word) if word in ("earliest", "latest") else None


def _json_object(text: str, option: str, wanted: str) -> dict[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_no_repeats)
    except ValueError as error:
        raise InvalidArgument(f"{option} is {wanted}, not {text!r} ({error})") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"{option} is {wanted}, not {text!r}")
    return value


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name stands there twice")
    return value


def _partition(text: str, option: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidArgument(f"{option}: a partition is a number from 0, written as text, not {text!r}")
    return int(text)


def _offset(value: object, option: str, topic: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -2 <= value <= LONG_MAX:
        raise InvalidArgument(
            f"{option}: an offset of topic {topic!r} is a whole number from 0, -1 for latest or -2 for earliest, "
            f"not {json.dumps(value)}"
        )
    return value


# Milliseconds below this lie before March 1973 and above it after the year 5138: seconds or microseconds were meant.
_MS_LOW, _MS_HIGH = 10**11, 10**14


def _instant_us(text: str, option: str) -> int:
    """Microseconds since the epoch of epoch milliseconds, ISO-8601 with a zone, or a time relative to now."""
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        ms = int(text)
        if 0 < ms < _MS_LOW or ms >= _MS_HIGH or ms < 0:
            unit = "seconds" if 0 < ms < _MS_LOW else "microseconds or nanoseconds"
            hint = f" ({unit} were meant?)" if ms > 0 else ""
            raise InvalidArgument(
                f"{option} {text} is not plausible as milliseconds since 1970{hint}; "
                "write milliseconds, or ISO-8601 with a zone such as 2013-01-01T10:00:00Z"
            )
        return ms * 1000
    us = clock.parse_instant(text)
    if us is None:
        raise InvalidArgument(
            f"{option} is milliseconds since 1970, ISO-8601 with a zone such as 2013-01-01T10:00:00Z, "
            f"or relative such as '-10 minutes', not {text!r}"
        )
    return us
