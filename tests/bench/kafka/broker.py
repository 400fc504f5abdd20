"""A Kafka broker of its own: one node, on a free port of this machine, its log in the run's directory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

HEAP = "1g"  # what Kafka's own start script gives
START_S = 60
CLUSTER = "bench-bench-bench-benQ"  # any 16 bytes

# What makes Kafka faster: by default it sends batches of 16 KB without waiting, and hands out 500 records at a time.
PRODUCER = {"kafka.batch.size": 512 << 10, "kafka.linger.ms": 20, "kafka.buffer.memory": 128 << 20}
CONSUMER = {"kafka.max.poll.records": 5000}

_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={logs}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


class Kafka:
    """The way to a broker from Spark: through the clients that come with the connector, so no other is needed."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self.spark, self.address = spark, address
        self._jvm: Any = spark._jvm
        admin = self._properties({"bootstrap.servers": address})
        self._admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(admin)

    def create(self, names: Sequence[str], partitions: int) -> None:
        topics = self._jvm.java.util.ArrayList()
        for name in names:
            topics.add(self._jvm.org.apache.kafka.clients.admin.NewTopic(name, partitions, 1))
        self._admin.createTopics(topics).all().get()

    def fill(self, frame: DataFrame, topic: str, partitions: int) -> str:
        """A new topic with these rows, by Spark's own sink."""
        self.create([topic], partitions)
        frame.write.format("kafka").options(**self.options(topic=topic), **PRODUCER).mode("append").save()
        return topic

    def options(self, **more: object) -> dict[str, Any]:
        return {"kafka.bootstrap.servers": self.address, **more}

    def read(self, topic: str, **more: object) -> DataFrame:
        return self.spark.read.format("kafka").options(**self.options(subscribe=topic, **more)).load()

    def read_stream(self, topic: str, **more: object) -> DataFrame:
        options = self.options(subscribe=topic, startingOffsets="earliest") | more
        return self.spark.readStream.format("kafka").options(**options).load()

    def producer(self) -> Any:
        """A client that sends each record at once."""
        byte_arrays = "org.apache.kafka.common.serialization.ByteArraySerializer"
        settings = {"bootstrap.servers": self.address, "linger.ms": "0"}
        settings |= {"key.serializer": byte_arrays, "value.serializer": byte_arrays}
        return self._jvm.org.apache.kafka.clients.producer.KafkaProducer(self._properties(settings))

    def record(self, topic: str, value: bytes) -> Any:
        return self._jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, value)

    def _properties(self, values: dict[str, str]) -> Any:
        made = self._jvm.java.util.Properties()
        for name, value in values.items():
            made.setProperty(name, value)
        return made


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java") or "java"


def _die_with_parent() -> None:
    """However this process ends, the kernel ends the broker with it."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextlib.contextmanager
def broker(directory: Path, jars: Path) -> Iterator[str]:
    """The address of a broker that lives meanwhile, with its log and its output in the directory."""
    port, controller = free_ports(2)
    settings = directory / "server.properties"
    settings.write_text(
        _PROPERTIES.format(port=port, controller=controller, logs=directory / "kafka"), encoding="utf-8"
    )
    command = [java(), f"-Xmx{HEAP}", f"-Xms{HEAP}", "-XX:+UseG1GC", "-cp", f"{jars}/*"]
    formatting = [*command, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(settings)]
    subprocess.run(formatting, check=True, capture_output=True)
    output = directory / "kafka.out"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [*command, "kafka.Kafka", str(settings)], stdout=log, stderr=log, preexec_fn=_die_with_parent
        )
        try:
            until = time.monotonic() + START_S
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"the broker did not start: {output.read_text(errors='replace')[-2000:]}")
                time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
