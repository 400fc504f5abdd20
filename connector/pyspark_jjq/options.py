"""The options of `format("jjq")`, parsed once into values. Nothing here opens a store or calls Spark.

Names and meanings are those of Spark's Kafka source where it has the same thing. Every error says what to write.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from jjq.config import MAX_PARTITIONS
from jjq.errors import InvalidArgument
from jjq.model import check_name
from jjq.values import shown, without_home
from pyspark_jjq.choice import Choice, parse_choice
from pyspark_jjq.edges import Bound, parse_bound
from pyspark_jjq.words import LONG_MAX, names_in, nearest, number

log = logging.getLogger("jjq.spark")

METADATA_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_headers")


@dataclass(frozen=True, slots=True)
class Option:
    """A documented option: its name as people write it, its default as text, and what it means."""

    name: str
    default: str
    meaning: str


BROKER_OPTIONS = (
    Option("broker", "-", "the broker that serves the store, jjq://host:port or jjq+tls://host:port"),
    Option("token", "JJQ_TOKEN", "what a broker with tokens asks for"),
    Option("tlsCa", "JJQ_TLS_CA", "a PEM file with the certificates to trust instead of the system's"),
    Option("tlsCert", "JJQ_CLIENT_CERT", "a PEM file with one's own certificate, where the broker asks for one"),
    Option("tlsKey", "JJQ_CLIENT_KEY", "a PEM file with its key"),
    Option("retryFor", "30s", "how long a call goes on trying to reach a broker that is gone"),
)

SOURCE_OPTIONS = (
    Option("path", "-", "the store's directory; also as .load(path); beside broker where executors may find its files"),
    *BROKER_OPTIONS,
    Option("subscribe", "-", "the topics to read, separated by commas"),
    Option("topic", "-", "the same, short"),
    Option("subscribePattern", "-", "a regular expression: every topic whose whole name matches, later ones included"),
    Option("assign", "-", "JSON of topics and partitions: only these are read"),
    Option("startingOffsets", "stream latest, batch earliest", "earliest, latest, or JSON by topic and partition"),
    Option("startingTimestamp", "-", "epoch milliseconds, ISO-8601 with a zone, or relative such as -10 minutes"),
    Option("startingOffsetsByTimestamp", "-", "JSON of epoch milliseconds by topic and partition"),
    Option("startingOffsetsByTimestampStrategy", "error", "no record at or after the time: error or latest"),
    Option("endingOffsets", "latest", "where a batch or an AvailableNow query ends, exclusive"),
    Option("endingTimestamp", "-", "the same by time: the first record at or after it is not read"),
    Option("endingOffsetsByTimestamp", "-", "JSON of epoch milliseconds by topic and partition"),
    Option("failOnDataLoss", "true", "true: stop when records are gone; false: say so once and go on"),
    Option("maxOffsetsPerTrigger", "-", "rows a micro-batch, shared over the partitions in proportion to what waits"),
    Option("maxBytesPerTrigger", "-", "the same in bytes, as they lie in the files; one record always passes"),
    Option("minOffsetsPerTrigger", "-", "a micro-batch waits until so many rows wait, or maxTriggerDelay is over"),
    Option("maxTriggerDelay", "15m", "how long minOffsetsPerTrigger may keep rows waiting after the last micro-batch"),
    Option("minPartitions", "-", "how many tasks a batch should have at least, for more cores than the driver's"),
    Option("maxRecordsPerPartition", "-", "the most rows that one task reads"),
    Option("pushDownPredicate", "false", "batches: filters decide what is read at all; see docs/spark.md before use"),
    Option("columns", "all", "the only columns to read, separated by commas"),
    Option("metadata", "-", f"for topics with a schema, which of {','.join(METADATA_COLUMNS)} to add"),
    Option("includeHeaders", "false", "adds the headers column"),
    Option("subscriber", "-", "streams: the subscriber that follows what the query has committed, made if missing"),
)

SINK_OPTIONS = (
    Option("path", "-", "the store's directory; also as .save(path) or .start(path)"),
    *BROKER_OPTIONS,
    Option("topic", "-", "the topic to write; beats a topic column"),
    Option("createTopic", "true", "make a missing topic, with the DataFrame's schema"),
    Option("partitions", "1", "how many partitions a topic made by this write has, and one that is there must have"),
    Option("mergeSchema", "false", "add columns to a topic with a schema that the DataFrame has and the topic lacks"),
    Option("keyColumn", "-", "for topics with a schema: the column that is the key and chooses the partition"),
    Option("writerId", "-", "the name under which batches are counted once, across checkpoints"),
    Option("batchId", "-", "batch writes: the number of this batch of writerId"),
)

SHAPE = ("columns", "metadata", "includeHeaders")  # which columns the rows of a read have

# What Spark itself passes along with the user's options, and what Kafka's sink accepts without needing it.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "includeheaders"})
_KAFKAS_OWN = ("kafka.", "kafkaconsumer.", "fetchoffset.", "groupidprefix")


@dataclass(frozen=True, slots=True)
class Access:
    """How a broker is connected to, and where its store's files may be seen. The token shows in no text."""

    token: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    retry_s: float = 30.0
    files: str | None = None


