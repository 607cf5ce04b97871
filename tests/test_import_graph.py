"""The graph of imports: no circle between files, no arrow up between packages or between the rooms of a package.

Every import counts, also one inside a function or under TYPE_CHECKING: whoever reads a file has to know what it knows.
A name that comes through a door counts as an import of the module that defines it.
A room is a folder of a package. Its door is its `__init__.py`: other rooms import its public names from there, and only those.
PACKAGES and ROOMS are ordered from the top down: a file imports its own room and what stands below it, never what stands above.
Files of a package that lie in no room are its ground, below all rooms, but for those in ENTRIES, which stand above them: the
programs that a package is started by.

A new room gets its place in ROOMS. Where a test here fails, move what both sides need into a room below them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from model_ops.door import door_names
from resources.digests import code as source_digest

PROJECT = Path(__file__).parent.parent
DATA = ("sql", "recipes")
"""Packages without Python of their own that another file imports."""
PACKAGES = ("benchmarks", *(package for package in source_digest.PACKAGES if package not in DATA))
ROOMS: dict[str, tuple[str, ...]] = {
    "pipelines": (
        "commands",
        "demo",
        "init",
        "checks",
        "status",
        "asking",
        "planning",
        "rebuilding",
        "releasing",
        "keeping",
        "running",
        "graph",
        "contract",
        "storage",
        "terminal",
    ),
    "model_ops": (
        "operations",
        "planning",
        "evaluation",
        "calibration",
        "serving",
        "drafting",
        "speculators",
        "objectives",
        "preferences",
        "reinforcement",
        "environments",
        "answers",
        "pruning",
        "graders",
        "chat_apis",
        "completions",
        "tasks",
        "decoding",
        "rewards",
        "documents",
        "training",
        "rendering",
        "losses",
        "models",
        "adapters",
        "quantization",
        "parallel",
        "families",
        "tensors",
        "machine",
        "files",
        "jobs",
    ),
    "resources": (
        "erasing",
        "workshop",
        "reporting",
        "serving",
        "inspecting",
        "catalog",
        "composing",
        "gateway",
        "monitoring",
        "deciding",
        "releasing",
        "drifting",
        "curating",
        "endpoints",
        "reading",
        "signing",
        "releases",
        "sources",
        "launching",
        "artefacts",
        "records",
        "digests",
        "manifests",
        "stages",
        "lake",
    ),
}
BY_NAME = frozenset({"model_ops.door", "model_ops.worker", "pipelines.cli", "pipelines.graph.recipe_graph"})
"""Files that may import a module by a name that they compute: each chooses from a folder that it may import."""
ENTRIES = frozenset({"pipelines.cli", "pipelines.definitions", "model_ops.worker", "model_ops.verify"})


@dataclass(frozen=True, order=True)
class Import:
    """`importer` (a module of the project) imports `imported`, in this line of this file."""

    importer: str
    imported: str
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.imported}"


def modules_of(root: Path, packages: Sequence[str] = PACKAGES) -> dict[str, Path]:
    """Module name -> file, of the packages that `root` has."""
    found = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(root: Path, packages: Sequence[str] = PACKAGES) -> list[Import]:
    """Every import of one file of the project by another."""
    modules = modules_of(root, packages)
    return sorted(
        {
            Import(importer, imported, path.relative_to(root).as_posix(), line)
            for importer, path in modules.items()
            for imported, line in _imported(path, importer, modules)
            if imported != importer
        }
    )


def _statements(block: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Every statement, also inside of others. An import is no expression: these, most of a tree, are left out."""
    for node in block:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, ())
            if isinstance(inner, list):
                yield from _statements(inner)


