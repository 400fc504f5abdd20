"""Settings of a broker: where they come from, what is refused, and that they are documented."""

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import jjq
from jjq.cli.commands import build_parser
from jjq.cli.serving import shown_default
from jjq.errors import InvalidArgument, StoreError
from jjq.server.http_app import all_operations
from jjq.server.settings import FIELDS, ServerSettings, from_environment, load
from tests.unit.test_docs import section, table_rows

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "conf" / "jjq.toml"
# One wrong value for each setting that has any.
WRONG = {
    "store": 7, "host": "", "flight": "perhaps", "flight_port": 65536, "http": 2, "http_port": "http", "tls_cert": 1,
    "tls_key": 1, "tls_client_ca": 1, "tokens": [], "allow_insecure": "sure", "auto_create": "x", "hot_bytes": "lots",
    "max_request_bytes": 0, "max_record_bytes": "-1", "max_object_bytes": 0, "max_connections": 0, "max_subscriptions": 1.5,
    "buffer_bytes": "10 apples", "token_records_per_s": 0, "token_bytes_per_s": "fast", "heartbeat_s": "never",
    "stop_grace_s": -1, "events_topic": "a b", "events_segments": 0, "events_segment_bytes": 17,
    "origins": ["example.org"], "audit_log": 3, "log_level": "loud",
}  # fmt: skip


def settings(**given: object) -> ServerSettings:
    return load(given, {}, None)


# --- where they come from --------------------------------------------------------------------------------------------


def test_a_flag_comes_before_the_environment_that_before_the_file_that_before_the_default(tmp_path: Path) -> None:
    config = tmp_path / "jjq.toml"
    config.write_text('host = "10.0.0.1"\nflight_port = 1\nhttp_port = 2\n')
    environment = {"JJQ_FLIGHT_PORT": "3", "JJQ_HTTP_PORT": "4"}
    found = load({"http_port": 5}, environment, config)
    assert (found.heartbeat_s, found.host, found.flight_port, found.http_port) == (15.0, "10.0.0.1", 3, 5)


def test_a_setting_may_be_text_everywhere_and_sizes_may_have_units(tmp_path: Path) -> None:
    config = tmp_path / "jjq.toml"
    config.write_text(
        'buffer_bytes = "2MB"\nhot_bytes = 4096\norigins = ["https://a.example", "https://b.example:8443"]\n'
    )
    found = load(
        {"http": "no", "token_bytes_per_s": "1 KiB"}, {"JJQ_ORIGINS": "https://c.example, http://d.example"}, config
    )
    assert (found.buffer_bytes, found.hot_bytes, found.http, found.token_bytes_per_s) == (2 << 20, 4096, False, 1024)
    assert found.origins == ("https://c.example", "http://d.example")


def test_none_takes_away_what_a_source_behind_it_set() -> None:
    assert load({"token_records_per_s": "none"}, {"JJQ_TOKEN_RECORDS_PER_S": "5"}, None).token_records_per_s is None


def test_paths_in_a_file_are_from_its_directory_and_others_from_here(tmp_path: Path) -> None:
    config = tmp_path / "jjq.toml"
    config.write_text('store = "data"\ntls_cert = "/etc/cert.pem"\n')
    found = load({"tls_key": "key.pem"}, {}, config)
    assert (found.store, found.tls_cert, found.tls_key) == (
        tmp_path / "data", Path("/etc/cert.pem"), Path("key.pem"),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["store", "tls_key", "audit_log"])
def test_a_path_that_only_a_shell_knows_is_refused_wherever_it_stands(name: str, tmp_path: Path) -> None:
    config = tmp_path / "jjq.toml"
    config.write_text(f'{name} = "~/there"')
    for load_it, where in (
        (lambda: load({}, {}, config), f"{config}, {name}"),
        (lambda: load({}, {f"JJQ_{name.upper()}": "~/there"}), f"JJQ_{name.upper()}"),
        (lambda: load({name: Path("~/there")}, {}), f"--{name.replace('_', '-')}"),
    ):
        with pytest.raises(InvalidArgument, match=re.escape(f"{where}: '~/there' begins with ~")):
            load_it()


def test_the_tokens_are_in_the_store_unless_they_are_said_to_be_elsewhere() -> None:
    assert settings(store="data").tokens_file == Path("data/tokens.json")
    assert settings(store="data", tokens="t.json").tokens_file == Path("t.json")


# --- what is refused -------------------------------------------------------------------------------------------------


