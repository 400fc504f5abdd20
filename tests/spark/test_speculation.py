"""Speculative execution: Spark runs a slow task a second time while the first attempt goes on, on another host."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

import jjq
from tests.spark.speculated_task import BATCH_ROWS
from tests.stores import assert_whole

ROOT = Path(__file__).resolve().parents[2]
PYSPARK = Path(pyspark.__file__).parent
ROWS = 9_000
HOSTS = ("127.0.0.1", "127.0.0.2")
ENVIRONMENT = os.environ | {
    "SPARK_HOME": str(PYSPARK), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1",
}  # fmt: skip
CONFS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.1",
    "spark.locality.wait": "0s",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
}
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="the second host is 127.0.0.2, which Linux alone has by itself"),
]


@contextlib.contextmanager
def daemon(log: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A master or a worker of Spark's own cluster."""
    command = [str(PYSPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=output, stderr=output, cwd=log.parent)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def said(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """What a daemon says in its log, once it has said it."""
    while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"ended with {process.wait(0.05)}: {log.read_text()}")
    return found[1]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A master and a worker of one core on each of two hosts, as no host runs two attempts of a task; its URL."""
    logs = [tmp_path / f"{name}.log" for name in ("master", "worker-0", "worker-1")]
    with contextlib.ExitStack() as stack:
        common = ["--port", "0", "--webui-port", "0"]
        master = stack.enter_context(daemon(logs[0], "master.Master", "--host", HOSTS[0], *common))
        url = said(logs[0], r"(spark://127\.0\.0\.1:\d+)", master)
        for host, log in zip(HOSTS, logs[1:], strict=True):
            room = ["--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / log.stem)]
            worker = stack.enter_context(daemon(log, "worker.Worker", "--host", host, *room, *common, url))
            said(log, r"(Successfully registered)", worker)
        yield url


def test_two_attempts_of_a_task_at_once_write_its_rows_once(cluster: str, tmp_path: Path) -> None:
    values = [b"%05d" % i for i in range(ROWS)]
    with jjq.open(tmp_path / "store") as store:
        store.create_topic("in").push_many([each + bytes(500) for each in values])
        store.create_topic("pushed")
        (tmp_path / "scratch").mkdir()
        targets = [f"jjq={who}={who}" for who in ("second", "first", "both")]
        command = [str(PYSPARK / "bin" / "spark-submit"), "--master", cluster, "--driver-memory", "1g"]
        command += [part for name, value in CONFS.items() for part in ("--conf", f"{name}={value}")]
        command += [str(ROOT / "tests" / "spark" / "speculated_task.py"), str(store.path), str(tmp_path / "scratch")]
        done = subprocess.run(
            [*command, *targets, "without_staging=pushed=both"],
            env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-5000:]
        ran = [line.split() for line in done.stdout.splitlines()]
        assert ran == [[topic, "0", "1"] for topic in ("second", "first", "both", "pushed")]

        def written(topic: str) -> list[bytes]:
            return sorted(each[:5] for each in store.topic(topic).read().read_all().column("value").to_pylist())

        for topic in ("second", "first", "both"):
            assert written(topic) == values
            store.topic(topic).push(b"after")
            assert written(topic)[-1] == b"after"
        assert len(written("pushed")) > ROWS  # two attempts did write
        assert_whole(store)
