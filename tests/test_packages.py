"""Every list of the project's packages is the same: the wheel's, ruff's, the kept tests', the digests' and the documents'."""

import re
import tomllib

import pytest

from resources.digests.code import COUNTED, PACKAGES
from tests import kept
from tests.command import PROJECT


def test_every_folder_with_an_init_file_is_a_package():
    assert {path.parent.name for path in PROJECT.glob("*/__init__.py")} - {"benchmarks", "tests"} <= set(PACKAGES)
    assert all((PROJECT / name).is_dir() for name in PACKAGES)


def test_the_wheel_holds_them_all_and_imports_are_sorted_by_them():
    tool = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]
    assert sorted(tool["setuptools"]["packages"]["find"]["include"]) == sorted(f"{name}*" for name in PACKAGES)
    assert set(tool["ruff"]["lint"]["isort"]["known-first-party"]) == {*PACKAGES, "benchmarks", "tests"} - {"recipes"}


@pytest.mark.parametrize("package", PACKAGES)
def test_what_tests_keep_is_made_anew_after_a_change_of_any(tmp_path, monkeypatch, package):
    monkeypatch.setattr(kept, "PROJECT", tmp_path)
    (tmp_path / package / "room").mkdir(parents=True)
    file, found = tmp_path / package / "room" / "file.py", set()
    for text in ("one", "two"):
        file.write_text(text)
        found.add(kept.digest_of_code())
    assert len(found) == 2


def test_digests_count_packages_that_exist():
    assert set(COUNTED) < set(PACKAGES)


def test_the_documents_name_them_all():
    table = (PROJECT / "docs/architecture.md").read_text().partition("## Packages")[2].partition("###")[0]
    assert set(re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE)) == {*PACKAGES, "benchmarks"} - {"recipes"}
    assert "`recipes/` holds" in table
    [sentence] = re.findall(r"The packages are named (.*?) is data\.", (PROJECT / "docs/operating.md").read_text(), re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) == set(PACKAGES)
