"""The demo's input and its reference, on cases worked out by hand; none of it starts Spark."""

import subprocess
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_jobs import demo, nyc2013, picture, reference

FLIGHTS_HEADER = ",".join(nyc2013.FLIGHT_CSV.names)
WEATHER_HEADER = ",".join(nyc2013.WEATHER.names)

# 2013-03-10 is the day on which New York's clocks go from 2:00 to 3:00, so 1:59 is 06:59 UTC and 3:00 is 07:00 UTC.
FLIGHTS = f"""{FLIGHTS_HEADER}
2013,3,10,310,305,5,600,610,-10,UA,1,N1,EWR,ORD,110,719,3,5,2013-03-10T07:00:00Z
2013,3,10,158,159,-1,500,510,-10,B6,2,N2,JFK,BQN,180,1576,1,59,2013-03-10T06:00:00Z
2013,3,10,331,315,16,600,615,-15,AA,3,NA,EWR,MIA,150,1085,3,15,2013-03-10T07:00:00Z
2013,3,10,NA,330,NA,NA,700,NA,DL,4,N4,EWR,ATL,NA,746,3,30,2013-03-10T07:00:00Z
2013,3,10,NA,305,NA,NA,700,NA,DL,5,N5,LGA,ATL,NA,762,3,5,2013-03-10T07:00:00Z
2013,3,10,414,359,15,700,710,-10,UA,6,N6,EWR,ORD,110,719,3,59,2013-03-10T07:00:00Z
2013,3,10,400,400,0,700,710,-10,UA,7,N7,EWR,ORD,110,719,4,0,2013-03-10T08:00:00Z
"""
WEATHER = f"""{WEATHER_HEADER}
LGA,2013,3,10,3,39.92,26.06,57.33,NA,NA,NA,0.01,1012,2.5,2013-03-10T07:00:00Z
EWR,2013,3,10,3,39.02,26.06,59.37,270,10.357019999999999,NA,0,NA,10,2013-03-10T07:00:00Z
EWR,2013,3,10,1,39.02,26.06,59.37,270,12.65858,20.1,0,NA,10,2013-03-10T06:00:00Z
"""
SEVEN = datetime(2013, 3, 10, 7, tzinfo=UTC)


@pytest.fixture
def sources(tmp_path: Path) -> nyc2013.Sources:
    flights, weather = tmp_path / "flights.csv.zip", tmp_path / "weather.csv"
    with zipfile.ZipFile(flights, "w") as archive:
        archive.writestr("flights.csv", FLIGHTS)
    weather.write_text(WEATHER)
    return nyc2013.Sources(flights, weather)


def rows(frame: pd.DataFrame) -> list[tuple[object, ...]]:
    return [tuple(None if pd.isna(value) else value for value in row) for row in frame.itertuples(index=False)]


def test_each_airport_and_hour_has_one_row_with_its_weather(sources: nyc2013.Sources) -> None:
    assert rows(reference.hourly_delays(sources.flights, sources.weather)) == [
        # Two of four were on time (15 minutes is not late), one was late, one was cancelled; no gust was measured.
        (SEVEN - timedelta(hours=1), "JFK", 1, 0, 0, -1, -1, -1.0, 0.0, None, None, None, None, None),
        (SEVEN, "EWR", 4, 1, 1, 36, 16, 12.0, 1 / 3, 39.02, 10.357019999999999, None, 0.0, 10.0),
        # Nobody left, so there is no mean; the weather is there, its wind is not.
        (SEVEN, "LGA", 1, 1, 0, 0, None, None, None, 39.92, None, None, 0.01, 2.5),
        # At 4:00 a new hour begins; there is no weather for it.
        (SEVEN + timedelta(hours=1), "EWR", 1, 0, 0, 0, 0, 0.0, 0.0, None, None, None, None, None),
    ]


def test_a_slice_of_the_reference_ends_before_the_hour_it_names(sources: nyc2013.Sources) -> None:
    assert rows(reference.hourly_delays(sources.flights, sources.weather, until=SEVEN)) == [
        (SEVEN - timedelta(hours=1), "JFK", 1, 0, 0, -1, -1, -1.0, 0.0, None, None, None, None, None)
    ]


def test_flights_come_in_order_of_schedule_and_the_files_order_where_that_is_equal(sources: nyc2013.Sources) -> None:
    table = nyc2013.read_flights(sources.flights)
    assert table["flight"].to_pylist() == [2, 1, 5, 3, 4, 6, 7]
    assert table["scheduled"].to_pylist()[:3] == [
        SEVEN - timedelta(minutes=1),
        SEVEN + timedelta(minutes=5),
        SEVEN + timedelta(minutes=5),
    ]
    assert nyc2013.read_flights(sources.flights, until=SEVEN + timedelta(minutes=5))["flight"].to_pylist() == [2]


