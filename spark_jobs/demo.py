"""The whole of jjq on real data: a year of flights and weather through the log and Spark, checked against pandas.

    ./run demo

Pushes the records into two topics, streams them through spark_jobs/delays.py, shows the resulting topic, kills the
same job half-way in a second store, starts it again, and compares all results to the row. Exits with 1 and says what
differs if anything does.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

# Run as a file, it has its own directory on the path and not the one above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pandas as pd
import pyarrow as pa

import jjq
from jjq.errors import JjqError, TopicNotFound
from jjq.values import counted
from spark_jobs import nyc2013, reference
from spark_jobs.picture import draw
from spark_jobs.submit import ROOT, Figures, Job, JobError

PUSH_ROWS = 16_384  # a call: some 3 MB of flights, each synced to disk before the call returns
ROWS_PER_BATCH = {False: 30_000, True: 5_000}  # flights a micro-batch by --fast, for about a dozen of them
FAST_MONTHS = 2
JOB_SECONDS = 600  # longer than that, something hangs
WORST_DEPARTURES = 10  # a single flight that left a day late makes no bad hour

# Columns of the result, and what stands above them: the data is American.
SHOWN = {
    "hour": "hour", "origin": "origin", "flights": "flights", "cancelled": "cancelled", "mean_delay": "mean_delay (min)",
    "share_late": "share_late (of 1)", "wind_speed": "wind_speed (mph)", "visib": "visib (miles)", "precip": "precip (in)",
}  # fmt: skip


class Different(Exception):
    """Two results that must be the same are not, or a store is not whole; the message shows what."""


@dataclass(frozen=True)
class Place:
    """Where one run of the job lives: its store and its checkpoint."""

    store: Path
    checkpoint: Path

    @classmethod
    def under(cls, directory: Path) -> Place:
        return cls(directory / "store", directory / "checkpoint")


def push(place: Place, tables: dict[str, pa.Table], report: Callable[[str, int, int, float], None]) -> None:
    """Makes a topic for each table and pushes its rows in their order; calls report(topic, rows, of, seconds).

    One partition a topic: the order of time then holds over the whole topic, which is what lets the job's watermark be
    hours and not days.
    """
    with jjq.open(place.store) as store:
        for name, table in tables.items():
            topic = store.create_topic(name, schema=table.schema)
            began = time.monotonic()
            for start in range(0, table.num_rows, PUSH_ROWS):
                part = table.slice(start, PUSH_ROWS)
                topic.push_table(part)
                report(name, start + part.num_rows, table.num_rows, time.monotonic() - began)


def result(place: Place) -> pa.Table:
    """The topic `delays`, ordered by hour and airport: the order in it is that of Spark's partitions."""
    with jjq.open(place.store, read_only=True) as store:
        return store.topic("delays").read().read_all().sort_by([("hour", "ascending"), ("origin", "ascending")])


def expected(sources: nyc2013.Sources, until: datetime | None, schema: pa.Schema) -> pa.Table:
    """The reference in the types of the topic; a missing number becomes a null."""
    frame = reference.hourly_delays(sources.flights, sources.weather, until)
    return pa.Table.from_pandas(frame, schema=schema, preserve_index=False)


def require_same(actual: pa.Table, wanted: pa.Table, what: str) -> None:
    """Raises Different unless both have the same rows in the same order, to the bit, rows given twice included."""
    if actual.schema.equals(wanted.schema) and actual.equals(wanted):
        return
    have, want = (Counter(zip(*(c.to_pylist() for c in t.columns), strict=True)) for t in (actual, wanted))
    surplus, missing = have - want, want - have
    lines = [f"{what}: {counted(actual.num_rows, 'row')}, {wanted.num_rows:,} expected"]
    if actual.schema != wanted.schema:
        lines += [f"columns {actual.schema.to_string()}", f"instead of {wanted.schema.to_string()}"]
    for name, rows in (("surplus", surplus), ("missing", missing)):
        lines.append(f"{rows.total():,} {name}")
        lines += [f"  {row}" for row in list(rows)[:5]]
    raise Different("\n".join(lines))


def require_whole(place: Place) -> str:
    """What `jjq verify` says of a store without a problem, in a few words. Raises Different where it has one."""
    with jjq.open(place.store, read_only=True) as store:
        report = store.verify()
        rows = {topic.name: sum(each.end - each.start for each in topic.offsets()) for topic in store.topics()}
    if not report.ok:
        raise Different(str(report))
    by_topic = ", ".join(f"{number:,} in {name}" for name, number in rows.items())
    return f"{counted(report.records, 'record')} ({by_topic}) in {counted(report.segments, 'segment')}, every checksum right"


def run_killed(place: Place, rows_per_batch: int, kill_at_rows: int, log: Path | None = None) -> tuple[int, int, int]:
    """Runs the job and kills it as soon as `delays` has so many rows, which is before the checkpoint counts the batch
    that brought them. Returns (rows in the topic, batches in the log, batches the checkpoint counts)."""
    with jjq.open(place.store, read_only=True) as store:

        def rows() -> int:
            try:
                return sum(offsets.end for offsets in store.topic("delays").offsets())
            except TopicNotFound:
                return 0

        with Job(place.store, place.checkpoint, rows_per_batch, log) as job:
            job.kill_when(lambda: rows() >= kill_at_rows, JOB_SECONDS)
        in_log = max(writer.last_batch for writer in store.writers()) + 1
        return rows(), in_log, len(list((place.checkpoint / "commits").glob("[0-9]*")))


# --- what a person sees -----------------------------------------------------------------------------------------------


def heading(number: int, text: str) -> None:
    print(f"\n{number}  {text}", flush=True)


