"""What an asset's page tells: tags, freshness where there is a schedule, SQL to copy that has an answer, failures in one
sentence."""

import json
import re
from datetime import timedelta
from types import SimpleNamespace

import dagster as dg
import pyarrow as pa
import pytest

from assets.questions import _OF_TABLES, about_endpoint, about_table
from assets.stories import in_short
from model_ops.evaluation.measurement import PAIRED
from pipelines.graph.schedules import failure_in_one_sentence, longest_pause, sentence_of
from resources.catalog.build import rebuild
from resources.catalog.catalog import query
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.manifests.manifest import ManifestError
from tests.pipelines.graph.test_definitions import load

RETRAIN = "automation: {retrain: {enabled: true, cron: '0 3 * * 1'}}\n"


def specs(tmp_path, more=""):
    graph = load(tmp_path, more).resolve_asset_graph()
    return {key.path[-1]: graph.get(key) for key in graph.get_all_asset_keys()}


def test_tags_find_assets_by_job_and_by_what_they_make(tmp_path):
    found = specs(tmp_path, "datasets: {named: {best: {}}}\n")
    expected = {"base_model", "sft_model", "student_model", "quantized_model", "speculator"}
    assert {name for name, node in found.items() if node.tags["makes"] == "model"} == expected
    assert found["traffic_digest"].tags["job"] == "logs" and found["best"].tags["makes"] == "dataset"
    assert {node.tags["workload"] for node in found.values()} == {"math-tutor"}


@pytest.mark.parametrize(
    ("more", "watched"),
    [
        ("", set()),
        (RETRAIN, {"traffic_digest", "release_candidate"}),
        (RETRAIN + "last_day: 2026-06-05\n", set()),
        (RETRAIN + "release: {enabled: false}\n", {"traffic_digest", "evaluation_report"}),
    ],
)
def test_the_ends_of_the_jobs_have_a_freshness_policy_where_the_schedule_is_on(tmp_path, more, watched):
    found = specs(tmp_path, more)
    policies = {name: node.freshness_policy for name, node in found.items() if node.freshness_policy is not None}
    assert policies.keys() == watched
    if "release_candidate" in watched:
        policy = policies["release_candidate"]
        assert policy.warn_window.to_timedelta() == timedelta(days=8.75) < policy.fail_window.to_timedelta()


@pytest.mark.parametrize(("cron", "days"), [("0 3 * * *", 1), ("0 3 * * 1", 7), ("0 3 1 * *", 31), ("0 3 * * 1-5", 3)])
def test_the_longest_pause_of_a_schedule(cron, days):
    assert longest_pause(cron) == timedelta(days=days)


def test_the_question_of_every_table_has_an_answer(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    for name in _OF_TABLES:
        row = dict.fromkeys(SCHEMAS[name].names) | {"workload": "o'tool"}
        Tables(lake).append(name, pa.Table.from_pylist([row], schema=SCHEMAS[name]))
    rebuild(lake)
    for name in _OF_TABLES:
        assert query(lake, about_table(name, "o'tool")).num_rows == (0 if name == "drift" else 1), name
    assert query(lake, about_endpoint("o'tool")).num_rows == 0


def story(name, kind="model", directory=None, config=None, **metrics):
    manifest = SimpleNamespace(name=f"tutor/{name}", kind=kind, config=config or {}, metrics=metrics)
    found = in_short(manifest, directory)
    return found["in_short"].value.splitlines() if found else []


def test_pages_of_the_main_assets_begin_with_their_story(tmp_path):
    counts = {"read": 10, "kept": 7, "dropped": {"clean: error": 2}, "quarantined": {"ingest: wrong_type": 1}}
    expected = ["- 10 records read: 7 kept (70%), 2 dropped, 1 in quarantine", "- most often for error 2, wrong_type 1"]
    assert story("curated_interactions", "dataset", records=counts) == expected
    trained = {"steps": 15, "tokens": 30_312, "tokens_per_second": 4_005.2, "rows": 214, "loss": 6.01, "cut_rows": 1}
    losses = {"before_validation_loss": 7.1, "validation_loss": 5.9, "saved_validation_loss": 5.91}
    assert story("sft_model", **trained, **losses, dropped_rows=0, config={"method": "lora"}) == [
        "- lora: 15 steps over 30,312 tokens of 214 rows, 4,005 tokens/s",
        "- loss (nats per token) 6.0100 in training; on validation rows 7.1000 before, 5.9000 after, 5.9100 as saved",
        "- 1 row cut at max_length",
    ]
    drafter = story("speculator", **trained, validation_expected_tau=2.144, config={"architecture": "eagle3"})
    assert drafter[:2] == [
        "- eagle3: 15 steps over 30,312 tokens of 214 rows, 4,005 tokens/s",
        "- 2.14 tokens per forward pass expected on validation rows; evaluation_report measures it",
    ]
    against = {"what": "loss_increase", "of": "target", "n": 24, "counted": "rows", "unit": "nats per token", "method": PAIRED}
    found = [
        {**against, "against": "base", "value": -0.1, "low": -0.2, "high": -0.05},
        {**against, "against": "champion", "value": 0.01, "low": -0.1, "high": 0.2},
    ]
    (tmp_path / "report.json").write_text(json.dumps({"measurements": found}))
    (tmp_path / "speed.json").write_text("{}")
    assert story("evaluation_report", "dataset", tmp_path) == [
        "- quality: held-out loss -0.100 nats per token (95 %: -0.200 to -0.050; 24 rows), against the base model",
        "- held-out loss +0.010 nats per token (95 %: -0.100 to +0.200; 24 rows), against the champion",
    ]
    assert story("base_model") == []


def said(error):
    """What the hook writes into the log of a run whose step raised this error."""

    @dg.asset
    def sft_model():
        raise error

    job = dg.Definitions(assets=[sft_model], jobs=[dg.define_asset_job("train", [sft_model], hooks={failure_in_one_sentence})])
    instance = dg.DagsterInstance.ephemeral()
    done = job.resolve_job_def("train").execute_in_process(instance=instance, raise_on_error=False)
    return [entry.user_message for entry in instance.all_logs(done.run_id) if entry.level == 40 and entry.dagster_event is None]


def test_a_failed_step_says_one_sentence_in_the_log_of_its_run():
    expected = ["sft_model: there is no sft_dataset yet: run it first"]
    assert said(ManifestError("there is no sft_dataset yet:\n  run it first")) == expected


def test_an_error_that_is_not_meant_for_a_person_is_named_without_its_message():
    [line] = said(ValueError("could not convert 'what a user said'"))
    assert line.startswith("sft_model: ValueError, which is a bug") and "user said" not in line


def test_the_project_s_own_error_is_found_behind_dagster_s_and_above_its_cause():
    error = ManifestError("manifest.json cannot be read")
    error.__cause__ = ValueError("SECRET")
    wrapper = RuntimeError("wrapped")
    wrapper.__cause__ = error
    assert sentence_of(wrapper) == "manifest.json cannot be read"
    assert re.search("full", sentence_of(OSError(28, "No space left on device")))
    assert sentence_of(dg.Failure("the form was wrong")) == "the form was wrong"
