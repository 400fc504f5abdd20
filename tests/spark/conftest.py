"""One Spark for all tests in this directory: starting it takes seconds, and a second one in a process is refused."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.readers import close_stores

CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"  # see conf/
)
# A JVM that lives for minutes does not earn back what its second compiler and a collector with threads take from two cores.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session", autouse=True)
def java_options() -> Iterator[None]:
    """For every Spark that tests start, those of programs too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", JVM)
        patch.setenv("SPARK_LAUNCHER_OPTS", JVM)  # of the JVM that only puts the command of the other one together
        yield


@pytest.fixture(scope="session", autouse=True)
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The installed Spark, with all that it has but a packed copy of its Python code: its workers, of which each query starts
    some, would import that, and compile what they import each time, where the installed code is compiled."""
    home = tmp_path_factory.mktemp("spark-home")
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name not in ("python", "work"):
            (home / part.name).symlink_to(part)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        yield home


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory, java_options: None, spark_home: Path) -> Iterator[SparkSession]:
    """Spark on two cores of this machine, with this interpreter for its Python workers: they see what is installed."""
    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        # Without it Spark asks the network for this machine's name, which on some machines hangs or answers wrongly.
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            SparkSession.builder.master("local[2]")
            .appName("jjq-tests")
            .config("spark.driver.memory", "2g")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.default.parallelism", "2")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.local.dir", str(scratch / "local"))
            .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINT_FILES)
            .config("spark.sql.execution.pyspark.udf.faulthandler.enabled", "true")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        for query in session.streams.active:
            query.stop()
        gateway: Any = SparkContext._gateway
        session.stop()
        close_stores()
        # The JVM and the threads that talk to it, too: tests that may come next in this process fork.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None
