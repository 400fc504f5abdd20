"""The ground that the other Spark tests stand on: Python workers that see this project, and one time zone."""

from collections.abc import Iterator

import pyarrow as pa
from chispa import assert_df_equality
from pyspark.sql import SparkSession


def test_python_workers_import_the_library_and_the_connector(spark: SparkSession) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import jjq
        import pyspark_jjq

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [jjq.__file__, pyspark_jjq.__file__]})

    import jjq
    import pyspark_jjq

    rows = spark.range(1).mapInArrow(where, "file string").collect()
    assert [row.file for row in rows] == [jjq.__file__, pyspark_jjq.__file__]


def test_times_are_utc_and_pandas_frames_go_both_ways(spark: SparkSession) -> None:
    frame = spark.sql("select timestamp'2013-01-01 05:00:00' as hour, 'JFK' as origin, 1.5 as wind")
    pandas_frame = frame.toPandas()
    assert pandas_frame.hour[0].isoformat() == "2013-01-01T05:00:00"
    assert_df_equality(spark.createDataFrame(pandas_frame, frame.schema), frame, ignore_nullable=True)
