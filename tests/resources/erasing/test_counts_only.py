"""Zero retention: of some sources nothing but counts stays once weights have learnt their rows."""

import json

import pyarrow.parquet as pq
import pytest
from filled_lake import MARK, pair

from benchmarks.lake_bytes import places_of
from resources.artefacts.registry import Registry, current_manifests, up_to_date
from resources.artefacts.taint import tainted
from resources.digests.slices import all_digests
from resources.endpoints.actor import Actor
from resources.erasing.counts_only import is_learnt, keep_counts_only, rows_with_text
from resources.erasing.erasure import complete_unfinished, forget
from resources.erasing.journal import ask_for, unfinished
from resources.erasing.retention import RetentionSettings, old_data, remove_old_data
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
    assert up_to_date(registry, "model", "sft_model") and not tainted(lake), "models are neither stale nor tainted"
    assert [(row["uri"], row["rows"]) for row in table(lake, "objects")] == read
    assert {row["source_uri"] for row in table(lake, "retired")} == {str(whole[1] / "gateway.jsonl")}
    assert len(table(lake, "quarantine")) == 2 and not any(row["raw"] for row in table(lake, "quarantine"))
    report = ingest(Tables(lake), "tutor", {"gateway": SourceSettings(uri=str(whole[1] / "gateway.jsonl"))})
    assert report.total.objects == 0 and table(lake, "erasures") == [], (
        "what was read is not read again, and nothing forbids it"
    )


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
        model = workshop.build(
            "model", "student_model", "op", (code,), config, learnt, lambda output: (output / "m").touch() or {}
        )
        return rows.version, model.version

    code, other = "model_ops/jobs/job.py", "model_ops/jobs/errors.py"
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
    assert plan.interactions == 4 and not plan.files and not tainted(lake)
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
