"""A broker whose disk is really full: it says so, whoever asks, and is well again when there is room."""

import os
from pathlib import Path

import pytest

from tests.crash.test_disk_full import small_disk as small_disk
from tests.fronts import fronting
from tests.stores import assert_whole


def test_health_turns_bad_with_a_full_disk_and_good_when_there_is_room(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jjq.server.health._FRESH_S", 0.0)
    path, ballast = small_disk / "store", small_disk / "ballast"
    acknowledged = []
    with fronting(path) as front:
        for path_of in ("/healthz", "/readyz"):
            assert front.json("GET", path_of) == {"status": "ok"}
        ballast.write_bytes(bytes(500_000))
        size = 100_000
        while size > 100:  # until not even a small one fits
            value = os.urandom(size)
            answer = front.client.post("/pub?topic=t", content=value)
            if answer.status_code == 200:
                acknowledged.append(value)
                continue
            assert (answer.status_code, answer.json()["code"]) == (503, "store_error")
            assert str(small_disk) not in answer.text
            size //= 2
        for path_of in ("/healthz", "/readyz"):
            assert "No space" in front.json("GET", path_of, status=503)["reason"]
        assert front.client.get("/ping").status_code == 500
        for size in (100_000, 1_000_000):  # that is written when it is whole, and before
            assert front.code("POST", "/api/topics/t/objects", content=bytes(size)) == (503, "store_error")
        assert front.client.get("/api/topics/t/records").status_code == 200  # reading goes on
        ballast.unlink()
        for path_of in ("/healthz", "/readyz"):
            assert front.json("GET", path_of) == {"status": "ok"}
        acknowledged.append(b"after")
        assert front.client.post("/pub?topic=t", content=b"after").text == "OK"
        assert front.store.topic("t").read(columns=["value"]).read_all().column(0).to_pylist() == acknowledged
    assert_whole(path)
