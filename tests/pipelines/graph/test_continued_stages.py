"""What a stage that continues hands to its worker: the previous model, what it has learnt, fewer steps; else what the recipe
says."""

from types import SimpleNamespace

import pytest

from assets.drafter import speculator, speculator_dataset
from assets.models import sft_model
from assets.overrides import AnswersOverrides, DrafterOverrides, EvaluationOverrides, SftOverrides
from assets.reports import evaluation_report
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.operations.sft_settings import SecondSftSettings, SftSettings
from model_ops.speculators.eagle3.architecture import Eagle3Settings
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import ManifestError
from resources.workshop.training_job import counted_settings
from resources.workshop.workshop import Workshop
from tests.resources.deciding.examples import FACTS

DRAFTER = Eagle3Settings(steps=100)


class Handed(Exception):
    """Instead of a worker: the job that it would get."""


class Launcher:
    def run(self, job, context):
        raise Handed(job)


def make(lake, kind, name, inputs=(), content="1", **config):
    registry = Registry(lake, "shop")
    draft = registry.draft(kind, name, name, ("resources/stages/table.py",), config, [item.as_input() for item in inputs])
    draft.directory.mkdir(parents=True, exist_ok=True)
    (draft.directory / "file").write_text(f"{name} {content}")
    return draft.finished or registry.finish(draft, {})


@pytest.fixture
def lake(tmp_path):
    """Everything made once of first rows; then new rows came."""
    lake = LakeLayout.open(tmp_path / "lake")
    base, rows = make(lake, "model", "base_model"), make(lake, "dataset", "sft_dataset")
    served = make(lake, "dataset", "served_answers", [rows])
    models = [base, make(lake, "model", "sft_model", [base, rows, served])]
    for name in ("student_model", "quantized_model"):
        models.append(make(lake, "model", name, [models[-1], rows]))
    answers = make(lake, "dataset", "speculator_dataset", [models[-1], rows], **counted_settings(DRAFTER.answers.resolved()))
    make(lake, "model", "speculator", [models[-1], answers])
    make(lake, "dataset", "eval_suite")
    new = make(lake, "dataset", "sft_dataset", content="2", rows=2)
    make(lake, "dataset", "served_answers", [new], content="2")
    return lake


def handed(asset, lake, config, kept=(), **more):
    """The job that the asset hands over."""
    workshop = Workshop(Registry(lake, "shop"), Launcher(), 1, unchanged=frozenset(kept))
    given = {
        "context": None,
        "config": config,
        "workshop": workshop,
        "policy": FACTS.policy,
        "speculator_settings": DRAFTER,
        "sft_settings": SftSettings(),
        "evaluate_settings": EvaluateSettings(),
        "evals": {},
        **more,
    }
    work = asset.op.compute_fn.decorated_fn
    with pytest.raises(Handed) as found:
        work(**{name: given[name] for name in work.__code__.co_varnames[: work.__code__.co_argcount]})
    return found.value.args[0]


def version(lake, kind, name):
    return Registry(lake, "shop").current(kind, name).version


MODELS = ("base_model", "sft_model", "student_model", "quantized_model")


def test_a_model_continues_from_the_last_one_with_what_that_has_learnt(lake):
    learnt = Registry(lake, "shop").versions("dataset", "sft_dataset")[0].version
    job = handed(sft_model, lake, SftOverrides(continue_from_last=True, replay=0.3))
    assert job.inputs["previous"].name == version(lake, "model", "sft_model")
    assert job.inputs["learnt"].name == learnt != job.inputs["dataset"].name
    assert (job.settings["continue_from"], job.settings["replay"]) == ("last", 0.3)


def test_a_model_of_another_base_is_trained_anew(lake):
    make(lake, "model", "base_model", content="2", revision=2)
    job = handed(sft_model, lake, SftOverrides(continue_from_last=True))
    assert not {"previous", "learnt"} & set(job.inputs) and job.settings["continue_from"] is None
    plain = handed(sft_model, lake, SftOverrides())
    assert plain.settings == job.settings and plain.output == job.output


def test_a_target_whose_rows_are_old_is_refused_unless_the_run_keeps_it(lake):
    with pytest.raises(ManifestError, match="out of date"):
        handed(speculator_dataset, lake, AnswersOverrides())
    job = handed(speculator_dataset, lake, AnswersOverrides(reuse=True), kept=MODELS)
    assert job.inputs["previous"].name == version(lake, "dataset", "speculator_dataset")
    assert "previous" not in handed(speculator_dataset, lake, AnswersOverrides(), kept=MODELS).inputs


def test_answers_by_other_settings_are_not_taken_again(lake):
    others = Eagle3Settings(answers={"max_new_tokens": 7})
    job = handed(speculator_dataset, lake, AnswersOverrides(reuse=True), kept=MODELS, speculator_settings=others)
    assert "previous" not in job.inputs


