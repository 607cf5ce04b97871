"""The digest of an operation's code: over all project files that can change its result. These count, from the named ones on:
- every project file that one of them imports (through a door, model_ops/door.py, those that define the names), as its syntax
  tree (python.py): no comment, docstring, line break or description of a setting changes a version;
- every statement of sql/ that one of them names ("curating/clean/texts"; f"reading/formats/{name}/pairs" names all under
  reading/formats), as its tokens (sql.py);
- every data file or folder next to a file that names it ("chatml.jinja", "templates"), byte by byte.
A Python file counts by its content, not by its path. If a result changes without a change of the code (a dependency computes
something else, say), give the operation's file a constant `REVISION = 1`, and raise it with each such change."""

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from model_ops.door import door_names
from resources.digests.python import PythonTree, read_python
from resources.digests.sql import sql_digest
from resources.lake import sections

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = ("millrace", "pipelines", "assets", "resources", "stores", "sql", "model_ops", "recipes")
"""The packages of the project, from the top down. Every other list is made from this one or compared with it by a test."""
COUNTED = ("model_ops", "resources")
"""Packages whose Python files count; SQL does where it is named. The first three only ask for work. `stores` moves bytes, by
whose digests inputs are known, however they are reached: a change of storage makes no artefact anew."""
NOT_COUNTED = frozenset({"model_ops/door.py", *(f"resources/digests/{name}.py" for name in ("code", "python", "sql"))})
"""Doors, and files that compute digests: they make no row and no weight."""


def source_digest(*entries: str) -> str:
    """sha256 over all that `entries` use: files, folders, statements ("sql/drifting/edges"), by path in the project."""
    return _source_digest(PROJECT, entries)


def files_used(*entries: str, project: Path = PROJECT) -> list[str]:
    """What the digest of `entries` covers, sorted: paths relative to the project; of statements, sql/ and their names."""
    return sorted(path.relative_to(project).as_posix() for path in _files_used(project, entries))


@cache
def _source_digest(project: Path, entries: tuple[str, ...]) -> str:
    lines = sorted({_digest(project, path) for path in _files_used(project, entries)} - {read_python("").digest()})
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def _files_used(project: Path, entries: tuple[str, ...]) -> set[Path]:
    files: set[Path] = set()
    waiting = [path for entry in entries for path in _statements_of(project, entry) or [project / entry]]
    while waiting:
        path = waiting.pop()
        if path.is_dir():
            waiting.extend(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
        elif path not in files and path.relative_to(project).as_posix() not in NOT_COUNTED:
            files.add(path)
            if path.suffix == ".py":
                waiting.extend(_uses(project, path))
                waiting.extend(_packages_of(project, path))
    return files


def _packages_of(project: Path, path: Path) -> Iterator[Path]:
    """The files of the packages that a module lies in: importing it runs them first."""
    for folder in path.relative_to(project).parents:
        file = project / folder / "__init__.py"
        if folder.parts and file.is_file():
            yield file


@cache
def _digest(project: Path, path: Path) -> str:
    if path.suffix == ".py":
        return _tree(path).digest(lambda module: _stands_for(project, module))
    name = path.relative_to(project).as_posix()  # code names statements and data by their path
    if name in _statements(project):
        return f"{sql_digest(_statements(project)[name])} {name}"
    return f"{hashlib.sha256(path.read_bytes()).hexdigest()} {name}"


@cache
def _statements(project: Path) -> dict[str, str]:
    """The text of every statement, by "sql/" and its name."""
    return {
        f"{file.relative_to(project).with_suffix('').as_posix()}/{name}": text
        for file in (project / "sql").rglob("*.sql")
        for name, text in sections(file).items()
    }


@cache
def _statements_of(project: Path, name: str) -> list[Path]:
    if name in _statements(project):
        return [project / name]
    return [project / each for each in _statements(project) if each.startswith(f"{name}/")]


@cache
def _tree(path: Path) -> PythonTree:
    return read_python(path.read_text(encoding="utf-8"))


def _stands_for(project: Path, module: str) -> str:
    """What an imported module counts as: a project module as its own text without its imports, any other as its name."""
    file = _module(project, module)
    if file is None or file.relative_to(project).as_posix() in NOT_COUNTED:
        return module
    return _alone(file)


@cache
def _alone(path: Path) -> str:
    return _tree(path).digest(lambda module: "" if module.split(".")[0] in COUNTED else module)


@cache
def _door_names(path: Path) -> dict[str, str]:
    return door_names(path.read_text(encoding="utf-8"))


@cache
def _uses(project: Path, path: Path) -> tuple[Path, ...]:
    """The files that a Python file imports or names. Most files are behind several entries."""
    return tuple(_uses_of(project, path))


def _uses_of(project: Path, path: Path) -> Iterator[Path]:
    tree = _tree(path)
    for name in tree.imports:
        parts = _absolute(project, path, name).split(".")
        if parts[0] in COUNTED:
            for length in range(1, len(parts) + 1):  # importing a module runs its packages' files too
                file = _module(project, ".".join(parts[:length]))
                if file is not None:
                    yield file
            door, name = _module(project, ".".join(parts[:-1])), parts[-1]
            if door is not None and door.name == "__init__.py" and name in (behind := _door_names(door)):
                yield _module(project, behind[name]) or door
    for text in filter(_may_be_a_path, tree.strings):
        if f"sql/{text}" in _statements(project):
            yield project / "sql" / text
        if text.partition("/")[0] in _names(path.parent):
            beside = path.parent / text
            if (beside.is_file() and beside.suffix != ".py") or (beside.is_dir() and not any(beside.rglob("*.py"))):
                yield beside
    for text in tree.beginnings:
        if "/" in text:
            yield from _statements_of(project, f"sql/{text.rpartition('/')[0]}")


@cache
def _names(folder: Path) -> frozenset[str]:
    return frozenset(each.name for each in folder.iterdir()) if folder.is_dir() else frozenset()


def _absolute(project: Path, path: Path, name: str) -> str:
    """The dotted name of an import in the file `path`; a relative one begins with dots."""
    plain = name.lstrip(".")
    dots = len(name) - len(plain)
    if not dots:
        return name
    package = path.parent.relative_to(project).parts
    return ".".join([*package[: len(package) - dots + 1], *([plain] if plain else [])])


def _may_be_a_path(text: str) -> bool:
    return 0 < len(text) < 100 and text.isprintable() and (text[0].isalnum() or text[0] == "_") and ".." not in text


@cache
def _module(project: Path, name: str) -> Path | None:
    if name.split(".")[0] not in COUNTED:
        return None
    place = project / name.replace(".", "/")
    files = [file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file()]  # as Python chooses
    return files[0] if files else None
