"""Samples some answers of the base model to the rehearsed prompts where reinforcement fine-tuning starts from it: a start that
is never or always right, and answers that the limit cuts, show before hours are spent."""

import math
from collections.abc import Iterator
from pathlib import Path

from model_ops.jobs import ModelError
from model_ops.machine import cpu_speeds
from model_ops.reinforcement import RftSettings
from pipelines.checks.base_model import local_base
from pipelines.checks.finding import CheckFinding, ok, warning
from pipelines.contract import BaseModelError, Recipe
from resources.stages import trained_sections

MOST_PROMPTS, FEWEST_PROMPTS, ANSWERS = 16, 4, 4
SECONDS, DECODING_SHARE = 30, 0.15
"""What sampling may take here, where decoding reaches this share of the measured rate of products."""
NOT_ASKED = frozenset({"judge", "rubric", "ranking", "reward_model"})
"""Parts of a grader that are paid for, or not trained yet. Nor is a function of the user's called, which may be either."""


def check_sampled_start(recipe: Recipe, folder: Path) -> Iterator[CheckFinding]:
    """folder: with the rehearsed datasets. Says nothing where another training comes first, or sampling takes long: the
    run says the same of its start before the first step."""
    for section, settings in recipe.trained.items():
        if not isinstance(settings, RftSettings) or settings.grader is None:
            continue
        name = trained_sections()[section].name
        dataset = folder / recipe.policy.rows_of(name)
        graders = [part.by for part in settings.grader.parts.values()]
        asked = not any(by in NOT_ASKED or by.endswith(".json") or ":" in by for by in graders)
        if not asked or recipe.policy.source_of(name) != "base_model" or not (dataset / "train.parquet").exists():
            continue
        try:
            base = local_base(recipe)
            prompts = 0 if base is None or base.adapter else _prompts_in_time(base.parameters, settings.max_new_tokens)
            if base is None or prompts < FEWEST_PROMPTS:
                continue
            from model_ops.operations import measure_start
            from model_ops.reinforcement import doubts

            few = {"held_out_prompts": prompts, "held_out_answers": ANSWERS}
            numbers = measure_start(Path(base.name), dataset, settings.resolved().model_copy(update=few))
        except (BaseModelError, ModelError):
            continue  # reported with the base model, or by the run: a grader's own fault
        warnings = [warning(section, said, remedy) for said, remedy in doubts(numbers, settings)]
        rate, cut = numbers["validation_pass_rate"], numbers["validation_cut"]
        if not math.isnan(rate):  # no answer has a grade: the run stops and says why
            yield from warnings or [
                ok(section, f"of sampled answers of the base model {rate:z.0%} pass, and {cut:z.0%} are cut")
            ]


def _prompts_in_time(parameters: int | None, max_new_tokens: int) -> int:
    """How many prompts can be answered in SECONDS: 2 FLOPs for a weight and token."""
    if not parameters:
        return 0
    flops = DECODING_SHARE * SECONDS * 1e9 * max(cpu_speeds())
    return min(MOST_PROMPTS, int(flops / (2 * parameters * ANSWERS * max_new_tokens)))