def test_a_drafter_continues_for_the_same_target_with_a_share_of_the_steps(lake):
    target = Registry(lake, "shop").current("model", "quantized_model")
    rows = Registry(lake, "shop").current("dataset", "sft_dataset")
    make(lake, "dataset", "speculator_dataset", [target, rows], content="2", answers=2)
    config = DrafterOverrides(continue_from_last=True, step_share=0.25)
    with pytest.raises(ManifestError, match="out of date"):
        handed(speculator, lake, config)
    kept_dataset(lake)
    job = handed(speculator, lake, config, kept=MODELS)
    assert job.settings["steps"] == 25 and job.inputs["previous"].name == version(lake, "model", "speculator")
    assert handed(speculator, lake, DrafterOverrides(), kept=MODELS).settings["steps"] == 100


def kept_dataset(lake):
    """speculator_dataset as a run that keeps its models makes it."""
    registry = Registry(lake, "shop")
    target, rows = registry.current("model", "quantized_model"), registry.current("dataset", "sft_dataset")
    kept = SimpleNamespace(as_input=lambda: target.as_input().model_copy(update={"taken_as_is": True}))
    return make(lake, "dataset", "speculator_dataset", [kept, rows], content="3", answers=3)


def test_an_evaluation_of_a_drafter_takes_less(lake):
    drafter = kept_dataset(lake)
    registry = Registry(lake, "shop")
    target = SimpleNamespace(
        as_input=lambda: registry.current("model", "quantized_model").as_input().model_copy(update={"taken_as_is": True})
    )
    make(lake, "model", "speculator", [target, drafter], content="2", steps=25)
    job = handed(evaluation_report, lake, EvaluationOverrides(share=0.5), kept=MODELS)
    assert job.settings["prompts"] == 100
    assert job.inputs["target"].name == version(lake, "model", "quantized_model")


def test_an_artefact_of_a_worker_has_its_seconds_unless_the_worker_says_them(lake):
    class Works:
        def __init__(self, **metrics):
            self.metrics = metrics

        def run(self, job, context):
            (job.output / "file").write_text("")
            return self.metrics

    given = Registry(lake, "shop").current("model", "base_model")
    said = [
        Workshop(Registry(lake, "shop"), Works(**metrics), 1)
        .train("sft_model", "sft", SftSettings(steps=steps), {"model": given}, None)
        .metrics
        for steps, metrics in ((1, {}), (2, {"seconds": 7.0}))
    ]
    assert 0 <= said[0]["seconds"] < 5 and said[1]["seconds"] == 7.0


def test_a_drafter_continues_with_a_share_of_its_steps_or_epochs():
    continues = DrafterOverrides(continue_from_last=True, step_share=0.25)
    by_steps = continues.drafter(Eagle3Settings(steps=130), may_continue=True)
    assert (by_steps.steps, by_steps.continue_from) == (33, "last")
    by_epochs = continues.drafter(Eagle3Settings(epochs=4), may_continue=True)
    assert (by_epochs.steps, by_epochs.epochs, by_epochs.continue_from) == (None, 1.0, "last")


def test_a_drafter_of_another_target_is_trained_as_the_recipe_says():
    settings = Eagle3Settings(steps=130)
    assert DrafterOverrides(continue_from_last=True, step_share=0.25).drafter(settings, may_continue=False) == settings
    assert DrafterOverrides().drafter(settings, may_continue=True) == settings


def test_a_model_continues_with_its_replay():
    continued = SftOverrides(continue_from_last=True, replay=0.2).model(SftSettings(), may_continue=True)
    assert (continued.continue_from, continued.replay) == ("last", 0.2)
    assert SftOverrides(continue_from_last=True).model(SftSettings(), may_continue=False) == SftSettings()
    with pytest.raises(ValueError, match="a second stage continues"):
        SecondSftSettings(continue_from="last")


def test_an_evaluation_takes_a_share_but_never_more_than_a_small_recipe_asks_for():
    half = EvaluationOverrides(share=0.5).applied_to(EvaluateSettings(prompts=200, rows=300))
    assert (half.prompts, half.rows, half.tasks.items) == (100, 150, 50)
    assert EvaluationOverrides(share=0.5).applied_to(EvaluateSettings(prompts=20, rows=8)).prompts == 16
    assert EvaluationOverrides(share=0.5).applied_to(EvaluateSettings(prompts=20, rows=8)).rows == 8
    assert EvaluationOverrides(share=2.0).applied_to(EvaluateSettings(prompts=20, rows=None)).prompts == 40
    assert EvaluationOverrides().applied_to(EvaluateSettings()) == EvaluateSettings()
