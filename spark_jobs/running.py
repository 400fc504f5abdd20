"""What the jobs share: their flags, what is checked before Spark is started, and running a query to its end."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import jjq
from jjq.clock import parse_instant
from jjq.errors import InvalidArgument, JjqError
from jjq.hints import did_you_mean
from jjq.model import check_name
from jjq.values import counted

FOLLOW_SECONDS = 1.0
NO_WATERMARK = (
    "1970-01-01T00:00:00.000Z"  # what Spark says of a first micro-batch: the watermark comes of the one before
)
OWNER = "jjq-job"  # in a checkpoint: which job it is of
MESSAGE_LINES = 4  # of an error of Spark's; what follows are plans
REFUSED, FAILED, INTERRUPTED = 2, 1, 130  # exit codes; 2 is also argparse's


_FLAG = re.compile(r"(--[a-z]+)")


class Refused(Exception):
    """The job cannot do what its flags ask for; the message says what to write instead."""


class Parser(argparse.ArgumentParser):
    """Errors in two lines: what is wrong, and where the help is. A flag that is not there is told before one that is lacking."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if message.startswith(("the following arguments are required", "unrecognized arguments")):
            message = "; ".join(map(self._unknown, self._strange())) or message
        if message.endswith("expected one argument") and (flag := _FLAG.search(message)):
            message += f"; what begins with a - is written behind a =, as in {flag[1]}=-1h"
        message = message.replace("required: --store", "required: --store (or JJQ_STORE in the environment)")
        self.exit(REFUSED, f"{self.prog}: {message}\nsee {self.prog} --help\n")

    def _strange(self) -> list[str]:
        """The flags that were given and are none, nor the beginning of one."""
        flags = [each.partition("=")[0] for each in self._given if each.startswith("--") and each != "--"]
        return [each for each in flags if not any(known.startswith(each) for known in self._option_string_actions)]

    def _unknown(self, flag: str) -> str:
        hint = did_you_mean(flag, self._option_string_actions)
        return f"there is no flag {flag}{hint and f'; {hint}'}"


