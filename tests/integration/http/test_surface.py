"""What holds whatever is asked: limits, who may ask from where, what gets out, the description and the pages."""

import contextlib
import json
import logging
import os
import re
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from jjq.server.http_app import all_operations
from jjq.server.http_errors import STATUS, without_paths
from tests.certificates import Certificates
from tests.examples import blocks
from tests.fronts import PATIENCE_S, Front, Fronting

STATIC = Path(__file__).resolve().parents[3] / "broker" / "jjq" / "server" / "static"


def raw(front: Front, data: bytes) -> bytes:
    """What the broker says to these bytes, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", front.port), timeout=60) as sock:
        sock.sendall(data)
        got = b""
        while piece := sock.recv(65536):
            got += piece
    return got


# --- limits ----------------------------------------------------------------------------------------------------------


def test_headers_without_end_are_refused(front: Front) -> None:
    for head in (b"GET /" + b"x" * 70_000, b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000,
                 b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000):  # fmt: skip
        assert raw(front, head).startswith(b"HTTP/1.1 431 ")


def test_json_that_is_no_records_is_small(front: Front) -> None:
    body = b'{"topic": [' + b"[]," * (3 << 20) + b"[]]}"
    assert front.code("POST", "/api/subscribers", content=body) == (413, "request_too_large")


@pytest.mark.parametrize("behind", [b"", b"connection: close\r\n"], ids=["kept open", "to close"])
def test_one_who_does_not_take_an_answer_is_cut_off(
    front: Front, monkeypatch: pytest.MonkeyPatch, behind: bytes
) -> None:
    front.json("POST", "/api/topics/t/records", content=b"\xff" * (8 << 20))
    monkeypatch.setattr("jjq.server.http_protocol._STALLED_S", 0.1)
    counters = front.http._parts.counters
    with socket.create_connection(("127.0.0.1", front.port), timeout=60) as sock:
        sock.sendall(b"GET /api/topics/t/records HTTP/1.1\r\nhost: 127.0.0.1\r\n%b\r\n" % behind)
        while not counters.slow_clients:
            assert front.json("GET", "/healthz") == {"status": "ok"}
        got = 0
        with contextlib.suppress(ConnectionError):
            while piece := sock.recv(1 << 20):
                got += len(piece)
    assert got < 8 << 20


@pytest.mark.parametrize(
    "before",
    [
        b"GET /api/stream?topics=* HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\nGET / HTTP/1.1\r\n",
        b"GET /api/stream?topics=* HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
        b"POST /pub?topic=t HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
    ],
)
def test_headers_without_end_behind_a_request_or_its_body_end_the_connection(front: Front, before: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # the refusal may be lost, as more came
        assert b"HTTP/1.1 431 " in raw(front, before + b"a: b\r\n" * 40_000)
    assert front.json("GET", "/healthz") == {"status": "ok"}


@pytest.mark.parametrize("data", [b"\0\0\0\0\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\n\r\n",
                                  b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
                                  b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"])  # fmt: skip
def test_what_is_no_request_gets_an_error_and_no_traceback(front: Front, data: bytes) -> None:
    got = raw(front, data)
    assert got.startswith(b"HTTP/1.1 4")
    body = json.loads(got.partition(b"\r\n\r\n")[2])
    assert body["code"]


def test_a_request_may_come_in_pieces(front: Front) -> None:
    with socket.create_connection(("127.0.0.1", front.port), timeout=60) as sock:
        for (
            byte
        ) in b"POST /pub?topic=t HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello":
            sock.sendall(bytes([byte]))
        got = b""
        while piece := sock.recv(4096):
            got += piece
    assert got.startswith(b"HTTP/1.1 200 ")


def test_pipelined_and_large_requests_are_answered(front: Front) -> None:
    one = b"POST /pub?topic=t HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000\r\n%s\r\n" + b"x" * 100_000
    got = raw(front, one % b"" * 3 + one % b"connection: close\r\n")
    assert got.count(b"HTTP/1.1 200 ") == 4
    assert front.json("GET", "/api/topics/t")["records"] == 4


def test_what_is_no_request_behind_one_that_is_being_answered_ends_both_and_is_no_fault(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", front.port), timeout=60) as sock:
        sock.sendall(b"GET /api/topics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n\0 nothing\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 400 ")
        for _ in range(3):  # by then the first is answered, too
            assert front.json("GET", "/api/topics") == {"topics": [], "damaged": []}
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


def test_more_connections_than_may_be_are_refused(serve: Fronting) -> None:
    front = serve(max_connections=3)
    more = [httpx.Client(base_url=front.url, timeout=PATIENCE_S) for _ in range(2)]
    with more[0], more[1]:
        for client in (front.client, *more):
            assert client.get("/healthz").status_code == 200
        # Its request may be there before it is refused, and does not cut it off before it has read why.
        refused = raw(front, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"too_many_connections" in refused
    assert "jjq_http_refused_connections_total 1" in front.client.get("/metrics").text


def encrypting(serve: Fronting, certificates: Certificates) -> tuple[Front, httpx.Client]:
    front = serve(max_connections=2, tls_cert=certificates.server, tls_key=certificates.server_key)
    trusting = ssl.create_default_context(cafile=certificates.authority)
    return front, httpx.Client(base_url=f"https://127.0.0.1:{front.port}", verify=trusting, timeout=PATIENCE_S)


def test_connections_that_have_yet_to_agree_on_tls_are_bounded(serve: Fronting, certificates: Certificates) -> None:
    front, client = encrypting(serve, certificates)
    address = ("127.0.0.1", front.port)
    with client:
        assert client.get("/healthz").status_code == 200
        with socket.create_connection(address), socket.create_connection(address):
            with socket.create_connection(address, PATIENCE_S) as third:
                assert third.recv(1) == b""
            assert "jjq_http_refused_connections_total 1" in client.get("/metrics").text
        with httpx.Client(base_url=client.base_url, verify=False) as other:
            while True:  # those before have gone, which is seen soon
                with contextlib.suppress(httpx.ConnectError, httpx.ReadError):
                    assert other.get("/healthz").status_code == 200
                    break


def test_a_connection_that_does_not_agree_on_tls_is_ended(
    serve: Fronting, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jjq.server.http_protocol._HANDSHAKE_S", 0.1)
    front, client = encrypting(serve, certificates)
    with client, socket.create_connection(("127.0.0.1", front.port), PATIENCE_S) as silent:
        assert silent.recv(1) == b""
        assert client.get("/healthz").status_code == 200


def test_whoever_is_refused_by_tls_is_let_go_of_though_it_says_no_goodbye(
    serve: Fronting, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jjq.server.http_protocol._MOST_LINGERING", 1)
    front, client = encrypting(serve, certificates)
    trusting = ssl.create_default_context(cafile=certificates.authority)
    with client, contextlib.ExitStack() as opened:
        assert client.get("/healthz").status_code == 200
        more = []
        for _ in range(3):
            sock = opened.enter_context(socket.create_connection(("127.0.0.1", front.port), 20))
            more.append(opened.enter_context(trusting.wrap_socket(sock, server_hostname="127.0.0.1")))
        for each in more[1:]:
            with contextlib.suppress(ConnectionResetError), socket.socket(fileno=os.dup(each.fileno())) as below:
                below.settimeout(20)
                while below.recv(4096):
                    pass
        assert client.get("/healthz").status_code == 200


def test_a_server_that_stops_waits_for_no_client_that_is_idle(
    serve: Fronting, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    front, client = encrypting(serve, certificates)
    with client:
        assert client.get("/healthz").status_code == 200
        front.http.stop(10.0)
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


def test_more_streams_than_may_be_are_refused(serve: Fronting) -> None:
    front = serve(max_subscriptions=1)
    front.store.create_topic("t")
    with front.stream("/api/topics/t/stream") as events:
        assert front.code("GET", "/api/topics/t/stream") == (429, "too_many_requests")
        assert front.code("GET", "/api/events") == (429, "too_many_requests")
        front.store.topic("t").push(b"x")
        assert json.loads(events.next().data)["value"] == "x"


def test_rates_are_held_to(serve: Fronting) -> None:
    front = serve(token_records_per_s=1)
    assert (
        front.client.post("/mpub?topic=t", content=b"x\n" * 1000).text == "OK"
    )  # which a quarter of an hour makes good
    answer = front.client.post("/pub?topic=t", content=b"x")
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_requests")
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("begun", [b"", b"half"])
def test_a_body_that_does_not_come_is_not_waited_for_for_ever(
    front: Front, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:  # fmt: skip
    monkeypatch.setattr("jjq.server.http_requests._BODY_PAUSE_S", 0.05)
    for path in (b"/pub?topic=t", b"/api/topics/t/objects"):
        got = raw(front, b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n%b" % (path, begun))
        assert got.startswith(b"HTTP/1.1 408 ")
        assert json.loads(got.partition(b"\r\n\r\n")[2])["code"] == "request_timeout"
    assert front.store.list_objects() == []


# --- who asks from where ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "SELF"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://friend.example"}, 200),
        ({"origin": "https://friend.example.evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"origin": "http://["}, 403),
        ({"host": "", "origin": "null"}, 403),
        ({"host": "["}, 421),
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example", "origin": "http://evil.example"}, 421),
        ({"host": "localhost:4751"}, 200),
        ({"host": "[::1]:4751"}, 200),
    ],
)
def test_a_page_of_another_site_changes_nothing(serve: Fronting, headers: dict[str, str], status: int) -> None:
    front = serve(origins=("https://friend.example",))
    sent = {name: front.url if value == "SELF" else value for name, value in headers.items()}
    assert front.client.post("/pub?topic=t", content=b"x", headers=sent).status_code == status
    assert len(front.store.topics()) == (1 if status == 200 else 0)


def test_a_page_under_another_name_reads_nothing_either(front: Front) -> None:
    front.store.create_topic("t")
    assert front.code("GET", "/api/topics", headers={"host": "evil.example"}) == (421, "wrong_host")
    answer = front.client.get("/api/topics", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_a_page_of_a_site_that_may_reads_answers(serve: Fronting) -> None:
    front = serve(origins=("https://friend.example",))
    for origin, allowed in (("https://friend.example", "https://friend.example"), ("https://evil.example", None)):
        headers = {"origin": origin, "access-control-request-method": "POST"}
        preflight = front.client.options("/api/events", headers=headers)
        assert preflight.status_code == (204 if allowed else 405)
        for answer in (preflight, front.client.get("/api/topics", headers={"origin": origin})):
            assert answer.headers.get("access-control-allow-origin") == allowed


# --- what gets out ---------------------------------------------------------------------------------------------------


def test_no_answer_has_a_path_or_a_traceback(front: Front, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    front.store.create_topic("t").push(b"x")
    for path in ("/api/topics/x", "/api/subscribers/x", "/api/topics/t/channels/x", "/api/nothing", "/static/..%2Fx"):
        assert front.code("GET", path)[0] == 404

    def broken() -> None:
        raise ZeroDivisionError(f"at {front.store.path}/secret")

    monkeypatch.setattr(front.store, "writers", broken)
    with caplog.at_level(logging.ERROR):
        answer = front.client.get("/api/writers")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "secret" not in answer.text
    reference = answer.json()["message"].rpartition(" ")[2]
    assert any(reference in each.getMessage() for each in caplog.records)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (
            "/api/topics/t/records?strat=1",
            "GET /api/topics/{topic}/records has no parameter 'strat'; did you mean 'start'?",
        ),
        (
            "/api/topics/t/records?limit=5",
            "GET /api/topics/{topic}/records has no parameter 'limit'; did you mean 'max'?",
        ),
        (
            "/api/topics/t/records?count=5",
            "GET /api/topics/{topic}/records has no parameter 'count'; did you mean 'max'?",
        ),
        ("/api/topics?exist=1", "GET /api/topics has no parameter 'exist'"),
    ],
)
def test_a_parameter_that_is_not_there_is_told_with_its_path(front: Front, target: str, says: str) -> None:
    front.store.create_topic("t")
    answer = front.client.get(target)
    assert (answer.status_code, answer.json()["message"]) == (400, says)


def test_damage_is_named_without_its_place(front: Front) -> None:
    topic = front.store.create_topic("t")
    topic.push(b"x" * 100)
    (path,) = (front.store.path / "topics" / topic.id / "0").glob("*.arrows")
    data = bytearray(path.read_bytes())
    data[-60] ^= 1
    whole = path.read_bytes()
    path.write_bytes(bytes(data))
    assert front.code("GET", "/api/topics/t/records") == (500, "damaged_segment")
    path.write_bytes(whole)


def test_an_error_does_not_send_back_what_was_sent(front: Front) -> None:
    front.store.create_topic("t", schema=pa.schema([("n", pa.int64())]))
    answer = front.client.post("/api/topics/t/records", json={"value": {"n": "x" * 1_000_000}})
    assert (answer.status_code, answer.json()["code"]) == (400, "schema_mismatch")
    assert len(answer.content) < 5000


def test_paths_are_taken_out_of_messages() -> None:
    store = Path("/srv/data/jjq")
    cases = {
        "there is no topic 'x' in /srv/data/jjq; did you mean 'y'?": "there is no topic 'x'; did you mean 'y'?",
        "/srv/data/jjq/topics/ab/0/c.arrows: the active file is missing": "the store: the active file is missing",
        "cannot read '/etc/secret/key'": "cannot read '(a file)'",
        "use 1/2 or a/b": "use 1/2 or a/b",
        "GET /api/topics/{topic}/records has no parameter 'x'": "GET /api/topics/{topic}/records has no parameter 'x'",
        "POST /topic/create lacks 'x'": "POST /topic/create lacks 'x'",
        "/apiary/secret is none": "(a file) is none",
    }  # fmt: skip
    for text, wanted in cases.items():
        assert without_paths(text, store) == wanted


def test_every_answer_says_what_a_browser_may_do_with_it(front: Front) -> None:
    for path in ("/", "/docs", "/static/page.js", "/api/topics", "/api/nothing", "/healthz"):
        headers = front.client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "server" not in headers


def test_methods_that_a_path_does_not_take_are_named(front: Front) -> None:
    answer = front.client.put("/api/topics/t")
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "DELETE, GET, PATCH"
    assert front.client.put("/api/events").headers["allow"] == "GET, POST"
    assert front.client.head("/healthz").status_code == 200
    assert front.client.head("/api/events").status_code == 200


# --- description and pages -------------------------------------------------------------------------------------------


def test_the_description_has_every_operation_once(front: Front) -> None:
    found = front.json("GET", "/openapi.json")
    described = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
    assert described == {(each.method, each.path) for each in all_operations()}
    ids = [each["operationId"] for methods in found["paths"].values() for each in methods.values()]
    assert len(ids) == len(set(ids))
    text = json.dumps(found)
    for name in set(re.findall(r"#/components/schemas/(\w+)", text)):
        assert name in found["components"]["schemas"]
    for each in all_operations():
        named = {one.name for one in each.parameters if one.where == "path"}
        assert set(re.findall(r"\{(\w+)\}", each.path)) == named


def test_the_description_says_which_bodies_may_be_left_out(front: Front) -> None:
    paths = front.json("GET", "/openapi.json")["paths"]
    needed = {
        f"{method} {path}": each["requestBody"]["required"]
        for path, methods in paths.items() for method, each in methods.items() if "requestBody" in each
    }  # fmt: skip
    for operation, is_needed in {
        "put /api/topics/{topic}/channels/{channel}": False, "patch /api/topics/{topic}": True, "post /api/topics": True,
        "post /api/topics/{topic}/publish": False, "post /pub": True,
    }.items():  # fmt: skip
        assert needed[operation] is is_needed, operation


def test_what_was_not_begun_is_not_in_the_audit_log(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    front.store.create_topic("t")
    with caplog.at_level("INFO", "jjq.audit"):
        for body in (b"", b"{}"):
            said = front.json("PATCH", "/api/topics/t", status=400, content=body)["message"]
            assert said.startswith("the body has nothing in it; it takes partitions, ")
        with socket.create_connection(("127.0.0.1", front.port)) as client:  # who goes away amid the body
            client.sendall(b"PATCH /api/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
        loop, parts = front.http._loop, front.http._parts
        assert loop is not None
        assert parts is not None
        while not parts.counters.answered["alter_topic", "499"]:
            front.json("GET", "/healthz")
        loop.call_soon_threadsafe(parts.stopping.set)
        while front.client.get("/readyz").status_code == 200:
            pass
        assert front.code("DELETE", "/api/topics/t") == (503, "stopping")
    assert [each for each in caplog.records if each.name == "jjq.audit"] == []


def test_pages_fetch_nothing_from_elsewhere_and_run_nothing_inline(front: Front) -> None:
    for name in ("index.html", "docs.html"):
        text = (STATIC / name).read_text(encoding="utf-8")
        for target in re.findall(r'(?:src|href)="([^"]+)"', text):
            assert target.startswith(("/", "#")), target
            if target.startswith("/static/"):
                answer = front.client.get(target)
                assert answer.status_code == 200
        assert not re.search(r"<script>|<style|\son\w+=|\sstyle=", text)
    for path in STATIC.iterdir():
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", path.read_text(encoding="utf-8"))
    assert front.client.get("/").headers["content-type"].startswith("text/html")
    assert front.client.get("/docs").status_code == 200


def test_codes_have_statuses_that_are_errors() -> None:
    assert all(400 <= int(status) < 600 for status in STATUS.values())


# --- documentation ---------------------------------------------------------------------------------------------------


def test_every_operation_and_every_code_is_documented() -> None:
    text = (STATIC.parents[3] / "docs" / "http.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    for operation in all_operations():
        last = operation.path.rstrip("/").rpartition("/")[2]
        if last and not last.startswith("{"):
            assert re.search(rf"(?<![\w-]){re.escape(last)}(?![\w-])", code), operation.path
    for name in STATUS:
        assert f"`{name}`" in text, name


def test_the_examples_run(front: Front) -> None:
    (block,) = blocks(STATIC.parents[3] / "docs" / "http.md", "sh")
    done = subprocess.run(
        ["sh", "-euc", block.code], env=os.environ | {"JJQ": front.url}, check=True, capture_output=True, text=True
    )
    assert "hello" in done.stdout
    assert '"order": 1' in done.stdout
