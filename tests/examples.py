"""Runs the Python blocks of a page of documentation, so that what it shows is what happens."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, NamedTuple


class Block(NamedTuple):
    """A block of code; `line` is that of its first line in the page, from 1."""

    line: int
    code: str

    @property
    def is_spark(self) -> bool:
        return "spark" in self.code


def python_blocks(path: Path) -> list[Block]:
    return blocks(path, "python")


def blocks(path: Path, language: str) -> list[Block]:
    found: list[Block] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    start: int | None = None
    for number, line in enumerate(lines, 1):
        if start is None and line == f"```{language}":
            start = number + 1
        elif start is not None and line == "```":
            found.append(Block(start, "\n".join(lines[start - 1 : number - 1])))
            start = None
    return found


def run_block(path: Path, block: Block, names: dict[str, Any]) -> None:
    """Runs a block; what stands behind `# ->` must be what its line gives, `...` in it standing for anything."""
    lines = block.code.splitlines()
    for node in ast.parse("\n" * (block.line - 1) + block.code).body:
        _, arrow, wanted = lines[(node.end_lineno or 0) - block.line].partition("# -> ")
        if not arrow:
            exec(compile(ast.Module([node], []), str(path), "exec"), names)
            continue
        assert isinstance(node, ast.Expr), f"line {node.lineno}: only an expression gives something"
        value = eval(compile(ast.Expression(node.value), str(path), "eval"), names)
        where = f"line {node.lineno}: {value!r}, not {wanted}"
        if "..." in wanted:
            assert re.fullmatch(re.escape(wanted).replace(r"\.\.\.", ".*"), repr(value)), where
        else:
            assert value == ast.literal_eval(wanted), where