def test_an_unknown_key_of_the_file_is_an_error_that_names_the_nearest(tmp_path: Path) -> None:
    config = tmp_path / "jjq.toml"
    config.write_text("flight_prot = 1\n")
    with pytest.raises(InvalidArgument, match=r"jjq.toml has 'flight_prot', .*did you mean flight_port\?"):
        load({}, {}, config)


def test_an_unknown_variable_of_the_environment_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(InvalidArgument, match=r"JJQ_HTTP_PROT, which is no setting; did you mean JJQ_HTTP_PORT\?"):
        from_environment({"JJQ_HTTP_PROT": "80"})


def test_variables_that_are_no_settings_are_left_alone() -> None:
    others = ("PATH", "JJQ_TOKEN", "JJQ_BROKER", "JJQ_CONFIG", "JJQ_DEBUG", "JJQ_TLS_CA", "JJQ_CLIENT_CERT")
    links = ("JJQ_SERVICE_HOST", "JJQ_SERVICE_PORT_HTTP", "JJQ_PORT_4750_TCP_ADDR", "JJQ_PORT_4750_TCP")
    urls = dict.fromkeys(("JJQ_PORT", "JJQ_HEADLESS_PORT"), "tcp://10.0.0.1:4750")
    assert from_environment(dict.fromkeys((*others, *links), "x") | urls) == {}


@pytest.mark.parametrize(
    ("variable", "hint"),
    [("JJQ_HTPP_PORT", "did you mean JJQ_HTTP_PORT?"), ("JJQ_PORT", "did you mean JJQ_FLIGHT_PORT or JJQ_HTTP_PORT?")],
)
def test_a_port_that_is_no_address_is_not_what_kubernetes_sets(variable: str, hint: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{variable}, which is no setting; {re.escape(hint)}"):
        from_environment({variable: "8080"})


@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_value_is_refused_wherever_it_stands(name: str, tmp_path: Path) -> None:
    value = WRONG[name]
    with pytest.raises(InvalidArgument):
        load({name: value}, {}, None)
    if isinstance(value, str):
        with pytest.raises(InvalidArgument):
            load({}, {f"JJQ_{name.upper()}": value}, None)
    config = tmp_path / "jjq.toml"
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    config.write_text(f"{name} = {shown}\n".replace("'", '"'))
    with pytest.raises(InvalidArgument):
        load({}, {}, config)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tls_cert": "c"}, "go together"), ({"tls_key": "k"}, "go together"),
        ({"tls_client_ca": "c"}, "needs tls_cert"), ({"flight": False, "http": False}, "nothing to serve"),
        ({"flight_port": 4751}, "are both 4751: each needs one of its own"),
        ({"flight_port": "x"}, "--flight-port: "), ({"hot_bytes": "1 apple"}, "--hot-bytes: .* is no size"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_with_what_to_do(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        settings(**given)


def test_a_file_that_is_not_there_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nothing\.toml"):
        load({}, {}, tmp_path / "nothing.toml")
    (tmp_path / "broken.toml").write_bytes(b"host = \xff")
    with pytest.raises(InvalidArgument, match=r"broken\.toml is no TOML"):
        load({}, {}, tmp_path / "broken.toml")
    with pytest.raises(StoreError, match="Is a directory"):
        load({}, {}, CONFIG.parent)  # which on ext4 says that it has as many bytes as there are numbers


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
        ("192.168.1.1", False), ("example.org", False), ("localhost.example.org", False),
    ],
)  # fmt: skip
def test_only_addresses_of_this_machine_are_loopback(host: str, is_loopback: bool) -> None:
    assert settings(host=host).on_loopback is is_loopback


# --- what is written of them -----------------------------------------------------------------------------------------


def entries() -> list[tuple[list[str], str, str, bool]]:
    """(comment, key, value, whether it is set) of each key of conf/jjq.toml, which stands below its comment."""
    found, comment = [], []
    for line in CONFIG.read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"(#)?(\w+) = (.*)", line)
        if match:
            found.append((comment, match.group(2), match.group(3), match.group(1) is None))
            comment = []
        else:
            comment = [*comment, line.removeprefix("# ")] if line.startswith("# ") else []
    return found


def test_the_file_has_every_key_once_with_what_is_said_of_it() -> None:
    assert [(" ".join(comment), key) for comment, key, _, _ in entries()] == [
        (field.metadata["about"], name) for name, field in FIELDS.items()
    ]


