"""Zero retention: of some sources nothing but counts stays once weights have learnt their rows."""

import json
import os
from datetime import UTC, datetime

import pyarrow.parquet as pq
import pytest
from filled_lake import CURATION, MARK, pair
from pydantic import ValidationError

from benchmarks.lake_bytes import places_of
from resources.artefacts.registry import Registry, current_manifests, up_to_date
from resources.artefacts.taint import find_taints
from resources.curating.cleaning import clean, stale_days
from resources.curating.selection import curate
from resources.digests.slices import all_digests, slice_digest
from resources.endpoints.endpoint_log import Actor
from resources.erasing.erasure import complete_unfinished, forget
from resources.erasing.journal import ask_for, unfinished
from resources.erasing.retention import (
    RetentionSettings,
    is_learnt,
    keep_counts_only,
    old_data,
    remove_old_data,
    rows_with_text,
)
from resources.lake.lake_use import LakeInUse, at_work
from resources.lake.tables import Tables
from resources.manifests.manifest import changed_files
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings
from resources.workshop.workshop import Workshop

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("counts only")]

BOTH = ["gateway", "thumbs"]


def table(lake, name):
    found = Tables(lake).open(name)
    return found.to_pyarrow_table().to_pylist() if found is not None else []


def test_no_byte_of_the_texts_stays_and_counts_lineage_and_models_do(lake, whole):
    before = {name: manifest.digest for name, manifest in current_manifests(lake, "tutor").items()}
    read = [(row["uri"], row["rows"]) for row in table(lake, "objects")]
    phrases = {MARK, "old mill by the river", "sift the flour twice", "bob says no", "You help millers"}
    assert all(places_of({phrase}, lake.root) for phrase in phrases), "every phrase is in the lake before"
    plan = keep_counts_only(lake, "tutor", BOTH)
    assert plan.interactions == 14 and places_of(phrases, lake.root) == []
    assert rows_with_text(lake, "tutor", BOTH) == {} and unfinished(lake) == []
    registry = Registry(lake, "tutor")
    assert {name: manifest.digest for name, manifest in current_manifests(lake, "tutor").items()} == before
    made = registry.current("dataset", "sft_dataset")
    sft = registry.directory(made)
    assert pq.read_metadata(sft / "train.parquet").num_rows == 0 and changed_files(sft, made) == []
    assert up_to_date(registry, "model", "sft_model") and not find_taints(lake), "models are neither stale nor tainted"
    assert [(row["uri"], row["rows"]) for row in table(lake, "objects")] == read
    assert {row["source_uri"] for row in table(lake, "retired")} == {str(whole[1] / "gateway.jsonl")}
    assert len(table(lake, "quarantine")) == 2 and not any(row["raw"] for row in table(lake, "quarantine"))
    report = ingest(Tables(lake), "tutor", {"gateway": SourceSettings(uri=str(whole[1] / "gateway.jsonl"))})
    assert report.total.objects == 0 and table(lake, "erasures") == [], "not read again, and nothing forbids it"


def test_a_run_without_new_logs_makes_nothing_again(lake, tmp_path):
    tables = Tables(lake)
    before = all_digests(tables, "tutor")
    keep_counts_only(lake, "tutor", BOTH)
    assert all_digests(Tables(lake), "tutor") == before and not table(lake, "interactions")
    later = pair("later-1", "dan", "dan-1", [{"role": "user", "content": "How is barley malted?"}], "Slowly, in warm air.", 2)
    (tmp_path / "more.jsonl").write_text(json.dumps(later) + "\n")
    ingest(Tables(lake), "tutor", {"gateway": SourceSettings(uri=str(tmp_path / "more.jsonl"))})
    second = all_digests(Tables(lake), "tutor")
    assert second["interactions"] != before["interactions"], "new rows are new"
    keep_counts_only(lake, "tutor", BOTH)
    assert all_digests(Tables(lake), "tutor") == second, "the digest of the last rows, although the table was as empty before"


