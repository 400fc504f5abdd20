"""A broker with TLS and tokens: certificates, what is told to whom, what is written down."""

import json
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import jjq
from jjq.errors import Unauthorized
from tests.brokers import Served, post_event, serving, token_of
from tests.certificates import Certificates, made_in


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def status(broker: Served, token: str | None = None) -> int:
    """Of a pushed event."""
    try:
        post_event(broker, b"x", token)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    return 200


def test_a_client_that_meets_the_wrong_end_of_tls_is_told_what_to_change(
    store: Path, certificates: Certificates, tmp_path: Path
) -> None:
    """At once, where it was never connected: waiting would not help."""
    (tmp_path / "none.pem").write_text("nothing")
    with pytest.raises(jjq.InvalidArgument, match="holds no certificate in PEM"):
        jjq.connect("jjq+tls://localhost:1", tls_ca=tmp_path / "none.pem")
    other = made_in(tmp_path / "other")
    with serving(store, "--tls-cert", certificates.server, "--tls-key", certificates.server_key) as broker:
        address = broker.flight.partition("://")[2]
        with pytest.raises(jjq.BrokerUnavailable, match="vouches for it is tls_ca, and for"):
            jjq.connect(broker.flight, tls_ca=other.authority)
        with pytest.raises(
            jjq.BrokerUnavailable, match=rf"it serves with TLS: its address would be jjq\+tls://{address}"
        ):
            jjq.connect(f"jjq://{address}", retry_s=1e6)
        with pytest.raises(jjq.BrokerUnavailable, match="this is no Flight port"):
            jjq.connect(broker.http.replace("https://", "jjq://"), retry_s=1e6)
        broker.log()  # every line of which is JSON
    with serving(store) as broker:
        address = broker.flight.partition("://")[2]
        with pytest.raises(jjq.BrokerUnavailable, match=f"its address would be jjq://{address}"):
            jjq.connect(f"jjq+tls://{address}", tls_ca=certificates.authority)
        with pytest.raises(jjq.BrokerUnavailable, match=r"\(Failed parsing HTTP/2\); this is no Flight port"):
            jjq.connect(broker.http.replace("http://", "jjq://"))
        # In a process where nothing has used gRPC before: it reads once how much it is to say.
        code = "import sys, jjq\ntry:\n jjq.connect(sys.argv[1])\nexcept jjq.BrokerUnavailable:\n print('refused')"
        said = subprocess.run(
            [sys.executable, "-c", code, f"jjq+tls://{address}"], capture_output=True, text=True, check=True
        )
        assert (said.stdout, said.stderr) == ("refused\n", "")
        broker.log()


def test_tls_is_on_both_ports_and_plain_connections_get_nothing(store: Path, certificates: Certificates) -> None:
    token = token_of(store, "a", admin="*")
    trusting = ssl.create_default_context(cafile=certificates.authority)
    with serving(store, "--tls-cert", certificates.server, "--tls-key", certificates.server_key) as broker:
        assert broker.flight.startswith("jjq+tls://")
        assert broker.http.startswith("https://")
        with jjq.connect(broker.flight, token=token, tls_ca=certificates.authority) as remote:
            remote.create_topic("t").push(b"x")
        assert post_event(broker, b"x", token, trusting)
        with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
            post_event(broker, b"x", token, ssl.create_default_context())
        plain = Served(broker.process, broker.log_path, store, "", broker.http.replace("https", "http"), {})
        with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
            post_event(plain, b"x", token)


def test_clients_show_certificates_where_they_are_asked_for(store: Path, certificates: Certificates) -> None:
    trusting = ssl.create_default_context(cafile=certificates.authority)
    known = ssl.create_default_context(cafile=certificates.authority)
    known.load_cert_chain(certificates.client, certificates.client_key)
    options = (
        "--tls-cert", certificates.server, "--tls-key", certificates.server_key, "--tls-client-ca", certificates.authority,
    )  # fmt: skip
    with serving(store, *options) as broker:
        with pytest.raises(OSError):
            post_event(broker, b"x", context=trusting)
        assert post_event(broker, b"x", context=known)


def test_a_token_is_rotated_and_revoked_while_the_broker_runs(store: Path) -> None:
    from jjq.server.settings import tokens_in
    from jjq.server.tokens import TokenFile

    old, file = token_of(store, "a", admin="*"), TokenFile(tokens_in(store))
    with serving(store) as broker:

        def lets_in(token: str | None) -> bool:
            """On both ports, or on none."""
            by_http = status(broker, token)
            try:
                with jjq.connect(broker.flight, token=token) as remote:
                    remote.topics()
                by_flight = 200
            except Unauthorized:
                by_flight = 401
            assert by_http == by_flight
            return by_http == 200

        assert [lets_in(each) for each in (old, None, "jjq_wrong")] == [True, False, False]
        new, _ = file.rotate("a", keep_us=3_600_000_000)
        assert [lets_in(each) for each in (old, new)] == [True, True]
        newest, _ = file.rotate("a")
        assert [lets_in(each) for each in (old, new, newest)] == [False, False, True]
        file.revoke("a")
        assert not lets_in(newest)
        assert all(each not in broker.log_path.read_text() for each in (old, new, newest))


