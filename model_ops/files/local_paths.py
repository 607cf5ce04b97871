"""Keys of settings that name a file or folder of this machine: reading a recipe with `Home` as context makes them absolute and
checks them; settings validated without it (a worker's job) keep their paths as they are.

    model: Annotated[str, LocalPath("folder", "the directory of an embedding model")] | None = None
"""

import ast
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from model_ops.jobs import ModelError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class Home(NamedTuple):
    """What relative paths start from."""

    folder: Path
    absolute: Callable[[str, Path], str]
    """Makes a path or uri absolute. Raises RuntimeError, ValueError or OSError for a text that can be none."""


@dataclass(frozen=True)
class LocalPath:
    """The path in a text field. A section whose `enabled` is false may name what does not exist."""

    kind: Literal["uri", "folder", "model", "model or id", "program", "function"]
    """uri: only made absolute. model: a directory, without links in its path. model or id: that or an id of the Hugging Face
    Hub. program: links stay, since an environment's interpreter is one. function: FILE.py:NAME, or a JSON file."""
    give: str = "the whole path, from / on or relative to the recipe"
    """What messages ask for."""
    not_paths: tuple[str, ...] = ()
    """Texts that name something else than a path."""
    check: Callable[[Path], None] | None = None
    """Refuses an existing directory with a ModelError."""
    directory_of: Callable[[Path], Path] | None = None
    """The directory that is taken for a file of a model. Raises ModelError."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: str, info: ValidationInfo) -> str:
        """The absolute path. Raises ValueError with a sentence."""
        home, must_exist = info.context, info.data.get("enabled", True) if info.data else True
        if not isinstance(home, Home) or value in self.not_paths:
            return value
        try:
            match self.kind:
                case "uri":
                    return self._absolute(value, home)
                case "program":
                    return self._program(value, home)
                case "function":
                    return self._function(value, home)
            if self.kind == "model or id" and not self._is_folder(value, home):
                return self._hub_id(value)
            return self._folder(value, home, must_exist)
        except (OSError, _NoPathError) as error:
            raise ValueError(f"this is not a path on this machine; give {self.give}") from error
        except ModelError as error:
            raise ValueError(str(error)) from error

    def _absolute(self, value: str, home: Home) -> str:
        try:
            if value.startswith("~"):
                Path(value).expanduser()  # ~user with an unknown user is an error, not a folder named ~user
            return home.absolute(value, home.folder)
        except (RuntimeError, ValueError, OSError) as error:
            raise _NoPathError from error

    def _folder(self, value: str, home: Home, must_exist: bool) -> str:
        place = self._absolute(value, home)
        if self.kind != "folder":
            place = str(Path(place).resolve())
        if self.directory_of is not None and Path(place).is_file():
            return str(self.directory_of(Path(place)))
        if must_exist and not Path(place).is_dir():
            raise ValueError(f"there is no {'file' if place.endswith('.gguf') else 'directory'} {place}; give {self.give}")
        if must_exist and self.check is not None:
            self.check(Path(place))
        return place

    def _is_folder(self, value: str, home: Home) -> bool:
        try:
            return value.startswith((".", "/", "~")) or (home.folder / value).exists()
        except ValueError as error:  # a null byte
            raise _NoPathError from error

    def _hub_id(self, value: str) -> str:
        if (word := value.strip().lower()) in self.not_paths:
            raise ValueError(f"it holds {value!r}; did you mean {word}?")
        if not _HUB_ID.fullmatch(value) or len(value) > 200:
            raise ValueError(f"this is neither a directory nor an id of the Hugging Face Hub; give {self.give}")
        return value

    def _program(self, value: str, home: Home) -> str:
        try:
            place = os.path.normpath(home.folder / Path(value).expanduser())
            is_there = os.access(place, os.X_OK) and not Path(place).is_dir()
        except (RuntimeError, ValueError) as error:
            raise _NoPathError from error
        if not is_there:
            raise ValueError(f"there is no program {place}; give {self.give}")
        return place

    def _function(self, value: str, home: Home) -> str:
        file, colon, name = value.rpartition(":") if not value.endswith(".json") else (value, "", "")
        if not file:
            return value
        place = Path(self._absolute(file, home))
        if not place.is_file():
            raise ValueError(f"there is no file {place}; give {self.give}")
        if place.suffix == ".py" and (lack := _lack(place, name)):
            raise ValueError(lack)
        return f"{place}{colon}{name}"


class _NoPathError(Exception):
    """The text cannot be a path on this machine."""


def _lack(file: Path, name: str) -> str | None:
    """Why a Python file, which is not run, has nothing of this name; None where it may have."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError) as error:  # a null byte has no line, and is one or the other by Python's version
        line = getattr(error, "lineno", None)
        return f"{file} is no Python{f' in line {line}' if line else ''}: mend it"
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    bound |= {node.asname or node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    return None if bound & {name, "*"} else f"{file} defines no {name}; name what the file defines, as {file.name}:NAME"
