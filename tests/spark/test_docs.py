"""The examples for Spark in the documentation run, and give what they say."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import jjq
from tests.examples import python_blocks, run_block

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["README.md", "docs/spark.md", "docs/kafka.md"])
def test_examples_run_in_order(name: str, spark: SparkSession, tmp_path: Path) -> None:
    blocks = python_blocks(ROOT / name)
    assert any(block.is_spark for block in blocks)
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.ExitStack() as opened:
        for block in blocks:
            # Spark was started elsewhere, so a relative path would be another one for it than for this process.
            here = block._replace(code=block.code.replace('"data/', f'"{tmp_path}/data/'))
            try:
                run_block(ROOT / name, here, names)
            finally:
                for value in names.values():
                    if isinstance(value, jjq.Store):
                        opened.callback(value.close)
