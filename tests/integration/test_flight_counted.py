"""What `/metrics` says of requests by Flight."""

import re
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import jjq
from tests.brokers import serving


def metrics(http: str) -> list[str]:
    with urllib.request.urlopen(f"{http}/metrics") as answer:
        text: bytes = answer.read()
    return text.decode().splitlines()


def samples(http: str) -> dict[tuple[str, str], float]:
    found = (re.fullmatch(r"(jjq_flight_\w+)\{(.*)\} (\S+)", line) for line in metrics(http))
    return {(each[1], each[2]): float(each[3]) for each in found if each}


def test_requests_by_flight_are_counted_by_operation_and_answer(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as broker, jjq.connect(broker.flight) as store:
        topic = store.create_topic("t", schema=pa.schema([("n", pa.int64())]))
        topic.push({"n": 1})
        topic.push_many([{"n": 2}, {"n": 3}])
        assert topic.read().read_all().num_rows == 3
        with pytest.raises(jjq.TopicNotFound):
            store.topic("other")
        with pytest.raises(flight.FlightServerError):
            list(flight.connect(broker.flight.replace("jjq://", "grpc://")).do_action(("no such thing", b"")))
        found = samples(broker.http)
        requests = {labels: count for (name, labels), count in found.items() if name == "jjq_flight_requests_total"}
        assert requests['operation="create_topic",code="ok"'] == 1
        assert requests['operation="append",code="ok"'] == 2
        assert requests['operation="do_get",code="ok"'] >= 1
        assert requests['operation="do_get_batches",code="ok"'] >= 1
        assert requests['operation="unknown",code="invalid_argument"'] == 1
        assert [labels for labels in requests if "topic_not_found" in labels]
        assert not [labels for labels in requests if "no such thing" in labels]
        assert found["jjq_flight_request_seconds_total", 'operation="append"'] > 0
        # The stream on which the pushes went; one that is idle is closed.
        assert ("jjq_flight_running", 'operation="do_put"') in found
        assert found["jjq_flight_running", 'operation="create_topic"'] == 0


def test_a_broker_without_flight_says_nothing_of_it(tmp_path: Path) -> None:
    with serving(tmp_path / "store", "--no-flight") as broker:
        lines = metrics(broker.http)
        assert "# TYPE jjq_http_requests_total counter" in lines
        assert not [line for line in lines if "jjq_flight" in line]
