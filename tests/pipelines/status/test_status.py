"""`millrace status`: current, stale and why, missing, waiting, running; for people and for monitors; never a write."""

import io
import json
import sqlite3
import time
from datetime import UTC, datetime

import pyarrow as pa
import pytest
import yaml
from rich.console import Console

from model_ops.files import hub
from pipelines.contract.recipe import load_recipe, read_recipe
from pipelines.status import status_text
from pipelines.status.lake_status import EndpointStatus, RunStatus, Status, status_of
from pipelines.status.planned_versions import planned_versions
from pipelines.status.status_text import print_status
from pipelines.storage.locations import remember
from resources.artefacts.registry import Registry
from resources.endpoints.approvals import record_approval, withdraw
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.launching.run_history import JOB_TAG
from resources.manifests.manifest import Input, external_input
from resources.releases.gate_result import GateResult
from resources.releases.release import Part, Release, ReleaseRef
from resources.workshop.training_job import outside_name
from tests.resources.inspecting.test_survey import PAIR, put
from tests.resources.interaction_rows import interaction

ANA = Actor("ana", "MILLRACE_USER")
SUITE = ("resources/composing/eval_suite.py",)


def make(lake, kind, name, *inputs, content="x", op="op", sources=("model_ops/jobs/job.py",), config=None):
    registry = Registry(lake, "helper")
    draft = registry.draft(kind, name, op, sources, config or {}, list(inputs))
    (draft.directory / "file.txt").write_text(content)
    return draft.finished or registry.finish(draft, {})


@pytest.fixture
def lake(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    suite = make(lake, "dataset", "eval_suite", op="build_eval_suite", sources=SUITE)
    dataset = make(lake, "dataset", "sft_dataset", suite.as_input())
    make(lake, "model", "sft_model", dataset.as_input())
    return lake


def release(lake, passed=True):
    registry = Registry(lake, "helper")
    target = registry.current("model", "sft_model")
    report = make(lake, "dataset", "evaluation_report", target.as_input())
    inputs = [target.as_input(), report.as_input()]
    draft = registry.draft("release", "release", "release", ("model_ops/jobs/job.py",), {"passed": passed}, inputs)
    part = Part(path=f"models/{target.name}/{target.version}", name=target.name, version=target.version, digest=target.digest)
    gate = GateResult(name="recovery", wanted=0.99, measured=0.995 if passed else 0.9, passed=passed)
    made = Release(workload="helper", target=part, speculator=None, num_speculative_tokens=3, gates=[gate])
    (draft.directory / "release.json").write_text(made.model_dump_json())
    return registry.finish(draft, {})


def nominate(lake, made):
    directory = Registry(lake, "helper").directory(made)
    Endpoint(lake, "helper").nominate(ReleaseRef.of(directory))
    return directory


def one(lake, recipe=None):
    [workload] = status_of(lake, recipe).workloads
    return workload


def states(workload):
    return {stage.stage: stage.state for stage in workload.stages if stage.state != "missing"}


def text(lake, recipe=None, width=100):
    console = Console(file=io.StringIO(), width=width)
    print_status(status_of(lake, recipe), console)
    return console.file.getvalue()


def files(lake):
    return {path.relative_to(lake.root): path.stat().st_mtime_ns for path in lake.root.rglob("*")}


def test_all_current_and_nothing_is_written(lake):
    before = files(lake)
    workload = one(lake)
    assert states(workload) == {"eval_suite": "current", "sft_dataset": "current", "sft_model": "current"}
    assert next(stage for stage in workload.stages if stage.stage == "speculator").state == "missing"
    assert files(lake) == before


def test_a_changed_input_makes_what_follows_stale_and_says_by_what(lake):
    old = Registry(lake, "helper").current("dataset", "eval_suite").version
    new = make(lake, "dataset", "eval_suite", config={"more": 1}, content="y")
    workload = one(lake)
    assert states(workload) == {"eval_suite": "current", "sft_dataset": "stale", "sft_model": "stale"}
    [dataset] = [stage for stage in workload.stages if stage.stage == "sft_dataset"]
    assert dataset.reasons == [f"made from eval_suite {old}, current is {new.version}"]
    said = text(lake)
    assert f"sft_dataset: made from eval_suite {old}, current is {new.version}" in said
    assert "sft_model: made from what is stale" in said


def test_a_recipe_tells_changed_settings_and_unread_objects(lake, tmp_path):
    put(tmp_path / "logs" / "a.jsonl", PAIR)
    recipe = {"workload": "helper", "base_model": "tiny", "sources": {"logs": {"uri": "logs"}}, "student": {"enabled": False}}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    workload = one(lake, load_recipe(path))
    assert states(workload)["eval_suite"] == "current" and workload.unread_objects == 1
    assert states(workload)["student_model"] == "off"
    put(tmp_path / "suite.jsonl", {"prompt": "p", "answer": "a"})
    path.write_text(yaml.safe_dump({**recipe, "evals": {"suite": {"uri": "suite.jsonl"}}}))
    workload = one(lake, load_recipe(path))
    assert states(workload)["eval_suite"] == "stale"
    [suite] = [stage for stage in workload.stages if stage.stage == "eval_suite"]
    assert suite.reasons == ["settings changed: suite is new"]


@pytest.mark.parametrize("named", [True, False])
def test_stages_that_the_recipe_switches_off_are_one_line_and_no_row(lake, tmp_path, named):
    path = tmp_path / "recipe.yaml"
    off = {"enabled": False}
    path.write_text(
        yaml.safe_dump(
            {
                "workload": "helper",
                "base_model": "tiny",
                "sources": {"logs": {"uri": "logs"}},
                "student": off,
                "speculator": off,
                "release": off,
            }
        )
    )
    remember(lake, "helper", path)  # without a recipe, status takes the one that was last run
    said = text(lake, load_recipe(path) if named else None, width=140)
    assert "switched off by the recipe: student_model, speculator_dataset, speculator, release" in said
    assert "quantized_model" in said and said.count("student_model") == 1


def test_sources_that_cannot_be_listed_are_said(lake, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"workload": "helper", "base_model": "tiny", "sources": {"a": {"uri": "nosuch://x/y"}}}))
    assert "nosuch" in one(lake, load_recipe(path)).sources_problem