def described(name: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the job's docstring, as it is written."""
    return Parser(prog=name, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_store(parser: argparse.ArgumentParser) -> None:
    """The flag of every job."""
    store = os.environ.get("JJQ_STORE") or None  # an empty one is as good as none, and no name of a directory
    parser.add_argument(
        "--store", type=absolute, default=store, required=store is None, metavar="DIR",
        help="store directory with the topics (default: $JJQ_STORE)",
    )  # fmt: skip


def add_query(parser: argparse.ArgumentParser) -> None:
    """The flags of a job that is a stream."""
    parser.add_argument(
        "--checkpoint", required=True, metavar="DIR",
        help="directory of the query's checkpoint: this query's alone, kept as long as it is to go on where it was",
    )  # fmt: skip
    parser.add_argument(
        "--follow", nargs="?", type=seconds, const=FOLLOW_SECONDS, metavar="SECONDS",
        help="go on with what comes, with a micro-batch every SECONDS (default: %(const)s), until stopped; without it "
        "the job takes what is there and ends",
    )  # fmt: skip


def add_rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=positive, metavar="N", help="at most so many records a micro-batch")


def add_reading(parser: argparse.ArgumentParser) -> None:
    """The flags of a stream that reads a topic."""
    add_rows(parser)
    parser.add_argument(
        "--skip-lost", action="store_true",
        help="go on where records are gone before they were read, as retention took them or the topic was made again; "
        "without it the job stops and says which",
    )  # fmt: skip


def absolute(text: str) -> Path:
    """A path that is the same for Spark's workers, which may run in another directory."""
    path = local(text)
    if not text or path is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no directory or file of this machine")
    return path.resolve()


def place(text: str) -> str:
    """Where Spark writes: a URI as it is, else an absolute path."""
    return text if local(text) is None else str(absolute(text))


def local(text: str) -> Path | None:
    """The path of this machine that is meant, or None where it is a URI of elsewhere."""
    scheme, colon, path = text.partition(":")
    if colon and scheme == "file":
        return Path("/" + path.lstrip("/")) if path.startswith("/") else Path(path)
    return None if "://" in text else Path(text)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return number


def instant(text: str) -> str:
    """A time as the source's options take it, which are only looked at when Spark runs."""
    try:
        if parse_instant(text) is not None:
            return text
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(error.message) from None
    raise argparse.ArgumentTypeError(f"{text!r} is no time; write 2013-01-01T10:00:00Z, with a zone, or '-10 minutes'")


def topic_name(text: str) -> str:
    try:
        return check_name(text, "topic")
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE; the value may hold more of `=`."""
    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name.strip(), value.strip()


def find_topic(store: Path, name: str, *, with_schema: bool = False) -> jjq.Topic:
    """What is known of a topic that must be there; its store is closed again, so it tells and reads nothing more.

    Raises JjqError where store or topic is missing, Refused where it must have a schema and has none.
    """
    with jjq.open(store, read_only=True) as opened:
        topic = opened.topic(name)
    if with_schema and topic.schema is None:
        raise Refused(f"topic {name!r} has no schema, and this job works on columns: name a topic that has some")
    return topic


def require_values(store: Path, name: str) -> None:
    """Raises Refused where a topic that is there has a schema, so it does not take rows that name their topic."""
    with contextlib.suppress(jjq.TopicNotFound):
        if find_topic(store, name).schema is not None:
            raise Refused(
                f"topic {name!r} has a schema, and this job writes JSON: name another topic, or another --store"
            )


def require_columns(topic: jjq.Topic, **flags: str | None) -> None:
    """Raises Refused where a flag names a column that the topic does not have."""
    names = topic.schema.names if topic.schema is not None else []
    for flag, column in flags.items():
        if column is not None and column not in names:
            raise Refused(f"--{flag}: topic {topic.name!r} has no column {column!r}; it has {', '.join(names)}")


@contextlib.contextmanager
def session(name: str, given: SparkSession | None = None) -> Iterator[SparkSession]:
    """The session that was given, else one of this job's own, which is stopped at the end."""
    if given is not None:
        yield given
        return
    spark = SparkSession.builder.appName(name).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def read_topic(
    spark: SparkSession,
    store: str | Path,
    topic: str,
    columns: Sequence[str] = (),
    rows_per_batch: int | None = None,
    metadata: Sequence[str] = (),
    headers: bool = False,
    skip_lost: bool = False,
) -> DataFrame:
    """The topic as a stream from its beginning (a stream's default is its end), only these columns, so many rows a
    batch; `metadata` adds columns to those of a topic with a schema, `headers` that one to rows without."""
    reader = spark.readStream.format("jjq").option("topic", topic).option("startingOffsets", "earliest")
    reader = reader.option("includeHeaders", "true") if headers else reader
    reader = reader.option("failOnDataLoss", "false") if skip_lost else reader
    if columns:
        reader = reader.option("columns", ",".join(columns))
    if metadata:
        reader = reader.option("metadata", ",".join(metadata))
    if rows_per_batch is not None:
        reader = reader.option("maxOffsetsPerTrigger", rows_per_batch)
    return reader.load(str(store))


def run_query(writer: DataStreamWriter, options: argparse.Namespace, name: str) -> None:
    """Starts the query as --checkpoint and --follow say and follows it to its end. Raises what the query raised."""
    trigger = {"availableNow": True} if options.follow is None else {"processingTime": f"{options.follow} seconds"}
    with jjq.open(options.store, maintenance=False) as store:
        store_id = store.id
    checkpoint = local(options.checkpoint)
    if checkpoint is not None and checkpoint.resolve().is_relative_to(Path(options.store).resolve()):
        raise Refused(f"--checkpoint: {checkpoint} is in the store {options.store}; name a directory beside it")
    with alone(options.checkpoint, name, store_id):
        query = writer.option("checkpointLocation", options.checkpoint).queryName(name).trigger(**trigger).start()
        try:
            batches, rows = follow(query)
        finally:
            query.stop()  # where it was interrupted; the micro-batch at hand is done again by the next run
    print(f"{name}: {counted(rows, 'row')} in {counted(batches, 'micro-batch', 'micro-batches')}", flush=True)


@contextlib.contextmanager
def alone(checkpoint: str, job: str, store: str) -> Iterator[None]:
    """Keeps other runs, other jobs and other stores (by their ids) off this checkpoint, where it is a directory of this machine.

    Spark looks whether a file is there and then renames its own to that name, so two runs may both believe that a
    micro-batch, or the query, is theirs. And it would go on with another job's offsets as if they were its own, past
    all that the other one has read, or that a deleted store had. Raises Refused.
    """
    path = local(checkpoint)
    if path is None:
        yield
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise Refused(f"--checkpoint: {checkpoint} cannot be a directory of this query: {error.strerror}") from None
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"--checkpoint: another run uses {checkpoint} at this moment; wait for its end, or stop it"
            ) from None
        mark = path / OWNER
        owner, of_store, *_ = [*(mark.read_text().splitlines() if mark.exists() else ()), "", ""]
        if owner not in ("", job):
            raise Refused(f"--checkpoint: {checkpoint} is that of {owner}; each query has one of its own")
        if of_store not in ("", store):
            raise Refused(
                f"--checkpoint: {checkpoint} is that of another store, maybe one that was deleted: what was read for that "
                f"would not be read again; name another checkpoint, or remove this one"
            )
        mark.write_text(f"{job}\n{store}\n")
        yield
    finally:
        os.close(held)


