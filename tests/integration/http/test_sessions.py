"""Tokens: in a header, or in the cookie that the page gets; what each may see; what ends when one is revoked."""

import json
from pathlib import Path

import httpx
import pytest

import jjq
from jjq.server.settings import tokens_in
from jjq.server.tokens import TokenFile
from tests.fronts import Front, Fronting
from tests.stores import without_active_file


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    with jjq.open(tmp_path / "store") as store:
        store.create_topic("orders.new").push(b"x")
        store.create_topic("secret").push(b"x")
        store.create_subscriber("secret", "spy").close()
        store.channel("secret", "work", create=True).close()
    file = TokenFile(tokens_in(tmp_path / "store"))
    return {
        "operator": file.create("operator", admin=("*",))[0],
        "reader": file.create("reader", read=("orders.*", "events"))[0],
        "writer": file.create("writer", write=("orders.*", "events"))[0],
    }


@pytest.fixture
def locked(tokens: dict[str, str], serve: Fronting) -> Front:
    return serve(heartbeat_s=0.1)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_a_token_comes_in_a_header(locked: Front, tokens: dict[str, str]) -> None:
    assert locked.code("GET", "/api/topics") == (401, "unauthorized")
    assert locked.client.get("/api/topics").headers["www-authenticate"].startswith("Bearer")
    for wrong in ("x", "Bearer", "Basic x", "Bearer x y"):
        assert locked.code("GET", "/api/topics", headers={"authorization": wrong})[0] in (400, 401)
    assert len(locked.json("GET", "/api/topics", headers=bearer(tokens["operator"]))["topics"]) == 2


def test_what_a_token_may_not_see_is_not_shown(locked: Front, tokens: dict[str, str]) -> None:
    headers = bearer(tokens["reader"])
    assert [each["name"] for each in locked.json("GET", "/api/topics", headers=headers)["topics"]] == ["orders.new"]
    for path in ("/api/subscribers", "/api/channels", "/api/stats", "/stats?format=json"):
        assert "secret" not in locked.client.get(path, headers=headers).text
    for path in ("/metrics", "/api/writers", "/api/topics/secret", "/api/subscribers/spy", "/stats?topic=secret"):
        assert locked.code("GET", path, headers=headers) == (403, "forbidden")
    with locked.stream("/api/stats/stream", headers=headers) as events:
        found = json.loads(events.next().data)
    assert [each["name"] for each in found["topics"]] == ["orders.new"]
    assert (found["subscribers"], found["channels"]) == ([], [])


def test_damage_is_told_to_who_may_read_what_it_is_in(locked: Front, tokens: dict[str, str]) -> None:
    with without_active_file(locked.store.path, locked.store.topic("secret").id):
        for path in ("/api/stats", "/stats?format=json"):
            told = {
                who: [each["topic"] for each in locked.json("GET", path, headers=bearer(tokens[who]))["damaged"]]
                for who in ("reader", "operator")
            }
            assert (told["reader"], set(told["operator"])) == ([], {"secret"})


def test_events_are_of_their_topics_rights(locked: Front, tokens: dict[str, str]) -> None:
    reader, writer = bearer(tokens["reader"]), bearer(tokens["writer"])
    assert locked.code("POST", "/api/events?type=t", content=b"x", headers=reader) == (403, "forbidden")
    assert locked.client.post("/api/events?type=t", content=b"x", headers=writer).status_code == 200
    assert locked.code("GET", "/api/events", headers=writer) == (403, "forbidden")


def test_a_browser_has_its_token_in_a_cookie(locked: Front, tokens: dict[str, str]) -> None:
    with httpx.Client(base_url=locked.url, timeout=60) as browser:
        assert browser.get("/").status_code == 200
        assert browser.post("/api/session", json={"token": "wrong"}).status_code == 401
        assert browser.post("/api/session", json={"token": "x" * 10_000}).status_code == 413
        answer = browser.post("/api/session", json={"token": tokens["operator"]})
        assert answer.json() == {"name": "operator"}
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert browser.get("/api/session").json()["name"] == "operator"
        # Another site's page could make the browser send the cookie only where it has no SameSite; and then:
        evil = {"origin": "https://evil.example"}
        assert browser.post("/api/topics/secret/empty", headers=evil).json()["code"] == "wrong_origin"
        assert browser.post("/api/topics/secret/empty", headers={"origin": locked.url}).status_code == 204
        assert browser.delete("/api/session").status_code == 204
        assert browser.get("/api/topics").status_code == 401


def test_a_token_may_name_a_broker_as_it_likes(locked: Front, tokens: dict[str, str]) -> None:
    headers = {"host": "broker.example", **bearer(tokens["operator"])}
    assert locked.client.get("/api/topics", headers=headers).status_code == 200


def test_a_stream_ends_when_its_token_is_revoked(locked: Front, tokens: dict[str, str]) -> None:
    with locked.stream("/api/topics/orders.new/stream", headers=bearer(tokens["reader"])) as events:
        TokenFile(tokens_in(locked.store.path)).revoke("reader")
        assert "unauthorized" in events.next().data
        with pytest.raises(StopIteration):
            events.next()
