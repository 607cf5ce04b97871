"""Retention of raw rows before curated ones: what was said goes, and nothing that was made from it is stale or lost."""

import json
import os
from datetime import UTC, datetime

import pytest
from filled_lake import CURATION, MARK, pair
from pydantic import ValidationError

from benchmarks.lake_bytes import places_of
from resources.curating.cleaning import clean, stale_days
from resources.curating.selection import curate
from resources.digests.slices import slice_digest
from resources.endpoints.endpoint_log import Actor
from resources.erasing.erasure import forget
from resources.erasing.journal import ask_for
from resources.erasing.retention import RetentionSettings, old_data, remove_old_data
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("emptied rows")]

NOW = datetime(2026, 6, 4, 12, tzinfo=UTC)
RAW_FIRST = RetentionSettings(raw_days=2, curated_days=300, old_files_days=0)
"""On NOW, raw rows of 1 June are too old and those of 2 June are not."""


def rows(lake, name, day=None):
    found = Tables(lake).open(name).to_pyarrow_table().to_pylist()
    return [row for row in found if day is None or row["dt"].day == day]


def said(lake, day):
    return [row["messages"] for row in rows(lake, "interactions", day) if row["messages"] is not None]


def curated(lake, output):
    report = curate(Tables(lake), "tutor", output, CURATION, None)
    return report.as_metrics(), (output / "curated.parquet").read_bytes()


def digests(lake):
    tables = Tables(lake)
    return {
        (name, served): slice_digest(tables, name, "tutor", served)
        for name, served in (
            ("interactions", False),
            ("interactions", True),
            ("cleaned_interactions", False),
            ("feedback", False),
        )
    }


def test_raw_rows_are_emptied_and_nothing_made_from_them_changes(lake, tmp_path):
    before, rows_before = digests(lake), curated(lake, tmp_path / "before" / "v")
    plan = old_data(lake, "tutor", RAW_FIRST, NOW)
    done = remove_old_data(lake, "tutor", RAW_FIRST, NOW)
    assert plan.emptied == done.emptied == {"interactions": 8, "feedback": 2} and done.rows == {}
    assert said(lake, 1) == [] and len(said(lake, 2)) == 6 and len(rows(lake, "cleaned_interactions", 1)) == 8
    assert {row["comment"] for row in rows(lake, "feedback")} == {None} and {
        row["value"] for row in rows(lake, "feedback")
    } == {0, 1}
    assert digests(lake) == before and stale_days(Tables(lake), "tutor", CURATION) == []
    assert curated(lake, tmp_path / "after" / "v") == rows_before
    assert old_data(lake, "tutor", RAW_FIRST, NOW).emptied == {}


def test_changed_rules_clean_the_other_days_only(lake):
    remove_old_data(lake, "tutor", RAW_FIRST, NOW)
    stricter = CURATION.model_copy(update={"length": CURATION.length.model_copy(update={"min_answer": 10_000})})
    assert [day.day for day in stale_days(Tables(lake), "tutor", stricter)] == [2]
    first_day = rows(lake, "cleaned_interactions", 1)
    clean(Tables(lake), "tutor", [row["dt"] for row in rows(lake, "cleaned_interactions")], stricter)
    assert rows(lake, "cleaned_interactions", 1) == first_day
    assert {row["status"] for row in rows(lake, "cleaned_interactions", 2)} == {"answer_too_short"}
    assert stale_days(Tables(lake), "tutor", stricter) == []


