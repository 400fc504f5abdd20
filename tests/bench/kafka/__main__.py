"""One of the benchmarks beside Kafka, in a process that has the connector and its Spark.

`python -m tests.bench.kafka NAME DIRECTORY JARS RESULT [--quick]`: the rows go to RESULT, pickled.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

from tests.bench.kafka import latency, throughput
from tests.bench.kafka.broker import Kafka, broker
from tests.bench.run import Run
from tests.bench.spark_session import session
from tests.bench.table import Row

MEASUREMENTS: dict[str, Callable[[Run, Kafka], list[Row]]] = {
    "kafka-source": throughput.source,
    "kafka-schema": throughput.with_schema,
    "kafka-sink": throughput.sink,
    "kafka-latency": latency.seen,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=MEASUREMENTS)
    parser.add_argument("directory", type=Path)
    parser.add_argument("jars", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    run = Run(given.directory, quick=given.quick)
    with run.place() as place, broker(place, given.jars) as address:
        spark = session()
        print(f"{given.name}: Spark {spark.version}, Kafka at {address}", file=sys.stderr)
        rows = MEASUREMENTS[given.name](run, Kafka(spark, address))
        spark.stop()
    given.result.write_bytes(pickle.dumps(rows))


if __name__ == "__main__":
    main()
