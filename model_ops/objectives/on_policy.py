"""Steps of a distillation whose answers the student itself samples (GKD, Agarwal et al., arXiv 2306.13649, algorithm 1).

    plan = OnPolicyPlan(packed_plan, StudentSampler(student, eos_ids, settings), settings)        # a StatefulSource

A sampled step takes the documents that the plan has for it. Of each, one answer is drawn; the text before it is the prompt, the
student answers it with its present weights, and only the new answer is learnt: the teacher's distribution at every token that
the student chose. What the student does wrong is so corrected where it goes wrong, which no logged text shows.

Which steps are sampled, which answers are drawn and every random number follow from seed, step and row, so a run that was
stopped and one that was not sample the same text.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import nn

from model_ops.adapters import merged_weights
from model_ops.decoding import Runner, decode, decoding_dtype, new_runner, runs_fast
from model_ops.documents import Document, PackedPlan, to_batches
from model_ops.families import attention_with_cache, stays_float32
from model_ops.objectives.on_policy_settings import OnPolicySettings
from model_ops.objectives.sampled_pair_settings import SampledPairSettings
from model_ops.tensors import Batch

Sampler = Callable[[Sequence[Sequence[int]], Sequence[str], int], list[list[int]]]
"""(prompts, names, seed) -> the answers' tokens; a name decides its answer's random numbers."""


@dataclass(frozen=True)
class SampledBatch(Batch):
    """A batch of answers that the student sampled: they show where to teach, not what to say."""


class OnPolicyPlan:
    """A plan of packed documents, some of whose steps hold the student's own answers. longest: tokens of prompt and answer."""

    def __init__(self, plan: PackedPlan, sampler: Sampler, settings: OnPolicySettings, longest: int):
        self.plan, self.sampler, self.settings, self.longest = plan, sampler, settings, longest
        self._sampled = sampled_steps(len(plan), settings, plan.seed)

    def __len__(self) -> int:
        return len(self.plan)

    def step(self, index: int, rank: int = 0, ranks: int = 1) -> list[Batch]:
        """The plan's own micro-batches, or those of the student's answers."""
        if index not in self._sampled:
            return self.plan.step(index, rank, ranks)
        generator = np.random.default_rng((self.plan.seed, index, 2))
        asked = [
            drawn
            for drawn in (drawn_prompt(document, generator) for document in self.plan.documents_of(index))
            if drawn is not None and len(drawn) < self.longest
        ]
        names = [f"{index}:{place}" for place in range(len(asked))]
        answers = self.sampler([prompt.tolist() for prompt in asked], names, self.plan.seed)
        documents = [
            answered(name, prompt, answer[: self.longest - len(prompt)])
            for name, prompt, answer in zip(names, asked, answers, strict=True)
        ]
        if not documents:
            return self.plan.step(index, rank, ranks)
        return to_batches(documents, self.plan.micro_batch_tokens, SampledBatch)

    def heaviest(self, rank: int = 0, ranks: int = 1) -> Batch:
        """The plan's heaviest micro-batch; sampled ones are cut at the same number of tokens."""
        return self.plan.heaviest(rank, ranks)

    def state(self) -> dict[str, Any]:
        """Nothing: a step follows from its index and the student's weights."""
        return {}

    def resume(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


def sampled_steps(steps: int, settings: OnPolicySettings, seed: int) -> frozenset[int]:
    """The steps that the student answers: of those after `after`, each with probability `share`."""
    first = round(steps * settings.after)
    drawn = np.random.default_rng((seed, 3)).random(steps)
    return frozenset(index for index in range(first, steps) if drawn[index] < settings.share)


def drawn_prompt(document: Document, generator: np.random.Generator) -> Int[np.ndarray, " tokens"] | None:
    """The tokens before one of the document's answers; None if it has none."""
    starts = list(answer_starts(document))
    if not starts:
        return None
    at, begin, stop = starts[int(generator.integers(len(starts)))]
    return np.concatenate([document.input_ids[:at], document.input_ids[begin:stop]])


def answer_starts(document: Document) -> Iterator[tuple[int, int, int]]:
    """For each answer (a run of targets): (tokens of the trunk before its segment, first token of the segment, first of the
    answer)."""
    begin = 0
    for at, length in document.segments:
        targets = document.targets[begin : begin + length]
        for place in np.flatnonzero(targets[1:] & ~targets[:-1]) + 1:
            yield at, begin, begin + int(place)
        begin += length


def answered(name: str, prompt: Int[np.ndarray, " tokens"], answer: Sequence[int]) -> Document:
    """The document of a prompt and its sampled answer, whose tokens are the targets."""
    ids = np.concatenate([prompt, np.asarray(answer, dtype=prompt.dtype)])
    return Document(name, ids, np.arange(len(ids)) >= len(prompt))


class StudentSampler:
    """Samples answers with a copy of the student, refreshed at each call, its adapters merged, in the dtype and with the caches
    of decoding."""

    def __init__(self, student: nn.Module, eos_ids: Collection[int], settings: OnPolicySettings | SampledPairSettings):
        self.student, self.eos_ids, self.settings = student, frozenset(eos_ids), settings
        self._twin: nn.Module | None = None
        self._runner: Runner | None = None

    def __call__(self, prompts: Sequence[Sequence[int]], names: Sequence[str], seed: int) -> list[list[int]]:
        answers = decode(
            self._refreshed(),
            prompts,
            names,
            eos_ids=self.eos_ids,
            temperature=self.settings.temperature,
            max_new_tokens=self.settings.max_new_tokens,
            batch_size=self.settings.batch_size,
            seed=seed,
        )
        return [answer.tokens for answer in answers]

    @torch.no_grad()
    def _refreshed(self) -> Runner:
        """The runner with the student's present weights. A fast one is built again, because it holds copies of some weights."""
        twin = self._twin = self._twin or decoding_twin(self.student)
        left, own = twin.state_dict(), self.student.state_dict()
        for name, weight in merged_weights(self.student):
            left.pop(name).copy_(weight)
        for name, tensor in left.items():
            tensor.copy_(own[name])
        if self._runner is None or runs_fast(twin.config):
            self._runner = new_runner(twin)
        return self._runner


def decoding_twin(student: nn.Module) -> nn.Module:
    """A model of the student's shape for decoding, without its values."""
    config, first = copy.deepcopy(student.config), next(student.parameters())
    dtype = decoding_dtype(first.device, sum(parameter.numel() for parameter in student.parameters()))
    config._attn_implementation = attention_with_cache(config)
    with first.device:
        twin = type(student)(config)
    for name, parameter in twin.named_parameters():
        if not stays_float32(twin, name):
            parameter.data = parameter.data.to(dtype)
    return twin.eval().requires_grad_(False)
