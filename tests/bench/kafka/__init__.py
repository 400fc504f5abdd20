"""Beside Kafka: its broker and Spark's connector for it, fetched as published artifacts, over the same rows.

The connector belongs to one version of Spark, which need not be the one that is installed. So these run in a process of
their own (`__main__`), both sides on the connector's Spark, with a broker that lives as long as that process. Where
the artifacts cannot be had, a benchmark is skipped with the reason. Two need no Kafka: they compare a part with the whole.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.bench.kafka.artifacts import Artifacts, Missing, fetch
from tests.bench.kafka.parts import part
from tests.bench.kafka.planning import planning
from tests.bench.run import Run
from tests.bench.table import Row

ROOT = Path(__file__).resolve().parents[3]
# The name, and what a row says where there is none.
MEASURED = {
    "kafka-source": "Spark reads of a topic",
    "kafka-schema": "Spark read of a topic with a schema",
    "kafka-sink": "Spark stream write, exactly once",
    "kafka-latency": "push to seen by a running query",
}


def environment(found: Artifacts) -> dict[str, str]:
    """The variables with which a process and its Spark's workers get the connector, its Spark, and this repository."""
    jars = os.pathsep.join(str(jar) for jar in sorted(found.connector.glob("*.jar")))
    paths = [*([str(found.spark)] if found.spark else []), str(ROOT)]
    left_out = ("SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "PYTHONPATH")
    return {
        **{name: value for name, value in os.environ.items() if name not in left_out},
        "PYTHONPATH": os.pathsep.join(paths),
        # By the class path that the JVM starts with: py4j does not find classes of jars that are added later.
        "PYSPARK_SUBMIT_ARGS": f"--driver-class-path {jars} pyspark-shell",
    }


def _apart(name: str) -> Callable[[Run], list[Row]]:
    """The benchmark of that name in a process of its own."""

    def benchmark(run: Run) -> list[Row]:
        try:
            found = fetch(run.cache)
        except Missing as why:
            return [Row(MEASURED[name], "Kafka, Spark's connector for it", "/s", skipped=str(why))]
        with run.place() as place:
            result = place / "rows"
            command = [sys.executable, "-m", "tests.bench.kafka", name, str(place), str(found.server), str(result)]
            if run.quick:
                command.append("--quick")
            subprocess.run(command, check=True, cwd=ROOT, env=environment(found))
            rows: list[Row] = pickle.loads(result.read_bytes())
            return rows

    return benchmark


BENCHMARKS = {name: _apart(name) for name in MEASURED} | {"kafka-part": part, "kafka-planning": planning}
