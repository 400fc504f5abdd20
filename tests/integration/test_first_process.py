"""`jjq` as the first process of a container, which the kernel sends no signal that it does not handle."""

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

import jjq
from tests.brokers import COMMAND, environment, half_a_request, serving

UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
TERMINATED = 128 + signal.SIGTERM

pytestmark = pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0,
    reason="no process may have a namespace of its own here",
)


def first(outside: int) -> int:
    """The process that `unshare`, which is `outside`, has made the first one of a namespace, as it is named out here."""
    return int(Path(f"/proc/{outside}/task/{outside}/children").read_text())


def test_a_command_ends_by_a_signal(tmp_path: Path) -> None:
    with jjq.open(tmp_path / "s") as store:
        store.create_topic("t").push(b"x")
    tail = subprocess.Popen(
        [*UNSHARE, COMMAND, "tail", "t", "--follow", "--store", tmp_path / "s"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    try:
        assert tail.stdout is not None
        assert tail.stdout.readline() == b"x\n"
        os.kill(first(tail.pid), signal.SIGTERM)
        assert tail.wait() == TERMINATED
    finally:
        tail.kill()
        tail.communicate()


def test_a_broker_ends_by_a_signal_and_at_once_by_a_second_one(tmp_path: Path) -> None:
    with serving(tmp_path / "s", through=UNSHARE) as broker:
        os.kill(first(broker.process.pid), signal.SIGTERM)
        assert broker.process.wait() == 0
    with serving(tmp_path / "s", "--stop-grace-s", "3600", through=UNSHARE) as broker:
        inside = first(broker.process.pid)
        with half_a_request(broker):
            os.kill(inside, signal.SIGTERM)
            while "stopping" not in [each["message"] for each in broker.log()]:
                threading.Event().wait(0.01)
            os.kill(inside, signal.SIGTERM)
            assert broker.process.wait() == TERMINATED
