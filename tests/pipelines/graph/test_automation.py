"""The schedule asks for yesterday; the sensor asks once for days with objects that were never read."""

from datetime import UTC, datetime

import dagster as dg
import pytest

from pipelines.graph.recipe_graph import definitions

RECIPE = "workload: shop\nbase_model: tiny\nsources: {gateway: {uri: logs}}\nfirst_day: 2026-06-01\nlast_day: 2026-06-05\n"


@pytest.fixture
def graph(tmp_path):
    for day in ("2026-06-02", "2026-06-04", "2026-07-01"):
        folder = tmp_path / "logs" / f"dt={day}"
        folder.mkdir(parents=True)
        (folder / "part.jsonl").write_text("{}\n")
    recipe = tmp_path / "shop.yaml"
    recipe.write_text(RECIPE)
    return definitions(recipe, tmp_path / "lake")


def test_the_daily_schedule_asks_for_the_day_before(graph):
    def tick(day):
        context = dg.build_schedule_context(
            scheduled_execution_time=datetime(2026, 6, day, 1, tzinfo=UTC), repository_def=graph.get_repository_def()
        )
        return graph.get_schedule_def("daily_logs").evaluate_tick(context)

    [request] = tick(4).run_requests
    assert request.partition_key == "2026-06-03"
    assert not tick(9).run_requests and "ended" in tick(9).skip_message


def test_the_sensor_asks_for_the_days_of_new_objects_within_the_recipes_own(graph):
    sensor = graph.get_sensor_def("new_logs")
    first = sensor.evaluate_tick(dg.build_sensor_context(definitions=graph))
    [request] = first.run_requests
    assert request.tags["dagster/asset_partition_range_start"] == "2026-06-02"
    assert request.tags["dagster/asset_partition_range_end"] == "2026-06-04"
    again = sensor.evaluate_tick(dg.build_sensor_context(definitions=graph, cursor=first.cursor))
    assert [each.run_key for each in again.run_requests] == [request.run_key]  # the same objects, the same key
