"""What reinforcement fine-tuning changed on held-out prompts: the served model beside the model that it began with.

rft_gain is the difference of the shares of prompts whose greedy answer passes what its row verifies itself with. An answer that
only pleases a verifier which the training had passes here too: the SHOWN passed answers that say least are kept to be read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from model_ops.answers import AnswerReader, read_sampled_prompts
from model_ops.completions import Sampling
from model_ops.documents import Document, held_out_loss
from model_ops.evaluation.likelihoods import mean_interval
from model_ops.evaluation.measurement import GREEDY, HELD_OUT_PROMPTS, OVER_PROMPTS, Findings
from model_ops.evaluation.own_answers import OwnModel
from model_ops.evaluation.row_tables import finished
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.evaluation.side_by_side import text_of
from model_ops.evaluation.token_scores import scored_model
from model_ops.files import write_text
from model_ops.graders import AskedGroup, Grader, GraderSettings
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import load_tokenizer
from model_ops.rendering import Split

MOST_PASSED = 64
"""Most answers that are scored."""
MOST_TOKENS = 256
"""Most tokens that are read of a prompt's last message (its end) and of an answer (its beginning)."""
OTHERS = 2
BETWEEN = "\n\n"


class PromptScore(NamedTuple):
    """In nats per token of the prompt; given: log p(prompt | answer)."""

    row_id: str
    gain: float
    given: float


def about_prompts(base: Path, passed: dict[str, tuple[str, str]], progress: Progress) -> list[PromptScore]:
    """The passed answers that say least about their prompt, least first: they may please their verifier and nobody else.

    passed: (last message of the prompt, answer) by row; the first MOST_PASSED are scored. An answer to a question makes the
    question likelier than the answer to another one does; an answer that fits any question does not. gain is
    (log p(prompt | answer) - log p(prompt | another prompt's answer)) per token of the prompt, under the base model, over plain
    text: the mutual information of Li et al. (2016, arXiv 1510.03055), against the OTHERS answers after it."""
    tokenizer = load_tokenizer(base)

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    chosen, documents = list(passed.items())[:MOST_PASSED], []
    for place, (row_id, (prompt, _)) in enumerate(chosen):
        asked = ids(prompt)[-MOST_TOKENS:]
        for other in range(min(OTHERS + 1, len(chosen))):
            answer = chosen[(place + other) % len(chosen)][1][1]
            before = [*ids(answer)[:MOST_TOKENS], *ids(BETWEEN)]
            tokens = np.array([*before, *asked], np.int32)
            documents.append(Document(f"{other}:{row_id}", tokens, np.arange(len(tokens)) >= len(before)))
    losses = held_out_loss(scored_model(base), documents, progress=progress, phase="prompts of passed answers")
    given: dict[str, list[float]] = {}
    for row in losses:
        if row.tokens:
            given.setdefault(row.row_id.partition(":")[2], []).append(-row.nll_sum / row.tokens)
    scores = [PromptScore(name, own - fmean(others), own) for name, (own, *others) in given.items() if others]
    return sorted(scores, key=lambda each: (each.gain, each.row_id))


FILE = "passed_answers.jsonl"
SHOWN = 10
VERIFIER = "verifier"
MOST_PROMPTS = 256


@dataclass
class RewardChange(Findings):
    """What was measured of held-out prompts."""

    summary: dict[str, Any] = field(default_factory=dict)
    """passed: how many of the served model's answers passed; is_trained_on: whether the training had the same verifier."""


def reward_change(job: Job, settings: EvaluateSettings, progress: Progress) -> RewardChange:
    """Measures nothing where the job has no training on rewards. What cannot be measured is named in `not_measured`."""
    result, parent = RewardChange(), settings.parents.get("prompts")
    if parent is None or "prompts" not in job.inputs:
        return result
    splits: tuple[Split, ...] = ("test", "validation")
    rows = [(split, pq.read_metadata(job.inputs["prompts"] / f"{split}.parquet").num_rows) for split in splits]
    split = next((split for split, count in rows if count), None)
    answers: dict[str, dict[str, list[Any]]] = {"target": {}, parent: {}}
    try:
        if split is not None:
            for role in answers:
                answers[role] = finished(job, f"rewards-{role}", partial(_answers, job.inputs, role, split, settings, progress))
    except ModelError as error:
        result.not_measured["rft_gain"] = str(error)
        return result
    grades = {role: {name: grade for name, (grade, _, _) in by_row.items()} for role, by_row in answers.items()}
    both = [name for name in grades["target"] if None not in (grades["target"][name], grades[parent].get(name))]
    if not both:
        result.not_measured[HELD_OUT_PROMPTS] = (
            "no held-out row of rl_prompts brings what verifies an answer; give tasks with a verifier"
        )
        return result
    gains = [grades["target"][name] - grades[parent][name] for name in both]
    about = {"of": "target", "against": parent, "on": HELD_OUT_PROMPTS, "sampling": GREEDY, "method": OVER_PROMPTS}
    value, ends = float(np.mean(gains)), mean_interval(gains, -1.0, 1.0)
    result.measure("rft_gain", value, ends, len(gains), "prompts", "share", **about)
    _keep_passed(job, job.inputs.get("base", job.inputs[parent]), answers["target"], settings, result, progress)
    return result


def _keep_passed(
    job: Job, base: Path, answers: Mapping[str, list[Any]], settings: EvaluateSettings, result: RewardChange, progress: Progress
) -> None:
    """Writes the passed answers that say least about their prompt, and sums them up."""
    passed = {name: (asked, said) for name, (grade, asked, said) in answers.items() if (grade or 0.0) >= 1}
    try:
        scores = finished(job, "passed-answers", partial(about_prompts, base, passed, progress))
    except ModelError as error:
        result.not_measured["what passed answers say about their prompts"] = str(error)
        return
    result.summary = {
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
    inputs: Mapping[str, Path], role: str, split: Split, settings: EvaluateSettings, progress: Progress
) -> dict[str, list[Any]]:
    """By prompt: the grade of the model's greedy answer (None without one), the prompt's last message, the answer."""
    model = OwnModel(inputs[role])
    room = model.runner.max_positions - settings.max_new_tokens
    prompts = read_sampled_prompts(inputs["prompts"], model.tokenizer, room, split)[0][:MOST_PROMPTS]
    answers = model.answers(
        {prompt.row_id: prompt.ids for prompt in prompts},
        Sampling(temperature=0.0),
        settings.max_new_tokens,
        settings.batch_size,
        on_batch=lambda done: progress.report(f"answers to held-out prompts: {role}", done, len(prompts), "answers"),
    )
    reader, groups = AnswerReader(model.tokenizer), []
    for prompt in prompts:
        answer = answers[prompt.row_id]
        said, _ = reader.read(prompt, np.array(answer.tokens, np.int32), answer.finish_reason == "stop")
        groups.append(AskedGroup(prompt.row_id, prompt.messages, prompt.tools, prompt.columns, [said]))
    with Grader(GraderSettings.model_validate(VERIFIER), "rft.held_out_grader") as grader:
        return {
            group.row_id: [grade.value, text_of(group.messages[-1]), text_of(group.answers[0].message)]
            for group, (grade,) in zip(groups, grader.grade(groups), strict=True)
        }
