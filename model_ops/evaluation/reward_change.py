"""What reinforcement fine-tuning changed on held-out prompts: the served model beside the model that it began with.

    found = reward_change(job, settings, progress)          # of the inputs prompts, target and the parent
    found.measurements, found.not_measured                  # rft_gain
    found.summary                                           # of passed answers; writes passed_answers.jsonl

rft_gain is the difference of the shares of prompts whose greedy answer passes what its row verifies itself with, whatever
rewarded the training. Where the training's grader has the same verifier, an answer that only pleases it passes here too: the
SHOWN passed answers that say least about their prompt (passed_answers.py) are kept to be read, with row_id, prompt, answer,
gain and given. Prompts are those of the test split, or of the validation split where that has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from model_ops.answers import AnswerReader, read_sampled_prompts
from model_ops.decoding import decode, load_runner
from model_ops.evaluation.finished_parts import finished
from model_ops.evaluation.measurement import GREEDY, HELD_OUT_PROMPTS, OVER_PROMPTS, Measurement
from model_ops.evaluation.passed_answers import about_prompts
from model_ops.evaluation.recovery_interval import mean_interval
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.evaluation.side_by_side import text_of
from model_ops.files import write_text
from model_ops.graders import AskedGroup, Grader, GraderSettings
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import end_of_text_ids, load_tokenizer

FILE = "passed_answers.jsonl"
SHOWN = 10
VERIFIER = "verifier"
NAME = "rft_gain"
MOST_PROMPTS = 256


@dataclass
class RewardChange:
    """What was measured of held-out prompts, and what was not, with the reason."""

    measurements: list[Measurement] = field(default_factory=list)
    not_measured: dict[str, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    """passed: how many of the served model's answers passed; is_trained_on: whether the training had the same verifier."""


def reward_change(job: Job, settings: EvaluateSettings, progress: Progress) -> RewardChange:
    """Measures nothing where the job has no training on rewards. What cannot be measured is named in `not_measured`."""
    found, parent = RewardChange(), settings.parents.get("prompts")
    if parent is None or "prompts" not in job.inputs:
        return found
    rows = {split: pq.read_metadata(job.inputs["prompts"] / f"{split}.parquet").num_rows for split in ("test", "validation")}
    split = next((split for split, count in rows.items() if count), None)
    answers: dict[str, dict[str, list[Any]]] = {"target": {}, parent: {}}
    try:
        for role in answers if split else ():
            answers[role] = finished(job, f"rewards-{role}", partial(_answers, job.inputs, role, split, settings, progress))
    except ModelError as error:
        found.not_measured[NAME] = str(error)
        return found
    grades = {role: {name: grade for name, (grade, _, _) in by_row.items()} for role, by_row in answers.items()}
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
    _keep_passed(job, job.inputs.get("base", job.inputs[parent]), answers["target"], settings, found, progress)
    return found


def _keep_passed(
    job: Job, base: Path, answers: Mapping[str, list[Any]], settings: EvaluateSettings, found: RewardChange, progress: Progress
) -> None:
    """Writes the passed answers that say least about their prompt, and sums them up."""
    passed = {name: (asked, said) for name, (grade, asked, said) in answers.items() if (grade or 0.0) >= 1}
    try:
        scores = finished(job, "passed-answers", partial(about_prompts, base, passed, progress))
    except ModelError as error:
        found.not_measured["what passed answers say about their prompts"] = str(error)
        return
    found.summary = {
        "passed": len(passed),
        "scored": len(scores),
        "is_trained_on": VERIFIER in settings.rft_graders,
        "least": [[row_id, gain] for row_id, gain, _ in scores[:SHOWN]],
    }
    lines = [
        {"row_id": row_id, "prompt": passed[row_id][0], "answer": passed[row_id][1], "gain": gain, "given": given}
        for row_id, gain, given in scores[:SHOWN]
    ]
    write_text(job.output / FILE, "".join(f"{json.dumps(line)}\n" for line in lines))


def _answers(
    inputs: Mapping[str, Path], role: str, split: str, settings: EvaluateSettings, progress: Progress
) -> dict[str, list[Any]]:
    """By prompt: the grade of the model's greedy answer (None without one), the prompt's last message, the answer. Raises
    ModelError where no prompt leaves room for one."""
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
    with Grader(GraderSettings.model_validate(VERIFIER), "rft.held_out_grader") as grader:
        return {
            group.row_id: [grade.value, text_of(group.messages[-1]), text_of(group.answers[0].message)]
            for group, (grade,) in zip(groups, grader.grade(groups), strict=True)
        }