def test_what_is_not_available_is_null_in_numbers_and_in_text(sources: nyc2013.Sources) -> None:
    table = nyc2013.read_flights(sources.flights)
    assert table.schema == nyc2013.FLIGHTS
    assert table["tailnum"].to_pylist() == ["N2", "N1", "N5", None, "N4", "N6", "N7"]
    assert table["dep_delay"].to_pylist() == [-1, 5, None, 16, None, 15, 0]
    weather = nyc2013.read_weather(sources.weather)
    assert weather.schema == nyc2013.WEATHER
    assert weather["origin"].to_pylist() == ["EWR", "LGA", "EWR"]
    assert weather["wind_speed"].to_pylist() == [12.65858, None, 10.357019999999999]


def test_both_topics_end_with_a_record_that_is_later_than_all_of_either(sources: nyc2013.Sources) -> None:
    flights, weather = nyc2013.closed(nyc2013.read_flights(sources.flights), nyc2013.read_weather(sources.weather))
    closes = SEVEN + timedelta(hours=1) + nyc2013.CLOSES_AFTER
    for table, time in ((flights, "scheduled"), (weather, "time_hour")):
        last = table.slice(table.num_rows - 1).to_pylist()[0]
        assert (last["origin"], last[time]) == (nyc2013.CLOSING_ORIGIN, closes)
    assert (flights.num_rows, weather.num_rows) == (8, 4)
    assert (flights.schema, weather.schema) == (nyc2013.FLIGHTS, nyc2013.WEATHER)


def test_the_real_files_are_found_and_are_whole() -> None:
    sources = nyc2013.find_sources()
    flights, weather = nyc2013.read_flights(sources.flights), nyc2013.read_weather(sources.weather)
    assert (flights.num_rows, weather.num_rows) == (336_776, 26_115)
    assert weather.group_by(["origin", "time_hour"]).aggregate([]).num_rows == weather.num_rows
    # The event time is in UTC: on New York's clocks it is the schedule that the CSV gives in local time.
    local = pc.local_timestamp(flights["scheduled"].cast(pa.timestamp("us", "America/New_York")))
    clock = pc.add(pc.multiply(pc.hour(local), 100), pc.minute(local))
    assert pc.all(pc.equal(clock, flights["sched_dep_time"])).as_py()
    assert pc.all(pc.equal(pc.day(local), flights["day"])).as_py()
    assert pc.all(pc.equal(pc.month(local), flights["month"])).as_py()


def test_the_reference_counts_every_flight_of_the_year_once() -> None:
    sources = nyc2013.find_sources()
    frame = reference.hourly_delays(sources.flights, sources.weather)
    assert frame["flights"].sum() == 336_776
    assert frame["cancelled"].sum() == 8_255
    assert len(frame) == 19_486
    assert frame["temp"].isna().sum() == 109  # 108 hours without weather, one with it but without a temperature


def test_the_reference_imports_neither_spark_nor_jjq() -> None:
    program = (
        "import sys, spark_jobs.reference as r\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'pyspark', 'py4j', 'jjq', 'pyspark_jjq'}))"
    )
    root = Path(reference.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_comparison_names_the_rows_that_are_missing_and_those_that_are_surplus() -> None:
    wanted = pa.table({"hour": [1, 2, 3], "mean_delay": [0.5, None, 2.0]})
    demo.require_same(wanted, pa.concat_tables([wanted]), "equal")
    with pytest.raises(demo.Different, match=r"1 surplus\n  \(3, 2\.5\)\n1 missing\n  \(3, 2\.0\)"):
        demo.require_same(pa.table({"hour": [1, 2, 3], "mean_delay": [0.5, None, 2.5]}), wanted, "another value")
    with pytest.raises(demo.Different, match=r"4 rows, 3 expected\n1 surplus\n  \(1, 0\.5\)\n0 missing"):
        demo.require_same(pa.concat_tables([wanted, wanted.slice(0, 1)]), wanted, "a row twice")
    with pytest.raises(demo.Different, match="instead of hour: int64"):
        demo.require_same(wanted.cast(pa.schema([("hour", pa.int32()), ("mean_delay", pa.float64())])), wanted, "types")


def test_the_table_says_in_what_its_numbers_are(sources: nyc2013.Sources, capsys: pytest.CaptureFixture[str]) -> None:
    frame = reference.hourly_delays(sources.flights, sources.weather)
    demo.show_result(pa.Table.from_pandas(frame, preserve_index=False))
    head = capsys.readouterr().out.splitlines()[1]
    for each in ("mean_delay (min)", "share_late (of 1)", "wind_speed (mph)", "visib (miles)", "precip (in)"):
        assert each in head


def test_the_picture_is_drawn_even_where_an_interval_has_no_flight(sources: nyc2013.Sources, tmp_path: Path) -> None:
    path = tmp_path / "made" / "delays.png"
    picture.draw(reference.hourly_delays(sources.flights, sources.weather), path)
    assert path.read_bytes().startswith(b"\x89PNG")
