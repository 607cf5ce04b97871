"""Batched decoding with a KV cache: plain, or speculative with exact verification of chain drafts. Acceptance is counted as in
vLLM's scheduler: prefill gives the first token, every later forward is a round, and all accepted drafts of a round count, also
past the answer's end. vLLM counts only rounds with a draft, as `Completion.drafts` does."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from model_ops.decoding.drafters import Drafter, Proposal
from model_ops.decoding.penalties import NO_PENALTIES, Penalties, TokenHistory, penalized
from model_ops.decoding.runner import Runner
from model_ops.decoding.sampling import (
    ACCEPT,
    DRAFT,
    FINAL,
    NONE,
    Truncation,
    choose,
    row_uniforms,
    truncated,
    verify_draws,
    verify_matches,
)
from model_ops.jobs import ModelError
from model_ops.machine import free_device_memory

COMPACT_BELOW = {"cpu": 0.8}
"""A batch is compacted when at most this share of its rows is unfinished: copying caches costs about one forward."""
COMPACT_BELOW_ELSEWHERE = 0.5
"""The same on an accelerator, where finished rows cost little and another number of rows needs a graph of its own."""


@dataclass
class Completion:
    """The answer to one prompt, with counts of its drafts."""

    tokens: list[int]
    """Token ids up to the limit or the end-of-text token, which is included."""
    beyond: list[int] = field(default_factory=list)
    """Token ids after the answer's end: the rest of the last round, or as many as requested."""
    log_probs: list[float] = field(default_factory=list)
    """Of each of `tokens`, where they are asked for: float32, by the logits divided by the temperature (at temperature 0 by the
    logits), before truncation."""
    finish_reason: Literal["stop", "length"] = "length"
    forwards: int = 0
    """Rounds: target forward passes after prefill."""
    drafts: int = 0
    """Rounds with at least one drafted token."""
    drafted: int = 0
    accepted_at: list[int] = field(default_factory=list)
    """Number of rounds that accepted the drafts up to and including position 0, 1, ..., K-1."""

    @property
    def accepted(self) -> int:
        return sum(self.accepted_at)


def decode(
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    row_ids: Sequence[str],
    *,
    eos_ids: Collection[int],
    temperature: float,
    max_new_tokens: int,
    drafter: Drafter | None = None,
    num_speculative_tokens: int = 0,
    batch_size: int = 64,
    seed: int = 0,
    beyond: int = 0,
    on_batch: Callable[[int], None] | None = None,
    truncation: Truncation = NONE,
    penalties: Penalties = NO_PENALTIES,
    on_tokens: Callable[[int, list[int], int], None] | None = None,
    on_answer: Callable[[int, Completion], None] | None = None,
    log_probs: bool = False,
    draft_cost: float | None = None,
) -> list[Completion]:
    """Answers to all prompts, in their order, with or without a drafter. Penalties act at any temperature, truncation
    (top-p, top-k, min-p) where tokens are sampled.

    beyond: number of tokens to decode after each answer's end (for `lookup.replay`); they are not counted.
    on_batch is called after each batch with the number of finished rows. on_tokens is called after each round with a prompt's
    number, its new tokens, and how many of them, the first ones, are accepted drafts; what it raises ends the decoding.
    on_answer is called with a prompt's number and its answer as soon as that has ended.
    log_probs: whether the answers have the log-probability of each token.
    draft_cost: of one drafted token, as a share of the target's forward pass for it; then each round drafts as many tokens as
    pay (`DraftLength`), at most num_speculative_tokens. None: always num_speculative_tokens.

    Raises ModelError for an empty prompt or one that leaves no room for an answer within the target's positions."""
    room = runner.max_positions
    for row_id, prompt in zip(row_ids, prompts, strict=True):
        if not 0 < len(prompt) < room:
            raise ModelError(f"prompt of row {row_id} has {len(prompt)} tokens; the target takes 1 to {room - 1}")
    answers: dict[int, Completion] = {}
    per_batch, done = cost_of_rounds(torch.device(runner.device).type, max_new_tokens), 0
    for rows in batches([len(prompt) for prompt in prompts], batch_size, per_batch):
        batch = _Batch(
            runner,
            drafter,
            [prompts[row] for row in rows],
            [row_ids[row] for row in rows],
            frozenset(eos_ids),
            temperature,
            max_new_tokens,
            num_speculative_tokens,
            seed,
            beyond,
            truncation,
            penalties,
            None if on_tokens is None else lambda row, *said, rows=rows: on_tokens(rows[row], *said),
            None if on_answer is None else lambda row, answer, rows=rows: on_answer(rows[row], answer),
            log_probs,
            draft_cost,
        )
        batch.run()
        runner.take_back(batch.cache)
        for row, answer in zip(rows, batch.answers, strict=True):
            answers[row] = answer
        if on_batch is not None:
            done += len(rows)
            on_batch(done)
    return [answers[row] for row in range(len(prompts))]


