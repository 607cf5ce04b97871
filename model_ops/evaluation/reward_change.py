"""What reinforcement fine-tuning changed on held-out prompts: the served model beside the model that it began with.

    found = reward_change(job, settings, progress)          # of the inputs prompts, target and the parent
    found.measurements, found.not_measured                  # rft_gain

rft_gain is the difference of the shares of prompts whose greedy answer passes what its row verifies itself with, whatever
rewarded the training. Prompts are those of the test split, or of the validation split where that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from model_ops.decoding import decode, load_runner
from model_ops.evaluation.finished_parts import finished
from model_ops.evaluation.measurement import GREEDY, HELD_OUT_PROMPTS, OVER_PROMPTS, Measurement
from model_ops.evaluation.recovery_interval import mean_interval
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.graders import AskedGroup, Grader, GraderSettings
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import end_of_text_ids, load_tokenizer
from model_ops.rollouts import AnswerReader, read_sampled_prompts

NAME = "rft_gain"
MOST_PROMPTS = 256


@dataclass
class RewardChange:
    """What was measured of held-out prompts, and what was not, with the reason."""

    measurements: list[Measurement] = field(default_factory=list)
    not_measured: dict[str, str] = field(default_factory=dict)


def parent_of_rft(job: Job) -> str | None:
    """The role of the model that the training on rewards began with; None where the job has no such training."""
    before = ("preference", "second_sft", "sft", "base")
    return next((role for role in before if role in job.inputs), None) if "rft" in job.inputs else None


def reward_change(job: Job, settings: EvaluateSettings, progress: Progress) -> RewardChange:
    """Measures nothing where the job has no training on rewards. What cannot be measured is named in `not_measured`."""
    found, parent = RewardChange(), parent_of_rft(job)
    if parent is None or "prompts" not in job.inputs:
        return found
    rows = {split: pq.read_metadata(job.inputs["prompts"] / f"{split}.parquet").num_rows for split in ("test", "validation")}
    split = next((split for split, count in rows.items() if count), None)
    grades: dict[str, dict[str, float | None]] = {"target": {}, parent: {}}
    try:
        for role in grades if split else ():
            grades[role] = finished(job, f"rewards-{role}", partial(_grades, job.inputs, role, split, settings, progress))
    except ModelError as error:
        found.not_measured[NAME] = str(error)
        return found
    both = [name for name in grades["target"] if None not in (grades["target"][name], grades[parent].get(name))]
    if not both:
        found.not_measured[HELD_OUT_PROMPTS] = (
            "no held-out row of rl_prompts brings what verifies an answer; give tasks with a verifier"
        )
        return found
    gains = [grades["target"][name] - grades[parent][name] for name in both]
    low, high = mean_interval(gains, -1.0, 1.0) or (None, None)
    found.measurements.append(
        Measurement(
            what=NAME,
            of="target",
            against=parent,
            on=HELD_OUT_PROMPTS,
            sampling=GREEDY,
            value=float(np.mean(gains)),
            low=low,
            high=high,
            n=len(gains),
            counted="prompts",
            unit="share",
            method=OVER_PROMPTS,
        )
    )
    return found


def _grades(
    inputs: Mapping[str, Path], role: str, split: str, settings: EvaluateSettings, progress: Progress
) -> dict[str, float | None]:
    """By prompt: the grade of the model's greedy answer; None without one. Raises ModelError where none leaves room for one."""
    directory, dataset = inputs[role], inputs["prompts"]
    tokenizer, runner, ends = load_tokenizer(directory), load_runner(directory), end_of_text_ids(directory)
    room = runner.max_positions - settings.max_new_tokens
    prompts = read_sampled_prompts(dataset, tokenizer, room, split)[0][:MOST_PROMPTS]
    answers = decode(
        runner,
        [prompt.ids for prompt in prompts],
        [prompt.row_id for prompt in prompts],
        eos_ids=ends,
        temperature=0.0,
        max_new_tokens=settings.max_new_tokens,
        batch_size=settings.batch_size,
        on_batch=lambda done: progress.report(f"answers to held-out prompts: {role}", done, len(prompts), "answers"),
    )
    reader, groups = AnswerReader(tokenizer), []
    for prompt, answer in zip(prompts, answers, strict=True):
        said, _ = reader.read(prompt, np.array(answer.tokens, np.int32), answer.finish_reason == "stop")
        groups.append(AskedGroup(prompt.row_id, prompt.messages, prompt.tools, prompt.columns, [said]))
    with Grader(GraderSettings.model_validate("verifier"), "rft.held_out_grader") as grader:
        return {prompt.row_id: grade.value for prompt, (grade,) in zip(prompts, grader.grade(groups), strict=True)}