def test_who_is_waited_for(lake):
    assert "nothing is served" in text(lake)
    made = release(lake)
    directory = nominate(lake, made)
    found = one(lake).endpoint
    assert (found.waiting_for, found.command) == ("a person's approval", f"millrace approve {made.version} --lake {lake.root}")
    assert one(lake).next.endswith(found.command) and f"next: {one(lake).next}" in text(lake, width=400)
    record_approval(lake, directory, ANA)
    assert one(lake).endpoint.waiting_for == "the next run of endpoint"
    Endpoint(lake, "helper").promote(ReleaseRef.of(directory), ANA)
    found = one(lake).endpoint
    assert (found.champion, found.candidate, found.waiting_for) == (made.version, "", "")
    assert "by ana" in text(lake)
    nominate(lake, release(lake, passed=False))
    assert one(lake).endpoint.changed_by == found.changed_by  # who moved the champion, not who came last


def test_a_candidate_that_was_refused_waits_for_nobody(lake):
    directory = nominate(lake, release(lake))
    withdraw(lake, directory, ANA)
    assert not one(lake).endpoint.command


def test_a_candidate_of_yesterday_waits_for_a_newer_release(lake):
    nominate(lake, release(lake))
    make(lake, "dataset", "eval_suite", config={"more": 1}, content="y")
    found = one(lake).endpoint
    assert (found.waiting_for, found.command) == ("a newer release", "") and "current is" in found.faults[0]
    assert "cannot be approved" in text(lake)


def test_a_gate_that_was_missed(lake):
    nominate(lake, release(lake, passed=False))
    found = one(lake).endpoint
    assert found.waiting_for == "a gate" and found.candidate == "" and found.not_offered and not found.command
    assert "candidate" not in text(lake).replace(str(lake.root), "") and "release.gates.recovery" in one(lake).next
    assert "missed its gates: recovery: 0.9 where at least 0.99 is wanted" in text(lake)


def test_a_candidate_that_is_gone_and_an_endpoint_that_is_broken(lake):
    Endpoint(lake, "helper").nominate(ReleaseRef(version="nowhere"))
    assert "cannot be read" in one(lake).endpoint.problem
    lake.endpoint("helper").write_text("{")
    assert "restore it from a copy" in text(lake)


