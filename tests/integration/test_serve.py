"""`jjq serve` as a process: when it starts and when not, what it says, how it ends, and that nothing is lost when it is killed."""

import contextlib
import http.client
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import jjq
from jjq.errors import JjqError, TooManyRequests
from jjq.server.certificates import warn_of_age
from jjq.server.settings import ServerSettings
from tests.brokers import Served, environment, half_a_request, post_event, refused, serving, token_of
from tests.certificates import Certificates

CONFIG = Path(__file__).resolve().parents[2] / "conf" / "jjq.toml"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


# --- start -----------------------------------------------------------------------------------------------------------


def test_it_says_where_it_listens_when_both_ports_are_open(store: Path) -> None:
    with serving(store, "--config", CONFIG) as broker:
        assert broker.ready["store"] == str(store)
        assert broker.ready["pid"] == broker.process.pid
        for url in (broker.flight, broker.http):
            host, _, port = url.partition("://")[2].partition(":")
            socket.create_connection((host, int(port))).close()
        with jjq.connect(broker.flight) as remote:
            remote.create_topic("t").push(b"by flight")
        assert set(post_event(broker, b"by http")) == {"id"}
        with jjq.open(store) as beside:  # as one more process on the directory
            assert [record.value for record in beside.create_subscriber("t").poll()] == [b"by flight"]
            assert beside.topic("events").offsets()[0].end == 1


def test_it_takes_as_many_open_files_as_it_may_have(store: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1000), hard))
    try:
        with serving(store, "--no-http", "--max-connections", str(1 << 17)) as broker:
            assert resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE)[0] == min(hard, 65536)
            assert any("ulimit -n" in said["message"] for said in broker.log())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_front_can_be_left_out(store: Path) -> None:
    with serving(store, "--no-http") as broker:
        assert broker.ready["http"] is None
        with jjq.connect(broker.flight) as remote:
            assert remote.topics() == []
    with serving(store, "--no-flight") as broker:
        assert broker.ready["flight"] is None
        assert post_event(broker, b"x")


def test_a_front_whose_packages_are_missing_is_named_with_what_to_install(store: Path, tmp_path: Path) -> None:
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "uvicorn.py").write_text("raise ModuleNotFoundError('gone', name='uvicorn')")
    code, said = refused(store, PYTHONPATH=str(tmp_path / "missing"))
    assert code == 2
    assert (
        "http needs the packages of the extra `server`: pip install 'jjq[server]', from a checkout '.[server]' (there is no uvicorn)"
        in said
    )
    with serving(store, "--no-http", PYTHONPATH=str(tmp_path / "missing")) as broker:
        assert broker.flight


def test_a_port_that_is_taken_is_named(store: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for front in ("flight", "http"):
            code, said = refused(store, f"--{front}-port", str(port))
            assert code == 2
            assert (
                f"cannot listen on 127.0.0.1:{port} for {front}: Address already in use; give another --{front}-port"
                in said
            )
            assert len(said.splitlines()) == 1


@pytest.mark.parametrize("front", ["flight", "http"])
def test_an_address_of_another_machine_is_named(store: Path, front: str) -> None:
    other = "http" if front == "flight" else "flight"
    code, said = refused(store, "--host", "203.0.113.9", "--allow-insecure", f"--no-{other}")
    assert code == 2
    assert f"for {front}: Cannot assign requested address; --host takes an address of this machine" in said
    assert len(said.splitlines()) == 1


def test_other_machines_are_not_let_in_without_tls_and_tokens_unless_told_so(
    store: Path, certificates: Certificates
) -> None:  # fmt: skip
    tls = ("--tls-cert", certificates.server, "--tls-key", certificates.server_key)
    code, said = refused(store, "--host", "0.0.0.0")
    assert code == 2
    assert "and there is no TLS (--tls-cert and --tls-key) and there are no tokens (" in said
    assert "and there are no tokens (" in refused(store, "--host", "0.0.0.0", *tls)[1]
    token_of(store, "a", read="*")
    assert "no tokens" not in refused(store, "--host", "0.0.0.0")[1]
    with serving(store, "--host", "0.0.0.0", *tls):
        pass
    with serving(store, "--host", "0.0.0.0", "--allow-insecure") as broker:
        assert "without TLS or without tokens" in json.dumps(broker.log())


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [
        ("server", "client_key", "client.key is not that of the certificate in "), ("server_key", "server", "tls_cert"),
        ("server", "client", "holds no private key in PEM"), ("nothing", "server_key", "No such file"),
        ("server", "directory", "cannot be read"), ("server", "locked", "openssl pkey -in"),
    ],
)  # fmt: skip
def test_certificates_that_are_none_are_refused_before_a_port_opens(
    store: Path, certificates: Certificates, cert: str, key: str, said: str
) -> None:  # fmt: skip
    locked = certificates.server_key.with_name("locked.key")
    subprocess.run(
        ["openssl", "pkey", "-in", certificates.server_key, "-aes256", "-passout", "pass:secret", "-out", locked],
        check=True,
    )
    files = certificates._asdict() | {"nothing": store / "nothing.pem", "directory": locked.parent, "locked": locked}
    code, message = refused(store, "--tls-cert", files[cert], "--tls-key", files[key])
    assert code == 2
    assert said in message
    assert str(files[cert]) in message or str(files[key]) in message
    assert not store.exists()


