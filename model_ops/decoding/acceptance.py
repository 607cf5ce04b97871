"""Acceptance of drafters over held-out prompts: measured rounds per prompt, and what they add up to.

    rows = measure(runner, drafters, prompts, temperature=1.0, ...)       # one AcceptanceRow per prompt and drafter
    summary = summarize(rows)                                             # tau, its interval, by position, by shape

tau (acceptance length) = tokens emitted per target forward pass = 1 + accepted / forwards; the prompt's own forward
is not counted. Its 95 % interval is a bootstrap over prompts, since tokens of one answer are not independent.
`tau_of_drafts` counts only forwards that had a draft to verify, which is what servers' counters show for n-gram.
An answer loops when a pattern of 1 to 13 tokens repeats without a break over at least 32 tokens.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_ops.decoding.decode import Answer, decode
from model_ops.decoding.drafters import Drafter, NgramDrafter
from model_ops.decoding.incremental import IncrementalModel
from model_ops.decoding.ngram import replay
from model_ops.decoding.prompts import Prompt

LONGEST_PATTERN = 13
LOOP_TOKENS = 32
RESAMPLES = 2_000


@dataclass(frozen=True)
class AcceptanceRow:
    """One prompt under one drafter (`none`: the target alone) at one temperature."""

    drafter: str
    temperature: float
    row_id: str
    prompt_shape: str
    tokens: int
    finish_reason: str
    looping: bool
    forwards: int
    drafts: int
    drafted: int
    accepted: int
    accepted_at: list[int]


@dataclass(frozen=True)
class Measured:
    """All rows of one temperature, the answers' speed by drafter, and how many greedy texts equal the target's own."""

    rows: list[AcceptanceRow]
    tokens_per_second: dict[str, float]
    identical: dict[str, float]


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether a pattern of at most 13 tokens repeats without a break over 32 tokens or more."""
    ids = np.asarray(tokens)
    for period in range(1, LONGEST_PATTERN + 1):
        same = ids[period:] == ids[:-period] if len(ids) > period else np.zeros(0, bool)
        run = 0
        for equal in same.tolist():
            run = run + 1 if equal else 0
            if run + period >= LOOP_TOKENS:
                return True
    return False


def measure(runner: IncrementalModel, drafters: dict[str, Drafter], prompts: Sequence[Prompt], *,
            eos_ids: Collection[int], temperature: float, max_new_tokens: int, num_speculative_tokens: int,
            batch_size: int, seed: int) -> Measured:
    """The target alone, then with each drafter, over the same prompts and the same uniforms.

    The n-gram drafter proposes surely, so its text is the target's own: it is replayed over that text instead of
    decoded again (exactly what decoding would count).
    """
    ids, row_ids = [prompt.ids for prompt in prompts], [prompt.row_id for prompt in prompts]
    options = {"eos_ids": eos_ids, "temperature": temperature, "batch_size": batch_size, "seed": seed}
    started_s = time.monotonic()
    # K tokens more than asked: the replay's last round may reach past the limit, as the decoder's does
    longer = decode(runner, ids, row_ids, max_new_tokens=max_new_tokens + num_speculative_tokens, **options)
    speed = {"none": sum(len(answer.tokens) for answer in longer) / (time.monotonic() - started_s)}
    alone = [_cut(answer, max_new_tokens) for answer in longer]
    rows = [_row("none", temperature, prompt, answer, answer) for prompt, answer in zip(prompts, alone, strict=True)]
    identical = {}
    for name, drafter in drafters.items():
        if isinstance(drafter, NgramDrafter):
            for prompt, text, answer in zip(prompts, longer, alone, strict=True):
                counts = Answer([], "length", *replay(prompt.ids, text.tokens, num_speculative_tokens, max_new_tokens))
                rows.append(_row(name, temperature, prompt, answer, counts))
            continue
        started_s = time.monotonic()
        answers = decode(runner, ids, row_ids, max_new_tokens=max_new_tokens, drafter=drafter,
                         num_speculative_tokens=num_speculative_tokens, **options)
        speed[name] = sum(len(answer.tokens) for answer in answers) / (time.monotonic() - started_s)
        rows += [_row(name, temperature, prompt, answer, answer)
                 for prompt, answer in zip(prompts, answers, strict=True)]
        if temperature == 0:
            same = [with_it.tokens == without.tokens for with_it, without in zip(answers, alone, strict=True)]
            identical[name] = float(np.mean(same))
    return Measured(rows, speed, identical)


def summarize(rows: Sequence[AcceptanceRow], seed: int = 0) -> dict[str, Any]:
    """Totals over rows of one drafter and temperature: tau with its interval, by position and by prompt_shape."""
    forwards = np.array([row.forwards for row in rows], dtype=np.float64)
    accepted = np.array([row.accepted for row in rows], dtype=np.float64)
    drafts = sum(row.drafts for row in rows)
    drafted = sum(row.drafted for row in rows)
    low, high = bootstrap_tau(forwards, accepted, seed)
    positions = np.array([row.accepted_at for row in rows], dtype=np.float64).sum(axis=0)
    shapes: dict[str, list[AcceptanceRow]] = {}
    for row in rows:
        shapes.setdefault(row.prompt_shape, []).append(row)
    return {
        "prompts": len(rows),
        "tokens": sum(row.tokens for row in rows),
        "forwards": int(forwards.sum()),
        "drafts": drafts,
        "drafted": drafted,
        "accepted": int(accepted.sum()),
        "tau": tau_of(forwards.sum(), accepted.sum()),
        "tau_low": low,
        "tau_high": high,
        "tau_of_drafts": tau_of(drafts, accepted.sum()),
        "acceptance_rate": float(accepted.sum() / drafted) if drafted else 0.0,
        "accepted_by_position": [float(count / max(1.0, forwards.sum())) for count in positions],
        "tau_by_prompt_shape": {
            shape: {"prompts": len(members),
                    "tau": tau_of(sum(row.forwards for row in members), sum(row.accepted for row in members))}
            for shape, members in sorted(shapes.items())
        },
        "looping_share": float(np.mean([row.looping for row in rows])),
    }


def tau_of(forwards: float, accepted: float) -> float:
    """Acceptance length: 1 + accepted / forwards; 1 where nothing was verified."""
    return 1 + float(accepted) / float(forwards) if forwards else 1.0


def bootstrap_tau(forwards: np.ndarray, accepted: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """95 % interval of tau: prompts drawn with replacement, 2.5 and 97.5 percentiles of the ratio of sums."""
    if not len(forwards) or not forwards.sum():
        return 1.0, 1.0
    draws = np.random.default_rng(seed).integers(0, len(forwards), (RESAMPLES, len(forwards)))
    totals = forwards[draws].sum(axis=1)
    ratios = 1 + np.divide(accepted[draws].sum(axis=1), totals, out=np.zeros(RESAMPLES), where=totals > 0)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def _cut(answer: Answer, max_new_tokens: int) -> Answer:
    if len(answer.tokens) <= max_new_tokens:
        return Answer(answer.tokens, answer.finish_reason, max(0, len(answer.tokens) - 1))
    return Answer(answer.tokens[:max_new_tokens], "length", max_new_tokens - 1)


def _row(drafter: str, temperature: float, prompt: Prompt, text: Answer, counts: Answer) -> AcceptanceRow:
    return AcceptanceRow(drafter, temperature, prompt.row_id, prompt.prompt_shape, len(text.tokens), text.finish_reason,
                         is_looping(text.tokens), counts.forwards, counts.drafts, counts.drafted, counts.accepted,
                         counts.accepted_at)
