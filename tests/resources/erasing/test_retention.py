"""Retention: what is too old goes, what anything kept needs stays, and an erasure still finds the rows of datasets."""

import io
import shutil
from datetime import UTC, datetime, timedelta

import pytest
from filled_lake import MARK, sources
from rich.console import Console

from benchmarks.lake_bytes import places_of
from model_ops.files.atomic_files import write_json
from pipelines.asking.why_text import print_history
from resources.artefacts.registry import Registry
from resources.catalog.why import history_of
from resources.endpoints.endpoint_log import Actor
from resources.erasing.erasure import forget
from resources.erasing.journal import ask_for
from resources.erasing.retention import RetentionSettings, old_data, remove_old_data
from resources.lake.lake_use import LakeInUse, at_work
from resources.lake.tables import Tables
from resources.manifests.manifest import read_manifest
from resources.reading.ingestion import ingest

SECOND_DAY = datetime(2026, 6, 4, 12, tzinfo=UTC)
"""With rows_days 2, the rows of 1 June are too old and those of 2 June are not."""


def days(lake, name):
    return {day.day for day in Tables(lake).rows_by_day(name, "tutor")}


def test_rows_go_by_their_day_and_what_is_read_still_adds_up(lake, whole):
    settings = RetentionSettings(rows_days=2)
    plan = old_data(lake, "tutor", settings, SECOND_DAY)
    assert days(lake, "interactions") == days(lake, "cleaned_interactions") == {1, 2}
    done = remove_old_data(lake, "tutor", settings, SECOND_DAY)
    assert plan.rows == done.rows and plan.rows["interactions"] == plan.rows["cleaned_interactions"] == 8
    assert days(lake, "interactions") == days(lake, "cleaned_interactions") == {2} and days(lake, "feedback") == set()
    assert {row["dt"].day for row in Tables(lake).open("decisions").to_pyarrow_table().to_pylist()} == {2}
    again = remove_old_data(lake, "tutor", settings, SECOND_DAY)
    assert again.rows == {}
    report = ingest(Tables(lake), "tutor", sources(whole[1]))
    assert report.total.objects == 0 and days(lake, "interactions") == {2}


@pytest.mark.slow
def test_an_erasure_finds_the_rows_of_datasets_whose_raw_rows_are_gone(lake):
    remove_old_data(lake, "tutor", RetentionSettings(rows_days=1), SECOND_DAY + timedelta(days=9))
    assert days(lake, "interactions") == set()
    plan = forget(lake, ask_for(Tables(lake), "user", "ann"), Actor("tester", "test"), vacuum=True)
    left = [place for place in places_of({MARK}, lake.root) if not place.startswith((".dagster/submitted", "answers/"))]
    assert plan.interactions == 4 and [hit.rows for hit in plan.files] and left == []
    assert Tables(lake).open("retired").to_pyarrow_table().num_rows == 10


def test_what_retention_removed_is_told_by_its_id_and_by_its_line(lake, whole):
    with_ids = next(row for row in Tables(lake).open("interactions").to_pyarrow_table().to_pylist() if row["dt"].day == 1)
    remove_old_data(lake, "tutor", RetentionSettings(rows_days=2), SECOND_DAY)
    place = f"{with_ids['source_uri']}:{with_ids['source_row']}"
    for asked in (with_ids["interaction_id"], with_ids["interaction_id"][:12], with_ids["request_id"], place):
        steps = [step for step in history_of(lake, asked).steps.to_pylist() if step["stage"] == "retired"]
        [step] = steps
        assert (step["interaction_id"], step["rule"], step["kept"]) == (with_ids["interaction_id"], "retention", False)
        removed = f"which retention removed on {datetime.now(UTC):%Y-%m-%d}"
        assert step["detail"] == f"{place}, read as a row of 2026-06-01, {removed}"
    console = Console(width=200, record=True, file=io.StringIO())
    print_history(history_of(lake, with_ids["interaction_id"]), "table", console, None)
    assert "removed" in (said := console.export_text()) and place in said


def test_old_versions_go_unless_something_kept_was_made_from_them(lake):
    registry = Registry(lake, "tutor")
    for name in ("sft_dataset", "sft_model", "merged_model", "untaught_model"):
        kind = name.rpartition("_")[2]
        home = registry.directory(registry.current(kind, name)).parent
        shutil.copytree(home / registry.current(kind, name).version, home / "aaaaaaaaaaaa")
        path = home / "aaaaaaaaaaaa" / "manifest.json"
        manifest = read_manifest(path.parent).model_copy(update={"version": "aaaaaaaaaaaa"})
        path.write_text(manifest.model_dump_json())
    merged = registry.directory(registry.current("model", "merged_model"))
    write_json(merged.parent / "current.json", {"version": "aaaaaaaaaaaa"})
    settings = RetentionSettings(versions_days=30)
    assert old_data(lake, "tutor", settings).versions == []  # they are of today
    later = datetime.now(UTC) + timedelta(days=31)
    found = remove_old_data(lake, "tutor", settings, later)
    assert sorted(found.versions) == [
        "dataset tutor/sft_dataset aaaaaaaaaaaa",
        f"model tutor/merged_model {merged.name}",
        "model tutor/sft_model aaaaaaaaaaaa",
        "model tutor/untaught_model aaaaaaaaaaaa",
    ]
    assert not merged.exists() and registry.current("model", "sft_model") and registry.current("release", "release")
    assert not list(lake.root.glob("*/*/*/.removing-*")) and old_data(lake, "tutor", settings, later).versions == []


def test_old_files_go_after_their_days_and_not_while_a_run_is_at_work(lake):
    Tables(lake).compact("interactions", "tutor")
    remove_old_data(lake, "tutor", RetentionSettings(rows_days=2, old_files_days=7), SECOND_DAY)
    assert old_data(lake, "tutor", RetentionSettings()).old_bytes > 0
    with at_work(lake), pytest.raises(LakeInUse, match="millrace retain"):
        remove_old_data(lake, "tutor", RetentionSettings())
    remove_old_data(lake, "tutor", RetentionSettings(old_files_days=0), SECOND_DAY)
    assert old_data(lake, "tutor", RetentionSettings()).old_bytes == 0 and days(lake, "interactions") == {2}
