"""The served model beside the champion, or, before there is one, beside its base: losses and answers on held-out rows.

side_by_side.jsonl has up to MOST rows, worst first, and after them up to MOST gains over a champion. `change` is the harm: by
how many nats per token the target finds the logged answer less likely than the other model does. Rows whose answer is EMPTY or
LOOPS, and the other model's is not, come first. A file of text: an erasure cleans its lines."""

import json
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from model_ops.completions import Sampling
from model_ops.decoding import Completion, read_prompts
from model_ops.documents import RowLoss, mean_loss
from model_ops.drafting import is_looping
from model_ops.evaluation.likelihoods import loss_increase_interval
from model_ops.evaluation.measurement import CHAMPION, LEAST_GAIN, Findings
from model_ops.evaluation.own_answers import OwnModel
from model_ops.evaluation.row_tables import finished
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.files import write_text
from model_ops.jobs import Job, ModelError, Progress
from model_ops.rendering import read_rows

FILE = "side_by_side.jsonl"
DAYS, MOST = 7, 20
MESSAGES, CHARACTERS = 3, 1_500
"""Last messages of a prompt that are kept, and most characters of each text."""
ANSWERS = "answers side by side"
"""Key of the reason why there are no answers, among what was not measured."""


EMPTY, LOOPS, CUT = "empty", "repeats itself", "cut at the longest answer that is measured"
"""Marks of answers. The first two count as harm."""


@dataclass
class SideBySideSummary(Findings):
    """Answers of two models to the same prompts."""

    summary: dict[str, Any] = field(default_factory=dict)
    """The other model (None: nobody), rows, begin of the period, losses and their difference; {} without held-out rows."""


@dataclass(frozen=True)
class _Changed:
    """A row that both models scored. change: in nats per token of the target; of the target alone, its loss."""

    target: RowLoss
    other: RowLoss | None

    @property
    def change(self) -> float:
        return (self.target.nll_sum - (self.other.nll_sum if self.other else 0.0)) / self.target.tokens


def side_by_side(job: Job, settings: EvaluateSettings, same_directory: dict[str, str], progress: Progress) -> SideBySideSummary:
    """same_directory: the name under which each role is in likelihood.parquet."""
    if "target" not in same_directory:
        return SideBySideSummary()
    other = next(
        (
            role
            for role in (CHAMPION, "base")
            if role in job.inputs and same_directory.get(role, same_directory["target"]) != same_directory["target"]
        ),
        None,
    )
    times = _times(job.inputs["dataset"])
    pairs = _pairs(job.output / "likelihood.parquet", same_directory["target"], same_directory[other] if other else None)
    since = _week_of(times, {pair.target.row_id for pair in pairs}) if other == CHAMPION else None
    pairs = [pair for pair in pairs if since is None or (times.get(pair.target.row_id) or since) > since]
    if not pairs:
        return SideBySideSummary()
    ordered = sorted(pairs, key=lambda pair: (-pair.change, pair.target.row_id))
    worst, later = ordered[:MOST], ordered[MOST:]
    best = [pair for pair in later[::-1][:MOST] if pair.change < 0] if other == CHAMPION else []
    result = SideBySideSummary(summary=_summary(pairs, other, since))
    answers: dict[str, dict[str, dict[str, str]]] = {}
    for role in ("target", *([other] if other else [])):
        try:
            answers[role] = finished(
                job,
                f"side-by-side-{role}",
                lambda role=role: _answers(job, settings, role, [pair.target.row_id for pair in (*worst, *best)], progress),
            )
        except ModelError as error:
            result.not_measured[ANSWERS] = f"{role}: {error}"
    worst.sort(key=lambda pair: not _is_harm(answers, other, pair.target.row_id))  # stable: by change among them
    rows = {row.row_id: row for row in read_rows(job.inputs["dataset"], "test")}
    lines = [json.dumps(_line(pair, other, rows[pair.target.row_id].messages, times, answers)) for pair in (*worst, *best)]
    write_text(job.output / FILE, "".join(f"{line}\n" for line in lines))
    return result


def _summary(pairs: list[_Changed], other: str | None, since: datetime | None) -> dict[str, Any]:
    after = [pair.target for pair in pairs]
    summary = {
        "against": other,
        "rows": len(pairs),
        "days": DAYS,
        "since": since.isoformat() if since else None,
        "loss_target": mean_loss(after),
    }
    if other is None:
        return summary
    before = [pair.other for pair in pairs if pair.other]
    low, high = loss_increase_interval(before, after) or (None, None)
    return {
        **summary,
        "loss_other": mean_loss(before),
        "increase": sum(pair.change * pair.target.tokens for pair in pairs) / sum(pair.target.tokens for pair in pairs),
        "low": low,
        "high": high,
        "worse": sum(pair.change >= LEAST_GAIN for pair in pairs),
        "better": sum(pair.change <= -LEAST_GAIN for pair in pairs),
    }