@pytest.mark.slow
def test_other_code_makes_nothing_again_from_rows_that_are_gone(lake):
    workshop = Workshop(Registry(lake, "tutor"), None, threads=1)

    def made(code, **config):
        slices = [workshop.slice("interactions")]
        rows = workshop.build("dataset", "rows", "op", (code,), config, slices, lambda output: (output / "r").touch() or {})
        learnt = [Registry(lake, "tutor").current("dataset", "sft_dataset").as_input()]
        work = lambda output: (output / "m").touch() or {}  # noqa: E731
        model = workshop.build("model", "student_model", "op", (code,), config, learnt, work)
        return rows.version, model.version

    code, other = "model_ops/jobs/errors.py", "model_ops/jobs/job.py"
    before = made(code)
    assert not set(made(other)) & set(before), "while the rows are there, other code makes others"
    before = made(other)
    keep_counts_only(lake, "tutor", BOTH)
    assert made(code) == before
    assert not set(made(code, changed=True)) & set(before), "other settings are asked for: they are made from what is there"


def test_a_killed_removal_keeps_the_digests_of_before(lake, monkeypatch):
    before = all_digests(Tables(lake), "tutor")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("resources.erasing.erasure.keep_slice_digests", killed)
        with pytest.raises(KeyboardInterrupt):
            keep_counts_only(lake, "tutor", BOTH)
    assert all_digests(Tables(lake), "tutor") != before
    assert complete_unfinished(lake) == 1 and all_digests(Tables(lake), "tutor") == before


def test_other_sources_keep_their_rows(lake):
    keep_counts_only(lake, "tutor", ["thumbs"])
    assert len(table(lake, "interactions")) == 14 and table(lake, "feedback") == []
    assert places_of({MARK}, lake.root) and not places_of({"bob says no"}, lake.root)


def test_an_erasure_still_finds_the_ids_and_taints_nothing_it_cannot_prove(lake):
    keep_counts_only(lake, "tutor", BOTH)
    plan = forget(lake, ask_for(Tables(lake), "user", "ann"), Actor("tester", "test"))
    assert plan.interactions == 4 and not plan.files and not find_taints(lake)
    assert len(table(lake, "retired")) == 10 and {row["kind"] for row in table(lake, "erasures")} >= {"user", "interaction"}


def test_rows_that_no_model_has_learnt_stay(lake, tmp_path):
    settings = RetentionSettings(counts_only=["gateway"])
    assert is_learnt(lake, "tutor") and not old_data(lake, "tutor", settings).unlearnt
    later = pair("later-1", "dan", "dan-1", [{"role": "user", "content": "How is barley malted?"}], "Slowly, in warm air.", 2)
    (tmp_path / "more.jsonl").write_text(json.dumps(later) + "\n")
    ingest(Tables(lake), "tutor", {"gateway": SourceSettings(uri=str(tmp_path / "more.jsonl"))})
    found = remove_old_data(lake, "tutor", settings)
    assert found.unlearnt and found.counts_only["interactions"] == 15 == len(table(lake, "interactions"))


@pytest.mark.slow
def test_retain_removes_them_and_waits_for_a_run(lake):
    settings = RetentionSettings(counts_only=BOTH)
    with at_work(lake), pytest.raises(LakeInUse):
        remove_old_data(lake, "tutor", settings)
    assert remove_old_data(lake, "tutor", settings).counts_only == {"interactions": 14, "feedback": 2, "quarantine": 2}
    assert places_of({MARK}, lake.root) == [] and old_data(lake, "tutor", settings).counts_only == {}


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
    slices = (("interactions", False), ("interactions", True), ("cleaned_interactions", False), ("feedback", False))
    return {(name, served): slice_digest(tables, name, "tutor", served) for name, served in slices}


def test_raw_rows_are_emptied_and_nothing_made_from_them_changes(lake, tmp_path):
    before, rows_before = digests(lake), curated(lake, tmp_path / "before" / "v")
    plan = old_data(lake, "tutor", RAW_FIRST, NOW)
    done = remove_old_data(lake, "tutor", RAW_FIRST, NOW)
    assert plan.emptied == done.emptied == {"interactions": 8, "feedback": 2} and done.rows == {}
    assert said(lake, 1) == [] and len(said(lake, 2)) == 6 and len(rows(lake, "cleaned_interactions", 1)) == 8
    assert {(row["comment"], row["value"]) for row in rows(lake, "feedback")} == {(None, 0), (None, 1)}
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
    question = [{"role": "user", "content": "Which sieve keeps the bran out of fine flour?"}]
    answer = "A silk sieve of a narrow mesh keeps the bran out, if you shake it slowly and twice."
    late = pair("request-late", "zoe", "zoe-1", question, answer, 1)
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
