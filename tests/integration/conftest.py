"""The installed `jjq` command, run as a person or a script would, on a directory and through a broker; a store for the
connector's readers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import jjq
from jjq import background
from tests.certificates import Certificates, made_in
from tests.integration.forks import Forks

COMMAND = Path(sys.executable).with_name("jjq")


@dataclass
class Cli:
    """Runs commands on one store, in a directory of its own."""

    directory: Path
    store: Path
    forks: Forks
    environment: dict[str, str] = field(default_factory=dict)
    where: str = ""  # how commands call the store

    def start(self, *arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
        """The installed command, while it runs."""
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(
            [COMMAND, *map(str, arguments)], cwd=self.directory, env=self.environment, **(streams | options)
        )

    def run(
        self, *arguments: str | Path, stdin: bytes | str = b"", code: int = 0, fresh: bool = False, said: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """The finished command, whose exit code must be `code`. With `fresh` it is the installed one, not a fork. One that
        succeeds says nothing on the standard error, unless something is to be `said` there."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        command = [str(each) for each in (COMMAND, *arguments)]
        if fresh:
            done = subprocess.run(command, cwd=self.directory, env=self.environment, input=data, capture_output=True)
        else:
            done = self.forks.run(command, self.directory, self.environment, data)
        out, err = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == code, f"jjq {' '.join(map(str, arguments))} -> {done.returncode}\n{out}\n{err}"
        assert "Traceback" not in err
        if code == 0:
            assert bool(err) == said
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def text(self, *arguments: str | Path, **options: Any) -> str:
        return self.run(*arguments, **options).stdout

    def json(self, *arguments: str | Path, **options: Any) -> Any:
        """The one JSON document that the command prints with --json."""
        return json.loads(self.run(*arguments, "--json", **options).stdout)

    def lines(self, *arguments: str | Path, **options: Any) -> list[Any]:
        """The JSON documents, one a line, that the command prints with --json."""
        return [json.loads(line) for line in self.run(*arguments, "--json", **options).stdout.splitlines()]

    def error(self, *arguments: str | Path, code: int = 1, **options: Any) -> str:
        """What a command that fails says: one or two lines, and nothing on the standard output."""
        done = self.run(*arguments, code=code, **options)
        assert done.stdout == ""
        assert 1 <= len(done.stderr.splitlines()) <= 2
        assert done.stderr.startswith("jjq")
        return done.stderr

    def open(self) -> jjq.Store:
        return jjq.open(self.store)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        embedded = metafunc.definition.get_closest_marker("embedded") is not None
        places = getattr(metafunc.module, "PLACES", ("directory", "broker"))
        metafunc.parametrize("place", ("directory",) if embedded else places)


def environment() -> dict[str, str]:
    kept = ("PATH", "HOME", "LANG", "COVERAGE_PROCESS_START")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"PYTHONWARNINGS": "error"}


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    forks = Forks(environment())
    yield forks
    forks.end()


@pytest.fixture(scope="session")
def broker_forks() -> Iterator[Forks]:
    """For a broker, which goes on while other commands run; one at a time."""
    forks = Forks(environment(), "jjq.server.run", "jjq.server.flight")
    yield forks
    forks.end()


@pytest.fixture
def broker(tmp_path: Path, broker_forks: Forks) -> Iterator[str]:
    """The address of a broker of the store in this directory, which has Flight alone."""
    command = [str(COMMAND), "serve", "--store", str(tmp_path / "store"), "--no-http", "--flight-port", "0", "--json"]
    log = tmp_path / "broker.log"
    with broker_forks.running(command, tmp_path, environment(), log) as said:
        line = said.readline()
        assert line, log.read_text()
        yield json.loads(line)["flight"]


@pytest.fixture
def cli(tmp_path: Path, forks: Forks, place: str, request: pytest.FixtureRequest) -> Iterator[Cli]:
    """Commands on a store that is named by its directory, or by the broker that serves it; tests may look into the directory
    either way."""
    store = tmp_path / "store"
    if place == "directory":
        yield Cli(tmp_path, store, forks, environment() | {"JJQ_STORE": str(store)}, str(store))
        return
    address = request.getfixturevalue("broker")
    yield Cli(tmp_path, store, forks, environment() | {"JJQ_BROKER": address}, address)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[jjq.Store]:
    from tests.readers import close_stores  # here, since it imports Spark's classes

    # What is counted here (files, statements, rows of a plan) no turn in the background is to change, be it of the connector's
    # own stores.
    monkeypatch.setattr(background, "INTERVAL_S", 3600.0)
    with jjq.open(tmp_path / "store") as opened:
        yield opened
    close_stores()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return made_in(tmp_path_factory.mktemp("tls") / "certificates")
