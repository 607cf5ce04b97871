"""Which days a run reads and cleans where none is named: those with news, else the newest."""

from datetime import date

import dagster as dg
import pytest

from pipelines.running import run as module
from resources.lake.lake import LakeLayout
from resources.reading.ingestion import Observation
from resources.stages.table import daily_stages

DAYS = [date(2026, 6, day) for day in range(1, 6)]


@pytest.fixture
def days_of(tmp_path, monkeypatch):
    """What a run would be about: days_of(unread=[...], materialized=[...])."""
    (tmp_path / "logs").mkdir()
    recipe = tmp_path / "shop.yaml"
    recipe.write_text(
        "workload: shop\nbase_model: tiny\nsources: {gateway: {uri: logs}}\nfirst_day: 2026-06-01\nlast_day: 2026-06-05\n"
    )
    lake = LakeLayout.open(tmp_path / "lake")

    def found(unread, materialized, partition=None):
        monkeypatch.setattr(
            module,
            "observe",
            lambda *_: Observation(new_objects=0, unread_objects=len(unread), days=DAYS, unread_days=unread, digest=""),
        )
        with dg.DagsterInstance.ephemeral() as instance:
            for name in daily_stages():
                for day in materialized.get(name, []) if isinstance(materialized, dict) else materialized:
                    instance.report_runless_asset_event(dg.AssetMaterialization(["shop", name], partition=day.isoformat()))
            return module._days(module.load_recipe(recipe), lake, partition, instance)

    return found


def test_the_first_run_is_about_all_days(days_of):
    assert days_of(unread=DAYS, materialized=[]) == DAYS


def test_where_nothing_is_new_it_is_about_the_newest_day(days_of):
    assert days_of(unread=[], materialized=DAYS) == DAYS[-1:]


def test_a_late_file_brings_its_day_back(days_of):
    assert days_of(unread=[DAYS[1]], materialized=DAYS) == [DAYS[1]]


def test_a_day_that_one_asset_never_finished_comes_again(days_of):
    done = {name: DAYS if name != "cleaned_interactions" else DAYS[:3] for name in daily_stages()}
    assert days_of(unread=[], materialized=done) == DAYS[3:]


def test_a_day_that_is_named_is_the_one(days_of):
    assert days_of(unread=DAYS, materialized=[], partition=DAYS[2]) == [DAYS[2]]