def _imported(path: Path, importer: str, modules: Mapping[str, Path]) -> Iterator[tuple[str, int]]:
    for node in _statements(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = importer.split(".") if path.name == "__init__.py" else importer.split(".")[:-1]
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            behind = _door(modules[source]) if source in modules else {}
            named = [
                f"{source}.{alias.name}" if f"{source}.{alias.name}" in modules else behind.get(alias.name, source)
                for alias in node.names
            ]
        else:
            continue
        yield from ((name, node.lineno) for name in named if name in modules)


@cache
def _door(path: Path) -> dict[str, str]:
    return door_names(path.read_text()) if path.name == "__init__.py" else {}


def imports_by_name(root: Path, packages: Sequence[str] = PACKAGES) -> list[str]:
    """Modules that import by a computed name (import_module, __import__), which the graph cannot show."""
    found = set()
    for module, path in modules_of(root, packages).items():
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "import_module" in text or "__import__" in text else ():
            name = (
                node.id
                if isinstance(node, ast.Name)
                else node.attr
                if isinstance(node, ast.Attribute)
                else (node.name if isinstance(node, ast.alias) else "")
            )
            if name in ("import_module", "__import__"):
                found.add(module)
    return sorted(found)


def circles_in(imports: Sequence[Import]) -> list[list[Import]]:
    """The shortest circle through each import that closes one, each circle once."""
    leaving: dict[str, list[Import]] = {}
    for each in imports:
        leaving.setdefault(each.importer, []).append(each)
    found: dict[frozenset[str], list[Import]] = {}
    for each in imports:
        back = _way(each.imported, each.importer, leaving)
        if back is not None:
            circle = [each, *back]
            found.setdefault(frozenset(step.importer for step in circle), circle)
    return list(found.values())


def _way(start: str, end: str, leaving: Mapping[str, list[Import]]) -> list[Import] | None:
    """The fewest imports that lead from one module to another; None where none do."""
    ways: dict[str, list[Import]] = {start: []}
    waiting = [start]
    for module in waiting:
        if module == end:
            return ways[module]
        for step in leaving.get(module, []):
            if step.imported not in ways:
                ways[step.imported] = [*ways[module], step]
                waiting.append(step.imported)
    return None


def package_arrows_up(imports: Sequence[Import], packages: Sequence[str] = PACKAGES) -> list[Import]:
    """Imports of a package that stands above the importer's."""
    height = {package: -place for place, package in enumerate(packages)}
    return [each for each in imports if height[each.imported.split(".")[0]] > height[each.importer.split(".")[0]]]


def room_arrows_up(
    imports: Sequence[Import], rooms: Mapping[str, Sequence[str]] = ROOMS, entries: frozenset[str] = ENTRIES
) -> list[Import]:
    """Imports of a room that stands above the importer's, in the packages that `rooms` orders."""
    folders = {
        ".".join(module.split(".")[:2])
        for each in imports
        for module in (each.importer, each.imported)
        if module.count(".") > 1
    }

    def height(module: str) -> int:
        if module in entries:
            return 1
        package, *within = module.split(".")
        in_a_room = within and f"{package}.{within[0]}" in folders
        return -rooms[package].index(within[0]) if in_a_room else -len(rooms[package])

    return [
        each
        for each in imports
        if each.importer.split(".")[0] == each.imported.split(".")[0] in rooms and height(each.imported) > height(each.importer)
    ]


def rooms_without_a_place(modules: Mapping[str, Path], rooms: Mapping[str, Sequence[str]] = ROOMS) -> list[str]:
    """Folders with files, of the packages that `rooms` orders, that it does not name."""
    found = {tuple(module.split(".")[:2]) for module in modules if module.count(".") > 1}
    return sorted(f"{package}/{room}" for package, room in found if package in rooms and room not in rooms[package])


def entries_beside_the_door(
    root: Path, packages: Sequence[str] = PACKAGES, rooms: Mapping[str, Sequence[str]] = ROOMS
) -> list[str]:
    """Imports of a file of another room: only names of its door may go out. Benchmarks may look inside, as tests may."""
    modules = modules_of(root, packages)
    found = []
    for importer, path in modules.items():
        if importer.startswith("benchmarks"):
            continue
        for node in _statements(ast.parse(path.read_text()).body):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            sources = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for source in sources:
                package, *within = source.split(".")
                own = importer.split(".")[:2] == [package, *within[:1]]
                if package in rooms and len(within) > 1 and within[0] in rooms[package] and not own:
                    found.append(f"{path.relative_to(root)}:{node.lineno} imports {source}, not the door {package}.{within[0]}")
    return found


def names_no_door_can_give(root: Path, packages: Sequence[str] = PACKAGES) -> list[str]:
    """Names of doors that their module does not have, or that a module of the room has too, which an import would take
    instead."""
    modules = modules_of(root, packages)
    found = []
    for package, path in modules.items():
        if package.count(".") != 1:
            continue
        for name, module in _door(path).items():
            if module == package:
                missing = f"{package}.{name}" not in modules
            else:
                missing = not re.search(
                    rf"^\s*(?:(?:async )?def |class )?{name}\b|^\w.*\b{name}\b.*=", modules[module].read_text(), re.MULTILINE
                )
                if f"{package}.{name}" in modules:
                    found.append(f"{package}: {name} is a module of the room as well: give the module another name")
            if missing:
                found.append(f"{package}: {module} has no {name}")
    return found


def _listed(imports: Sequence[Import]) -> str:
    return "\n".join(f"  {each}" for each in imports)


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return imports_of(PROJECT)


def test_no_circle_of_imports_between_files(imports):
    circles = circles_in(imports)
    assert not circles, "imports that go round in a circle:\n" + "\n\n".join(map(_listed, circles))


def test_no_import_of_a_package_above(imports):
    found = package_arrows_up(imports)
    assert not found, f"imports against the order {' > '.join(PACKAGES)}:\n{_listed(found)}"


def test_no_import_of_a_room_above(imports):
    found = room_arrows_up(imports)
    orders = "\n".join(f"{package}: {' > '.join(rooms)}" for package, rooms in ROOMS.items())
    assert not found, f"imports against the order of rooms\n{orders}\n{_listed(found)}"


def test_rooms_are_entered_by_their_doors():
    assert entries_beside_the_door(PROJECT) == []


def test_doors_give_what_they_name():
    assert names_no_door_can_give(PROJECT) == []


def test_a_planted_entry_beside_the_door_is_found(tmp_path):
    root = tree(
        tmp_path,
        model_ops__loop__run="",
        model_ops__plans__speed="from model_ops.loop.run import fast\nimport model_ops.loop.run\n",
        model_ops__loop____init__="",
    )
    assert len(entries_beside_the_door(root, rooms={"model_ops": ("plans", "loop")})) == 2


def test_a_door_to_nowhere_is_found(tmp_path):
    block = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from model_ops.loop.run import fast, run, slow\n"
    root = tree(tmp_path, model_ops__loop__run="def fast(): ...\nrun = 1\n", model_ops__loop____init__=block)
    (root / "model_ops/loop/__init__.py").write_text(block)
    assert names_no_door_can_give(root) == [
        "model_ops.loop: run is a module of the room as well: give the module another name",
        "model_ops.loop: model_ops.loop.run has no slow",
    ]


def test_no_other_file_imports_by_a_computed_name():
    assert set(imports_by_name(PROJECT)) == BY_NAME


@pytest.mark.parametrize(
    "line",
    [
        "import importlib\nimportlib.import_module('model_ops.first')",
        "from importlib import import_module as load\nload('model_ops.first')",
        "__import__('model_ops.first')",
    ],
)
def test_a_planted_import_by_name_is_found(tmp_path, line):
    assert imports_by_name(tree(tmp_path, model_ops__first="", model_ops__second=line)) == ["model_ops.second"]


def test_every_room_has_its_place_in_the_order():
    assert rooms_without_a_place(modules_of(PROJECT)) == []


def tree(root: Path, **files: str) -> Path:
    """A project of these files; `__` in a name is a folder."""
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    "back",
    [
        "from model_ops.first import one\n",
        "def later():\n    import model_ops.first\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from model_ops import first\n",
        "from . import first\n",
    ],
)
def test_a_planted_circle_is_found_wherever_the_import_stands(tmp_path, back):
    root = tree(
        tmp_path,
        model_ops__first="import model_ops.second\n",
        model_ops__second="import model_ops.third\n",
        model_ops__third=back,
    )
    [circle] = circles_in(imports_of(root))
    assert [str(each).split(":")[0] for each in circle] == [f"model_ops/{name}.py" for name in ("first", "second", "third")]


