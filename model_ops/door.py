"""The door of a room: the public names of a package, each loaded from its module at the first use.

    # model_ops/models/__init__.py
    if TYPE_CHECKING:
        from model_ops.models.model_directory import load_model
    __getattr__, __dir__, __all__ = door(__name__, __file__)

    from model_ops.models import load_model          # in any other room

A name costs nothing before somebody uses it, so a door may name modules that import torch. Editors and type checkers read the
same block. `door_names` is for readers of source: the digests of operations and the test of the import graph."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def door(package: str, path: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the block `if TYPE_CHECKING:` of its file."""
    modules = door_names(Path(path).read_text(encoding="utf-8"))

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; there are {', '.join(sorted(modules))}")
        if modules[name] == package:
            return import_module(f"{package}.{name}")
        return getattr(import_module(modules[name]), name)

    return load, lambda: sorted(modules), sorted(modules)


def door_names(text: str) -> dict[str, str]:
    """Public name -> the module that defines it, from the text of a door. A name with the door's own package is a module of the
    package."""
    return {
        alias.name: node.module
        for statement in ast.parse(text).body
        if isinstance(statement, ast.If)
        for node in statement.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
