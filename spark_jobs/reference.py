"""What `delays.py` must come to, computed by plain pandas from the CSV files: no Spark, no jjq, no code shared."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pandas as pd

LATE_MINUTES = 15
WEATHER = ["temp", "wind_speed", "wind_gust", "precip", "visib"]


def hourly_delays(flights_csv: Path, weather_csv: Path, until: datetime | None = None) -> pd.DataFrame:
    """One row an airport and scheduled hour, ordered by (hour, origin); only hours before `until` (aware).

    Columns: hour (UTC), origin, flights, cancelled, late, delay_minutes (sum over those that left, 0 when none did),
    max_delay and mean_delay in minutes, share_late of those that left, and the weather of that hour, missing where
    the station has none.
    """
    flights = _read(flights_csv, ["time_hour", "origin", "dep_delay"], until)
    weather = _read(weather_csv, ["time_hour", "origin", *WEATHER], until)

    flights["left"] = flights["dep_delay"].notna()
    flights["late"] = flights["dep_delay"] > LATE_MINUTES
    result = (
        flights.groupby(["time_hour", "origin"])
        .agg(
            flights=("left", "size"),
            departed=("left", "sum"),
            late=("late", "sum"),
            delay_minutes=("dep_delay", "sum"),
            max_delay=("dep_delay", "max"),
        )
        .reset_index()
    )
    result.insert(3, "cancelled", result["flights"] - result["departed"])
    # 0/0 is NaN in pandas: an hour in which nobody left has no mean.
    result["mean_delay"] = result["delay_minutes"] / result["departed"]
    result["share_late"] = result["late"] / result["departed"]
    result = result.drop(columns="departed").merge(weather, on=["time_hour", "origin"], how="left", validate="1:1")
    return result.rename(columns={"time_hour": "hour"}).sort_values(["hour", "origin"], ignore_index=True)


def _read(path: Path, columns: list[str], until: datetime | None) -> pd.DataFrame:
    # Only NA is missing, and numbers to the last bit: pandas' default parser may be off by one.
    frame = pd.read_csv(path, usecols=columns, na_values=["NA"], keep_default_na=False, float_precision="round_trip")
    frame["time_hour"] = pd.to_datetime(frame["time_hour"], utc=True).astype("datetime64[us, UTC]")
    return frame if until is None else frame[frame["time_hour"] < until].copy()
