"""The training side shows as out of date after new rows, by Dagster's own resolver of staleness, and not after a mere
re-read."""

from datetime import date
from types import SimpleNamespace

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

import pipelines.graph.schedules as module
from pipelines.graph.recipe_graph import definitions
from pipelines.graph.schedules import clear_after
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.workshop.workshop import Workshop
from tests.pipelines.graph.test_definitions import load

RECIPE = "workload: shop\nbase_model: tiny\nsources: {gateway: {uri: logs}}\nfirst_day: 2026-06-01\nlast_day: 2026-06-05\n"
BEHIND = {
    "curated_interactions",
    "sft_dataset",
    "served_answers",
    "length_report",
    "sft_model",
    "student_model",
    "quantized_model",
    "speculator_dataset",
    "speculator",
    "evaluation_report",
    "release_candidate",
}


def rows(*given):
    """Rows of cleaned_interactions: (day of June, id, what the request said)."""
    filled = [
        {
            **dict.fromkeys(SCHEMAS["cleaned_interactions"].names),
            "workload": "shop",
            "dt": date(2026, 6, day),
            "interaction_id": name,
            "content_sha256": said,
        }
        for day, name, said in given
    ]
    return pa.Table.from_pylist(filled, schema=SCHEMAS["cleaned_interactions"])


class Shop:
    """A recipe's own graph and its history. What trains is a stand-in with the same dependencies that makes nothing; the digest
    is the real one."""

    def __init__(self, folder, instance):
        (folder / "shop.yaml").write_text(RECIPE)
        lake = LakeLayout.open(folder / "lake")
        self.tables, self.instance = Tables(lake), instance
        graph = definitions(folder / "shop.yaml", lake.root)
        self.graph = graph.resolve_asset_graph()
        keys = {key.path[-1]: key for key in self.graph.get_all_asset_keys()}
        self.digest = next(
            asset for asset in graph.assets if isinstance(asset, dg.AssetsDefinition) and asset.keys == {keys["traffic_digest"]}
        )
        specs = {
            spec.key: spec
            for asset in graph.assets
            if isinstance(asset, dg.AssetsDefinition) and asset is not self.digest
            for spec in asset.specs
            if not spec.partitions_def
        }
        self.trains = self._stand_in([specs[key] for key in self.graph.toposorted_asset_keys if key in specs])
        self.workshop = Workshop(Registry(lake, "shop"), None, threads=1)

    @staticmethod
    def _stand_in(specs):
        @dg.multi_asset(specs=specs)
        def made():
            for spec in specs:
                yield dg.MaterializeResult(asset_key=spec.key, data_version=dg.DataVersion("as before"))

        return made

    def write(self, day, *given):
        dt = [date(2026, 6, day)]
        self.tables.replace("cleaned_interactions", rows(*((day, *row) for row in given)), workload="shop", dt=dt)

    def look(self):
        dg.materialize([self.digest], instance=self.instance, resources={"workshop": self.workshop})

    def train(self):
        dg.materialize([self.trains], instance=self.instance)

    def status(self, wanted):
        """Names of the assets that Dagster gives this status, and why, without those that have partitions."""
        resolver = CachingStaleStatusResolver(self.instance, self.graph, LoadingContextForTest(self.instance))
        found = {}
        for key in self.graph.materializable_asset_keys:
            if not self.graph.get(key).is_partitioned and resolver.get_status(key) == wanted:
                found[key.path[-1]] = [
                    (cause.dependency_asset_key.path[-1], cause.reason) for cause in resolver.get_stale_causes(key)
                ]
        return found


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path, dg.DagsterInstance.ephemeral())


def test_new_rows_make_the_training_side_out_of_date_and_nothing_else_does(shop):
    shop.write(1, ("a", "hello"))
    shop.look()
    shop.train()
    assert shop.status(StaleStatus.STALE) == {} and len(shop.status(StaleStatus.FRESH)) > len(BEHIND)

    shop.write(2, ("b", "good day"))
    shop.look()
    expected = {name: [("traffic_digest", "has a new dependency data version")] for name in BEHIND}
    assert shop.status(StaleStatus.STALE) == expected
    shop.train()
    assert shop.status(StaleStatus.STALE) == {}

    shop.write(2, ("b", "good day"))  # read again, into other files
    shop.look()
    assert shop.status(StaleStatus.STALE) == {}

    shop.write(2, ("b", "good evening"))  # as many rows as before
    shop.look()
    assert shop.status(StaleStatus.STALE).keys() == BEHIND


