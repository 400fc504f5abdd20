"""Ctrl-C while the `jjq` command is still being imported."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.integration.conftest import Cli

# Python runs a module of this name when it starts. This one presses Ctrl-C as the given module is about to be imported.
_SITE = """
import signal
import sys


class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            signal.raise_signal(signal.SIGINT)


sys.meta_path.insert(0, Pressed())
"""


@pytest.mark.embedded
@pytest.mark.parametrize("module", ["jjq", "pyarrow", "jjq.store", "jjq.cli.trials"])
def test_an_interrupt_while_it_is_imported_shows_no_traceback(cli: Cli, tmp_path: Path, module: str) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE.format(module=module), encoding="utf-8")
    cli.environment["PYTHONPATH"] = str(site)
    done = cli.run("topic", "list", code=130, fresh=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_the_command_begins_in_a_module_that_imports_nothing() -> None:
    (script,) = entry_points(group="console_scripts", name="jjq")
    assert script.value == "jjq_command:main"
    code = "import sys; before = set(sys.modules); import jjq_command; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['jjq_command']"


def test_the_package_run_as_a_module_is_the_command() -> None:
    script, module = (
        subprocess.run([*begin, "topci"], capture_output=True, text=True, check=False)
        for begin in ([Path(sys.executable).with_name("jjq")], [sys.executable, "-m", "jjq"])
    )
    assert module.stderr.startswith("jjq: there is no command 'topci'")
    assert (module.returncode, module.stdout, module.stderr) == (script.returncode, script.stdout, script.stderr)


def test_its_exit_code_is_the_one_of_an_interrupt() -> None:
    import jjq_command
    from jjq.cli.exits import INTERRUPTED

    assert jjq_command.INTERRUPTED == INTERRUPTED
