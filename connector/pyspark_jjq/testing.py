"""For tests of jobs that read and write topics: a store that goes when the test ends, streams that are run to their
end, and topics as DataFrames to compare.

    with topics(spark) as t:
        t.push("flights", [{"carrier": "AA", "delay": 40}], schema="carrier string, delay int")
        t.run(late_flights(t.stream("flights")), into="late")
        assert_df_equality(t.frame("late"), expected)
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jjq
from jjq.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@contextlib.contextmanager
def topics(spark: SparkSession, path: str | Path | None = None) -> Iterator[Topics]:
    """A store for one test: in `path`, where it stays, such as pytest's tmp_path; else in a directory that goes with
    the block.

    The executors must see the directory, so this is for `local[*]` and clusters on one machine.
    """
    with contextlib.ExitStack() as held:
        if path is None:
            # The Python workers, which keep what they have opened, may still write while the directory is removed.
            temporary = tempfile.TemporaryDirectory(prefix="jjq-topics-", ignore_cleanup_errors=True)
            path = held.enter_context(temporary)
        store = held.enter_context(jjq.open(Path(path) / "store"))
        yield Topics(spark, store, Path(path) / "checkpoints")


class Topics:
    """What `topics` gives. `store` is the open store, `path` its directory as Spark's options take it."""

    def __init__(self, spark: SparkSession, store: jjq.Store, checkpoints: Path) -> None:
        self.spark = spark
        self.store = store
        self.path = str(store.path)
        self._checkpoints = checkpoints

    def push(
        self,
        topic: str,
        rows: Sequence[Mapping[str, Any]] | Sequence[bytes],
        *,
        schema: str | None = None,
        **settings: Any,
    ) -> None:
        """Pushes rows in their order, without a key; the topic is made if it is missing.

        With a schema, written as Spark writes it ("carrier string, delay int"), the topic has these columns; without
        one its records are bytes. It is needed once for each topic; another one, or other `settings` (those of `create_topic`),
        than the topic has are refused.
        """
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        from pyspark_jjq.columns import plain
        from pyspark_jjq.stores import find_topic

        columns = None
        if schema is not None:
            columns = plain(to_arrow_schema(cast("StructType", StructType.fromDDL(schema)), timezone="UTC"))
        found = find_topic(self.store, topic)
        if found is None and columns is None and any(isinstance(row, Mapping) for row in rows):
            raise InvalidArgument(
                f"topic {topic!r} is made by this push, and these rows have columns: give their schema="
            )
        if found is None or columns is not None or settings:  # refused where the topic is there and has others
            found = self.store.create_topic(topic, schema=columns, exist_ok=True, **settings)
        found.push_many(list(rows))

    def stream(self, topic: str, **options: Any) -> DataFrame:
        """A topic as a stream, from its earliest record on unless the options say otherwise."""
        reader = self.spark.readStream.format("jjq").options(
            **{"topic": topic, "startingOffsets": "earliest"} | options
        )
        return reader.load(self.path)

    def frame(self, topic: str, **options: Any) -> DataFrame:
        """What a topic holds now. Two calls see two states; one frame keeps what it saw at its first use."""
        return self.spark.read.format("jjq").options(topic=topic, **options).load(self.path)

    def run(
        self, query: DataFrame | DataStreamWriter, *, into: str | None = None, name: str | None = None, **options: Any
    ) -> StreamingQuery:
        """Runs a query over all that is there, to its end, and returns it; raises what it fails with.

        A streaming DataFrame is written into the topic `into`, with `options` of the sink; what has a sink of its own,
        such as `frame.writeStream.foreachBatch(…)`, goes there. `name` is that of the checkpoint, by default `into`: the
        next run under the same name goes on where this one ended.
        """
        name = name or into
        if name is None:
            raise InvalidArgument(
                "say into which topic, or for a query with a sink of its own the name of its checkpoint"
            )
        given: Any = query
        writer = given if hasattr(given, "foreachBatch") else given.writeStream
        if into is not None:
            writer = writer.format("jjq").options(path=self.path, topic=into, **options)
        elif options:
            raise InvalidArgument(
                f"options {', '.join(options)} are for a query without a sink; give them to the writer"
            )
        running: StreamingQuery = (
            writer.option("checkpointLocation", str(self._checkpoints / name)).trigger(availableNow=True).start()
        )
        running.awaitTermination()
        return running

    def repeat_last_batch(self, name: str) -> None:
        """The next run under this name begins with the last micro-batch of the one before, as if the driver had died
        after that was written and before Spark noted it. A job that is exactly once gives the same as without.

        Raises InvalidArgument where no micro-batch was finished.
        """
        commits = self._checkpoints / name / "commits"
        done = [int(file.name) for file in commits.glob("*") if file.name.isdigit()]
        if not done:
            raise InvalidArgument(f"no query named {name!r} has finished a micro-batch")
        for file in (commits / str(max(done)), commits / f".{max(done)}.crc"):
            file.unlink(missing_ok=True)
