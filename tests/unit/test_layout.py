"""Which module may import which: walks the imports in the source and holds the direction of dependencies."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT / "broker", ROOT / "connector")

VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "service", "misc"}
NETWORK = {"socket", "socketserver", "ssl", "http", "urllib", "asyncio", "requests", "httpx", "pyarrow.flight"}
SPARK = {"pyspark", "pyspark_jjq", "py4j"}


class Import(NamedTuple):
    importer: str  # the full name of the module
    name: str  # what it imports: a module, or a module and a name in it
    line: int
    typing_only: bool  # under `if TYPE_CHECKING`, so it does not happen when the program runs

    def __str__(self) -> str:
        return f"{self.importer} line {self.line} imports {self.name}"


def module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_typing_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def imports_of(tree: ast.AST, importer: str, package: str, typing_only: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(importer, alias.name, node.lineno, typing_only)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - (node.level - 1)]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                yield Import(importer, f"{base}.{alias.name}", node.lineno, typing_only)
        elif isinstance(node, ast.If) and is_typing_guard(node):
            for child in node.body:
                yield from imports_of(ast.Module(body=[child], type_ignores=[]), importer, package, typing_only=True)
            for child in node.orelse:
                yield from imports_of(ast.Module(body=[child], type_ignores=[]), importer, package, typing_only)
        else:
            yield from imports_of(node, importer, package, typing_only)


def all_imports() -> list[Import]:
    found: list[Import] = []
    for source in SOURCES:
        for path in sorted(source.rglob("*.py")):
            importer = module_name(path, source)
            package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
            found += imports_of(ast.parse(path.read_text(encoding="utf-8"), str(path)), importer, package)
    return found


def within(name: str, *packages: str) -> bool:
    """Whether a dotted name is one of the packages or something inside one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


IMPORTS = all_imports()


def imports_from(*packages: str) -> list[Import]:
    return [each for each in IMPORTS if within(each.importer, *packages)]


def test_the_walk_sees_absolute_relative_nested_and_typing_imports() -> None:
    source = """
import a.b
from . import c
from ..d import e
def f():
    import g
if TYPE_CHECKING:
    import h
else:
    import i
"""
    found = imports_of(ast.parse(source), "top.mid.mod", "top.mid")
    assert [(each.name, each.typing_only) for each in found] == [
        ("a.b", False),
        ("top.mid.c", False),
        ("top.d.e", False),
        ("g", False),
        ("h", True),
        ("i", False),
    ]


def test_modules_exist_to_be_checked() -> None:
    assert all(any(source.rglob("*.py")) for source in SOURCES)


@pytest.mark.parametrize("module", ["model", "errors", "config", "clock", "values", "hints"])
def test_the_base_modules_import_only_each_other_and_no_component(module: str) -> None:
    base = ("jjq.model", "jjq.errors", "jjq.config", "jjq.clock", "jjq.values", "jjq.hints")
    wrong = [
        str(each)
        for each in imports_from(f"jjq.{module}")
        if within(each.name, "jjq", "pyspark_jjq") and not within(each.name, *base)
    ]
    assert not wrong
    # Only the standard library runs there; a type from elsewhere may be named.
    outside = [
        str(each)
        for each in imports_from(f"jjq.{module}")
        if not within(each.name, *base, *sys.stdlib_module_names) and not each.typing_only
    ]
    assert not outside
    assert not [str(each) for each in imports_from(f"jjq.{module}") if within(each.name, "sqlite3")]


def test_the_log_knows_no_sql_network_or_spark_and_only_the_protocol_of_the_catalog() -> None:
    above = ("jjq.store", "jjq.topic", "jjq.subscriber", "jjq.channel", "jjq.pubsub", "jjq.maintenance")
    outside = ("jjq.server", "jjq.client", "jjq.cli", "jjq.wire", "jjq.testing")
    wrong = [
        str(each)
        for each in imports_from("jjq.log")
        if within(each.name, "sqlite3", *NETWORK, *SPARK, *above, *outside)
        or (within(each.name, "jjq.catalog") and not within(each.name, "jjq.catalog.base"))
    ]
    assert not wrong


def test_the_catalog_knows_no_log_network_or_spark() -> None:
    wrong = [str(each) for each in imports_from("jjq.catalog") if within(each.name, "jjq.log", *NETWORK, *SPARK)]
    assert not wrong


def test_only_the_catalog_speaks_sql() -> None:
    wrong = [
        str(each)
        for each in IMPORTS
        if within(each.name, "sqlite3") and not within(each.importer, "jjq.catalog", "jjq.testing")
    ]
    assert not wrong


def test_server_and_client_do_not_import_each_other() -> None:
    wrong = [str(each) for each in imports_from("jjq.server") if within(each.name, "jjq.client")]
    wrong += [str(each) for each in imports_from("jjq.client") if within(each.name, "jjq.server")]
    assert not wrong


def test_the_library_knows_no_spark_and_no_front_end() -> None:
    front = ("jjq.server", "jjq.cli", "jjq.client")
    wrong = [str(each) for each in imports_from("jjq") if within(each.name, *SPARK)]
    wrong += [
        str(each)
        for each in imports_from("jjq")
        if within(each.name, *front) and not within(each.importer, *front) and each.importer != "jjq"
    ]
    assert not wrong


def test_the_connector_imports_the_library_and_never_a_server_or_client() -> None:
    wrong = [
        str(each) for each in imports_from("pyspark_jjq") if within(each.name, "jjq.server", "jjq.client", "jjq.cli")
    ]
    assert not wrong


def test_no_module_has_a_name_that_says_nothing() -> None:
    paths = [path for source in SOURCES for path in source.rglob("*")]
    assert not [str(path) for path in paths if path.stem.lower() in VAGUE_NAMES]
