"""Days are partitions where there is traffic: a pause of years, or one record with a wrong clock, costs nothing."""

import json
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pytest

from pipelines.contract.recipe import load_recipe
from pipelines.graph.recipe_graph import definitions
from pipelines.graph.schedules import PAUSE, daily_partitions
from pipelines.running.run import SelectionError, _days
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest, observe

TODAY = datetime.now(UTC).date()
FAR, NEAR, LATE = date(TODAY.year - 3, 1, 1), TODAY - timedelta(days=3), date(TODAY.year - 2, 11, 11)


def record(day, number=0):
    return (
        json.dumps(
            {
                "request": {"model": "m", "messages": [{"role": "user", "content": f"of {day}"}]},
                "response": {
                    "id": f"{day}-{number}",
                    "created": int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()),
                    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}],
                },
            }
        )
        + "\n"
    )


@pytest.fixture
def shop(tmp_path):
    """A recipe whose logs have a day of years ago and two of this week."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.jsonl").write_text(record(FAR) + record(NEAR) + record(NEAR + timedelta(days=1)))
    path = tmp_path / "shop.yaml"
    path.write_text("workload: shop\nbase_model: tiny\nsources: {gateway: {uri: logs}}\n")
    return path, load_recipe(path), LakeLayout.open(tmp_path / "lake")


def test_years_without_traffic_are_no_partitions(shop):
    path, recipe, lake = shop
    assert daily_partitions(recipe, lake.root).get_partition_keys() == [TODAY.isoformat()]  # nothing is known yet
    observe(Tables(lake), "shop", recipe.sources)
    keys = daily_partitions(recipe, lake.root).get_partition_keys()
    assert keys[0] == FAR.isoformat() and keys[-1] == TODAY.isoformat() and len(keys) <= PAUSE.days + 5
    assert {NEAR.isoformat(), (TODAY - timedelta(days=1)).isoformat()} <= set(keys)
    graph = definitions(path, lake.root).resolve_asset_graph()
    assert graph.get(dg.AssetKey(["shop", "interactions"])).partitions_def.get_partition_keys() == keys


def test_short_pauses_and_the_bounds_of_the_recipe_stay_partitions(shop, tmp_path):
    _, recipe, lake = shop
    (tmp_path / "logs" / "a.jsonl").write_text(record(TODAY - PAUSE) + record(TODAY))
    observe(Tables(lake), "shop", recipe.sources)
    assert len(daily_partitions(recipe, lake.root).get_partition_keys()) == PAUSE.days + 1
    bounded = recipe.model_copy(update={"first_day": date(2020, 1, 1), "last_day": TODAY - timedelta(days=1)})
    keys = daily_partitions(bounded, lake.root).get_partition_keys()
    assert (keys[0], keys[-1]) == ("2020-01-01", bounded.last_day.isoformat())


def test_a_run_and_a_schedule_ask_for_days_that_are_partitions(shop):
    path, recipe, lake = shop
    with dg.DagsterInstance.ephemeral() as instance:
        days = _days(recipe, lake, None, instance)
        assert days == [FAR, NEAR, NEAR + timedelta(days=1)]
        with pytest.raises(SelectionError, match=f"{LATE}: this day lies in a pause"):
            _days(recipe, lake, LATE, instance)
    graph = definitions(path, lake.root)
    partitions = graph.resolve_asset_graph().get(dg.AssetKey(["shop", "interactions"])).partitions_def
    assert (
        len(partitions.get_partition_keys_in_range(dg.PartitionKeyRange(days[0].isoformat(), days[-1].isoformat())))
        < PAUSE.days + 5
    )
    context = dg.build_schedule_context(scheduled_execution_time=datetime.now(UTC), repository_def=graph.get_repository_def())
    [request] = graph.get_schedule_def("daily_logs").evaluate_tick(context).run_requests
    assert partitions.has_partition_key(request.partition_key)


def test_a_late_record_inside_a_pause_is_read_with_the_partitions_around_it(shop, tmp_path):
    path, recipe, lake = shop
    ingest(Tables(lake), "shop", recipe.sources)
    folder = tmp_path / "logs" / f"dt={LATE}"
    folder.mkdir()
    (folder / "late.jsonl").write_text(record(LATE))
    graph = definitions(path, lake.root)
    [request] = graph.get_sensor_def("new_logs").evaluate_tick(dg.build_sensor_context(definitions=graph)).run_requests
    tags = {name: value for name, value in request.tags.items() if "range" in name}
    assert tags["dagster/asset_partition_range_start"] == FAR.isoformat()
    assert date.fromisoformat(tags["dagster/asset_partition_range_end"]) > LATE
    with dg.DagsterInstance.ephemeral() as instance:
        asset_selection = [dg.AssetKey(["shop", "interactions"]), dg.AssetKey(["shop", "feedback"])]
        result = graph.resolve_job_def("logs").execute_in_process(instance=instance, tags=tags, asset_selection=asset_selection)
    assert result.success and set(Tables(lake).rows_by_day("interactions", "shop")) == {
        FAR,
        LATE,
        NEAR,
        NEAR + timedelta(days=1),
    }
    assert LATE.isoformat() in daily_partitions(recipe, lake.root).get_partition_keys()


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