def test_a_certificate_that_has_expired_or_soon_does_is_warned_of(
    tmp_path: Path, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServerSettings(store=tmp_path, tls_cert=certificates.server, tls_key=certificates.server_key)
    now = datetime.now(UTC)  # they are good for two days
    for days, said in ((-1, "is good from"), (0, "expires at"), (3, "expired at")):
        caplog.clear()
        warn_of_age(settings, now + timedelta(days=days))
        (record,) = caplog.records
        assert said in record.getMessage()
        assert str(certificates.server) in record.getMessage()
    with serving(tmp_path / "s", "--tls-cert", certificates.server, "--tls-key", certificates.server_key) as broker:
        assert any("expires at" in each["message"] for each in broker.log())


def test_tokens_that_are_said_to_be_somewhere_must_be_there(store: Path, tmp_path: Path) -> None:
    code, said = refused(store, "--tokens", tmp_path / "nowhere.json")
    assert code == 2
    assert f"`jjq token create NAME --tokens {tmp_path / 'nowhere.json'}`" in said


def test_a_store_that_can_only_be_read_is_served_and_warned_of(store: Path) -> None:
    """As the user of a service finds it whose store root has made."""
    jjq.open(store).close()
    store.chmod(0o555)
    through = ("setpriv", "--bounding-set", "-dac_override") if os.geteuid() == 0 else ()  # root may write everywhere
    try:
        with serving(store, through=through) as broker:
            with jjq.connect(broker.flight) as remote, pytest.raises(jjq.StoreReadOnly):
                remote.create_topic("t")
            (warning,) = [each["message"] for each in broker.log() if each["level"] == "warning"]
            assert warning.startswith(f"this process may not write to {store}: ")
    finally:
        store.chmod(0o755)


def test_systemd_is_told_when_it_is_ready_and_when_it_stops(store: Path, tmp_path: Path) -> None:
    # A socket's path is short; one without a file is as long as it is.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("")  # the kernel chooses an abstract name
        name = "@" + manager.getsockname()[1:].decode()
        with serving(store, NOTIFY_SOCKET=name) as broker:
            assert manager.recv(100) == b"READY=1"
            assert broker.stop() == 0
            assert manager.recv(100) == b"STOPPING=1"


# --- end -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_nothing_left_behind(store: Path, by: signal.Signals) -> None:
    with serving(store) as broker:
        with jjq.connect(broker.flight) as remote:
            topic = remote.create_topic("t", sync="interval", sync_interval_ms=3_600_000)
            topic.push_many([b"x"] * 100)
        assert broker.stop(by) == 0
        messages = [each["message"] for each in broker.log()]
        assert messages[-2:] == ["stopping", "stopped"]
        assert "error" not in {each["level"] for each in broker.log()}
    with jjq.open(store) as opened:
        assert opened.topic("t").offsets()[0].end == 100
        assert opened.verify().ok


def test_clients_that_wait_are_told_when_it_stops(store: Path) -> None:
    with serving(store, "--stop-grace-s", "5") as broker:
        post_event(broker, b"x")
        stream = urllib.request.urlopen(f"{broker.http}/api/events?start=earliest")
        assert stream.readline()  # it is being served
        assert broker.stop() == 0
        stream.read()  # to its end, which is an end and no broken connection
        stream.close()


def test_a_request_that_does_not_end_in_time_is_told_and_is_no_fault(store: Path) -> None:
    with serving(store, "--stop-grace-s", "0") as broker, half_a_request(broker) as half:
        assert broker.stop() == 0
        got = b"".join(iter(lambda: half.recv(1 << 16), b""))
        assert got.startswith(b"HTTP/1.1 503 ")
        assert b'"stopping"' in got
        assert not [each for each in broker.log() if "error" in each]


def test_a_second_signal_ends_it_at_once(store: Path) -> None:
    with serving(store, "--stop-grace-s", "3600", "--heartbeat-s", "3600") as broker, half_a_request(broker):
        broker.process.send_signal(signal.SIGTERM)
        while "stopping" not in [each["message"] for each in broker.log()]:
            threading.Event().wait(0.01)
        assert broker.process.poll() is None
        assert broker.stop(signal.SIGTERM) == -signal.SIGTERM


def test_what_was_acknowledged_is_there_once_after_a_kill_and_a_restart(store: Path) -> None:
    pushed: list[bytes] = []
    posted: list[bytes] = []

    def push(broker: Served, name: str) -> None:
        with contextlib.suppress(JjqError), jjq.connect(broker.flight, retry_s=0) as remote:
            topic = remote.topic("t")
            for value in (f"{name}-{number}".encode() for number in itertools.count()):
                topic.push(value)
                pushed.append(value)

    def post(broker: Served, name: str) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            for value in (f"{name}-{number}".encode() for number in itertools.count()):
                post_event(broker, value)
                posted.append(value)

    for round_ in range(3):
        with serving(store) as broker:
            with jjq.connect(broker.flight) as remote:
                remote.create_topic("t", exist_ok=True)
            enough = (len(pushed) + 50, len(posted) + 50)
            threads = [threading.Thread(target=each, args=(broker, f"{round_}")) for each in (push, post)]
            for thread in threads:
                thread.start()
            while len(pushed) < enough[0] or len(posted) < enough[1]:
                threading.Event().wait(0.001)
            broker.kill()
            for thread in threads:
                thread.join()
    with jjq.open(store) as opened:
        for topic, column, acknowledged in (("t", "value", pushed), ("events", "body", posted)):
            values = opened.topic(topic).read().read_all()[column].to_pylist()
            values = [value.encode() if isinstance(value, str) else value for value in values]
            assert len(values) == len(set(values))
            assert set(acknowledged) <= set(values)
        assert opened.verify().ok


def test_two_brokers_on_one_store_serve_all_of_it(store: Path) -> None:
    with serving(store) as first, serving(store) as second:
        with jjq.connect(first.flight) as one, jjq.connect(second.flight) as two:
            one.create_topic("t")
            subscriber = two.create_subscriber("t", "s")
            threads = [
                threading.Thread(target=remote.topic("t").push_many, args=([name] * 500,))
                for remote, name in ((one, b"one"), (two, b"two"))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            one.topic("t").push(b"last")
            got = []
            while (record := subscriber.pop(timeout=60)) is not None:
                got.append(record.value)
                if record.value == b"last":
                    break
        assert sorted(got) == [b"last"] + [b"one"] * 500 + [b"two"] * 500
        ids = [post_event(broker, b"x")["id"] for broker in (first, second, first, second)]
        assert ids == sorted(set(ids))
        assert (first.stop(), second.stop()) == (0, 0)
    with jjq.open(store) as opened:
        assert opened.verify().ok


# --- what it says ----------------------------------------------------------------------------------------------------


def test_no_client_is_told_of_paths_or_code(store: Path) -> None:
    with serving(store) as broker, jjq.connect(broker.flight) as remote:
        with pytest.raises(JjqError) as missing:
            remote.topic("nothing")
        assert str(store) not in str(missing.value)
        try:
            urllib.request.urlopen(f"{broker.http}/api/nothing")
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            error.close()
            assert str(store) not in text
            assert "Traceback" not in text


def test_more_subscriptions_than_it_takes_are_refused(store: Path) -> None:
    with serving(store, "--max-subscriptions", "1") as broker:
        post_event(broker, b"x")
        with urllib.request.urlopen(f"{broker.http}/api/events?start=earliest") as stream:
            assert stream.readline()
            with pytest.raises(urllib.error.HTTPError) as refusal:
                urllib.request.urlopen(f"{broker.http}/api/events")
            assert refusal.value.code == 429
            refusal.value.close()
            with jjq.connect(broker.flight) as remote, pytest.raises(TooManyRequests):
                listen(remote)


def listen(remote: Any) -> None:
    with remote.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe("a")
        subscription.get_message(timeout=1)


# Kills one front of a broker from within, as a fault of the interpreter or of gRPC would, when a line comes.
_DYING = """
import ctypes, gc, sys, threading
from pyarrow import flight
from jjq_command import main

def die():
    if sys.stdin.readline().strip() == "http":
        (thread,) = [each for each in threading.enumerate() if each.name == "jjq-http"]
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    else:
        (server,) = [each for each in gc.get_objects() if isinstance(each, flight.FlightServerBase)]
        server.shutdown()

threading.Thread(target=die, daemon=True).start()
sys.argv = ["jjq", "serve", "--store", sys.argv[1], "--flight-port", "0", "--http-port", "0", "--json",
            "--stop-grace-s", "1"]
sys.exit(main())
"""


@pytest.mark.parametrize("front", ["http", "flight"])
def test_a_broker_whose_front_ends_by_itself_ends_with_an_error(store: Path, front: str) -> None:
    broker = subprocess.Popen(
        [sys.executable, "-c", _DYING, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=environment(PYTHONWARNINGS="default"), text=True,
    )  # fmt: skip
    try:
        assert broker.stdout is not None
        assert json.loads(broker.stdout.readline())["pid"] == broker.pid
        _, said = broker.communicate(f"{front}\n")
    finally:
        broker.kill()
        broker.wait()
    assert broker.returncode == 1
    assert "ended by itself" in said.splitlines()[-1]
    with jjq.open(store) as opened:
        assert opened.verify().ok
