"""`millrace sweep`: short trainings on what a lake holds, each once."""

import json
import shutil
from pathlib import Path

import pytest

from pipelines.contract.recipe import load_recipe
from pipelines.planning.rate_sweep import RateResult, Report, SweepError, rates_around, read_rates, sweep, trial_settings
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from tests.model_ops.tiny_models import write_dataset, write_target


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "workload: shop\nbase_model: tiny\nsources: {logs: {uri: .}}\n"
        "threads: 1\nsft: {steps: 40, learning_rate: 1.0e-3, tokens_per_step: 512, max_length: 256}\n"
    )
    return load_recipe(path)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    write_target(folder, layers=2)
    return folder


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("chats"), rows=24)


def put(lake, kind, name, folder):
    registry = Registry(lake, "shop")
    draft = registry.draft(kind, name, "test", (), {}, [])
    for path in Path(folder).iterdir():
        if path.is_file():
            shutil.copy(path, draft.directory / path.name)
    registry.finish(draft, {})


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


def test_a_trial_of_a_sweep_has_its_steps_and_its_rate(recipe):
    tried = trial_settings(recipe.sft.resolved(), 1e-4, 20)
    assert (tried.steps, tried.epochs, tried.learning_rate) == (20, None, 1e-4)


@pytest.mark.slow
def test_rates_are_tried_once_and_the_best_is_named(recipe, lake, base, chats):
    put(lake, "model", "base_model", base)
    put(lake, "dataset", "sft_dataset", chats)
    said = []
    report = sweep(recipe, lake, "sft", [3e-3, 1e-5], 12, said.append)
    assert [one.learning_rate for one in report.tried] == [1e-5, 3e-3]
    assert report.best.learning_rate == 3e-3, "from random weights the larger rate learns more in 12 steps"
    assert report.best.loss < report.tried[0].loss
    assert report.at_the_edge
    written = json.loads((report.folder / "report.json").read_text())
    assert written["best"] == 3e-3
    results = {path: path.stat().st_mtime_ns for path in report.folder.glob("*/result.json")}
    assert len(results) == 2
    assert not list(report.folder.rglob("model*.safetensors")), "only what was measured is kept"
    again = sweep(recipe, lake, "sft", [1e-5, 3e-3], 12)
    assert again.tried == report.tried
    assert {path: path.stat().st_mtime_ns for path in report.folder.glob("*/result.json")} == results
    assert not (lake.artefacts("model") / "shop" / "sft_model").exists(), "a sweep makes no artefact"


def test_what_is_missing_is_named_with_the_command_that_makes_it(recipe, lake, base):
    with pytest.raises(SweepError, match=r"no base_model in .* --select \+base_model makes it"):
        sweep(recipe, lake, "sft", [1e-5, 1e-4], 12)
    put(lake, "model", "base_model", base)
    with pytest.raises(SweepError, match=r"no sft_dataset in .* --select \+sft_dataset makes it"):
        sweep(recipe, lake, "sft", [1e-5, 1e-4], 12)
    with pytest.raises(SweepError, match=r"no sft_model"):
        sweep(recipe, lake, "student", [1e-5, 1e-4], 12)


def test_a_dataset_without_validation_cannot_call_a_rate_better(recipe, lake, base, chats, tmp_path):
    put(lake, "model", "base_model", base)
    only = tmp_path / "only"
    only.mkdir()
    shutil.copy(chats / "train.parquet", only / "train.parquet")
    put(lake, "dataset", "sft_dataset", only)
    with pytest.raises(SweepError, match="validation_share"):
        sweep(recipe, lake, "sft", [1e-5, 1e-4], 12)


def test_ties_and_broken_rates_are_said():
    tried = [
        RateResult(1e-5, 2.50, 0.01, 2.4),
        RateResult(1e-4, 2.48, 0.02, 2.3),
        RateResult(3e-4, 2.60, 0.01, 2.2),
        RateResult(1e-2, None, 0.0, None, broke="the loss is not finite"),
    ]
    report = Report("sft", 50, tried, Path("x"))
    assert report.best.learning_rate == 1e-4
    assert [one.learning_rate for one in report.tied] == [1e-5]
    assert not report.at_the_edge
    assert Report("sft", 50, tried[-1:], Path("x")).best is None


def test_rates_are_read():
    assert read_rates("1e-4, 3e-5,1e-4") == [3e-5, 1e-4]
    assert rates_around(2e-5, 5) == [5e-6, 1e-5, 2e-5, 4e-5, 8e-5]
    assert rates_around(1e-4, 2)[1] / rates_around(1e-4, 2)[0] == pytest.approx(8, rel=0.05)
    for odd in ("1e-4", "fast,1e-4", "1e-4,-1", "1e-4,50"):
        with pytest.raises(SweepError, match="--learning-rates"):
            read_rates(odd)


def test_the_command_refuses_in_words(cli, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("workload: shop\nbase_model: tiny\nsources: {logs: {uri: .}}\n")
    assert "no lake at" in cli("sweep", path, "--lake", tmp_path / "none", check=2).stderr
    assert "not both" in cli("sweep", path, "--around", "1e-5", "--learning-rates", "1e-5,1e-4", check=2).stderr
