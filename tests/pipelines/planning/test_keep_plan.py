"""A plan's speed is kept in the lake that there is, and nothing is made or said where there is none."""

from types import SimpleNamespace

import pytest

from model_ops.devices import DEVICES
from pipelines.contract.recipe import read_recipe
from pipelines.planning.keep_plan import keep_plan, lake_to_keep_in
from resources.deciding.kept_plans import kept_plans
from resources.lake import Lake
from stores.lake_error import LakeError
from stores.mirror.bucket import Changed
from stores.s3 import S3Error


def plan(speed):
    return SimpleNamespace(tokens_per_second=speed, device=DEVICES["h100"], setup=SimpleNamespace(mesh=SimpleNamespace(processes=2)))


@pytest.fixture
def recipe(tmp_path):
    return lambda **sft: read_recipe({"workload": "shop", "base_model": "tiny", "sources": {"logs": {"uri": "."}}, "sft": sft}, tmp_path)


def test_a_speed_is_kept_with_what_the_training_reads(recipe, tmp_path):
    lake = Lake.open(tmp_path / "lake")
    said = keep_plan(plan(1_500.0), recipe(epochs=3), "sft", lake_to_keep_in(tmp_path / "lake", asked=False))
    assert said == f"kept in {lake.place}: the cost of sft_model is predicted by this plan until it was run"
    kept = kept_plans(lake, "shop")["sft_model"]
    assert (kept.tokens_per_second, kept.devices, kept.steps, kept.epochs, kept.tokens_per_step) == (1_500.0, 2, None, 3.0, 65_536)
    keep_plan(plan(900.0), recipe(steps=70, tokens_per_step=4_096), "sft", lake)
    kept = kept_plans(lake, "shop")["sft_model"]
    assert (kept.tokens_per_second, kept.steps, kept.epochs, kept.tokens_per_step) == (900.0, 70, None, 4_096)


def test_without_a_lake_or_a_speed_nothing_is_kept(recipe, tmp_path):
    assert lake_to_keep_in(tmp_path / "none", asked=False) is None and not (tmp_path / "none").exists()
    with pytest.raises(LakeError, match="none"):
        lake_to_keep_in(tmp_path / "none", asked=True)
    lake = Lake.open(tmp_path / "lake")
    assert keep_plan(plan(None), recipe(), "sft", lake) == keep_plan(plan(9.0), recipe(), "sft", None) == ""
    assert kept_plans(lake, "shop") == {}


@pytest.mark.parametrize(("error", "says"), [
    (S3Error("s3://b is away"), "not kept: s3://b is away"),
    (Changed("plans/shop/sft_model.json"), "not kept: another machine keeps a plan of sft_model in "),
])
def test_a_bucket_that_does_not_take_it_is_said(recipe, tmp_path, monkeypatch, error, says):
    lake = Lake.open(tmp_path / "lake")

    def refused(path):
        raise error

    monkeypatch.setattr(lake.mirror, "publish", refused)
    assert keep_plan(plan(9.0), recipe(), "sft", lake).startswith(says)


def test_a_lake_that_cannot_be_written_to_is_said(recipe, tmp_path):
    lake = Lake.open(tmp_path / "lake")
    (lake.root / "plans").write_text("a file in its place")
    assert keep_plan(plan(9.0), recipe(), "sft", lake).startswith(f"not kept: {lake.place} cannot be written to (")
