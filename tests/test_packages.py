"""Every list of the project's packages is the same: the wheel's, the digests', the import graph's and the documents'."""

import re
import tomllib

from resources.artefacts.source_digest import COUNTED, PACKAGES
from tests import test_import_graph
from tests.command import PROJECT
from tests.kept import CODE

DATA = {"sql", "recipes"}
"""Packages without Python of their own that another file imports."""


def test_every_folder_with_an_init_file_is_a_package():
    assert {path.parent.name for path in PROJECT.glob("*/__init__.py")} - {"benchmarks", "tests"} <= set(PACKAGES)
    assert all((PROJECT / name).is_dir() for name in PACKAGES)


def test_the_wheel_holds_them_all():
    include = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert sorted(include) == sorted(f"{name}*" for name in PACKAGES)


def test_what_tests_keep_is_made_anew_after_a_change_of_any():
    assert set(CODE) >= set(PACKAGES)


def test_the_import_graph_draws_them_all():
    assert set(test_import_graph.PACKAGES) == {*PACKAGES, "benchmarks"} - DATA


def test_digests_count_packages_that_exist():
    assert set(COUNTED) < set(PACKAGES)


def test_the_documents_name_them_all():
    table = (PROJECT / "docs/architecture.md").read_text().partition("## Packages")[2].partition("###")[0]
    assert set(re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE)) == {*PACKAGES, "benchmarks"} - {"recipes"}
    assert "`recipes/` holds" in table
    [sentence] = re.findall(r"The packages are named (.*?) is data\.", (PROJECT / "docs/operating.md").read_text(), re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) == set(PACKAGES)
