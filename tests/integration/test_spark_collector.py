"""What Spark's Python workers need not look at again and again."""

import subprocess
import sys
from pathlib import Path

import pytest

import jjq

CODE = """
import gc, sys
from importlib.machinery import ModuleSpec
sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
from pyspark_jjq.stores import open_store
open_store(sys.argv[2]).close()
print(gc.get_freeze_count())
"""


@pytest.mark.parametrize(("main", "spares"), [("pyspark.daemon", True), ("a_users_script", False)])
def test_the_collector_is_spared_what_stays_in_a_worker_of_spark_only(tmp_path: Path, main: str, spares: bool) -> None:
    jjq.open(tmp_path / "store").close()
    done = subprocess.run(
        [sys.executable, "-c", CODE, main, str(tmp_path / "store")], capture_output=True, text=True, check=True
    )
    assert (int(done.stdout) > 10_000) is spares