def show_push(topic: str, rows: int, of: int, seconds: float) -> None:
    """Overwrites its own line on a terminal; elsewhere only the last word."""
    line = f"   {topic:8} {rows:9,} records  {seconds:5.1f} s  {rows / max(seconds, 1e-9):10,.0f} records/s"
    if sys.stdout.isatty():
        print(f"\r{line}", end="\n" if rows == of else "", flush=True)
    elif rows == of:
        print(line, flush=True)


def show_run(figures: Figures, seconds: float) -> None:
    rate = figures.rows / figures.seconds
    print(
        f"   {counted(figures.rows, 'record')} in {counted(figures.batches, 'micro-batch', 'micro-batches')}, {figures.seconds:.1f} s, {rate:,.0f}/s",
        end="",
    )
    print(f"; {seconds:.1f} s with the start of Spark")


def show_table(title: str, frame: pd.DataFrame) -> None:
    shown = frame[list(SHOWN)].rename(columns=SHOWN)
    text = shown.to_string(index=False, header=True, na_rep="-", float_format="{:.2f}".format)
    print(f"   {title}")
    print("\n".join(f"     {line}" for line in text.splitlines()))


def show_result(table: pa.Table) -> pd.DataFrame:
    frame = table.to_pandas()
    local = frame.assign(hour=frame["hour"].dt.tz_convert("America/New_York").dt.strftime("%a %d %b %H:%M"))
    busy = local[local["flights"] - local["cancelled"] >= WORST_DEPARTURES]
    show_table("first and last hours, New York's time", pd.concat([local.head(3), local.tail(3)]))
    print()
    show_table(
        f"the ten worst hours of those with {WORST_DEPARTURES} departures or more",
        busy.nlargest(10, "mean_delay"),
    )
    return frame


def demo(directory: Path, fast: bool, picture: Path) -> None:
    sources = nyc2013.find_sources()
    until = nyc2013.month_start(1 + FAST_MONTHS) if fast else None
    per_batch = ROWS_PER_BATCH[fast]
    first, second = (Place.under(directory / name) for name in ("first", "second"))

    print(
        "Some minutes, most of them for Spark: it is started three times, and says nothing until its first micro-batch is done."
    )
    period = f"the first {FAST_MONTHS} months of 2013" if fast else "2013"
    heading(1, f"Push: every flight and hour of weather of New York's airports in {period}, in order of time")
    flights, weather = nyc2013.closed(
        nyc2013.read_flights(sources.flights, until), nyc2013.read_weather(sources.weather, until)
    )
    tables = {"flights": flights, "weather": weather}
    push(first, tables, show_push)

    heading(2, "spark-submit spark_jobs/delays.py: both topics as streams, joined by hour, into the topic delays")
    began = time.monotonic()
    with Job(first.store, first.checkpoint, per_batch) as job:
        figures = job.wait(JOB_SECONDS)
    show_run(figures, time.monotonic() - began)

    heading(3, "The topic delays, computed once for each airport and hour")
    delays = result(first)
    frame = show_result(delays)
    draw(frame, picture)
    print(f"\n   {counted(delays.num_rows, 'row')}; delay against wind and visibility: {picture}")

    heading(4, "The same in a second store, killed half-way and started again")
    push(second, tables, lambda *_: None)
    rows, in_log, in_checkpoint = run_killed(second, per_batch, delays.num_rows // 2)
    print(
        f"   SIGKILL with {counted(rows, 'row')} in delays: {counted(in_log, 'micro-batch', 'micro-batches')} in the log, {in_checkpoint} in the checkpoint"
    )
    print("   the same command again, which begins with the first batch that the checkpoint does not count", flush=True)
    with Job(second.store, second.checkpoint, per_batch) as job:
        job.wait(JOB_SECONDS)
    require_same(result(second), delays, "the job killed and started again")
    print(f"   the same {counted(delays.num_rows, 'row')}; the store is whole: {require_whole(second)}")

    heading(5, "Plain pandas, from the CSV files")
    began = time.monotonic()
    require_same(delays, expected(sources, until, delays.schema), "Spark's result against pandas'")
    print(f"   the same {counted(delays.num_rows, 'row')}, {time.monotonic() - began:.1f} s")


@contextlib.contextmanager
def working_directory(wanted: Path | None, keep: bool) -> Iterator[Path]:
    """The directory to work in: the one that was named, which must be new or empty, or a temporary one, removed at the
    end unless it is to be kept."""
    if wanted is None:
        directory = Path(tempfile.mkdtemp(prefix="jjq-demo-"))
    else:
        directory = wanted.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise FileExistsError(f"{directory} is not empty; name a new directory with --store")
    try:
        yield directory
    finally:
        if wanted is None and not keep:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            jjq_command = Path(sys.executable).with_name("jjq")  # ./run demo leaves no shell behind that finds it
            print(f"\nStores and checkpoints are in {directory}; try:")
            print(f"{jjq_command} --store {directory}/first/store topic list")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./run demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", type=Path, metavar="DIR", help="work in this new directory and leave all there")
    parser.add_argument("--keep", action="store_true", help="leave the temporary directory that stands in for --store")
    parser.add_argument("--fast", action="store_true", help=f"only the first {FAST_MONTHS} months of the year")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", default=ROOT / "demo-output" / "delays.png", help="where to draw it"
    )
    options = parser.parse_args()
    began = time.monotonic()
    try:
        with working_directory(options.store, options.keep) as directory:
            demo(directory, options.fast, options.picture.resolve())
            print(f"\nAll three results are the same to the row. {time.monotonic() - began:.0f} s in all.")
            left = "" if options.keep or options.store else "; the stores are removed, --keep leaves them to look at"
            print(f"The picture is {options.picture.resolve()}{left}.")
    except Different as error:
        print(f"\nNot as it must be.\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    except (JobError, OSError, JjqError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
