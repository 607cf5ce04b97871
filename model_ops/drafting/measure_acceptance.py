"""Measures acceptance of drafters on held-out prompts, one row per prompt, drafter and temperature; baselines are the target
alone (`none`), n-gram lookup and suffix decoding. The suffix cache starts empty or with past answers, and takes in answers in
the order of the prompts."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from model_ops.decoding import NO_PENALTIES, NONE, Completion, Drafter, Penalties, Prompt, Proposal, Runner, Truncation, decode
from model_ops.drafting.acceptance import AcceptanceRow, is_looping
from model_ops.drafting.drafts import NgramIndex
from model_ops.drafting.suffix import SuffixCache


class LookupIndex(Protocol):
    """Index over prompt and answer of one request."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the answer."""

    def propose(self, count: int) -> list[int]:
        """At most `count` draft tokens; [] if no earlier text matches."""


class DraftCounts(NamedTuple):
    """Counts of drafts, as the fields of `decode.Answer`."""

    forwards: int
    drafts: int
    drafted: int
    accepted_at: list[int]


class LookupDrafter:
    """Drafter with one index per row. open_index creates the index of a request from its prompt's token ids."""

    capture: tuple[int, ...] = ()

    def __init__(self, open_index: Callable[[Sequence[int]], LookupIndex]):
        self.open_index = open_index
        self.indexes: list[LookupIndex] = []
        self.device = torch.device("cpu")

    def begin(self, prompts, first, captured=None) -> None:
        self.indexes, self.device = [self.open_index(prompt) for prompt in prompts], first.device
        for index, token in zip(self.indexes, first.tolist(), strict=True):
            index.extend([token])

    def propose(self, count: int, temperature: float, uniforms: Tensor | None = None) -> Proposal:
        """As Drafter.propose, with as many drafts as the longest proposal has."""
        proposals = [index.propose(count) for index in self.indexes]
        longest = max(map(len, proposals))
        tokens = torch.tensor([proposal + [0] * (longest - len(proposal)) for proposal in proposals], dtype=torch.int64)
        lengths = torch.tensor([len(proposal) for proposal in proposals])
        return Proposal(tokens.to(self.device), (torch.arange(longest) < lengths[:, None]).to(self.device))

    def advance(self, emitted, counts, captured=None) -> None:
        for index, tokens, count in zip(self.indexes, emitted.tolist(), counts.tolist(), strict=True):
            index.extend(tokens[:count])

    def keep(self, rows) -> None:
        self.indexes = [self.indexes[row] for row in rows.tolist()]


def replay(index: LookupIndex, answer: Sequence[int], beyond: Sequence[int], num_speculative_tokens: int) -> DraftCounts:
    """Acceptance of a lookup drafter over an answer that the target gave without it; equal to the decoder's counts. index:
    opened on the prompt. beyond: tokens of the target after the answer's end, which drafts of the last round are verified
    against. An exact count needs num_speculative_tokens of them (`decode(..., beyond=K)`)."""
    text = [*answer, *beyond]
    index.extend(text[:1])
    emitted, forwards, drafts, drafted = min(1, len(answer)), 0, 0, 0
    accepted_at = [0] * num_speculative_tokens
    while emitted < len(answer):
        proposal = index.propose(num_speculative_tokens)
        following = text[emitted : emitted + len(proposal)]
        accepted = 0
        while accepted < len(following) and following[accepted] == proposal[accepted]:
            accepted_at[accepted] += 1
            accepted += 1
        forwards += 1
        drafts += bool(proposal)
        drafted += len(proposal)
        step = text[emitted : emitted + accepted + 1]
        index.extend(step)
        emitted += len(step)
    return DraftCounts(forwards, drafts, drafted, accepted_at)


@dataclass(frozen=True)
class AcceptanceRun:
    """All rows of one temperature, tokens/s by drafter, and the share of greedy texts equal to the target's own."""

    rows: list[AcceptanceRow]
    tokens_per_second: dict[str, float]
    identical: dict[str, float]