def follow(query: StreamingQuery) -> tuple[int, int]:
    """Prints a line a micro-batch until the query ends; returns (batches, rows read). Raises what the query raised."""
    batches = rows = 0
    last = -1  # an idle query reports its last batch again
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(1))
        for batch in query.recentProgress:
            if batch.batchId > last:
                last, batches, rows = batch.batchId, batches + 1, rows + batch.numInputRows
                line = f"  batch {last:3}  {batch.numInputRows:7,} {'row ' if batch.numInputRows == 1 else 'rows'}  {batch.batchDuration / 1000:5.1f} s"
                if batch.eventTime.get("watermark", NO_WATERMARK) > NO_WATERMARK:
                    line += f"  watermark {batch.eventTime['watermark'][:16]}"
                print(line, flush=True)
    return batches, rows


def run(name: str, main: Callable[[], None]) -> int:
    """Calls a job's main; returns its exit code, having said in a few lines why where it is not 0."""
    PySparkLogger.getLogger(
        "SQLQueryContextLogger"
    ).disabled = True  # pages of JSON for an error that is raised as well
    try:
        main()
    except KeyboardInterrupt:
        print(f"{name}: stopped; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    except (Refused, JjqError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return REFUSED
    except PySparkException as error:
        print(f"{name}: {reason(error)}", file=sys.stderr)
        return FAILED
    return 0


def reason(error: PySparkException) -> str:
    """What Spark says, without its plans and stacks: what jjq has refused, where it was that, else the first line of
    each error that led to this one, the last of which tends to be the one that helps."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        causes.append(cause)
        cause = getattr(cause, "_cause", None)  # where Spark keeps what came from the JVM; `__cause__` is empty
    if refusals := re.findall(r"^jjq\.errors\.\w+: (.+)$", str(error), re.MULTILINE):
        return str(refusals[-1]).replace("set the option failOnDataLoss to false", "give --skip-lost")
    if len(causes) > 1:
        causes = causes[1:]  # the first says that the query has failed, and the second why
    return "\n".join(line for each in causes for line in _message(each))


def _message(error: BaseException) -> list[str]:
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    return lines[:MESSAGE_LINES]