class BrokerUrl(str):  # noqa: SLOT000 - of a str no slot can be had beside its own
    """Where a broker is, in the place of a store's path."""

    access: Access

    def __new__(cls, url: str, access: Access) -> BrokerUrl:
        made = super().__new__(cls, url)
        made.access = access
        return made

    def __reduce__(self) -> tuple[type[BrokerUrl], tuple[str, Access]]:
        return BrokerUrl, (str(self), self.access)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a read was asked for. `starting` and `ending` are None where the default of the mode applies. `ignored` are the
    names of options that only Kafka needs."""

    path: str
    choice: Choice
    starting: Bound | None = None
    starting_without_match: str = "error"
    ending: Bound | None = None
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_s: float = 900.0
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    columns: tuple[str, ...] | None = None
    metadata: tuple[str, ...] = ()
    include_headers: bool = False
    subscriber: str | None = None
    push_down_predicate: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a write was asked for."""

    path: str
    topic: str | None = None
    create_topic: bool = True
    merge_schema: bool = False
    partitions: int | None = None
    key_column: str | None = None
    writer_id: str | None = None
    batch_id: int | None = None
    ignored: tuple[str, ...] = ()


def parse_source(options: Mapping[str, str]) -> SourceOptions:
    """Raises InvalidArgument with what to write instead."""
    given, ignored = _known(options, SOURCE_OPTIONS, SINK_OPTIONS, "read")
    choice = parse_choice(given)
    most, least = _positive(given, "maxOffsetsPerTrigger"), _positive(given, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise InvalidArgument(
            f"minOffsetsPerTrigger {least} is more than maxOffsetsPerTrigger {most}, so no micro-batch could have both; "
            "lower the one or raise the other"
        )
    return SourceOptions(
        path=_path(given, options, reads=True),
        choice=choice,
        starting=parse_bound(given, "starting", choice),
        starting_without_match=_one_of(given, "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"),
        ending=parse_bound(given, "ending", choice),
        fail_on_data_loss=_bool(given, "failOnDataLoss", True),
        max_offsets_per_trigger=most,
        max_bytes_per_trigger=_positive(given, "maxBytesPerTrigger"),
        min_offsets_per_trigger=least,
        max_trigger_delay_s=_seconds(given, "maxTriggerDelay", 900.0),
        min_partitions=_positive(given, "minPartitions"),
        max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
        columns=names_in(given, "columns"),
        metadata=_metadata(given),
        include_headers=_bool(given, "includeHeaders", False),
        push_down_predicate=_bool(given, "pushDownPredicate", False),
        subscriber=check_name(given["subscriber"], "subscriber") if "subscriber" in given else None,
        ignored=ignored,
    )


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """Raises InvalidArgument with what to write instead."""
    given, ignored = _known(options, SINK_OPTIONS, SOURCE_OPTIONS, "write")
    batch_text = given.get("batchid")
    batch_id = None if batch_text is None else number(batch_text)
    if batch_text is not None and batch_id is None:
        raise InvalidArgument(
            f"batchId is a whole number from 0 to {LONG_MAX}, such as the one foreachBatch gives, not {shown(batch_text)}"
        )
    path = _path(given, options, reads=False)
    _check_checkpoint(options, path)
    return SinkOptions(
        path=path,
        topic=given.get("topic"),
        create_topic=_bool(given, "createTopic", True),
        merge_schema=_bool(given, "mergeSchema", False),
        partitions=_positive(given, "partitions", MAX_PARTITIONS),
        key_column=given.get("keycolumn"),
        writer_id=given.get("writerid"),
        batch_id=batch_id,
        ignored=ignored,
    )


def _known(
    options: Mapping[str, str], mine: tuple[Option, ...], others: tuple[Option, ...], deed: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The options that mean something here, by lower-cased name, and the names of those that only Kafka needs."""
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
        elif lowered == "paths":
            raise InvalidArgument(
                "several paths were given, and a read is of one store; read each as a DataFrame of its own, and union them"
            )
        elif lowered not in _SPARKS_OWN:
            names = tuple(each.name for each in mine)
            raise InvalidArgument(f'there is no option {name!r} to {deed} with format("jjq"); {nearest(name, names)}')
    return given, tuple(sorted(ignored))


_warned: set[str] = set()


def tell_ignored(ignored: Sequence[str]) -> None:
    """One warning in a process. Spark parses the options in several, so this is called where it comes by once."""
    text = ", ".join(ignored)
    if ignored and text not in _warned:
        _warned.add(text)
        log.warning("ignored, since there are no Kafka clients here: %s", text)


def _path(given: Mapping[str, str], options: Mapping[str, str], *, reads: bool) -> str:
    """The store's directory, or a BrokerUrl."""
    path, broker = local(given.get("path", "")), given.get("broker", "")
    if broker and path and not reads:
        raise InvalidArgument(
            "path and broker both name a store, and a write goes to one: give the directory, or the broker that serves it"
        )
    if broker:
        return _broker(broker, given, path or None)
    if "broker" in given:
        raise InvalidArgument("broker is empty; write jjq://host:port, or remove it where path names the store")
    for option in BROKER_OPTIONS:
        if option.name.lower() in given:
            raise InvalidArgument(f"{option.name} is for a broker; name it with broker, or remove {option.name}")
    if path:
        return path
    instead = ""
    if any(name.lower() == "kafka.bootstrap.servers" for name in options):
        instead = " instead of kafka.bootstrap.servers"
    raise InvalidArgument(
        f'no store is named: write .option("path", "/data/jjq"){instead}, the directory of the store, or '
        f'.option("broker", "jjq://host:4750"), the broker that serves it'
    )


def _check_checkpoint(options: Mapping[str, str], store: str) -> None:
    """Delta has its checkpoints in its tables. A store would have files in it that it does not know, and could not be made
    where there is one already."""
    checkpoint = next((value for name, value in options.items() if name.lower() == "checkpointlocation"), "")
    place = checkpoint.removeprefix("file://").removeprefix("file:")
    if not place or "://" in place or isinstance(store, BrokerUrl):
        return
    if Path(os.path.realpath(place)).is_relative_to(os.path.realpath(store)):
        raise InvalidArgument(
            f"checkpointLocation {shown(checkpoint)} is in the store {shown(store)}, where only the store's own files belong; "
            "name a directory beside it, and remove this one, which Spark may have made by now"
        )


def local(path: str) -> str:
    """The path that a `file:` URI names. Who writes one may have written %20 for a space, and Spark does not."""
    if not path.startswith("file:"):
        return without_home(path)
    written = path.removeprefix("file:")
    if written.startswith("//"):
        host, _, rest = written[2:].partition("/")
        if host not in ("", "localhost"):
            raise InvalidArgument(
                f"{shown(path)} is on machine {host!r}, and a store is a directory of this one: write /data/jjq, or "
                'file:///data/jjq with three slashes; for another machine name its broker, .option("broker", "jjq://host:4750")'
            )
        written = "/" + rest
    return written if os.path.exists(written) else unquote(written)


def _broker(url: str, given: Mapping[str, str], files: str | None) -> BrokerUrl:
    """What is not given as an option is taken from the environment, under the names that the command line has. It crosses
    to the executors; the files that it names must be there too."""
    if not url.startswith(("jjq://", "jjq+tls://")):
        raise InvalidArgument(f"broker is jjq://host:port or jjq+tls://host:port, not {shown(url)}")
    tls = url.startswith("jjq+tls://")
    said: dict[str, str | None] = {}
    for option in BROKER_OPTIONS:
        text = given.get(option.name.lower())
        if option.name.startswith("tls") and text and not tls:
            raise InvalidArgument(f"{option.name} is for jjq+tls://host:port, not {shown(url)}")
        if not text and option.default.startswith("JJQ_") and (tls or not option.name.startswith("tls")):
            text = os.environ.get(option.default)
        said[option.name] = text or None
    if (said["tlsCert"] is None) != (said["tlsKey"] is None):
        raise InvalidArgument("tlsCert and tlsKey go together: a certificate, and the key of it")
    retry_s = _seconds(given, "retryFor", 30.0)
    return BrokerUrl(url, Access(said["token"], said["tlsCa"], said["tlsCert"], said["tlsKey"], retry_s, files))


def _metadata(given: Mapping[str, str]) -> tuple[str, ...]:
    names = names_in(given, "metadata") if given.get("metadata") else ()
    for name in names or ():
        if name not in METADATA_COLUMNS:
            raise InvalidArgument(f"metadata: {shown(name)} is no metadata column; {nearest(name, METADATA_COLUMNS)}")
    return names or ()


def _bool(given: Mapping[str, str], option: str, default: bool) -> bool:
    text = given.get(option.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidArgument(f"{option} is true or false, not {shown(text)}")
    return text.lower() == "true"


def _one_of(given: Mapping[str, str], option: str, choices: tuple[str, ...], default: str) -> str:
    text = given.get(option.lower(), default).lower()
    if text not in choices:
        raise InvalidArgument(f"{option} is {' or '.join(choices)}, not {shown(text)}")
    return text


def _positive(given: Mapping[str, str], option: str, most: int = LONG_MAX) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return None
    value = number(text)
    if not value or value > most:
        raise InvalidArgument(f"{option} is a whole number from 1 to {most}, not {shown(text)}")
    return value


# Spark's spelling of durations; a bare number is milliseconds, as there.
_UNITS_S = {"": 0.001, "us": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(given: Mapping[str, str], option: str, default: float) -> float:
    text = given.get(option.lower())
    if text is None:
        return default
    found = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", text.lower())
    if found is None or found[2] not in _UNITS_S:
        raise InvalidArgument(f"{option} is a number with us, ms, s, m, h or d, such as 15m or 30s, not {shown(text)}")
    return int(found[1]) * _UNITS_S[found[2]]
