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
    said = "workload: shop\nbase_model: tiny\nsources: {gateway: {uri: logs}}\nfirst_day: 2026-06-01\nlast_day: 2026-06-05\n"
    recipe.write_text(said)
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


@pytest.fixture(scope="module")
def selected(tmp_path_factory):
    """selected(*texts): the names of the assets that the texts choose."""
    home = tmp_path_factory.mktemp("selection")
    (home / "logs").mkdir()
    (home / "shop.yaml").write_text(
        "workload: shop\nbase_model: tiny\nsources: {gateway: {uri: logs}}\nfirst_day: 2026-06-01\n"
        "last_day: 2026-06-05\ndatasets: {named: {best: {max_rows: 9}}}\n"
    )
    recipe, graph = module.load_recipe(home / "shop.yaml"), module.definitions(home / "shop.yaml", home / "lake")
    return lambda *texts: {key.path[-1] for key in module._selected(graph, recipe, list(texts))}


def test_a_comma_and_a_repeated_option_mean_or(selected):
    assert (
        selected("sft_dataset,best")
        == selected("sft_dataset", "best")
        == selected("sft_dataset or best")
        == {"sft_dataset", "best"}
    )
    assert selected("+sft_dataset, best,") == selected("+sft_dataset or best") > {"curated_interactions", "best"}
    assert selected('key:"shop/sft_dataset"') == {"sft_dataset"}


def test_what_is_no_selection_is_refused_with_examples(selected):
    with pytest.raises(module.SelectionError, match=r"sft_dataset or or best: this is not a selection .* a comma means `or`"):
        selected("sft_dataset or or best")
