"""What has to be fetched: a Kafka broker, Spark's connector, and the Spark that the connector belongs to.

Maven and pip fetch them, each from where it is set up to; nothing here names a place. They stay in the cache directory.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

SERVER = ("org.apache.kafka", "kafka_2.13", "4.3.1")
CONNECTOR = ("org.apache.spark", "spark-sql-kafka-0-10_2.13")
NEWEST_CONNECTOR = (
    "4.2.0"  # the newest there was when this was written; asked for where there is none for the Spark here
)
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"  # the default one knows no Java 17
IN_SPARK = "org.apache.hadoop,org.scala-lang,org.scala-lang.modules,org.slf4j"  # Spark has these itself
FETCH_S = 600

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId> <artifactId>bench</artifactId> <version>1</version> <packaging>pom</packaging>
  <dependencies>
    <dependency> <groupId>{}</groupId> <artifactId>{}</artifactId> <version>{}</version> </dependency>
  </dependencies>
</project>
"""


class Missing(Exception):
    """Something cannot be had here; the text says what."""


class Artifacts(NamedTuple):
    """Directories of jars, of the broker and of the connector; the connector's `version` is that of its Spark, which is in
    the directory `spark`, None where it is the one that is installed."""

    server: Path
    connector: Path
    version: str
    spark: Path | None


@functools.cache
def fetch(cache: Path) -> Artifacts:
    """What is not in the cache yet is fetched; raises Missing for what cannot be."""
    installed = version("pyspark")
    server = jars(cache, *SERVER)
    try:
        return Artifacts(server, jars(cache, *CONNECTOR, installed, exclude=IN_SPARK), installed, None)
    except Missing:
        connector = jars(cache, *CONNECTOR, NEWEST_CONNECTOR, exclude=IN_SPARK)
        return Artifacts(server, connector, NEWEST_CONNECTOR, spark(cache, NEWEST_CONNECTOR))


def jars(cache: Path, group: str, artifact: str, number: str, exclude: str = "") -> Path:
    """The directory with an artifact and all that it needs to run."""
    name = f"{group}:{artifact}:{number}"
    place = cache / f"{artifact}-{number}"
    if place.is_dir():
        return place
    if shutil.which("mvn") is None:
        raise Missing("Maven (mvn), which fetches the broker and the connector, is not installed")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as made:
        Path(made, "pom.xml").write_text(_POM.format(group, artifact, number), encoding="utf-8")
        command = ["mvn", "-B", "-q", COPY, "-DincludeScope=runtime", "-DoutputDirectory=jars"]
        _run([*command, *([f"-DexcludeGroupIds={exclude}"] if exclude else [])], f"Maven does not get {name}", made)
        Path(made, "jars").rename(place)  # whole or not at all
    return place


def spark(cache: Path, number: str) -> Path:
    """The directory with a Spark of that version, for PYTHONPATH; what it needs is installed for the other one."""
    place = cache / f"pyspark-{number}"
    if place.is_dir():
        return place
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as made:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        command += [
            "--no-deps",
            "--no-build-isolation",
            "--use-pep517",
            "--target",
            f"{made}/site",
            f"pyspark=={number}",
        ]
        _run(command, f"pip does not get pyspark {number}", made)
        Path(made, "site").rename(place)
    return place


def _run(command: list[str], failure: str, directory: str) -> None:
    print(" ".join(command[:4]), "...", file=sys.stderr)
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_S,
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{failure} within {FETCH_S} s") from None
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line.upper()]
        print(*(line[:300] for line in said[:1]), file=sys.stderr)
        raise Missing(failure)
