"""The notebooks run from top to bottom, in any directory, and leave nothing behind."""

import ast
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(path: Path) -> list[tuple[str, str]]:
    """(what to call it, source) of each cell of code."""
    cells = [cell for cell in load(path)["cells"] if cell["cell_type"] == "code"]
    return [(f"{path.name} cell {cell['id']}", "".join(cell["source"])) for cell in cells]


def run_cell(where: str, source: str, names: dict[str, Any]) -> None:
    """As a kernel does: the value of a last expression is shown, which is when some things are computed."""
    body = ast.parse(source, where).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), where, "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), where, "eval"), names)
        getattr(value, "_repr_html_", value.__repr__)()


@pytest.fixture
def errors_only(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, as it was afterwards: a notebook may silence its log."""
    yield spark
    spark.sparkContext.setLogLevel("ERROR")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom_and_ends_clean(
    path: Path, errors_only: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    temporary = Path(tempfile.gettempdir())
    before = set(temporary.glob("jjq-*"))
    names: dict[str, Any] = {"__name__": "__main__"}
    for where, source in code_cells(path):
        run_cell(where, source, names)
    assert "spark" in names
    assert not errors_only.streams.active
    assert not names["directory"].exists()
    assert set(temporary.glob("jjq-*")) == before
    assert not list(tmp_path.iterdir())


def test_the_notebooks_are_those_that_the_page_lists() -> None:
    page = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
    assert NOTEBOOKS
    assert [path.name for path in NOTEBOOKS if f"(../notebooks/{path.name})" not in page] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_in_a_form_that_every_jupyter_reads(path: Path) -> None:
    notebook = load(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