def test_a_killed_run_is_said(lake):
    folder = lake.dagster_home / "history"
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "runs.db") as history:
        said = "create table runs (id integer, run_id text, pipeline_name text, status text, start_time float, end_time float)"
        history.execute(said)
        history.execute("create table run_tags (run_id text, key text, value text)")
        history.execute("insert into runs values (1, 'abcdef0123', 'train', 'STARTED', 1000.0, null)")
        history.execute("insert into run_tags values ('abcdef0123', 'millrace/process', '999999@5.00')")
        history.execute("insert into runs values (0, 'beef012345', 'logs', 'FAILURE', 900.0, 950.0)")
    assert "the last run, beef0123 (logs), failed 1970-01-01" in " ".join(text(lake).split())
    assert "run abcdef01 (train) ended without a word: its process 999999 is gone" in " ".join(text(lake).split())


def test_a_recipe_hears_of_its_own_runs(lake, tmp_path):
    folder = lake.dagster_home / "history"
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "runs.db") as history:
        said = "create table runs (id integer, run_id text, pipeline_name text, status text, start_time float, end_time float)"
        history.execute(said)
        history.execute("create table run_tags (run_id text, key text, value text)")
        history.execute("insert into runs values (1, 'abcdef0123', 'train', 'FAILURE', 900.0, 950.0)")
        history.execute("insert into run_tags values ('abcdef0123', ?, 'other/train')", (JOB_TAG,))
    path = tmp_path / "recipe.yaml"
    path.write_text("workload: helper\nbase_model: tiny\nsources: {logs: {uri: logs}}\n")
    assert "the last run" in text(lake) and "the last run" not in text(lake, load_recipe(path))


def test_a_stopped_or_killed_run_is_not_said_once_a_later_one_ended_well(lake):
    folder = lake.dagster_home / "history"
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "runs.db") as history:
        history.execute(
            "create table runs (id integer, run_id text, pipeline_name text, status text, start_time float, end_time float)"
        )
        history.execute("create table run_tags (run_id text, key text, value text)")
        history.execute("insert into runs values (1, 'aaaaaaaa01', 'train', 'SUCCESS', 1000.0, 5000.0)")
        history.execute("insert into runs values (2, 'bbbbbbbb02', 'train', 'CANCELED', 1100.0, 1200.0)")
        for id, run in ((3, "cccccccc03"), (4, "dddddddd04")):
            history.execute("insert into runs values (?, ?, 'train', 'STARTED', 1500.0, null)", (id, run))
            history.execute("insert into run_tags values (?, 'millrace/process', '999999@5.00')", (run,))
        history.execute("insert into run_tags values ('dddddddd04', 'millrace/job', 'other/train')")
    said = " ".join(text(lake).split())
    assert "bbbbbbbb" not in said and "cccccccc" not in said and "run dddddddd (train) ended without a word" in said


def test_json_has_the_keys_that_monitors_read(lake):
    said = json.loads(status_of(lake).as_json())
    assert set(said) == {"lake", "at", "workloads", "running", "last_run"}
    [workload] = said["workloads"]
    assert {"workload", "stages", "tables", "endpoint", "unread_objects"} <= set(workload)
    assert {"stage", "state", "version", "digest", "made_at", "seconds", "run_id", "reasons", "inputs", "erased"} == set(
        workload["stages"][0]
    )


def test_an_empty_lake_and_a_broken_artefact(tmp_path, lake):
    assert "holds no workload yet" in text(LakeLayout.open(tmp_path / "empty"))
    (lake.artefacts("dataset") / "helper" / "sft_dataset" / "current.json").write_text("{")
    assert "sft_dataset" not in states(one(lake))


def test_tables_are_compared_by_their_rows(tmp_path):
    from resources.digests.slices import slice_digest
    from resources.lake.tables import Tables

    lake = LakeLayout.open(tmp_path / "lake")
    now = slice_digest(Tables(lake), "feedback", "helper")
    make(lake, "dataset", "curated_interactions", Input(kind="table", name="feedback", digest=now))
    assert states(one(lake)) == {"curated_interactions": "current"}
    make(lake, "dataset", "curated_interactions", Input(kind="table", name="feedback", digest="other"))
    assert states(one(lake)) == {"curated_interactions": "stale"}