def baselines(past_answers: Iterable[Sequence[int]] = ()) -> dict[str, LookupDrafter]:
    """New drafters that need no training: n-gram and suffix. past_answers: token ids of earlier answers of the workload, for
    the suffix cache."""
    cache = SuffixCache()
    for answer in past_answers:
        cache.remember(answer)
    return {"ngram": LookupDrafter(NgramIndex), "suffix": LookupDrafter(cache.open)}


def measure(
    runner: Runner,
    drafters: dict[str, Drafter],
    prompts: Sequence[Prompt],
    *,
    eos_ids: Collection[int],
    temperature: float,
    max_new_tokens: int,
    num_speculative_tokens: int,
    batch_size: int,
    seed: int,
    target_alone: bool = True,
    lengths: Mapping[str, int] | None = None,
    truncation: Truncation = NONE,
    penalties: Penalties = NO_PENALTIES,
) -> AcceptanceRun:
    """Decodes with the target alone, then with each drafter, over the same prompts and random numbers.

    The text with a lookup drafter is the target's own, so its acceptance is counted with `lookup.replay` instead of decoding
    again; the counts equal decoding the prompts one after another.
    lengths: number of drafted tokens of drafters for which it differs from num_speculative_tokens.
    target_alone: False leaves out the rows of the target alone, and does not decode it unless a lookup drafter needs its text.
    """
    ids, row_ids = [prompt.ids for prompt in prompts], [prompt.row_id for prompt in prompts]
    answered = partial(
        decode,
        runner,
        ids,
        row_ids,
        eos_ids=eos_ids,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        seed=seed,
        truncation=truncation,
        penalties=penalties,
    )
    lengths = lengths or {}
    rows: list[AcceptanceRow] = []
    speed: dict[str, float] = {}
    identical: dict[str, float] = {}
    if target_alone or any(isinstance(drafter, LookupDrafter) for drafter in drafters.values()):
        started_s = time.monotonic()
        longest = max([num_speculative_tokens, *(lengths.get(name, 0) for name in drafters)])
        alone = answered(beyond=longest)
        decoded = sum(len(answer.tokens) + len(answer.beyond) for answer in alone)
        speed["none"] = decoded / (time.monotonic() - started_s)
    if target_alone:
        rows += [
            _row("none", temperature, 0, prompt, answer, _counts(answer)) for prompt, answer in zip(prompts, alone, strict=True)
        ]
    for name, drafter in drafters.items():
        drafted = lengths.get(name, num_speculative_tokens)
        if isinstance(drafter, LookupDrafter):
            for prompt, answer in zip(prompts, alone, strict=True):
                counts = replay(drafter.open_index(prompt.ids), answer.tokens, answer.beyond, drafted)
                rows.append(_row(name, temperature, drafted, prompt, answer, counts))
            continue
        started_s = time.monotonic()
        answers = answered(drafter=drafter, num_speculative_tokens=drafted)
        speed[name] = sum(len(answer.tokens) for answer in answers) / (time.monotonic() - started_s)
        rows += [
            _row(name, temperature, drafted, prompt, answer, _counts(answer))
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        if target_alone and temperature == 0:
            same = [with_it.tokens == without.tokens for with_it, without in zip(answers, alone, strict=True)]
            identical[name] = float(np.mean(same))
    return AcceptanceRun(rows, speed, identical)


def _counts(answer: Completion) -> DraftCounts:
    return DraftCounts(answer.forwards, answer.drafts, answer.drafted, answer.accepted_at)


def _row(
    drafter: str, temperature: float, num_speculative_tokens: int, prompt: Prompt, answer: Completion, counts: DraftCounts
) -> AcceptanceRow:
    return AcceptanceRow(
        drafter=drafter,
        temperature=temperature,
        num_speculative_tokens=num_speculative_tokens,
        row_id=prompt.row_id,
        workload=prompt.workload,
        prompt_shape=prompt.prompt_shape,
        prompt_tokens=len(prompt.ids),
        turns=prompt.turns,
        has_system=prompt.has_system,
        has_tools=prompt.has_tools,
        tokens=len(answer.tokens),
        finish_reason=answer.finish_reason,
        looping=is_looping(answer.tokens),
        forwards=counts.forwards,
        drafts=counts.drafts,
        drafted=counts.drafted,
        accepted=sum(counts.accepted_at),
        accepted_at=counts.accepted_at,
    )
