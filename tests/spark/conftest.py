"""One Spark for all tests in this directory: starting it takes seconds, and a second one in a process is refused."""

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark_jobs import submit
from tests.readers import close_stores

CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"  # see conf/
)
# A JVM that lives for minutes does not earn back what its second compiler and a collector with threads take from two cores.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOADS_CLASSES = """
from pyspark.sql import SparkSession, functions as F

settings = {"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 2}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
spark.createDataFrame([(1, "a")], "number int, word string").groupBy("word").agg(F.sum("number")).orderBy("word").collect()
spark.stop()
"""


@pytest.fixture(scope="session", autouse=True)
def spark_home() -> Iterator[Path]:
    """Where every Spark that tests start is found, and its JVM's options, those of programs too."""
    home = submit.spark_home()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        patch.setenv("SPARK_LAUNCHER_OPTS", JVM)  # of the JVM that only puts the command of the other one together
        patch.setenv("SPARK_SUBMIT_OPTS", f"{JVM} -XX:SharedArchiveFile={_classes(home)}")
        yield home


def _classes(spark_home: Path) -> Path:
    """The JVM's archive of the classes that a job needs, with which Spark starts in half the time. Made once for this Java and this Spark;
    one that is missing the JVM passes over in silence, one of another class path with a line of its standard output."""
    java = Path(os.environ.get("JAVA_HOME", ""), "release")
    made_of = java.read_bytes() if java.exists() else b""
    made_of += f"{pyspark.__version__} {Path(pyspark.__file__).stat().st_mtime_ns}".encode()
    archive = spark_home / f"classes-{zlib.crc32(made_of):08x}.jsa"
    if sys.prefix == sys.base_prefix:  # the installed Spark itself, to which nothing is added
        return archive
    with (spark_home / "classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run of tests may be at it
        if not archive.exists():
            for other in spark_home.glob("classes-*.jsa"):
                other.unlink()
            new = archive.with_suffix(".new")
            new.unlink(missing_ok=True)
            options = {"SPARK_SUBMIT_OPTS": f"{JVM} -XX:ArchiveClassesAtExit={new}"}
            with tempfile.TemporaryDirectory() as scratch, contextlib.suppress(subprocess.TimeoutExpired):
                # The JVM makes it as it ends, which is after the program: to capture what it writes is to wait for that.
                subprocess.run(
                    (sys.executable, "-c", LOADS_CLASSES), env=os.environ | submit.spark_environment() | options,
                    cwd=scratch, capture_output=True, timeout=300, check=False,
                )  # fmt: skip
            if new.exists():  # a JVM that makes none starts more slowly, and is as good
                new.replace(archive)
    return archive


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_home: Path) -> Iterator[SparkSession]:
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
