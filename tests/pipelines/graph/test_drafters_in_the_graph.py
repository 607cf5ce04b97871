"""What the graph's own assets hand to the worker for drafters that begin from another stage: the student, the base model.

The real assets, workshop, registry and lake; in the worker's place stands one that writes down its job."""

import json

import dagster as dg
import pytest

from assets import drafter, models, reports
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.operations.quantize_settings import QuantizeSettings
from model_ops.speculators.registry import ARCHITECTURES, speculator_settings
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.releasing.summary import Summary
from resources.stages.model_policy import ModelPolicy
from resources.workshop.workshop import Workshop


class Launcher:
    """Stands in for the worker."""

    def __init__(self):
        self.jobs = {}

    def run(self, job, context):
        self.jobs[job.operation] = {role: place.parent.name for role, place in job.inputs.items()}
        (job.output / "given.json").write_text(json.dumps(self.jobs[job.operation]))
        return {}


ONE_STAGE = frozenset({"merge", "preference", "rft", "second_sft"})


@pytest.fixture
def materialized(tmp_path):
    """materialized(policy, settings): the worker's jobs of the stages after the student."""

    def run(policy, settings):
        launcher = Launcher()
        registry = Registry(LakeLayout.open(tmp_path / "lake"), "tutor")
        for kind, name in (
            ("model", "base_model"),
            ("model", "sft_model"),
            ("model", "student_model"),
            ("dataset", "sft_dataset"),
            ("dataset", "speculator_dataset"),
            ("dataset", "served_answers"),
        ):
            draft = registry.draft(kind, name, name, ("model_ops/jobs/job.py",), {}, [])
            (draft.directory / "what.txt").write_text(name)
            registry.finish(draft, {})
        done = dg.materialize(
            [models.quantized_model, drafter.speculator, reports.evaluation_report],
            resources={
                "workshop": Workshop(registry, launcher, threads=1),
                "policy": policy,
                "speculator_settings": settings,
                "quantize_settings": QuantizeSettings(),
                "evaluate_settings": EvaluateSettings(),
                "evals": {},
            },
        )
        assert done.success
        return launcher.jobs, registry

    return run


def test_the_student_drafts_for_its_quantized_teacher(materialized):
    jobs, registry = materialized(
        ModelPolicy(ONE_STAGE, drafter_from="student_model"), speculator_settings(architecture="draft_model")
    )
    assert jobs["quantize"] == {"model": "sft_model"}
    assert jobs["speculator"] == {"target": "quantized_model", "dataset": "speculator_dataset", "draft_model": "student_model"}
    assert jobs["evaluate"] == {
        "base": "base_model",
        "sft": "sft_model",
        "student": "student_model",
        "quantized": "quantized_model",
        "target": "quantized_model",
        "reference": "sft_model",
        "dataset": "sft_dataset",
        "answers": "speculator_dataset",
        "served": "served_answers",
        "speculator": "speculator",
        "draft_model": "student_model",
    }
    made_from = {item.name for item in registry.current("model", "speculator").inputs}
    assert made_from == {"tutor/quantized_model", "tutor/student_model", "tutor/speculator_dataset"}


def test_a_small_model_from_a_directory_leaves_the_student_on_its_way(materialized, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    (small / "config.json").write_text("{}")
    jobs, registry = materialized(
        ModelPolicy(ONE_STAGE), speculator_settings(architecture="draft_model", draft_model=str(small))
    )
    assert jobs["quantize"] == {"model": "student_model"}
    assert jobs["speculator"] == {"target": "quantized_model", "dataset": "speculator_dataset"}
    assert "draft_model" not in jobs["evaluate"]
    assert ("external", str(small)) in [(item.kind, item.name) for item in registry.current("model", "speculator").inputs]


def test_the_base_model_s_own_layer_is_trained_for_what_is_served(materialized):
    jobs, registry = materialized(ModelPolicy(ONE_STAGE, drafter_from="base_model"), speculator_settings(architecture="mtp"))
    assert jobs["speculator"] == {"target": "quantized_model", "dataset": "speculator_dataset", "mtp_layer": "base_model"}
    assert "draft_model" not in jobs["evaluate"]
    assert "tutor/base_model" in {item.name for item in registry.current("model", "speculator").inputs}


@pytest.mark.parametrize(("architecture", "said"), [("draft_model", True), ("eagle3", False)])
def test_the_report_says_how_a_language_model_that_drafts_is_served(architecture, said):
    measured = {
        "drafter": architecture,
        "sampling": "temperature 1",
        "tau": 1.5,
        "tau_low": 1.4,
        "tau_high": 1.6,
        "prompts": 9,
        "looping_share": 0.0,
        "num_speculative_tokens": 3,
    }
    evaluation = {
        "acceptance": [measured, {**measured, "drafter": "draft_model_untrained"}],
        "settings": {"num_speculative_tokens": 3},
    }
    summary = Summary("tutor", None, {}, evaluation, {}, True, ARCHITECTURES[architecture].serving)
    (drafting,) = [summary._drafting()]
    assert ("method draft_model, SGLang's STANDALONE" in drafting.note) == said
    assert ("before it learnt this target's answers" in drafting.note) == said