@pytest.mark.slow
def test_rows_that_arrive_late_join_the_emptied_ones(lake, whole, tmp_path):
    remove_old_data(lake, "tutor", RAW_FIRST, NOW)
    logs = tmp_path / "late"
    logs.mkdir()
    late = pair(
        "request-late",
        "zoe",
        "zoe-1",
        [{"role": "user", "content": "Which sieve keeps the bran out of fine flour?"}],
        "A silk sieve of a narrow mesh keeps the bran out, if you shake it slowly and twice.",
        1,
    )
    again = json.loads((whole[1] / "gateway.jsonl").read_text().split("\n")[0])
    (logs / "late.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (late, again)))
    tables = Tables(lake)
    report = ingest(tables, "tutor", {"gateway": SourceSettings(uri=str(logs / "late.jsonl"))})
    assert (report.total.rows, report.total.repeated) == (1, 1)  # a copy of an emptied row is known
    assert remove_old_data(lake, "tutor", RAW_FIRST, NOW).emptied == {}  # not before it was cleaned
    assert len(said(lake, 1)) == 1 and [day.day for day in stale_days(tables, "tutor", CURATION)] == [1]
    clean(tables, "tutor", stale_days(tables, "tutor", CURATION), CURATION)
    assert len(rows(lake, "cleaned_interactions", 1)) == 9 and stale_days(tables, "tutor", CURATION) == []
    decided = [row for row in rows(lake, "decisions", 1) if row["stage"] == "clean"]
    assert len(decided) == len({row["interaction_id"] for row in decided}) == 9
    assert remove_old_data(lake, "tutor", RAW_FIRST, NOW).emptied == {"interactions": 1}
    assert said(lake, 1) == [] and stale_days(tables, "tutor", CURATION) == []


@pytest.mark.parametrize("more", ["", "\n"])
def test_a_touched_or_a_changed_log_brings_no_emptied_text_back(lake, whole, more):
    remove_old_data(lake, "tutor", RAW_FIRST, NOW)
    before = rows(lake, "interactions")
    with (whole[1] / "gateway.jsonl").open("a") as log:
        log.write(more)
    os.utime(whole[1] / "gateway.jsonl", (7, 7))
    report = ingest(Tables(lake), "tutor", {"gateway": SourceSettings(uri=str(whole[1] / "gateway.jsonl"))})
    assert report.total.objects == len(more) and said(lake, 1) == [] and len(said(lake, 2)) == 6
    assert sorted(rows(lake, "interactions"), key=str) == sorted(before, key=str)
    assert stale_days(Tables(lake), "tutor", CURATION) == []


def test_an_erasure_finds_everything_of_emptied_rows(lake):
    remove_old_data(lake, "tutor", RAW_FIRST, NOW)
    plan = forget(lake, ask_for(Tables(lake), "user", "ann"), Actor("tester", "test"), vacuum=True)
    assert plan.interactions == 4 and places_of({MARK}, lake.root) == []


def test_an_erased_turn_takes_the_later_turns_that_repeat_it(lake):
    remove_old_data(lake, "tutor", RAW_FIRST, NOW)
    assert said(lake, 1) == []
    plan = forget(lake, ask_for(Tables(lake), "interaction", "request-bob-1-1"), Actor("tester", "test"))
    assert plan.interactions == 2


def test_rows_go_whole_after_curated_days(lake):
    settings = RetentionSettings(raw_days=1, curated_days=2)
    plan = old_data(lake, "tutor", settings, NOW)
    assert plan.rows["interactions"] == 8 and plan.emptied == {"interactions": 6}
    assert remove_old_data(lake, "tutor", settings, NOW).emptied == {"interactions": 6}
    assert rows(lake, "interactions", 1) == rows(lake, "cleaned_interactions", 1) == [] == said(lake, 2)
    assert len(rows(lake, "cleaned_interactions", 2)) == 6 and stale_days(Tables(lake), "tutor", CURATION) == []


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"curated_days": 30}, "add raw_days of at most 30"),
        ({"raw_days": 90, "curated_days": 30}, "set raw_days to at most 30"),
        ({"curated_days": 30, "rows_days": 60}, "set raw_days to at most 30"),
        (
            {"raw_days": 30, "rows_days": 60},
            "keep rows_days alone, or keep raw_days and write curated_days: 60 instead of rows_days",
        ),
    ],
)
def test_curated_rows_never_go_before_raw_ones(given, remedy):
    with pytest.raises(ValidationError, match=remedy):
        RetentionSettings(**given)
    assert RetentionSettings(raw_days=30).days_of_rows is None and RetentionSettings(rows_days=30).days_of_texts is None