def test_the_file_as_it_is_changes_nothing() -> None:
    written = {key: tomllib.loads(f"x = {value}")["x"] for _, key, value, is_set in entries() if is_set}
    assert load({}, {}, CONFIG) == load({}, {}, None)
    optional = {name for name, field in FIELDS.items() if field.default is None}
    assert set(written) == set(FIELDS) - optional - {"store"}


def test_what_is_commented_out_in_the_file_could_be_said(tmp_path: Path) -> None:
    all_set = tmp_path / "jjq.toml"
    all_set.write_text("\n".join(f"{key} = {value}" for _, key, value, _ in entries()))
    assert {name for name in FIELDS if getattr(load({}, {}, all_set), name) is None} == set()


def test_every_setting_is_documented_with_its_default() -> None:
    rows = table_rows(section((ROOT / "docs/broker.md").read_text(encoding="utf-8"), "Settings"))
    assert [(row[0].strip("`"), row[1].strip("`"), row[2]) for row in rows] == [
        (name, "jjq-data" if name == "store" else shown_default(field.default), field.metadata["about"])
        for name, field in FIELDS.items()
    ]


# --- how it is deployed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("jjq.service", {"JJQ_STORE"}), ("Containerfile", {"JJQ_STORE", "JJQ_HOST"}),
        ("kubernetes.yaml", {"JJQ_STORE", "JJQ_HOST", "JJQ_TOKENS", "JJQ_TLS_CERT", "JJQ_TLS_KEY"}),
    ],
)  # fmt: skip
def test_what_files_for_services_set_are_settings(name: str, wanted: set[str]) -> None:
    text = (ROOT / "conf" / name).read_text(encoding="utf-8")
    found = set(re.findall(r"\bJJQ_\w+", text))
    assert found == wanted
    assert len(from_environment(dict.fromkeys(found, "x"))) == len(wanted)


def test_options_in_files_for_services_are_options() -> None:
    known = {option for action in _serve()._actions for option in action.option_strings}
    for name in ("jjq.service", "Containerfile", "kubernetes.yaml"):
        text = (ROOT / "conf" / name).read_text(encoding="utf-8")
        commands = re.findall(r"\bjjq serve([^\n#]*)", text)
        assert {option for each in commands for option in re.findall(r"--[\w-]+", each)} <= known


def test_the_pod_asks_paths_that_there_are_and_runs_as_the_images_user() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    _, stateful = yaml.safe_load_all((ROOT / "conf" / "kubernetes.yaml").read_text(encoding="utf-8"))
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    paths = {operation.path for operation in all_operations()}
    ports = {each["name"] for each in container["ports"]}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        (how,) = (each for each in container[name].values() if isinstance(each, dict))
        assert how["port"] in ports
        assert how.get("path", "/healthz") in paths
    image = (ROOT / "conf" / "Containerfile").read_text(encoding="utf-8")
    assert f"USER {pod['securityContext']['runAsUser']}\n" in image
    assert f"--gid {pod['securityContext']['runAsGroup']} jjq" in image
    assert container["image"] == f"jjq:{jjq.__version__}"
    assert f"EXPOSE {' '.join(str(each['containerPort']) for each in container['ports'])}\n" in image


def test_the_unit_lets_the_broker_write_where_the_file_of_settings_has_its_example_of_an_audit_log() -> None:
    (place,) = re.findall(r'(?m)^#audit_log = "(.+)"$', CONFIG.read_text(encoding="utf-8"))
    unit = (ROOT / "conf" / "jjq.service").read_text(encoding="utf-8")
    (directory,) = re.findall(r"(?m)^LogsDirectory=(.+)$", unit)
    assert Path(place).parent == Path("/var/log") / directory


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    text = (ROOT / "conf" / "jjq.service").read_text(encoding="utf-8")
    unit = tmp_path / "jjq.service"
    unit.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", text))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "jjq.service" in line]) == (0, [])


def _serve() -> argparse.ArgumentParser:
    (commands,) = (each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction))
    found: argparse.ArgumentParser = commands.choices["serve"]
    return found


def test_the_pod_and_its_service_listen_where_the_broker_does() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    service, stateful = yaml.safe_load_all((ROOT / "conf" / "kubernetes.yaml").read_text(encoding="utf-8"))
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    default = load({}, {}, None)
    assert ports == {"flight": default.flight_port, "http": default.http_port}
    assert {each["targetPort"]: each["port"] for each in service["spec"]["ports"]} == ports
    assert stateful["spec"]["replicas"] == 1
    assert stateful["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > default.stop_grace_s
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    for each in container["env"]:
        if each["value"].startswith("/"):
            assert any(each["value"].startswith(f"{path}/") for path in mounted), each