def test_imports_without_a_circle_are_none(tmp_path):
    root = tree(
        tmp_path,
        model_ops__first="import model_ops.second, model_ops.third\n",
        model_ops__second="from model_ops.third import one\n",
        model_ops__third="import json\n",
    )
    assert circles_in(imports_of(root)) == [] and len(imports_of(root)) == 3


def test_a_planted_import_of_a_package_or_room_above_is_found(tmp_path):
    root = tree(
        tmp_path,
        model_ops__loop__run="from model_ops.plans.speed import fast\n",
        model_ops__plans__speed="",
        model_ops__ground="def f():\n    from model_ops.loop.run import x\n",
        model_ops__program="import model_ops.plans.speed\n",
        resources__lake="import assets.models\n",
        assets__models="",
    )
    imports = imports_of(root)
    assert [str(each) for each in package_arrows_up(imports)] == ["resources/lake.py:1 imports assets.models"]
    rooms, entries = {"model_ops": ("plans", "loop")}, frozenset({"model_ops.program"})
    expected = ["model_ops/ground.py:2 imports model_ops.loop.run", "model_ops/loop/run.py:1 imports model_ops.plans.speed"]
    assert [str(each) for each in room_arrows_up(imports, rooms, entries)] == expected
    assert rooms_without_a_place(modules_of(root), {"model_ops": ("plans",)}) == ["model_ops/loop"]
