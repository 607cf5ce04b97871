"""No name of the product is a participle that says nothing: `found`, `made`, `kept` and `told` are replaced by the thing."""

import ast
import re
from collections.abc import Iterator

import pytest

from resources.digests.code import PACKAGES
from tests.command import PROJECT

WORDS = {"found", "made", "kept", "told"}
STORED = {
    "resources/releases/settings.py": {"accuracy_kept", "accuracy_kept_each"},
    "resources/monitoring/alerts/outbox.py": {"told"},
}
"""Keys of recipes and of files in a lake, which keep their names."""


def names(text: str) -> Iterator[str]:
    """Names that the file gives: of variables, arguments, functions, classes and attributes."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def says_nothing(name: str) -> bool:
    return not WORDS.isdisjoint(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower()))


def empty_names(package: str) -> dict[str, list[str]]:
    """Names that say nothing, by file; the file's own name counts."""
    of_files = {
        path.relative_to(PROJECT).as_posix(): [*filter(says_nothing, (path.stem, *names(path.read_text(encoding="utf-8"))))]
        for path in sorted((PROJECT / package).rglob("*.py"))
    }
    other = {file: [name for name in names if name not in STORED.get(file, ())] for file, names in of_files.items()}
    return {file: names for file, names in other.items() if names}


@pytest.mark.parametrize("name", ["found", "kept_rows", "KeptRows", "is_made", "_told"])
def test_a_participle_is_seen_as_a_word_of_a_name(name):
    assert says_nothing(name)
    assert sorted(names(f"def f({name}): pass\nx.{name} = 1\nclass {name}: pass\n{name} = {name}2")) == sorted(
        [name, "f", name, name, name]
    )


def test_other_words_that_hold_its_letters_are_names():
    assert not [*filter(says_nothing, ("foundation", "remade", "upkept", "keep", "Founder"))]


@pytest.mark.parametrize("package", PACKAGES)
def test_names_of_the_product_say_what_they_hold(package):
    assert empty_names(package) == {}, "name the thing instead (docs/style.md, Code 6)"
