"""The drift report's asset: it compares, warns, shows a plot of each test, and its check warns on the newest day."""

import json
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pyarrow as pa
import pytest

import assets.drift_report
from assets.drift_report import traffic_is_as_the_reference
from resources.artefacts.registry import Registry
from resources.catalog.catalog import query
from resources.curating.curation import CurationSettings
from resources.drifting.settings import DriftSettings
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.workshop.workshop import Workshop

FIRST = date(2026, 6, 1)
SETTINGS = DriftSettings(reference_days=4, windows=[1])


@pytest.fixture
def lake(tmp_path):
    """Five days of 30 sessions; on the last one every second request fails."""
    rows = []
    for number in range(150):
        day = FIRST + timedelta(number // 30)
        rows.append(
            dict.fromkeys(SCHEMAS["cleaned_interactions"].names)
            | {
                "workload": "tutor",
                "dt": day,
                "ts": datetime(day.year, day.month, day.day, tzinfo=UTC),
                "interaction_id": f"i{number}",
                "content_sha256": f"c{number}",
                "session_id": f"s{number}",
                "messages": json.dumps([{"role": "user", "content": "what is a mill for"}]),
                "prompt_shape": "what#1",
                "completion": json.dumps({"role": "assistant", "content": "grain"}),
                "prompt_characters": 18,
                "completion_characters": 5,
                "status": "error" if number >= 120 and number % 2 else "ok",
            }
        )
    lake = LakeLayout.open(tmp_path / "lake")
    Tables(lake).append("cleaned_interactions", pa.Table.from_pylist(rows, SCHEMAS["cleaned_interactions"]))
    return lake


def run(lake, last):
    """One run over the days up to `last`: its result."""
    resources = {
        "workshop": Workshop(Registry(lake, "tutor"), None, threads=1),
        "curation_settings": CurationSettings(),
        "drift_settings": SETTINGS,
    }
    days = dg.DailyPartitionsDefinition(start_date=FIRST.isoformat())
    [asset] = dg.load_assets_from_modules([assets.drift_report], key_prefix="tutor")
    asset = asset.map_asset_specs(lambda spec: spec.replace_attributes(partitions_def=days))
    tags = {"dagster/asset_partition_range_start": FIRST.isoformat(), "dagster/asset_partition_range_end": last.isoformat()}
    return dg.materialize([asset], resources=resources, tags=tags)


def check(lake):
    return traffic_is_as_the_reference(workshop=Workshop(Registry(lake, "tutor"), None, threads=1))


def test_a_day_of_errors_is_warned_of_and_everything_is_in_the_catalog(lake):
    assert check(lake).passed
    done = run(lake, FIRST + timedelta(4))
    assert done.success
    shown = done.asset_materializations_for_node("drift_report")[-1].metadata
    assert "plot_errors" in shown and shown["newest_day"].value == "2026-06-05"
    assert next(iter(shown)) == "in_short" and shown["in_short"].value.splitlines()[0] == (
        "- 2026-06-05: errors over 1 d differ from the reference"
    )
    [row] = query(lake, "select dt, test, alarm, sessions from drift where alarm").to_pylist()
    assert (row["dt"], row["test"], row["sessions"]) == (FIRST + timedelta(4), "errors", 30)
    assert (lake.root / "drift" / "tutor.html").read_text().count("errors") >= 2
    found = check(lake)
    assert not found.passed and found.severity == dg.AssetCheckSeverity.WARN and "errors over 1 d" in found.description
