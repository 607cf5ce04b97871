"""The sensor of a recipe with `release.watch`: on by default, and its rollback is in the endpoint's history."""

from datetime import timedelta

import dagster as dg
import numpy as np

from benchmarks.served_series import windows
from pipelines.contract.recipe import load_recipe
from pipelines.graph.sensors import release_watch
from resources.endpoints.approvals import record_approval
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.monitoring.champions import watch
from resources.releases.release import ReleaseRef
from tests.resources.monitoring.test_watch import CALM, serve, week

ANN = Actor("ann", "MILLRACE_USER")
RECIPE = "workload: tutor\nbase_model: tiny\nsources: {gateway: {uri: logs}}\n"


def sensors(tmp_path, more=""):
    recipe = tmp_path / "tutor.yaml"
    recipe.write_text(RECIPE + more)
    return release_watch(load_recipe(recipe), tmp_path / "lake")


def test_only_a_recipe_that_asks_for_it_has_the_sensor(tmp_path):
    assert sensors(tmp_path) == [] and len(sensors(tmp_path, "release: {watch: {}}\n")) == 1


def test_an_endpoint_that_cannot_be_read_is_said_and_looked_at_again(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    (lake.root / "endpoints").mkdir(exist_ok=True)
    (lake.root / "endpoints" / "tutor.json").write_text("{")
    [sensor] = sensors(tmp_path, "release: {watch: {}}\n")
    assert "cannot be read now, and is read again" in sensor.evaluate_tick(dg.build_sensor_context()).skip_message


def test_a_tick_rolls_back_and_reports_the_endpoint(tmp_path, make_release, monkeypatch):
    lake = LakeLayout.open(tmp_path / "lake")
    old, new = make_release(lake, 1), make_release(lake, 2)
    for directory in (old, new):
        record_approval(lake, directory, ANN)
        aliases = Endpoint(lake, "tutor").promote(ReleaseRef.of(directory), ANN)
    at, rng = aliases.changed_at, np.random.default_rng(0)
    serve(lake, old.name, week(rng, at))
    serve(lake, new.name, windows(rng, at, 6, minutes=10, **CALM, fall=0.5))
    [sensor] = sensors(tmp_path, "release: {watch: {hours: 12}}\n")
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING and sensor.minimum_interval_seconds == 60
    early = sensor.evaluate_tick(dg.build_sensor_context())
    assert "is watched for 12.0 hours more" in early.skip_message and not early.asset_events

    class Later(watch.datetime):
        @classmethod
        def now(cls, tz=None):
            return at + timedelta(hours=6)

    monkeypatch.setattr(watch, "datetime", Later)
    late = sensor.evaluate_tick(dg.build_sensor_context(cursor=early.cursor))
    assert f"was rolled back to {old.name}" in late.skip_message
    [event] = late.asset_events
    assert event.asset_key.path == ["tutor", "endpoint"] and event.metadata["by"].value == "millrace watch"
    assert Endpoint(lake, "tutor").read().champion == old.name
    again = sensor.evaluate_tick(dg.build_sensor_context(cursor="not a cursor"))
    assert "nothing is watched" in again.skip_message and not again.asset_events


def test_a_lake_that_is_away_is_said(tmp_path):
    [sensor] = sensors(tmp_path, "release: {watch: {}}\n")
    assert "the lake cannot be read now" in sensor.evaluate_tick(dg.build_sensor_context()).skip_message