def test_a_stream_ends_when_its_token_does(store: Path) -> None:
    from jjq.server.settings import tokens_in
    from jjq.server.tokens import TokenFile

    token = token_of(store, "a", admin="*")
    with serving(store, "--heartbeat-s", "0.05") as broker:
        post_event(broker, b"x", token)
        request = urllib.request.Request(f"{broker.http}/api/events", headers={"Authorization": f"Bearer {token}"})
        stream = urllib.request.urlopen(request)
        assert stream.readline()
        TokenFile(tokens_in(store)).revoke("a")
        while stream.readline():
            pass
        stream.close()


def test_a_tokens_rate_holds_on_both_ports_together(store: Path) -> None:
    from jjq.server.settings import tokens_in
    from jjq.server.tokens import TokenFile

    jjq.open(store, maintenance=False).close()
    token, _ = TokenFile(tokens_in(store)).create("a", admin=("*",), records_per_s=1)
    with serving(store) as broker, jjq.connect(broker.flight, token=token) as remote:
        remote.create_topic("t").push_many(
            [b"x"] * 1000
        )  # more than a second's worth, which goes through and is waited for
        with pytest.raises(urllib.error.HTTPError) as refusal:
            post_event(broker, b"x", token)
        assert refusal.value.code == 429
        assert int(refusal.value.headers["Retry-After"]) > 900
        refusal.value.close()


def test_actions_of_administrators_are_in_the_audit_log_and_in_no_other(store: Path, tmp_path: Path) -> None:
    token, audit = token_of(store, "boss", admin="*"), tmp_path / "audit.jsonl"
    with serving(store, "--audit-log", audit, "--log-level", "error") as broker:
        with jjq.connect(broker.flight, token=token) as remote:
            remote.create_topic("t", partitions=2)  # a plain one may be made by whoever pushes
            remote.delete_topic("t")
            with pytest.raises(jjq.TopicNotFound):
                remote.delete_topic("t")
        asked = urllib.request.Request(
            f"{broker.http}/topic/create?topic=u", method="POST", headers={"Authorization": f"Bearer {token}"}
        )
        urllib.request.urlopen(asked).close()
        gone = urllib.request.Request(
            f"{broker.http}/api/topics/t", method="DELETE", headers={"Authorization": f"Bearer {token}"}
        )
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(gone)
        refusal.value.close()
        written = [json.loads(line) for line in audit.read_text().splitlines()]
        assert [(each["message"], each["caller"], each["topic"]) for each in written] == [
            ("topic.create", "boss", "t"), ("topic.delete", "boss", "t"),
            ("topic.delete", "boss", "t"), ("failed", "boss", "t"), ("topic.create", "boss", "u"),
            ("topic.delete", "boss", "t"), ("failed", "boss", "t"),
        ]  # fmt: skip
        assert {(each["action"], each["code"]) for each in written if each["message"] == "failed"} == {
            ("topic.delete", "topic_not_found")
        }
        assert broker.log() == []


def test_a_new_certificate_is_shown_without_a_restart_and_one_that_is_none_is_not(
    store: Path, certificates: Certificates, tmp_path: Path
) -> None:
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def put(new_cert: Path, new_key: Path) -> None:
        for source, target in ((new_key, key), (new_cert, cert)):
            source.with_suffix(".next").write_bytes(source.read_bytes())
            source.with_suffix(".next").replace(target)

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", int(broker.http.rpartition(":")[2]))).strip()

    def said(message: str) -> None:
        while not any(message in each["message"] for each in broker.log()):
            threading.Event().wait(0.05)

    put(certificates.server, certificates.server_key)
    with serving(store, "--no-flight", "--tls-cert", cert, "--tls-key", key) as broker:
        assert shown() == certificates.server.read_text().strip()
        put(certificates.client, certificates.server_key)
        said("cannot be used; that from before stays")
        assert shown() == certificates.server.read_text().strip()
        put(certificates.client, certificates.client_key)
        said("new connections by HTTP get it")
        assert shown() == certificates.client.read_text().strip()
        assert str(tmp_path) in next(each for each in broker.log() if "stays" in each["message"])["message"]
