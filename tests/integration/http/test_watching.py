"""Whether a broker is well, and what goes on, in numbers."""

import json
import re
import shutil
import threading
from pathlib import Path

import pytest

from jjq import files
from jjq.background import LAST_TURN
from jjq.clock import now_us
from jjq.server.health import Health
from tests.fronts import Front

_LINE = re.compile(r'([a-z_:]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (-?[0-9.e+-]+)')


def test_health_turns_bad_with_the_disk_and_good_again(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jjq.server.health._FRESH_S", 0.0)
    for path in ("/healthz", "/readyz"):
        assert front.json("GET", path) == {"status": "ok"}
    assert front.client.get("/ping").text == "OK"

    def full(fd: int, data: bytes, position: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "pwrite", full)
    for path in ("/healthz", "/readyz"):
        assert "No space" in front.json("GET", path, status=503)["reason"]
    assert front.client.get("/ping").status_code == 500
    assert "jjq_healthy 0" in front.client.get("/metrics").text
    assert front.json("GET", "/stats?format=json")["health"].startswith("NOK")
    monkeypatch.undo()
    monkeypatch.setattr("jjq.server.health._FRESH_S", 0.0)
    for path in ("/healthz", "/readyz"):
        assert front.json("GET", path) == {"status": "ok"}


@pytest.mark.parametrize("copied", [False, True], ids=["moved away", "replaced by a copy"])
def test_health_turns_bad_when_another_store_is_in_the_place_of_this_one(
    front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    """As one does who puts back a backup under a broker that runs: it can serve nothing until it is started anew."""
    monkeypatch.setattr("jjq.server.health._FRESH_S", 0.0)
    place = front.store.path
    place.rename(tmp_path / "aside")
    if copied:
        shutil.copytree(tmp_path / "aside", place)
    said = "the store is another store now" if copied else "the store was removed or moved away"
    for path in ("/healthz", "/readyz"):
        assert front.json("GET", path, status=503)["reason"].startswith(said)
    assert front.json("GET", "/api/stats", status=503)["message"].startswith(said)
    lines = front.client.get("/metrics").raise_for_status().text.splitlines()
    assert "jjq_healthy 0" in lines
    assert "jjq_http_refused_connections_total 0" in lines
    assert not any(each.startswith("jjq_disk_free_bytes") for each in lines)
    if copied:
        shutil.rmtree(place)
    (tmp_path / "aside").rename(place)
    assert front.json("GET", "/readyz") == {"status": "ok"}


def test_health_says_that_the_catalog_was_removed(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jjq.server.health._FRESH_S", 0.0)
    catalog = front.store.path / "catalog.db"
    catalog.rename(catalog.with_suffix(".aside"))
    said = front.json("GET", "/healthz", status=503)["reason"]
    assert said.startswith("the store's catalog was removed while it was open; put it back or run `jjq repair`")
    catalog.with_suffix(".aside").rename(catalog)


def test_a_disk_that_hangs_is_a_bad_one(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jjq.server.health._FRESH_S", 0.0)
    monkeypatch.setattr("jjq.server.health._PATIENCE_S", 0.05)
    hanging = threading.Event()
    datasync = files.datasync

    def hang(fd: int) -> None:
        hanging.wait(60)
        datasync(fd)

    monkeypatch.setattr(files, "datasync", hang)
    assert "not answered" in front.json("GET", "/healthz", status=503)["reason"]
    hanging.set()
    monkeypatch.setattr("jjq.server.health._PATIENCE_S", 60.0)
    assert front.json("GET", "/healthz") == {"status": "ok"}


def test_health_leaves_nothing_in_the_store(front: Front) -> None:
    before = sorted(front.store.path.rglob("*"))
    for _ in range(3):
        front.json("GET", "/healthz")
    assert sorted(front.store.path.rglob("*")) == before
    assert isinstance(front.http._parts.health, Health)


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_metrics_are_as_prometheus_reads_them(front: Front) -> None:
    front.client.post("/pub?topic=orders", content=b"hello")
    front.json("PUT", "/api/topics/orders/channels/workers", json={})
    front.json("POST", "/api/subscribers", status=201, json={"topic": "orders", "name": "billing"})
    front.json("POST", "/api/topics/orders/channels/workers/receive")
    front.json("POST", "/api/topics/orders/pause", status=204)
    front.store.catalog.set_meta(LAST_TURN, json.dumps({"at": now_us() - 5_000_000}))
    answer = front.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    kinds, samples = {}, {}
    for line in answer.text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = _LINE.fullmatch(line)
            assert match, line
            assert match[1] in kinds
            samples[match[1], match[2] or ""] = float(match[3])
    assert samples["jjq_topic_records", 'topic="orders"'] == 1
    assert samples["jjq_subscriber_lag_records", 'subscriber="billing",topic="orders"'] == 1
    workers = 'channel="workers",topic="orders"'
    found = [
        samples[f"jjq_channel_{each}", workers]
        for each in ("depth", "in_flight", "consumers", "paused", "returned_total")
    ]
    assert found == [0, 1, 1, 1, 0]
    assert samples["jjq_maintenance_age_seconds", ""] >= 5
    assert samples["jjq_http_requests_total", 'operation="pub",status="200"'] == 1
    assert samples["jjq_healthy", ""] == 1
    assert all(kind == "counter" for name, kind in kinds.items() if name.endswith("_total"))


def test_stats_come_again_and_again(front: Front) -> None:
    front.client.post("/pub?topic=orders", content=b"hello")
    found = front.json("GET", "/api/stats")
    assert found["topics"][0]["name"] == "orders"
    assert "path" not in found["store"]
    with front.stream("/api/stats/stream") as events:
        for _ in range(2):
            event = events.next()
            assert event.type == "stats"
            assert json.loads(event.data)["topics"][0]["name"] == "orders"