def test_large_tables_are_compared_by_when_they_were_written(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.status.lake_status.COMPARED_ROWS", 1)
    lake = LakeLayout.open(tmp_path / "lake")
    rows = pa.Table.from_pylist([interaction(n, "one", "1", workload="helper") for n in (1, 2)], SCHEMAS["interactions"])
    Tables(lake).append("interactions", rows)
    make(lake, "dataset", "curated_interactions", Input(kind="table", name="interactions", digest="not computed"))
    assert "may be stale" not in text(lake)
    time.sleep(0.002)
    Tables(lake).append("interactions", rows)
    assert "may be stale: interactions was written to since" in text(lake)


def test_the_command(cli, lake, tmp_path):
    assert "3 current" in cli("status", "--lake", lake.root).stdout
    assert json.loads(cli("status", "--lake", lake.root, "--format", "json").stdout)["workloads"]
    assert "no lake at" in cli("status", "--lake", tmp_path / "nowhere", check=2).stderr


@pytest.mark.parametrize("named", [True, False])
def test_a_stage_that_a_recipe_has_to_name_is_listed_where_it_is_on(lake, tmp_path, named):
    path = tmp_path / "recipe.yaml"
    recipe = {"workload": "helper", "base_model": "tiny", "sources": {"logs": {"uri": "logs"}}}
    path.write_text(yaml.safe_dump(recipe))
    remember(lake, "helper", path)
    assert "merged_model" not in text(lake, load_recipe(path) if named else None, width=140)
    path.write_text(yaml.safe_dump({**recipe, "merge": {"weights": [0.7, 0.3]}}))
    remember(lake, "helper", path)
    assert "merged_model" in text(lake, load_recipe(path) if named else None, width=140)


@pytest.mark.parametrize(
    ("job", "said"), [("train", "millrace run goes on"), ("approve", "its page in the Dagster UI says why")]
)
def test_what_to_do_about_the_last_run_depends_on_its_job(job, said):
    at, text = datetime(2026, 7, 1, tzinfo=UTC), io.StringIO()
    last = RunStatus("0a1b2c3d-44", job, "FAILURE", at, at, "", None, [])
    print_status(Status("lake", at, [], [], last), Console(file=text, width=200))
    assert said in text.getvalue()


def test_a_gate_that_has_nothing_to_compare_with_is_none_that_holds():
    states = {"recovery": "holds", "loss_above_champion": "nothing to compare", "accuracy_kept": "too few to tell"}
    gates = [{"name": name, "passed": True, "state": state} for name, state in states.items()]
    text = io.StringIO()
    status_text._print_endpoint(EndpointStatus(candidate="abc", gates=gates), Console(file=text, width=200))
    assert "  gates of abc that hold: recovery\n" in text.getvalue()
    assert "  gates of abc that have too few items to tell: accuracy_kept\n" in text.getvalue()


@pytest.mark.parametrize(("commit", "branch"), [("a" * 40, None), (None, None), ("a" * 40, "v2")])
def test_an_imported_base_is_as_it_would_be_made_now(tmp_path, monkeypatch, commit, branch):
    monkeypatch.setattr(hub, "imported_commit", lambda *_: pytest.fail("the Hub is not asked"))
    recipe = read_recipe(
        {
            "workload": "shop",
            "base_model": "company/base",
            "sources": {"gateway": {"uri": "logs"}},
            **({"base_revision": branch} if branch else {}),
        },
        tmp_path,
    )
    lake = LakeLayout.open(tmp_path / "lake")
    registry = Registry(lake, "shop")
    draft = registry.draft(
        "model",
        "base_model",
        "import_base",
        ("model_ops/operations/import_base.py",),
        {"model": "company/base", "revision": commit, "mtp_layer": False},
        [external_input(outside_name("company/base", branch or ""))],
    )
    draft.directory.mkdir(parents=True, exist_ok=True)
    (draft.directory / "config.json").write_text("{}")
    made = registry.finish(draft, {})
    planned = planned_versions(recipe, lake, lambda *_: None)["base_model"]
    assert planned.version == made.version and planned.differs_from(made) == ""
