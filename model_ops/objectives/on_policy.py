"""Steps of a distillation whose answers the student itself samples (GKD, Agarwal et al., arXiv 2306.13649, algorithm 1).

A sampled step takes the documents that the plan has for it. Of each, one answer is drawn; the text before it is the prompt, the
student answers it with its present weights, and only the new answer is learnt: the teacher's distribution at every token that
the student chose. What the student does wrong is so corrected where it goes wrong, which no logged text shows.

Which steps are sampled, which answers are drawn and every random number follow from seed, step and row, so a run that was
stopped and one that was not sample the same text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from model_ops.answers import Engine, Tokens
from model_ops.documents import Document, PackedPlan, to_batches
from model_ops.objectives.on_policy_settings import OnPolicySettings
from model_ops.tensors import Batch


@dataclass(frozen=True)
class SampledBatch(Batch):
    """A batch of answers that the student sampled: they show where to teach, not what to say."""


class OnPolicyPlan:
    """A plan of packed documents, some of whose steps hold the student's own answers. longest: tokens of prompt and answer."""

    def __init__(self, plan: PackedPlan, engine: Engine, settings: OnPolicySettings, longest: int):
        self.plan, self.engine, self.settings, self.longest = plan, engine, settings, longest
        self._sampled = sampled_steps(len(plan), settings, plan.seed)

    def __len__(self) -> int:
        return len(self.plan)

    def step(self, index: int, rank: int = 0, ranks: int = 1) -> Sequence[Batch]:
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
        self.engine.sync(index)
        answers = self.engine.sample(asked, names, self.plan.seed)
        documents = [
            answered(name, prompt, answer.tokens[: self.longest - len(prompt)])
            for name, prompt, answer in zip(names, asked, answers, strict=True)
        ]
        if not documents:
            return self.plan.step(index, rank, ranks)
        return to_batches(documents, self.plan.micro_batch_tokens, kind=SampledBatch)

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


def answered(name: str, prompt: Int[np.ndarray, " tokens"], answer: Tokens) -> Document:
    """The document of a prompt and its sampled answer, whose tokens are the targets."""
    ids = np.concatenate([prompt, answer.astype(prompt.dtype)])
    return Document(name, ids, np.arange(len(ids)) >= len(prompt))