def test_without_the_digest_dagster_leaves_out_a_dependency_on_all_days(shop):
    """Why there is a digest: if this fails, Dagster compares all days by itself, and `traffic_digest` can go."""

    @dg.asset(partitions_def=dg.DailyPartitionsDefinition(start_date="2026-06-01", end_date="2026-06-03"))
    def days():
        return dg.MaterializeResult(data_version=dg.DataVersion("1"))

    @dg.asset(deps=[days])
    def trained():
        return dg.MaterializeResult()

    dg.materialize([days], partition_key="2026-06-01", instance=shop.instance)
    dg.materialize([days, trained], selection=[trained], instance=shop.instance)
    dg.materialize([days], partition_key="2026-06-02", instance=shop.instance)
    shop.graph = dg.Definitions(assets=[days, trained]).resolve_asset_graph()
    assert "trained" in shop.status(StaleStatus.FRESH)


def test_a_recipe_with_retention_has_a_job_that_removes_old_rows(tmp_path):
    assert "retention" not in {job.name for job in load(tmp_path).get_repository_def().get_all_jobs()}
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    row = {"workload": "math-tutor", "dt": date(2026, 6, 1), "interaction_id": "i"}
    tables.append("interactions", pa.Table.from_pylist([row], schema=SCHEMAS["interactions"]))
    graph = load(tmp_path, "retention: {rows_days: 30}\n")
    [schedule] = [each for each in graph.get_repository_def().schedule_defs if each.name == "nightly_retention"]
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING and schedule.job_name == "retention"
    assert graph.resolve_job_def("retention").execute_in_process(instance=dg.DagsterInstance.ephemeral()).success
    assert tables.rows_by_day("interactions", "math-tutor") == {}
    assert sum(tables.rows_by_day("retired", "math-tutor").values()) == 1


EVERYTHING = {"sft_model", "speculator"}


def cleared(monkeypatch, job="train", failed=0, selection=("sft_model", "speculator"), instance=True, run=True):
    """What remove_leftovers was asked for; None where it was not asked."""
    asked, said = [], []
    found = SimpleNamespace(sentence=lambda: "removed unfinished sft_model 1a2b3c4d5e6f (stopped 2026-11-01, 1.2 GB)")
    monkeypatch.setattr(module, "remove_leftovers", lambda *words: asked.append(words) or [found])
    monkeypatch.setattr(module, "relay", said.append)
    context = SimpleNamespace(
        run=run
        and SimpleNamespace(
            run_id="r",
            job_name=job,
            asset_selection=selection and frozenset(dg.AssetKey(["tutor", name]) for name in selection),
        ),
        instance=instance and SimpleNamespace(get_run_stats=lambda _: SimpleNamespace(steps_failed=failed)),
        log=None,
    )
    clear_after(context, "lake", "tutor", 60.0, EVERYTHING)
    assert len(said) == len(asked)
    return asked[0] if asked else None


def test_a_whole_run_clears_everything_of_its_workload(monkeypatch):
    assert cleared(monkeypatch) == ("lake", "tutor", 60.0, None)
    assert cleared(monkeypatch, selection=None) == ("lake", "tutor", 60.0, None)


def test_a_part_of_the_graph_clears_its_own_assets(monkeypatch):
    assert cleared(monkeypatch, selection=("sft_model",)) == ("lake", "tutor", 60.0, {"sft_model"})


@pytest.mark.parametrize("how", [{"job": "logs"}, {"failed": 1}, {"run": None}, {"instance": None}])
def test_reading_logs_or_failing_clears_nothing(monkeypatch, how):
    assert cleared(monkeypatch, **how) is None
