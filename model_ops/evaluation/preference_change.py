"""What preference training changed on held-out pairs: the served model beside its parent, the model that it began with.

preference_accuracy is the share of pairs whose chosen answer gained more than the rejected one (DPO's implicit reward, arXiv
2305.18290, section 4), over sessions, because pairs of one session are alike; divergence_from_parent the mean of log p(target)
- log p(parent) over tokens that the target sampled, an unbiased estimate of KL(target || parent). preference_pairs.jsonl has
the SHOWN pairs that changed most, from either end. A file of text: an erasure cleans its lines."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Float

from model_ops.completions import Sampling
from model_ops.documents import Document, RowLoss, held_out_loss, mean_loss
from model_ops.drafting import moves, student, variance
from model_ops.evaluation.likelihoods import NATS, loss_increase_interval, mean_interval
from model_ops.evaluation.measurement import GREEDY, HELD_OUT_PAIRS, NO_JUDGE, Ends, Findings, at_temperature
from model_ops.evaluation.own_answers import OwnModel
from model_ops.evaluation.row_tables import finished
from model_ops.evaluation.scored_pairs import mean_and_reach
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.evaluation.side_by_side import CHARACTERS, MESSAGES, text_of
from model_ops.evaluation.token_scores import scored_model
from model_ops.files import write_text
from model_ops.graders import PairwiseJudge
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import load_tokenizer
from model_ops.preferences import read_preferences
from model_ops.tasks import JudgedItem

FILE = "preference_pairs.jsonl"
CHOSEN, REJECTED = "chosen", "rejected"
SHOWN, MOST_PROMPTS = 5, 64
"""Pairs that are shown from either end, and most prompts that both models answer."""
Key = tuple[str, str]
"""A pair's id and a side of it."""
Estimate = tuple[float, Ends, int]
"""Value, ends of its 95 % interval, and how many it is taken over."""
OVER = "Student's t over {}"
Answers = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By role and pair: tokens and text."""


def preference_change(job: Job, settings: EvaluateSettings, progress: Progress) -> Findings:
    """Measures nothing where the job has no preference model. What cannot be measured is named in `not_measured`."""
    result, parent = Findings(), settings.parents.get("preferences")
    if parent is None or "preferences" not in job.inputs:
        return result
    asked = _Asked(job, settings, progress, parent)
    try:
        read = {role: asked.documents(role) for role in ("target", parent)}
    except ModelError as error:
        result.not_measured["preference_accuracy"] = str(error)
        return result
    shared = sorted(set.intersection(*({name for name, _ in documents} for documents in read.values())))
    if not shared:
        result.not_measured[HELD_OUT_PAIRS] = (
            "the preference dataset has no test pair that both models can read; collect more feedback"
        )
        return result
    gains = _gains(*(asked.log_probs(role, {key: read[role][key] for key in read[role] if key[0] in shared}) for role in read))
    rows = _rows(job.inputs["preferences"])
    sessions = [str(rows[name].get("session_id") or name) for name in gains]
    value, ends, count = _share_of_gains(list(gains.values()), sessions)
    about = {"of": "target", "against": parent, "on": HELD_OUT_PAIRS}
    result.measure("preference_accuracy", value, ends, count, "pairs", "share", method=OVER.format("sessions"), **about)
    about["method"] = OVER.format("prompts")
    drawn = random.Random(settings.seed).sample(shared, min(len(shared), MOST_PROMPTS, settings.prompts))
    prompts = {role: {name: _prompt(read[role][name, CHOSEN]) for name in drawn} for role in read}
    answers = {role: asked.answers(role, prompts[role], temperature=0.0) for role in read}
    both = [name for name in drawn if all(name in answers[role] for role in read)]
    if not both:
        result.not_measured["length_ratio"] = result.not_measured["win_rate"] = "no prompt leaves room for an answer"
        return result
    lengths = [np.array([max(1, len(answers[role][name]["tokens"])) for name in both], float) for role in read]
    value, ends, count = _ratio(*lengths)
    result.measure("length_ratio", value, ends, count, "prompts", "ratio", sampling=GREEDY, **about)
    try:
        if settings.tasks.judge is None:
            raise ModelError(NO_JUDGE)
        with PairwiseJudge(settings.tasks.judge) as judge:
            items = [JudgedItem(suite=HELD_OUT_PAIRS, item_id=name, messages=json.loads(rows[name]["prompt"])) for name in both]
            texts = [[answers[role][name]["text"] for name in both] for role in read]
            wins = [won for won in judge.compare_all(list(zip(items, *texts, strict=True))) if won is not None]
        value, ends, count = _win_rate(wins)
        result.measure("win_rate", value, ends, count, "prompts", "share", sampling=GREEDY, **about)
    except ModelError as error:
        result.not_measured["win_rate"] = str(error)
    if load_tokenizer(job.inputs["target"]).get_vocab() != load_tokenizer(job.inputs[parent]).get_vocab():
        result.not_measured["divergence_from_parent"] = "the two models have different tokenizers"
    else:
        sampled = {name: each["tokens"] for name, each in asked.answers("target", prompts["target"], temperature=1.0).items()}
        said = {
            (name, "sampled"): _answered(name, prompts["target"][name], tokens) for name, tokens in sampled.items() if tokens
        }
        own, before = (
            [RowLoss(name, -log, len(sampled[name])) for (name, _), log in asked.log_probs(role, said, "sampled").items()]
            for role in read
        )
        value, ends = mean_loss(before) - mean_loss(own), loss_increase_interval(own, before)
        about["sampling"] = at_temperature(1.0)
        result.measure("divergence_from_parent", value, ends, len(own), "prompts", NATS, **about)
    write_text(job.output / FILE, "".join(f"{json.dumps(line)}\n" for line in _shown(rows, gains, both, answers, parent)))
    return result


@dataclass(frozen=True)
class _Asked:
    """Two models and what they are asked about pairs. Answers and log-probabilities are finished parts."""

    job: Job
    settings: EvaluateSettings
    progress: Progress
    parent: str

    def documents(self, role: str) -> dict[tuple[str, str], Document]:
        """By pair and side: prompt and answer. Raises ModelError for a dataset or template that cannot be read."""
        tokenizer, dataset = load_tokenizer(self.job.inputs[role]), self.job.inputs["preferences"]
        pairs = read_preferences(dataset, "test", tokenizer, self.settings.max_length, rows="pairs", shares=False)
        sides = {}
        for document in pairs.documents:
            cut = document.segments[0].length
            for side, where in ((CHOSEN, slice(cut)), (REJECTED, slice(cut, None))):
                sides[document.row_id, side] = Document(
                    f"{document.row_id} {side}", document.input_ids[where], document.targets[where]
                )
        return sides

    def log_probs(self, role: str, documents: Mapping[Key, Document], what: str = "pairs") -> dict[Key, float]:
        """The log-probability of each document's targets."""
        logs = finished(
            self.job,
            f"preference-{what}-{role}",
            lambda: {
                row.row_id: -row.nll_sum
                for row in held_out_loss(
                    scored_model(self.job.inputs[role]),
                    list(documents.values()),
                    progress=self.progress,
                    phase=f"held-out pairs: {role}",
                )
            },
        )
        return {key: logs[document.row_id] for key, document in documents.items()}

    def answers(self, role: str, prompts: Mapping[str, list[int]], temperature: float) -> dict[str, dict[str, Any]]:
        """Tokens and text of the answer to each prompt that leaves room for one."""
        return finished(
            self.job,
            f"preference-answers-{role}-{temperature:g}",
            lambda: self._decoded(self.job.inputs[role], role, prompts, temperature),
        )

    def _decoded(self, directory: Path, role: str, prompts: Mapping[str, list[int]], temperature: float) -> dict[str, Any]:
        model = OwnModel(directory)
        fitting = {name: prompt for name, prompt in prompts.items() if 0 < len(prompt) <= model.room}
        self.progress.stop_if_requested()
        answers = model.answers(
            fitting,
            Sampling(temperature=temperature),
            self.settings.max_new_tokens,
            self.settings.batch_size,
            self.settings.seed,
            lambda done: self.progress.report(f"answers to held-out pairs: {role}", done, len(fitting), "answers"),
        )
        return {name: {"tokens": answer.tokens, "text": model.text(answer)} for name, answer in answers.items()}


