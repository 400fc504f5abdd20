"""Writes to the Flight front that an interrupt, or a connection that is lost, breaks off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import jjq
from jjq import wire
from jjq.client import connection, staging
from tests.brokers import serving

INTERRUPTED = """
import itertools
import sys
import pyarrow as pa
import jjq
from jjq.client import connection

class Interrupting:
    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, _):
        if frame.f_code is not connection.answer_to.__code__:
            return None
        self.left -= event == "line"
        if not self.left and event == "line":
            raise KeyboardInterrupt
        return self

with jjq.connect(sys.argv[1]) as store:
    topic = store.create_topic("t")
    for number in itertools.count(1):
        stage = store.stage()
        sys.settrace(Interrupting(number))
        try:
            stage.write("t", pa.table({"value": pa.array([b"x"] * 100, pa.binary())}))
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
    print("interrupted", number > 5)
"""


def test_a_write_that_is_interrupted_at_any_line_says_nothing_by_itself(tmp_path: Path) -> None:
    """Arrow writes to the terminal of a stream that ends without having been closed."""
    with serving(tmp_path / "store", "--no-http") as broker:
        program = [sys.executable, "-c", INTERRUPTED, broker.flight]
        ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("interrupted True\n", "", 0)


LOST = flight.FlightUnavailableError("gone")
REFUSED = flight.FlightUnauthorizedError("no", extra_info=wire.encode({"code": "forbidden", "message": "no"}))


@pytest.mark.parametrize(
    "errors", [[KeyboardInterrupt()], [LOST], [LOST, REFUSED]], ids=["interrupt", "lost", "lost, then refused"]
)
def test_a_stage_of_which_a_write_broke_off_takes_no_other_one_for_its_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, errors: list[BaseException]
) -> None:
    send, left = connection.answer_to, iter(errors)

    def broken_off(*args: Any) -> None:
        send(*args)
        raise next(left, errors[-1])

    with serving(tmp_path / "store", "--no-http") as broker, jjq.connect(broker.flight, retry_s=0.1) as store:
        topic, stage = store.create_topic("t"), store.stage()
        with monkeypatch.context() as patch:
            patch.setattr(staging, "answer_to", broken_off)
            with pytest.raises((KeyboardInterrupt, jjq.BrokerUnavailable, jjq.Forbidden)):
                stage.write("t", pa.table({"value": [b"first"]}))
        with pytest.raises(jjq.InvalidArgument):
            stage.write("t", pa.table({"value": [b"second"]}))
        with pytest.raises(jjq.InvalidArgument, match="failed amid a write"):
            stage.finish()
        assert topic.offsets()[0].end == 0
