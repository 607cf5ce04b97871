"""Costs of stages that no run was seen of: by the plan that `millrace plan` kept, said as such, until a run replaces it."""

import io
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from examples import FACTS, NOW, PREDICTED, SEEN, SETTINGS, decision
from rich.console import Console
from small_lake import trained_lake

from model_ops.operations.sft_settings import SftSettings
from pipelines.status.decisions_text import print_decisions
from resources.artefacts.current import current_manifests
from resources.artefacts.registry import Registry
from resources.deciding.causes import Found
from resources.deciding.gather import gather
from resources.deciding.kept_plans import KeptPlan, keep, kept_plans
from resources.deciding.options import weigh
from resources.deciding.training_worth import looked_up
from resources.lake import Lake

PLAN = KeptPlan(stage="student_model", tokens_per_second=1_000.0, device="H100", devices=2, tokens_per_step=500, steps=60,
                at=datetime(2026, 6, 1, tzinfo=UTC))


def test_a_plan_is_seconds_by_its_steps_or_by_the_tokens_of_the_rows():
    assert PLAN.seconds(None) == PLAN.seconds(9e9) == 30.0
    by_epochs = PLAN.model_copy(update={"steps": None, "epochs": 2.0})
    assert by_epochs.seconds(4_000) == 8.0 and by_epochs.seconds(None) is None


def test_the_newest_plan_of_a_stage_counts_and_a_damaged_file_is_none(tmp_path):
    lake = Lake.open(tmp_path / "lake")
    assert kept_plans(lake, "shop") == {}
    keep(lake, "shop", PLAN)
    keep(lake, "shop", PLAN.model_copy(update={"steps": 5}))
    keep(lake, "other", PLAN)
    assert kept_plans(lake, "shop")["student_model"].steps == 5
    for damage in ("{", "[]", '{"stage": "student_model", "tokens_per_second": -1}'):
        (lake.root / "plans" / "shop" / "student_model.json").write_text(damage)
        assert kept_plans(lake, "shop") == {}


def without_seconds(lake, name, **metrics):
    """A version of a model as a lake has it whose runs nothing is known of."""
    registry = Registry(lake, "shop")
    made = current_manifests(lake, "shop")[name]
    draft = registry.draft("model", name, name, ("resources/stages.py",), {"again": True}, made.inputs)
    draft.directory.mkdir(parents=True, exist_ok=True)
    (draft.directory / "file").write_text("")
    registry.finish(draft, metrics)


def test_a_stage_without_a_run_costs_what_its_plan_says_and_the_option_says_so(tmp_path):
    lake = trained_lake(tmp_path, days=1, rows=10)
    without_seconds(lake, "student_model")
    full = gather(lake, FACTS, SETTINGS, NOW)[1]["full"]
    assert full.stages is None and full.unknown == ("student_model",) and full.planned == ()
    keep(lake, "shop", PLAN)
    planned = gather(lake, FACTS, SETTINGS, NOW)[1]
    assert planned["full"].stages["student_model"] == 30.0 and planned["full"].unknown == ()
    [said] = planned["full"].planned
    assert said == "student_model by the planner (about 1,000 tokens/s on 2 H100), no run of this stage was seen"
    assert planned["drafter_new"].planned == ()  # makes no student
    without_seconds(lake, "student_model", seconds=7.0)
    seen = gather(lake, FACTS, SETTINGS, NOW)[1]["full"]
    assert seen.stages["student_model"] == 7.0 and seen.planned == ()


def test_tokens_of_rows_are_those_of_the_dataset_s_own_count(tmp_path):
    lake = trained_lake(tmp_path, days=1, rows=10)
    without_seconds(lake, "student_model")
    keep(lake, "shop", PLAN.model_copy(update={"steps": None, "epochs": 2.0}))
    assert gather(lake, FACTS, SETTINGS, NOW)[1]["full"].stages is None
    registry = Registry(lake, "shop")
    draft = registry.draft("dataset", "sft_dataset", "sft_dataset", ("resources/stages.py",), {"again": True}, [])
    draft.directory.mkdir(parents=True, exist_ok=True)
    (draft.directory / "file").write_text("")
    registry.finish(draft, {"seconds": 1.0, "tokens": {"base": {"train": 9_000, "test": 70}, "student": {"train": 8_000}}})
    assert gather(lake, FACTS, SETTINGS, NOW)[1]["full"].stages["student_model"] == pytest.approx(18.0)


def test_before_the_first_run_decisions_show_what_the_planner_knows(tmp_path):
    lake = Lake.open(tmp_path / "lake")
    keep(lake, "shop", PLAN)
    seen, predicted = gather(lake, FACTS, SETTINGS, NOW)
    assert predicted["full"].stages is None and predicted["full"].known == {"student_model": 30.0}
    assert "evaluation_report" in predicted["full"].unknown and "student_model" not in predicted["full"].unknown
    options, chosen, _ = weigh(Found("new_logs", "1,000 new rows", "w"), seen, predicted, FACTS, SETTINGS, [])
    full = next(each for each in options if each.action == "full")
    assert chosen == "nothing" and full.predicted_cost_s is None and full.stage_costs_s == {"student_model": 30.0}
    assert full.cost_says == PLAN.says
    console = Console(file=io.StringIO(), width=400)
    print_decisions([decision(1, outcome="not_run", action="nothing", options=options)], console, 1)
    assert ("Everything that is out of date would cost: student_model 30 s; what its other stages cost is unknown. Of these, "
            "student_model by the planner (about 1,000 tokens/s on 2 H100), no run of this stage was seen.") in console.file.getvalue()


def test_what_is_not_known_is_named_and_what_is_planned_is_said():
    cause = Found("new_logs", "1,000 new rows", "w")
    unknown = {**PREDICTED, "full": replace(PREDICTED["full"], stages=None, unknown=("quantized_model", "evaluation_report"))}
    options = {each.action: each for each in weigh(cause, SEEN, unknown, FACTS, SETTINGS, [])[0]}
    assert "no run of quantized_model and evaluation_report was seen" in options["full"].why_not
    by_plan = {"drafter_new": replace(PREDICTED["drafter_new"], planned=("speculator by the planner, no run was seen",))}
    options, chosen, why = weigh(cause, SEEN, by_plan, FACTS, SETTINGS, [])
    assert chosen == "drafter_new" and "costs about 60 min (speculator by the planner, no run was seen)" in why
    assert next(each for each in options if each.action == "drafter_new").cost_says == "speculator by the planner, no run was seen"


def test_the_first_training_that_may_end_early_costs_what_its_plan_says(tmp_path):
    lake = Lake.open(tmp_path / "lake")
    keep(lake, "shop", PLAN.model_copy(update={"stage": "sft_model"}))
    settings = SftSettings(early_end={"enabled": True, "nats_per_device_hour": 0.1})
    assert looked_up(settings, lake, "sft_model", FACTS, NOW).early_end.trained_tokens_per_second == 1_000.0
