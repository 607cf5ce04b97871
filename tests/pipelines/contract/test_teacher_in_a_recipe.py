"""The section `teacher` of a recipe: who learns, what the stages take, what the catalog and the release's report show."""

import json
from types import SimpleNamespace

import dagster as dg
import duckdb
import pyarrow.parquet as pq
import pytest
from loopback import loopback

from assets import answers, models, reports
from pipelines.contract.recipe import read_recipe
from pipelines.contract.text import RecipeProblemsError
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.releasing.summary import Summary
from resources.stages.model_policy import ModelPolicy
from resources.stages.table import stage
from resources.workshop.workshop import Workshop
from tests.resources.composing.test_teacher_answers import asks, dataset_of, echo

BARE = {"workload": "tutor", "base_model": "tiny", "sources": {"gateway": {"uri": "logs"}}}
TEACHER = {"base_url": "http://localhost:1/v1", "model": "big", "licence": "apache-2.0"}


@pytest.mark.parametrize(("trains", "sft", "student"), [
    ("both", "teacher_answers", "teacher_answers"),
    ("sft", "teacher_answers", "sft_dataset"),
    ("student", "sft_dataset", "teacher_answers"),
])  # fmt: skip
def test_who_learns_the_answers(tmp_path, trains, sft, student):
    policy = read_recipe({**BARE, "teacher": {**TEACHER, "trains": trains}}, tmp_path).policy
    assert policy.rows_of("sft_model") == sft and policy.rows_of("student_model") == student
    assert read_recipe(BARE, tmp_path).policy.rows_of("sft_model") == "sft_dataset"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"teacher": {**TEACHER, "trains": "student"}, "student": {"enabled": False}}, "nobody would learn the answers"),
        ({"teacher": {key: value for key, value in TEACHER.items() if key != "licence"}}, "licence"),
        ({"teacher": {**TEACHER, "verify": {"kind": "judge"}}}, "set curation.judge, or choose another kind"),
        ({"teacher": {**TEACHER, "max_cost": 3}}, "price is not"),
        ({"teacher": {**TEACHER, "logprobs": 20}}, "student.teacher is not answers"),
        ({"teacher": {**TEACHER}, "student": {"teacher": "answers"}}, "set teacher.logprobs"),
        ({"student": {"teacher": "answers"}}, "set teacher.logprobs"),
        ({"teacher": {**TEACHER, "logprobs": 20}, "student": {"teacher": "answers", "temperature": 2}}, "temperature"),
        ({"teacher": {**TEACHER, "base_url": "http://me:secret@host/v1"}}, "no credentials"),
    ],
)
def test_a_teacher_that_cannot_be_is_refused_in_one_sentence(tmp_path, content, said):
    with pytest.raises(RecipeProblemsError) as refused:
        read_recipe({**BARE, **content}, tmp_path)
    assert said in str(refused.value) and "secret" not in str(refused.value) and len(refused.value.problems) == 1


@pytest.mark.parametrize(("base", "said"), [
    ("./nowhere", "there is no directory"),
    ("no model!", "neither a directory nor an id of the Hugging Face Hub"),
    ("./empty", "holds no readable config.json"),
    ("./bare", "has no chat template, so it cannot be asked"),
])  # fmt: skip
def test_a_teacher_s_directory_that_cannot_be_asked_is_refused(tmp_path, base, said):
    for name in ("empty", "bare"):
        (tmp_path / name).mkdir()
    (tmp_path / "bare" / "config.json").write_text('{"model_type": "llama"}')
    for name, content in (("model.safetensors", ""), ("tokenizer.json", "{}"), ("tokenizer_config.json", "{}")):
        (tmp_path / "bare" / name).write_text(content)
    with pytest.raises(RecipeProblemsError) as refused:
        read_recipe({**BARE, "teacher": {"base": base, "licence": "mit"}}, tmp_path)
    assert said in str(refused.value) and len(refused.value.problems) == 1
    (tmp_path / "bare" / "chat_template.jinja").write_text("{{ messages }}")
    recipe = read_recipe({**BARE, "teacher": {"base": "./bare", "licence": "mit"}}, tmp_path)
    assert recipe.teacher.base == str(tmp_path / "bare") and recipe.teacher.name == "bare"


def test_the_fine_tuned_model_teaches_only_after_it_is_trained(tmp_path):
    itself = {"base": "sft", "licence": "mit", "trains": "student"}
    policy = read_recipe({**BARE, "teacher": itself}, tmp_path).policy
    asks = stage("teacher_answers")
    assert asks.reads(policy, asks, "merged_model") == ("sft_model",) and policy.rows_of("sft_model") == "sft_dataset"
    assert asks.reads(read_recipe({**BARE, "teacher": TEACHER}, tmp_path).policy, asks, "merged_model") == ()
    with pytest.raises(RecipeProblemsError, match="is false; enable sft"):
        read_recipe({**BARE, "teacher": itself, "sft": {"enabled": False}}, tmp_path)


