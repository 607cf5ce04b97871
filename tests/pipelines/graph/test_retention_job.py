"""The nightly job of a recipe with `retention`."""

from datetime import date

import dagster as dg
import pyarrow as pa

from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from tests.pipelines.graph.test_definitions import load


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
