"""The served model and the champion on last week's held-out rows: losses, and both answers to the rows that changed most.

    found = side_by_side(job, settings, same_directory, progress)      # reads likelihood.parquet; writes side_by_side.jsonl

side_by_side.jsonl has up to MOST regressions and MOST gains, one line each: row_id, kind (regression or gain), change (nats per
token), losses, tokens, ts, prompt (its last messages, cut), and the answers logged, target, champion (greedy). Nothing is
written for a job without a champion. A file of text: an erasure cleans its lines.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from model_ops.atomic_files import write_text
from model_ops.decoding.decode import decode
from model_ops.decoding.prompts import read_prompts
from model_ops.decoding.target import load_runner
from model_ops.errors import ModelError
from model_ops.evaluation.finished_parts import finished
from model_ops.evaluation.recovery_interval import loss_increase_interval
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.job import Job
from model_ops.models.end_of_text import end_of_text_ids
from model_ops.models.model_directory import load_tokenizer
from model_ops.progress import Progress
from model_ops.rendering.row import read_rows
from model_ops.training.likelihood import RowLoss, mean_loss

FILE = "side_by_side.jsonl"
DAYS, MOST = 7, 20
MESSAGES, CHARACTERS = 3, 1_500
"""Last messages of a prompt that are kept, and most characters of each text."""
ANSWERS = "answers side by side"
"""Key of the reason why there are no answers, among what was not measured."""


@dataclass
class SideBySide:
    """summary: rows, since when, losses and their difference; {} without a champion."""

    summary: dict[str, Any] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Changed:
    """A row that both models scored. change: the target's loss minus the champion's, in nats per token of the target."""

    target: RowLoss
    champion: RowLoss

    @property
    def change(self) -> float:
        return (self.target.nll_sum - self.champion.nll_sum) / self.target.tokens


def side_by_side(job: Job, settings: EvaluateSettings, same_directory: dict[str, str], progress: Progress) -> SideBySide:
    """same_directory: the name under which each role is in likelihood.parquet."""
    if "champion" not in job.inputs or not {"target", "champion"} <= set(same_directory):
        return SideBySide()
    times = _times(job.inputs["dataset"])
    pairs = _pairs(job.output / "likelihood.parquet", same_directory)
    since = _week_of(times, {pair.target.row_id for pair in pairs})
    pairs = [pair for pair in pairs if since is None or (times.get(pair.target.row_id) or since) > since]
    if not pairs:
        return SideBySide()
    before, after = [pair.champion for pair in pairs], [pair.target for pair in pairs]
    low, high = loss_increase_interval(before, after) or (None, None)
    ordered = sorted(pairs, key=lambda pair: (-pair.change, pair.target.row_id))
    worst = [pair for pair in ordered[:MOST] if pair.change > 0]
    best = [pair for pair in ordered[::-1][:MOST] if pair.change < 0]
    found = SideBySide({
        "rows": len(pairs), "days": DAYS, "since": since.isoformat() if since else None,
        "loss_target": mean_loss(after), "loss_champion": mean_loss(before),
        "increase": sum(pair.change * pair.target.tokens for pair in pairs) / sum(pair.target.tokens for pair in pairs),
        "low": low, "high": high, "worse": sum(pair.change > 0 for pair in pairs),
        "better": sum(pair.change < 0 for pair in pairs)})
    answers: dict[str, dict[str, str]] = {}
    for role in ("target", "champion"):
        try:
            answers[role] = finished(job, f"side-by-side-{role}", lambda role=role: _answers(
                job, settings, role, [pair.target.row_id for pair in (*worst, *best)], progress))
        except ModelError as error:
            found.not_measured[ANSWERS] = f"{role}: {error}"
    rows = {row.row_id: row for row in read_rows(job.inputs["dataset"], "test")}
    lines = [json.dumps(_line(kind, pair, rows[pair.target.row_id].messages, times, answers))
             for kind, chosen in (("regression", worst), ("gain", best)) for pair in chosen]
    write_text(job.output / FILE, "".join(f"{line}\n" for line in lines))
    return found


def _pairs(path: Path, names: dict[str, str]) -> list[_Changed]:
    """Rows that both models scored, on at least one token. The champion's loss, too, counts per token of the target."""
    scored: dict[str, dict[str, RowLoss]] = {}
    for row in pq.read_table(path).to_pylist():
        model = row.pop("model")
        scored.setdefault(model, {})[row["row_id"]] = RowLoss(**row)
    target, champion = scored[names["target"]], scored[names["champion"]]
    return [_Changed(found, replace(champion[row_id], tokens=found.tokens)) for row_id, found in target.items()
            if found.tokens and row_id in champion and champion[row_id].tokens]


def _times(dataset: Path) -> dict[str, datetime | None]:
    path = dataset / "test.parquet"
    if "ts" not in pq.read_schema(path).names:
        return {}
    return {row["row_id"]: row["ts"] for row in pq.read_table(path, columns=["row_id", "ts"]).to_pylist()}


def _week_of(times: dict[str, datetime | None], rows: set[str]) -> datetime | None:
    """Where the last DAYS days of these rows begin; None if no row has a time."""
    known = [at for row_id, at in times.items() if row_id in rows and at is not None]
    return max(known) - timedelta(days=DAYS) if known else None


def _answers(job: Job, settings: EvaluateSettings, role: str, row_ids: list[str], progress: Progress) -> dict[str, str]:
    """Greedy answers by row, of those whose prompt fits."""
    directory = job.inputs[role]
    tokenizer, runner = load_tokenizer(directory), load_runner(directory)
    eos_ids, wanted = end_of_text_ids(directory), set(row_ids)
    room = runner.max_positions - 1
    prompts = [prompt for prompt in read_prompts(job.inputs["dataset"], "test", tokenizer)
               if prompt.row_id in wanted and 0 < len(prompt.ids) <= room]
    progress.stop_if_requested()
    answers = decode(
        runner, [prompt.ids for prompt in prompts], [prompt.row_id for prompt in prompts], eos_ids=eos_ids, temperature=0.0,
        max_new_tokens=settings.max_new_tokens, batch_size=settings.batch_size, seed=settings.seed,
        on_batch=lambda done: progress.report(f"answers side by side: {role}", done, len(prompts), "answers"))
    return {prompt.row_id: tokenizer.decode([token for token in answer.tokens if token not in eos_ids])
            for prompt, answer in zip(prompts, answers, strict=True)}


def _line(kind: str, pair: _Changed, messages: list[dict[str, Any]], times: dict[str, datetime | None],
          answers: dict[str, dict[str, str]]) -> dict[str, Any]:
    row_id = pair.target.row_id
    last = max((place for place, message in enumerate(messages) if message.get("role") == "assistant"), default=len(messages))
    at = times.get(row_id)
    return {
        "row_id": row_id, "kind": kind, "change": pair.change, "target_loss": pair.target.nll_sum / pair.target.tokens,
        "champion_loss": pair.champion.nll_sum / pair.champion.tokens, "tokens": pair.target.tokens,
        "ts": at.isoformat() if at else None,
        "prompt": [{"role": str(message.get("role")), "text": _text(message)} for message in messages[:last][-MESSAGES:]],
        "logged": _text(messages[last]) if last < len(messages) else "",
        **{role: found.get(row_id, "")[:CHARACTERS] for role, found in answers.items()}}


def _text(message: dict[str, Any]) -> str:
    """A message's text, cut; its calls of tools as JSON."""
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content) if content else ""
    calls = message.get("tool_calls")
    return f"{text}{json.dumps(calls) if calls else ''}"[:CHARACTERS]
