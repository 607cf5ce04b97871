"""The wheel, built and installed in a folder far from the checkout: what is in it, and that the command works from it."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from resources.digests.code import PACKAGES
from tests.reports import process_report

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]
PROJECT = Path(__file__).resolve().parents[2]
PAIR = {
    "timestamp": 1780300000,
    "request": {"model": "m", "messages": [{"role": "user", "content": "What is a mill race, and what is it for?"}]},
    "response": {
        "id": "r1",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "A channel to a wheel."}}
        ],
    },
}
FACTS = """
import json
from pathlib import Path
import pipelines, pipelines.definitions as definitions, pipelines.running.instance as instance, resources.artefacts.registry as registry
from pipelines.storage.locations import RECIPES
from resources.digests.code import source_digest
print(json.dumps({
    "home": str(Path(pipelines.__file__).parents[1]), "recipes": sorted(path.name for path in RECIPES.glob("*.yaml")),
    "assets": sorted(key.path[-1] for key in definitions.demo.resolve_asset_graph().get_all_asset_keys()),
    "digest": source_digest("model_ops/operations/sft.py", "resources/curating/cleaning.py", "sql/curating/clean", "resources/reading/ingestion.py"),
    "instance": instance.SHIPPED.read_text(), "revision": registry._code().model_dump(),
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of a copy of the project, as `python -m build` makes it from the source distribution."""
    pytest.importorskip("setuptools", reason="setuptools is not installed here: no wheel can be built")
    home = tmp_path_factory.mktemp("wheel")
    skipped = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "artifacts")
    made = {"build", "demo", "lake"}  # in the checkout's root alone: pipelines/demo is code
    shutil.copytree(
        PROJECT,
        home / "source",
        ignore=lambda folder, names: {*skipped(folder, names), *(made if Path(folder) == PROJECT else ())},
    )
    script = "import setuptools.build_meta as b; print(b.build_sdist('..')); print(b.build_wheel('..'))"
    subprocess.run([sys.executable, "-P", "-c", script], cwd=home / "source", check=True, capture_output=True)
    return next(home.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("installed") / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def python(installed, tmp_path):
    """Runs Python with the installed wheel, in a user's folder whose own files have the packages' names."""
    user = tmp_path / "user"
    (user / "assets").mkdir(parents=True)
    for name in ("sql.py", "resources.py", "pipelines.py", "assets/__init__.py"):
        (user / name).write_text("raise SystemExit('the user\\'s own file was imported')\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MILLRACE", "DAGSTER", "PYTHON"))}
    environment |= {"PYTHONPATH": str(installed), "COLUMNS": "200"}

    def run(*words: object, check: int = 0, folder: Path = user) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-P", *map(str, words)], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == check, process_report(done)
        return done

    return run


def shipped_files() -> set[str]:
    return {
        path.relative_to(PROJECT).as_posix()
        for folder in PACKAGES
        for path in (PROJECT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == shipped_files()
    assert {
        "millrace/lake.py",
        "pipelines/running/dagster.yaml",
        "recipes/demo.yaml",
        "model_ops/operations/chatml.jinja",
    } <= held


def test_the_source_distribution_can_be_built_and_tested(wheel):
    import tarfile

    with tarfile.open(next(wheel.parent.glob("*.tar.gz"))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert shipped_files() <= held
    assert {"Makefile", "constraints.txt", "workspace.yaml", "tests/conftest.py", "docs/architecture.md"} <= held


def test_an_installed_wheel_makes_the_same_graph_and_the_same_versions_as_the_checkout(python, installed):
    found = json.loads(python("-c", FACTS).stdout)
    checkout = json.loads(
        subprocess.run(
            [sys.executable, "-P", "-c", FACTS],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
        ).stdout
    )
    assert (found.pop("home"), checkout.pop("home")) == (str(installed), str(PROJECT))
    revision = found.pop("revision")
    assert not revision["dirty"] and revision != checkout.pop("revision")
    assert found == checkout


def test_the_command_works_from_a_wheel(python, tmp_path):
    millrace = ("-m", "millrace")
    logs = tmp_path / "logs" / "dt=2026-06-01"
    logs.mkdir(parents=True)
    (logs / "a.jsonl").write_text(json.dumps(PAIR) + "\n")
    recipe = tmp_path / "shop.yaml"
    recipe.write_text("workload: shop\nbase_model: tiny\nsources:\n  gateway: {uri: logs}\nlast_day: 2026-06-02\n")
    python(*millrace, "run", "../shop.yaml", "--select", "interactions")
    assert (tmp_path / "lake" / "lake.json").is_file()
    rows = python(
        *millrace, "sql", "select count(*) n from interactions", "--lake", tmp_path / "lake", "--format", "json"
    ).stdout
    assert json.loads(rows) == [{"n": 1}]
    script = "import sys, millrace; print(millrace.open_lake(sys.argv[1]).table('interactions').collect().height)"
    assert python("-c", script, tmp_path / "lake").stdout == "1\n"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "give a recipe, or --lake" in python(*millrace, "ui", check=2, folder=empty).stderr
    assert not list(empty.iterdir())


def test_the_demo_puts_its_recipe_and_traffic_in_the_current_folder(tmp_path, monkeypatch):
    from pipelines.contract.recipe import load_recipe
    from pipelines.demo.demo import FULL, QUICK, demo_recipe, fit_steps
    from pipelines.planning.stage_times import Speed

    monkeypatch.chdir(tmp_path)
    fast = Speed(1_000.0, "bfloat16")
    choices = {
        size.recipe: fit_steps(PROJECT / "recipes" / size.recipe, size.budget, size.traffic, fast) for size in (FULL, QUICK)
    }
    for size in (FULL, QUICK):
        recipe = demo_recipe(size, choices[size.recipe])
        assert recipe == tmp_path / size.folder / size.recipe
        uris = [source.uri for source in load_recipe(recipe).sources.values()]
        assert all(uri.startswith(str(tmp_path / size.folder / "traffic")) for uri in uris)
    monkeypatch.chdir(PROJECT)
    assert (
        demo_recipe(FULL, choices[FULL.recipe]) == PROJECT / "recipes" / "demo.yaml"
    )  # in a checkout the recipe is read where it lies
