"""The other ways to run Spark than a session in this process: a cluster with executors, Spark Connect, pipelines.

Each is a program of its own, as there is one Spark in a process.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jjq
from tests.stores import assert_whole

HERE = Path(__file__).parent
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
CONNECT = ("grpc", "grpc_status", "zstandard")
with_connect = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in CONNECT),
    reason="needs Spark Connect: pip install 'pyspark[connect]'",
)
with_pipelines = pytest.mark.skipif(
    importlib.util.find_spec("yaml") is None, reason="needs Spark's pipelines: pip install 'pyspark[pipelines]'"
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[jjq.Store]:
    with jjq.open(tmp_path / "store") as opened:
        flights = opened.create_topic("flights", schema=pa.schema([("carrier", pa.string()), ("delay", pa.int32())]))
        flights.push_many([{"carrier": "AA", "delay": 4}, {"carrier": "UA", "delay": 31}])
        yield opened
        assert_whole(opened)


def run(*command: str | Path, where: Path, **environment: str) -> str:
    """What the program prints; its errors where it fails."""
    settings = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": ""} | environment
    arguments = [str(each) for each in command]
    done = subprocess.run(arguments, cwd=where, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def last_line(printed: str) -> Any:
    return json.loads(printed.strip().splitlines()[-1])


def rows(store: jjq.Store, topic: str) -> list[dict[str, Any]]:
    found = store.topic(topic).read(metadata=[]).read_all().to_pylist()
    return sorted(found, key=str)


def test_spark_submit_to_a_cluster_of_two_executors(store: jjq.Store, spark_home: Path, tmp_path: Path) -> None:
    store.create_topic("in", partitions=2).push_many([b"%03d" % i for i in range(400)])
    confs = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],  # which is the driver's alone
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.locality.wait": "0s",
    }
    printed = run(
        spark_home / "bin" / "spark-submit",
        "--master",
        "local-cluster[2,1,1024]",
        *(part for name, value in confs.items() for part in ("--conf", f"{name}={value}")),
        HERE / "cluster_job.py",
        store.path,
        tmp_path / "checkpoint",
        where=tmp_path,
    )
    told = last_line(printed)
    assert told["master"] == "local-cluster[2,1,1024]"
    assert told["executors"] == 2
    assert rows(store, "out") == [{"value": b"%03d" % i} for i in range(400)]


@with_connect
def test_a_spark_connect_client_reads_and_writes(store: jjq.Store, tmp_path: Path) -> None:
    told = last_line(run(sys.executable, HERE / "connect_job.py", store.path, where=tmp_path))
    assert told.pop("client") == "pyspark.sql.connect.session"
    assert "TopicNotFound" in told.pop("error")
    assert told == {"schema": "struct<carrier:string,delay:int>", "rows": [["AA", 4], ["UA", 31]], "table": 2}
    assert rows(store, "late") == [{"carrier": "UA", "delay": 31}]
    assert rows(store, "copy") == rows(store, "flights")
    assert rows(store, "counts") == [{"carrier": "AA", "count": 1}, {"carrier": "UA", "count": 1}]


@with_connect
@with_pipelines
def test_a_declarative_pipeline_reads_one_topic_and_writes_another_once(
    store: jjq.Store, spark_home: Path, tmp_path: Path
) -> None:
    spec = tmp_path / "spark-pipeline.yml"
    spec.write_text(
        f"name: flights\nstorage: {(tmp_path / 'storage').as_uri()}\n"
        f"libraries:\n  - glob:\n      include: definitions.py\n"
        f"configuration:\n  jjq.store: {store.path}\n  spark.sql.shuffle.partitions: '2'\n"
    )
    (tmp_path / "definitions.py").symlink_to(HERE / "pipeline.py")
    for expected in ([31], [31, 40]):
        command = (spark_home / "bin" / "spark-pipelines", "run", "--spec", spec, "--conf", "spark.ui.enabled=false")
        run(*command, where=tmp_path)
        assert [row["delay"] for row in rows(store, "late")] == expected
        store.topic("flights").push({"carrier": "UA", "delay": 40})