@pytest.mark.parametrize(("taught", "passed"), [(frozenset({"sft_model"}), True), (frozenset(), False)])
def test_the_log_s_loss_is_no_judge_of_a_taught_model(taught, passed):
    workshop = SimpleNamespace(current=lambda kind, name: SimpleNamespace(metrics={"loss_base": 2.0, "loss_sft": 3.0}))
    check = reports.fine_tuning_helped.node_def.compute_fn.decorated_fn
    assert check(workshop, ModelPolicy(taught=taught)).passed == passed


@pytest.mark.parametrize(("high", "helped"), [(-0.05, True), (-0.0001, False), (0.2, False), (None, False)])
def test_fine_tuning_helped_where_the_whole_interval_is_a_gain(high, helped):
    metrics = {"loss_base": 2.0, "loss_sft": 1.9, **({} if high is None else {"loss_increase_sft_base_high": high})}
    workshop = SimpleNamespace(current=lambda kind, name: SimpleNamespace(metrics=metrics))
    found = reports.fine_tuning_helped.node_def.compute_fn.decorated_fn(workshop, ModelPolicy())
    assert found.passed == helped and (found.description is None) == helped


class Launcher:
    def __init__(self):
        self.jobs = {}

    def run(self, job, context):
        self.jobs[job.operation] = {role: place.parent.name for role, place in job.inputs.items()}
        (job.output / "given.json").write_text("{}")
        return {}


def test_from_the_endpoint_to_the_models_that_learn_its_answers(tmp_path):
    registry, launcher = Registry(LakeLayout.open(tmp_path / "lake"), "tutor"), Launcher()
    rows = [asks(f"r{number}", f"q{number}") for number in range(3)] + [asks("bad", "bad")]
    for kind, name in (("model", "base_model"), ("dataset", "sft_dataset"), ("dataset", "served_answers")):
        draft = registry.draft(kind, name, name, ("model_ops/jobs/job.py",), {}, [])
        dataset_of(draft.directory, rows) if name == "sft_dataset" else (draft.directory / "what.txt").write_text(name)
        registry.finish(draft, {})

    def answer(body, number):
        return (400, {}) if body["messages"][-1]["content"] == "bad" else echo(body, number)

    with loopback(answer) as (address, seen):
        recipe = read_recipe(
            {**BARE, "teacher": {**TEACHER, "base_url": f"{address}/v1", "most_failed": 0.5, "trains": "sft", "retries": 0}},
            tmp_path,
        )
        given = {
            "workshop": Workshop(registry, launcher, threads=1),
            "policy": recipe.policy,
            "sft_settings": recipe.sft,
            "teacher_settings": recipe.teacher,
            "student_settings": recipe.student,
            "curation_settings": recipe.curation,
        }
        assets = [answers.teacher_answers, models.sft_model, models.student_model]
        assert dg.materialize(
            [assets[0], assets[1]], resources={name: value for name, value in given.items() if name != "student_settings"}
        ).success
        resources = {name: given[name] for name in ("workshop", "policy", "teacher_settings", "curation_settings")}
        dg.materialize([assets[0]], resources=resources)
        assert len(seen) == 4  # the second run reuses the dataset
    taught, model = registry.current("dataset", "teacher_answers"), registry.current("model", "sft_model")
    assert launcher.jobs["sft"] == {"model": "base_model", "dataset": "teacher_answers"}
    assert taught.metrics["answered"] == 3 and taught.metrics["failed_rows"] == {"HTTP 400": 1}
    learnt = [
        json.loads(row["messages"])[-1]["content"]
        for row in pq.read_table(registry.directory(taught) / "train.parquet").to_pylist()
    ]
    assert learnt == [f"teacher: q{number}" for number in range(3)]
    with duckdb.connect(str(tmp_path / "lake" / "catalog.duckdb"), read_only=True) as catalog:
        told = catalog.execute("select row_id, kept, failure from tutor_teacher_answers_requests order by row_id").fetchall()
        lines = catalog.execute(
            "select interaction_id from dataset_rows where node like 'dataset:tutor/teacher_answers@%' "
            "and split = 'train' order by all"
        ).fetchall()
        commented = catalog.execute(
            "select count(*) from duckdb_columns() where table_name = 'tutor_teacher_answers_requests' and comment is null"
        ).fetchone()[0]
    assert told[0] == ("bad", False, "HTTP 400") and [kept for _, kept, _ in told] == [False, True, True, True]
    assert lines == [("i-r0",), ("i-r1",), ("i-r2",)] and commented == 0
    summary = Summary("tutor", None, {}, {}, {"sft_model": model}, has_drafter=False, teachers=[taught])
    [section] = summary._teachers()
    assert section.rows == [["big", "apache-2.0", f"{address}/v1", "3"]]
    here = taught.model_copy(update={"config": {**taught.config, "model": None, "base_url": None, "base": "/models/own"}})
    [section] = Summary("tutor", None, {}, {}, {"sft_model": model}, has_drafter=False, teachers=[here])._teachers()
    assert section.rows == [["own", "apache-2.0", "in process", "3"]]