class _Batch:
    """Rows that are decoded together. `live` maps the rows of the tensors to the rows of `answers`."""

    def __init__(
        self,
        runner,
        drafter,
        prompts,
        row_ids,
        eos_ids,
        temperature,
        max_new_tokens,
        drafts,
        seed,
        beyond,
        truncation,
        penalties,
        on_tokens,
        on_answer,
        log_probs,
        draft_cost,
    ):
        self.truncation, self.penalties, self.on_tokens, self.log_probs = truncation, penalties, on_tokens, log_probs
        self.on_answer = on_answer
        self.runner, self.drafter, self.prompts = runner, drafter, prompts
        self.eos_ids, self.temperature = eos_ids, temperature
        self.drafts = drafts if drafter is not None else 0
        pays = drafter is not None and draft_cost is not None
        self.length = DraftLength(drafts, torch.device(runner.device).type, draft_cost) if pays else None
        room = runner.max_positions
        self.limits = [min(max_new_tokens, room - len(prompt)) for prompt in prompts]
        self.answers = [Completion([], accepted_at=[0] * self.drafts) for _ in prompts]
        self.beyond = beyond
        self.ended = [False] * len(prompts)
        self.finished = [False] * len(prompts)
        """Whether the answer has ended and the requested tokens beyond its end are decoded."""
        self.live = list(range(len(prompts)))
        self.held = [len(prompt) for prompt in prompts]
        """Tokens of each live row in the cache."""
        self.uniforms = row_uniforms(row_ids, max_new_tokens + max(self.drafts, beyond) + 1, seed).to(runner.device)
        self.cache = runner.new_cache(len(prompts))
        self.history: TokenHistory | None = None

    def run(self) -> None:
        last = self._prefill()
        while last is not None:
            last = self._round(last)

    def _prefill(self) -> Tensor | None:
        """Runs the prompts and emits each row's first token."""
        lengths = torch.tensor([len(prompt) for prompt in self.prompts], device=self.runner.device)
        longest = max(self.held)
        ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in self.prompts], device=self.runner.device)
        capture = self.drafter.capture if self.drafter is not None else ()
        if ids.is_cuda:
            most = longest + max(self.limits) + self.beyond + 2 * self.drafts + 1
            self.cache.hold_room(most, free_device_memory(ids.device))
        hidden, captured = self.runner.forward(ids, self.cache, capture)
        self.cache.lengths += lengths
        self.cache.longest_has(longest)
        each = torch.arange(len(self.prompts), device=ids.device)
        logits = self.runner.logits(hidden[each, lengths - 1])
        if logits.isnan().any():
            raise ModelError(
                "the model's logits are not numbers (NaN), so it has no answer: its weights hold values that are "
                "not finite, or overflow in its dtype; train or copy the model again"
            )
        if self.penalties != NO_PENALTIES:
            self.history = TokenHistory(self.prompts, logits.shape[-1], logits.device)
            logits = penalized(logits[:, None], self.penalties, self.history).squeeze(1)
        first = choose(logits, self.temperature, self.uniforms[:, 0, FINAL], self.truncation)
        if self.history is not None:
            self.history.add(first[:, None], torch.ones_like(first))
        if self.drafter is not None:
            self.drafter.begin(self.prompts, first, captured)
        logs = self._logs_of(logits[:, None], first[:, None])
        for row, token, log in zip(self.live, first.tolist(), logs.tolist(), strict=True):
            self._emit(row, [token], log)
        return self._compact(first)

    def _round(self, last: Tensor) -> Tensor | None:
        """One forward of the target over each row's last token and its drafts."""
        out = torch.tensor(
            [len(self.answers[row].tokens) + len(self.answers[row].beyond) for row in self.live], device=last.device
        )
        drafts = self.drafts if self.length is None else self.length.best(len(last))
        # finished rows still in the batch stay at their last position; their outputs are not read
        offsets = torch.arange(max(1, drafts) + 1, device=last.device)
        places = (out[:, None] + offsets).clamp_(max=self.uniforms.shape[1] - 1)
        uniforms = self.uniforms.gather(1, places[:, :, None].expand(-1, -1, 3))
        proposal = None
        ids = last[:, None]
        if self.drafts:
            # a drafter's cache goes on by a draft, also where none is verified
            proposal = self.drafter.propose(max(1, drafts), self.temperature, uniforms[:, :-1, DRAFT])
            proposal = proposal if drafts else None
        if proposal is not None:
            ids = torch.cat((ids, proposal.tokens), dim=1)
        uniforms = uniforms[:, : ids.shape[1]]
        capture = self.drafter.capture if self.drafter is not None else ()
        hidden, captured = self.runner.forward(ids, self.cache, capture)
        logits = self.runner.logits(hidden)
        if self.history is not None:
            logits = penalized(logits, self.penalties, self.history, ids[:, 1:])
        accepted, token = self._verify(logits, proposal, uniforms)
        emitted = torch.cat((ids[:, 1:], token[:, None]), dim=1)
        emitted.scatter_(1, accepted[:, None], token[:, None])
        self.cache.lengths += accepted + 1
        if self.history is not None:
            self.history.add(emitted, accepted + 1)
        if self.drafter is not None:
            self.drafter.advance(emitted, accepted + 1, captured)
        drafted = proposal.valid.sum(dim=1) if proposal is not None else torch.zeros_like(accepted)
        logs = self._logs_of(logits, emitted)  # before the round's only wait for the device, which is the next line
        read = torch.cat((emitted, accepted[:, None] + 1, drafted[:, None]), dim=1).tolist()
        self.held = [tokens + count for tokens, (*_, count, _) in zip(self.held, read, strict=True)]
        if self.length is not None and proposal is not None:
            self.length.see(drafts, [more - 1 for *_, more, _ in read])
        self.cache.longest_has(max(self.held))
        for row, (*tokens, count, proposed), log in zip(self.live, read, logs.tolist(), strict=True):
            if self.finished[row]:
                continue
            if not self.ended[row]:
                answer = self.answers[row]
                answer.forwards += 1
                answer.drafts += proposed > 0
                answer.drafted += proposed
                for position in range(count - 1):
                    answer.accepted_at[position] += 1
            self._emit(row, tokens[:count], log[:count])
        return self._compact(token)

    def _logs_of(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Log-probability of each token [rows, tokens] by its logits; of no token where nobody asked."""
        if not self.log_probs:
            return torch.empty(len(tokens), 0)
        scaled = logits / (self.temperature or 1.0)
        return scaled.gather(-1, tokens[:, :, None]).squeeze(-1) - scaled.logsumexp(dim=-1)

    def _verify(self, logits: Tensor, proposal: Proposal | None, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        if proposal is None or self.temperature == 0 or proposal.probabilities is None:
            choices = choose(logits, self.temperature, uniforms[:, :, FINAL], self.truncation)
            if proposal is None:
                return torch.zeros_like(choices[:, 0]), choices[:, 0]
            return verify_matches(choices, proposal.tokens, proposal.valid)
        target = truncated((logits / self.temperature).softmax(dim=-1), self.truncation)
        if self.truncation != NONE:
            target = target / target.sum(dim=-1, keepdim=True)
        return verify_draws(
            target,
            proposal.tokens,
            proposal.probabilities,
            proposal.target_ids,
            proposal.draft_index,
            uniforms[:, :-1, ACCEPT],
            uniforms[:, :, FINAL],
        )

    def _emit(self, row: int, tokens: list[int], logs: list[float]) -> None:
        """Adds a round's tokens to an answer up to its end, and the rest to `beyond`. logs: of the tokens, or none."""
        answer = self.answers[row]
        said = len(answer.tokens)
        for index, token in enumerate(tokens):
            if self.ended[row]:
                answer.beyond.extend(tokens[index:])
                break
            answer.tokens.append(token)
            if token in self.eos_ids:
                answer.finish_reason, self.ended[row] = "stop", True
            elif len(answer.tokens) >= self.limits[row]:
                self.ended[row] = True
        answer.log_probs += logs[: len(answer.tokens) - said]
        self.finished[row] = self.ended[row] and len(answer.beyond) >= self.beyond
        if self.on_tokens is not None and (new := answer.tokens[said:]):
            self.on_tokens(row, new, min(len(tokens) - 1, len(new)))
        if self.on_answer is not None and self.ended[row] and len(answer.tokens) > said:
            self.on_answer(row, answer)

    def _compact(self, last: Tensor) -> Tensor | None:
        """Drops finished rows if there are enough of them; returns None if all are finished."""
        running = [place for place, row in enumerate(self.live) if not self.finished[row]]
        if not running:
            return None
        if len(running) > COMPACT_BELOW.get(last.device.type, COMPACT_BELOW_ELSEWHERE) * len(self.live):
            return last
        rows = torch.tensor(running, device=last.device)
        self.live, self.held = ([each[place] for place in running] for each in (self.live, self.held))
        self.uniforms = self.uniforms[rows]
        self.cache.keep(rows)
        if self.history is not None:
            self.history.keep(rows)
        if self.drafter is not None:
            self.drafter.keep(rows)
        return last[rows]


class DraftLength:
    """How many tokens a round drafts: as many as give the most tokens for its cost, by the acceptance of earlier rounds. A
    round of n rows with K drafts costs ROUND_TOKENS + n (K + 1), and each draft `cost` times a round without any; it gives each
    row 1 token, and one more for each place up to which its drafts were accepted. So a full batch drafts less than its last
    rows. most: tokens."""

    REMEMBERS, PRIOR, HOPES = 200.0, 8.0, 0.7
    """Rows whose last drafts count; rows that the hope counts for; the acceptance rate that a batch begins with."""

    def __init__(self, most: int, device: str, cost: float):
        self._round, self._cost = ROUND_TOKENS.get(device, ROUND_TOKENS_ELSEWHERE), cost
        self._hoped = self.HOPES ** np.arange(1, most + 1)
        self._rows, self._accepted = np.zeros(most), np.zeros(most)

    def best(self, rows: int) -> int:
        """Drafts of the next round."""
        reached = (self._accepted + self.PRIOR * self._hoped) / (self._rows + self.PRIOR)
        tokens = 1 + np.concatenate(([0.0], np.minimum.accumulate(reached).cumsum()))
        drafts = np.arange(len(tokens))
        costs = self._round + rows * (drafts + 1) + np.maximum(drafts, 1) * self._cost * (self._round + rows)
        return int((tokens / costs).argmax())

    def see(self, drafts: int, accepted: Sequence[int]) -> None:
        """Takes in a round with so many drafts. accepted: by row."""
        left = max(0.0, 1 - len(accepted) / self.REMEMBERS)
        self._rows *= left
        self._accepted *= left
        self._rows[:drafts] += len(accepted)
        self._accepted[:drafts] += (np.array(accepted)[:, None] > np.arange(drafts)).sum(axis=0)


ROUND_TOKENS = {"cpu": 60}
"""Prompt tokens that take as long as a round of one row: weights that are read, and overhead. Measured: 62 with a model of 10M
parameters on two cores (8.8 ms a round, 0.14 ms a prompt token). A larger model has a smaller share of overhead."""
ROUND_TOKENS_ELSEWHERE = 500
"""The same number on an accelerator: an estimate from its ratio of arithmetic to memory bandwidth, not measured."""


def cost_of_rounds(device: str, rounds: int) -> int:
    """Prompt tokens that take as long as so many rounds of a batch without rows. device: its type."""
    return rounds * ROUND_TOKENS.get(device, ROUND_TOKENS_ELSEWHERE)


def batches(lengths: Sequence[int], most: int, per_batch: int) -> list[list[int]]:
    """Places of the prompts by batch, longest first; at most `most` in each. per_batch: cost of a batch beside its padded
    prompts, in tokens."""
    order = sorted(range(len(lengths)), key=lambda row: lengths[row], reverse=True)
    longest = np.array([lengths[row] for row in order], dtype=np.int64)
    # of the first prompts: what the best split costs, and where its last batch begins
    least, begins = np.zeros(len(order) + 1, np.int64), [0]
    for end in range(1, len(order) + 1):
        begin = np.arange(max(0, end - most), end)
        costs = least[begin] + (end - begin) * longest[begin] + per_batch
        best = int(costs.argmin())
        least[end] = costs[best]
        begins.append(int(begin[best]))
    split, end = [], len(order)
    while end:
        split.append(order[begins[end] : end])
        end = begins[end]
    return split[::-1]