def _gains(target: Mapping[Key, float], parent: Mapping[Key, float]) -> dict[str, float]:
    """By pair: how much more the chosen answer gained than the rejected one, in nats."""
    moved = {key: target[key] - parent[key] for key in target}
    return {name: moved[name, CHOSEN] - moved[name, REJECTED] for name, side in moved if side == CHOSEN}


def _share_of_gains(gains: Sequence[float], sessions: Sequence[str]) -> Estimate:
    """(share of gains above 0, half of those that are 0; its interval over sessions, whose pairs are alike; their number)."""
    right = np.array([0.5 + 0.5 * float(np.sign(gain)) for gain in gains])
    value, reach = mean_and_reach(right, np.array(sessions))
    if value is None or reach is None:
        return float(np.mean(right)), None, len(right)
    return value, (max(0.0, value - reach), min(1.0, value + reach)), len(right)


def _win_rate(wins: Sequence[float]) -> Estimate:
    """(share of wins, a tie as half; its interval; their number) of 1, 0 and -1."""
    ends = mean_interval(wins, -1.0, 1.0)
    return (1 + float(np.mean(wins))) / 2, ends and ((1 + ends[0]) / 2, (1 + ends[1]) / 2), len(wins)


def _ratio(target: Float[np.ndarray, " prompts"], parent: Float[np.ndarray, " prompts"]) -> Estimate:
    """(sum of target / sum of parent; its interval; their number), paired by prompt."""
    value = float(target.sum() / parent.sum())
    if len(target) < 2:
        return value, None, len(target)
    reach = student(len(target) - 1) * math.sqrt(variance(moves(parent, target)))
    return value, (value - reach, value + reach), len(target)


