"""The picture at the end of the demo: what wind and fog do to departures."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot, which would look for a screen

WIND_MPH = [0.0, 5, 10, 15, 20, 25, 30, 100]
VISIBILITY_MILES = [0.0, 0.5, 1, 2, 4, 6, 9, 10.1]  # 10 is the most that is reported
DELAY, CANCELLED, GREY = "#b5341f", "#5b7c99", "#555555"


def draw(delays: pd.DataFrame, path: Path) -> None:
    """Writes a PNG of the topic `delays`: mean delay and share of flights cancelled, by wind and by visibility."""
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    axes = figure.subplots(2, 2, sharex="col", sharey="row")
    for column, measure, edges, label in (
        (0, "wind_speed", WIND_MPH, "wind, miles an hour"),
        (1, "visib", VISIBILITY_MILES, "visibility, miles"),
    ):
        binned = _by_weather(delays, measure, edges)
        _bars(axes[0, column], binned["mean_delay"], DELAY)
        _bars(axes[1, column], binned["percent_cancelled"], CANCELLED)
        axes[1, column].set_xticks(range(len(binned)), binned.index)
        axes[1, column].set_xlabel(f"{label}, and how many flights left or should have", color=GREY)
    axes[0, 0].set_ylabel("mean departure delay, minutes", color=GREY)
    axes[1, 0].set_ylabel("cancelled, percent", color=GREY)
    first, last = (hour.tz_convert("America/New_York") for hour in (delays["hour"].min(), delays["hour"].max()))
    figure.suptitle(
        f"Departures from EWR, JFK and LGA from {first:%Y-%m-%d} to {last:%Y-%m-%d}: "
        f"{delays['flights'].sum():,} flights in {len(delays):,} airport hours"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _by_weather(delays: pd.DataFrame, measure: str, edges: list[float]) -> pd.DataFrame:
    """Each flight counts once, so a busy hour weighs more than a quiet one. Indexed by labels of the intervals."""
    intervals = pd.cut(delays[measure], edges, right=False)
    sums = delays.groupby(intervals, observed=False)[["flights", "cancelled", "delay_minutes"]].sum()
    names = [f"{low:g}-{high:g}" for low, high in pairwise(edges)]
    names[-1] = f"{edges[-2]:g} or more"
    return pd.DataFrame(
        {
            "mean_delay": sums["delay_minutes"] / (sums["flights"] - sums["cancelled"]),
            "percent_cancelled": 100 * sums["cancelled"] / sums["flights"],
        }
    ).set_axis([f"{name}\n{flights:,}" for name, flights in zip(names, sums["flights"], strict=True)])


def _bars(axes: Axes, values: pd.Series, color: str) -> None:
    bars = axes.bar(range(len(values)), values.fillna(0), color=color, width=0.7)
    axes.bar_label(bars, [f"{value:.1f}" for value in values], color=GREY, fontsize=9, padding=2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=GREY)
    axes.margins(y=0.12)