def _pairs(path: Path, target: str, other: str | None) -> list[_Changed]:
    """Rows that both models scored, on at least one token. The other's loss, too, counts per token of the target."""
    scored: dict[str, dict[str, RowLoss]] = {}
    for row in pq.read_table(path).to_pylist():
        model = row.pop("model")
        scored.setdefault(model, {})[row["row_id"]] = RowLoss(**row)
    if other is None:
        return [_Changed(own, None) for own in scored.get(target, {}).values() if own.tokens]
    before = scored.get(other, {})
    return [
        _Changed(own, replace(before[row_id], tokens=own.tokens))
        for row_id, own in scored.get(target, {}).items()
        if own.tokens and row_id in before and before[row_id].tokens
    ]


def _times(dataset: Path) -> dict[str, datetime | None]:
    path = dataset / "test.parquet"
    if "ts" not in pq.read_schema(path).names:
        return {}
    return {row["row_id"]: row["ts"] for row in pq.read_table(path, columns=["row_id", "ts"]).to_pylist()}


def _week_of(times: dict[str, datetime | None], rows: set[str]) -> datetime | None:
    """Start of the last DAYS days of these rows; None if no row has a time."""
    known = [at for row_id, at in times.items() if row_id in rows and at is not None]
    return max(known) - timedelta(days=DAYS) if known else None


def _answers(
    job: Job, settings: EvaluateSettings, role: str, row_ids: list[str], progress: Progress
) -> dict[str, dict[str, str]]:
    """Greedy answers by row, of those whose prompt fits: text and mark."""
    model, wanted = OwnModel(job.inputs[role]), set(row_ids)
    prompts = {
        prompt.row_id: prompt.ids
        for prompt in read_prompts(job.inputs["dataset"], "test", model.tokenizer)
        if prompt.row_id in wanted and 0 < len(prompt.ids) <= model.room
    }
    progress.stop_if_requested()
    answers = model.answers(
        prompts,
        Sampling(temperature=0.0),
        settings.max_new_tokens,
        settings.batch_size,
        settings.seed,
        lambda done: progress.report(f"answers side by side: {role}", done, len(prompts), "answers"),
    )
    texts = {name: model.text(answer) for name, answer in answers.items()}
    return {name: {"text": texts[name], "mark": _mark(answer, texts[name])} for name, answer in answers.items()}


def _mark(answer: Completion, text: str) -> str:
    if not text.strip():
        return EMPTY
    if is_looping(answer.tokens):
        return LOOPS
    return CUT if answer.finish_reason == "length" else ""


def _is_harm(answers: dict[str, dict[str, dict[str, str]]], other: str | None, row_id: str) -> bool:
    """Whether the target's answer is empty or loops, and the other model's does not."""
    marks = [answers.get(role, {}).get(row_id, {}).get("mark") in (EMPTY, LOOPS) for role in ("target", other or "")]
    return marks[0] and not marks[1]


def _line(
    pair: _Changed,
    other: str | None,
    messages: list[dict[str, Any]],
    times: dict[str, datetime | None],
    answers: dict[str, dict[str, dict[str, str]]],
) -> dict[str, Any]:
    row_id = pair.target.row_id
    last = max((place for place, message in enumerate(messages) if message.get("role") == "assistant"), default=len(messages))
    at = times.get(row_id)
    own = {role: by_row[row_id] for role, by_row in answers.items() if row_id in by_row}
    return {
        "row_id": row_id,
        "kind": "regression" if pair.change > 0 else "gain",
        "change": pair.change,
        "target_loss": pair.target.nll_sum / pair.target.tokens,
        **({f"{other}_loss": pair.other.nll_sum / pair.other.tokens} if pair.other else {}),
        "tokens": pair.target.tokens,
        "ts": at.isoformat() if at else None,
        "prompt": [{"role": str(message.get("role")), "text": text_of(message)} for message in messages[:last][-MESSAGES:]],
        "logged": text_of(messages[last]) if last < len(messages) else "",
        "marks": {role: answer["mark"] for role, answer in own.items() if answer["mark"]},
        **{role: answer["text"][:CHARACTERS] for role, answer in own.items()},
    }


def text_of(message: dict[str, Any]) -> str:
    """A message's text, cut; its calls of tools as JSON."""
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content) if content else ""
    calls = message.get("tool_calls")
    return f"{text}{json.dumps(calls) if calls else ''}"[:CHARACTERS]
