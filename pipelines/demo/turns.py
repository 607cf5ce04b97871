"""Questions and answers about the standard library's functions. write: the signature is given, the source is the answer;
complete: the first half of the source is given; explain: the source is given, the docstring is the answer.
"""

import ast
import re
import sysconfig
import textwrap
import tokenize
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from model_ops.files import library_sources

Kind = Literal["write", "complete", "explain", "mail"]
KINDS: tuple[Kind, ...] = ("write", "complete", "explain")

SOURCE_CHARACTERS = (80, 900)
TURN_CHARACTERS = (40, 1200)
DOCSTRING_CHARACTERS = (40, 600)

WORDING: dict[Kind, tuple[str, ...]] = {
    "write": ("Write {name} of {module}.", "Implement {name} for {module}.", "{module} needs {name}. Write it."),
    "complete": ("Complete {name} of {module}.", "Finish {name} in {module}.", "Continue this code of {module}."),
    "explain": ("Explain {name} of {module}.", "What does {name} in {module} do?", "Document {name} of {module}."),
}
"""Short, because the words around the code must not make different questions similar."""

_EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.\w+")


@dataclass(frozen=True)
class Function:
    """One function of the standard library."""

    module: str
    name: str
    signature: str
    source: str
    """Source code, dedented."""
    bare: str
    """Source code without its docstring."""
    docstring: str


@dataclass(frozen=True)
class DemoTurn:
    """One question with its answer. function: what a question about code is about."""

    function: Function | None
    kind: Kind
    question: str
    answer: str


@cache
def readable_functions() -> tuple[Function, ...]:
    """Functions of the modules reserved for traffic, with sources of 80 to 900 characters, in a fixed order, each source once.

    Functions with an e-mail address are left out, so that only planted addresses occur.
    """
    root = Path(sysconfig.get_path("stdlib"))
    functions: dict[str, Function] = {}
    for path in library_sources("traffic"):
        with tokenize.open(path) as file:
            text = file.read()
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for function in _functions(text, module):
            if not _EMAIL.search(function.source):
                functions.setdefault(function.bare, function)
    return tuple(functions.values())


def make_turn(function: Function, kind: Kind, wording: int = 0) -> DemoTurn | None:
    """The question of a kind about a function; None if the function is not suitable."""
    opening = WORDING[kind][wording % len(WORDING[kind])].format(name=function.name, module=function.module)
    if kind == "write":
        purpose = function.docstring.split("\n", 1)[0].strip()
        given, answer = function.signature + (f"\n    # {purpose}" if purpose else ""), function.source
    elif kind == "complete":
        lines = function.source.split("\n")
        if len(lines) < 4:
            return None
        half = len(lines) // 2
        given, answer = "\n".join(lines[:half]), "\n".join(lines[half:])
    else:
        shortest, longest = DOCSTRING_CHARACTERS
        if not shortest <= len(function.docstring) <= longest or not function.bare:
            return None
        given, answer = function.bare, function.docstring
    question = f"{opening}\n\n{given}"
    shortest, longest = TURN_CHARACTERS
    if not answer.strip() or not shortest <= len(question) + len(answer) <= longest:
        return None
    return DemoTurn(function, kind, question, answer)


def _functions(text: str, module: str) -> list[Function]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        tree = ast.parse(text)
    lines = text.split("\n")
    functions = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first, body = node.lineno - 1, node.body[0]
        source = _dedented(lines[first : node.end_lineno])
        if not SOURCE_CHARACTERS[0] <= len(source) <= SOURCE_CHARACTERS[1] or body.lineno == node.lineno:
            continue
        docstring = ast.get_docstring(node) or ""
        without = lines[first : body.lineno - 1] + lines[body.end_lineno : node.end_lineno] if docstring else []
        signature = _dedented(lines[first : _signature_end(lines, first, body.lineno - 1)])
        bare = _dedented(without) if docstring and len(node.body) > 1 else ("" if docstring else source)
        functions.append(Function(module, node.name, signature, source, bare or source, docstring if bare else ""))
    return functions


def _signature_end(lines: list[str], first: int, body: int) -> int:
    """The line after the end of the signature: comments may stand between it and the body."""
    for index in range(first, body):
        if lines[index].split("#")[0].rstrip().endswith(":"):
            return index + 1
    return body


def _dedented(lines: list[str]) -> str:
    return textwrap.dedent("\n".join(lines)).strip("\n")
