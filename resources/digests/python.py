"""The digest of a Python file's meaning: its syntax tree without comments, docstrings and other lone strings, layout,
`description=` and `title=` of pydantic's `Field` and of `column` (model_ops/files/columns.py), and blocks of `if
TYPE_CHECKING:`. Everything else counts, error messages too, because some become rows (bad_lines.parquet, the quarantine table).

The digest is the same on every Python from 3.11 on: fields that are empty are left out, text constants of an f-string are
joined (versions cut them differently), and text is written as ASCII (what `repr` escapes depends on the Unicode tables)."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_DESCRIPTIVE = frozenset({"description", "title"})
_DESCRIBED = frozenset({"Field", "column"})
_NO_MEANING = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_FILTERED = frozenset({"body", "orelse", "finalbody", "keywords", "values"})


@dataclass(frozen=True)
class PythonTree:
    """One file: its tree as pieces of text, with imported modules as separate pieces."""

    pieces: tuple[str, ...]
    """Pieces at odd positions are names of imported modules; the others are text of the tree."""
    imports: frozenset[str]
    strings: frozenset[str] = field(repr=False)
    beginnings: frozenset[str] = field(repr=False)

    def digest(self, stands_for: Callable[[str], str] = str) -> str:
        """sha256 of the tree, with `stands_for(module)` instead of each imported module's name."""
        text = "".join(stands_for(piece) if number % 2 else piece for number, piece in enumerate(self.pieces))
        return hashlib.sha256(text.encode()).hexdigest()


def read_python(text: str) -> PythonTree:
    """Reads a file's text. Raises SyntaxError for invalid Python."""
    reading = _Reading()
    reading.node(ast.parse(text))
    return PythonTree(reading.pieces(), frozenset(reading.imports), frozenset(reading.strings), frozenset(reading.beginnings))


class _Reading:
    """One pass over a tree. Every process that loads the graph reads all files, so a node costs as little as it can."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.strings: set[str] = set()
        self.beginnings: set[str] = set()
        self._text: list[str] = []
        self._modules: list[tuple[int, str]] = []
        """Imported modules, each with the number of texts before it."""

    def pieces(self) -> tuple[str, ...]:
        pieces, start = [], 0
        for end, module in self._modules:
            pieces += ["".join(self._text[start:end]), module]
            start = end
        return (*pieces, "".join(self._text[start:]))

    def node(self, node: ast.AST) -> None:
        kind = type(node)
        write = self._text.append
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                self.strings.add(node.value)
            write(f"{type(node.value).__name__} {node.value!a};")
            return
        if isinstance(node, ast.Import):
            self.imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            self._import_from(node)
        write(f"{kind.__name__}(")
        for name in _fields(kind.__name__):
            value = getattr(node, name, None)
            if value is None or value == []:
                continue
            if name in _FILTERED:
                value = self._filtered(node, name, value)
                if value == []:
                    continue
            write(f"{name}=")
            if name == "module" and kind is ast.ImportFrom:
                self._modules.append((len(self._text), value))
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    self.node(each)
                else:
                    write(f"{each!a};")
            write(";")
        write(")")

    def _import_from(self, node: ast.ImportFrom) -> None:
        dots, source = "." * node.level, node.module or ""
        self.imports.add(dots + source)
        self.imports.update(f"{dots}{source}{'.' if source else ''}{alias.name}" for alias in node.names)

    def _filtered(self, node: ast.AST, name: str, value: Any) -> Any:
        if name == "keywords":
            return [each for each in value if each.arg not in _DESCRIPTIVE] if _is_described(node) else value
        if name == "values":
            if not isinstance(node, ast.JoinedStr):
                return value
            parts = _joined(value)
            if parts and isinstance(parts[0], ast.Constant):
                self.beginnings.add(str(parts[0].value))
            return parts
        return [each for each in value if not _says_nothing(each)] if isinstance(value, list) else value


@functools.cache
def _fields(kind: str) -> tuple[str, ...]:
    return tuple(name for name in getattr(ast, kind)._fields if name not in _NO_MEANING)


def _says_nothing(statement: ast.AST) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)
    if isinstance(statement, ast.If) and not statement.orelse:
        test = statement.test
        return "TYPE_CHECKING" in (getattr(test, "id", None), getattr(test, "attr", None))
    return False


def _is_described(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and bool(_DESCRIBED & {getattr(node.func, "id", None), getattr(node.func, "attr", None)})


def _joined(values: list[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string: adjacent text constants joined, empty ones left out."""
    parts: list[ast.expr] = []
    for value in values:
        if not isinstance(value, ast.Constant):
            parts.append(value)
        elif value.value:
            before = parts[-1] if parts else None
            if isinstance(before, ast.Constant):
                parts[-1] = ast.Constant(str(before.value) + str(value.value))
            else:
                parts.append(value)
    return parts
