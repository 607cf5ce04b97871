"""The digest of a Python file's meaning: its syntax tree without comments, docstrings, layout and descriptions.

    tree = read_python(path.read_text())
    tree.digest(lambda module: ...)      # sha256; the function gives the text that stands for an imported project module
    tree.imports                         # dotted names that may be modules; relative ones begin with their dots
    tree.strings, tree.beginnings        # text constants, and the constant beginnings of f-strings

What does not count: comments, blank lines, line breaks, brackets that only group, the kind of quotes; statements that are
a lone string (docstrings of modules, classes, functions and attributes); `description=` and `title=` of pydantic's
`Field`; blocks of `if TYPE_CHECKING:`. Everything else counts, error messages too, because some of them become rows
(bad_lines.parquet, the quarantine table).

The digest is the same on every Python from 3.11 on: fields that are empty are left out (later versions add fields), text
constants of an f-string are joined (versions cut them differently), and text is written as ASCII (what `repr` escapes
depends on the version's Unicode tables).
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_DESCRIPTIVE = frozenset({"description", "title"})
_NO_MEANING = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


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
    tree = ast.parse(text)
    imports: set[str] = set()
    strings: set[str] = set()
    beginnings: set[str] = set()
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots, source = "." * node.level, node.module or ""
            imports.add(dots + source)
            imports.update(f"{dots}{source}{'.' if source else ''}{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            values = _joined(node.values)
            if values and isinstance(values[0], ast.Constant):
                beginnings.add(values[0].value)
    pieces = [""]
    for is_module, piece in _written(tree):
        if is_module:
            pieces += [piece, ""]
        else:
            pieces[-1] += piece
    return PythonTree(tuple(pieces), frozenset(imports), frozenset(strings), frozenset(beginnings))


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for _, value in _fields(node):
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield from _nodes(each)


def _written(node: ast.AST) -> Iterator[tuple[bool, str]]:
    """The tree as pieces of text; (True, name) for the module of an import."""
    if isinstance(node, ast.Constant):
        yield False, f"{type(node.value).__name__} {node.value!a};"
        return
    yield False, f"{type(node).__name__}("
    for name, value in _fields(node):
        yield False, f"{name}="
        if name == "module" and isinstance(node, ast.ImportFrom):
            yield True, value
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield from _written(each)
            else:
                yield False, f"{each!a};"
        yield False, ";"
    yield False, ")"


def _fields(node: ast.AST) -> Iterator[tuple[str, object]]:
    """The fields that carry a node's meaning, without empty fields."""
    for name in node._fields:
        value = getattr(node, name, None)
        if name in _NO_MEANING:
            continue
        if name in ("body", "orelse", "finalbody") and isinstance(value, list):
            value = [each for each in value if not _says_nothing(each)]
        elif name == "keywords" and _is_field(node):
            value = [each for each in value if each.arg not in _DESCRIPTIVE]
        elif name == "values" and isinstance(node, ast.JoinedStr):
            value = _joined(value)
        if value is not None and value != []:
            yield name, value


def _says_nothing(statement: ast.AST) -> bool:
    """Whether a statement is a lone string, or for type checkers only."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)
    if isinstance(statement, ast.If) and not statement.orelse:
        test = statement.test
        return "TYPE_CHECKING" in (getattr(test, "id", None), getattr(test, "attr", None))
    return False


def _is_field(node: ast.AST) -> bool:
    """Whether a node is a call of pydantic's Field."""
    return isinstance(node, ast.Call) and "Field" in (getattr(node.func, "id", None), getattr(node.func, "attr", None))


def _joined(values: list[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string: adjacent text constants joined, empty ones left out."""
    found: list[ast.expr] = []
    for value in values:
        if not isinstance(value, ast.Constant):
            found.append(value)
        elif value.value:
            before = found[-1] if found else None
            if isinstance(before, ast.Constant):
                found[-1] = ast.Constant(before.value + value.value)
            else:
                found.append(value)
    return found