def _prompt(document: Document) -> list[int]:
    return document.input_ids[: int(np.flatnonzero(document.targets)[0])].tolist()


def _answered(name: str, prompt: Sequence[int], tokens: Sequence[int]) -> Document:
    ids = np.array([*prompt, *tokens], np.int32)
    return Document(f"{name} sampled", ids, np.arange(len(ids)) >= len(prompt))


def _rows(dataset: Path) -> dict[str, dict[str, Any]]:
    """The test pairs as they are in the dataset, by id."""
    file = dataset / "test.parquet"
    columns = [
        name for name in ("row_id", "session_id", "reason", "prompt", CHOSEN, REJECTED) if name in pq.read_schema(file).names
    ]
    return {row["row_id"]: row for row in pq.read_table(file, columns=columns).to_pylist()}


def _shown(
    rows: Mapping[str, dict[str, Any]], gains: Mapping[str, float], answered: Sequence[str], answers: Answers, parent: str
) -> list[dict[str, Any]]:
    """The lines of preference_pairs.jsonl."""
    ordered = sorted(answered, key=lambda name: (gains[name], name))
    ends = ordered if len(ordered) <= 2 * SHOWN else ordered[:SHOWN] + ordered[-SHOWN:]
    return [
        {
            "row_id": name,
            "change": gains[name],
            "reason": rows[name]["reason"],
            "prompt": [
                {"role": str(said.get("role")), "text": text_of(said)} for said in json.loads(rows[name]["prompt"])[-MESSAGES:]
            ],
            **{side: text_of(json.loads(rows[name][side])[0]) for side in (CHOSEN, REJECTED)},
            "target": answers["target"][name]["text"][:CHARACTERS],
            "parent": answers[parent][name]["text"][:CHARACTERS],
        }
        for name in ends
    ]
