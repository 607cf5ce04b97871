"""Batches of rollouts: documents of a group, and what each sampled token brings to the loss.

Rollouts of one prompt are branches of one document, so that the prompt is computed once; where a family does not allow that,
or a document would grow past `most_tokens`, they are further documents."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from model_ops.answers import Rollout, Tokens
from model_ops.documents import Branch, Document, to_batches
from model_ops.tensors import Batch

NO_ROLLOUT = -1
Numbers = Mapping[str, tuple[float, float]]
"""Name of a number of a step -> (sum, count) of its mean."""


@dataclass(frozen=True, kw_only=True)
class RolloutBatch(Batch):
    """A batch of rollouts. Its labels are the sampled tokens that are learnt."""

    sampler: Float[Tensor, " tokens"] = field(metadata={"padding": 0})
    """Log-probability of the label by the sampler."""
    reference: Float[Tensor, " tokens"] = field(metadata={"padding": 0})
    """Log-probability of the label by the model before this training; 0 where nothing asks for it."""
    advantages: Float[Tensor, " tokens"] = field(metadata={"padding": 0})
    scales: Float[Tensor, " tokens"] = field(metadata={"padding": 0})
    """What the value of the label is multiplied by in the loss."""
    shares: Float[Tensor, " tokens"] = field(metadata={"padding": 0})
    """What the label counts in the denominator of the loss, with its part of the groups that teach nothing. 0 in a step without
    anything to learn."""
    nll: Float[Tensor, " tokens"] = field(metadata={"padding": 0})
    """What the label's negative log-probability is multiplied by in the loss; above 0 in answers that passed."""
    ages: Int[Tensor, " tokens"] = field(metadata={"padding": 0})
    """Optimizer steps since the weights that sampled the label."""
    owners: Int[Tensor, " tokens"] = field(metadata={"padding": NO_ROLLOUT})
    """Number of the label's rollout in the log."""
    numbers: Numbers = field(default_factory=dict)
    """What was measured of the round, to be logged with the step."""


@dataclass(frozen=True)
class LearntRollout:
    """A rollout with its advantage. scale, share: of each of its tokens (RolloutBatch)."""

    rollout: Rollout
    number: int
    advantage: float
    scale: float
    share: float
    step: int = 0
    """Optimizer steps before the one that learns it."""
    passed: bool = False


def nll_weight(learnt: Sequence[LearntRollout], weight: float) -> float:
    """What -log p of each token of the answers that passed counts in the sum of a step's loss, so that their mean is added with
    this weight to the loss, which is divided by all shares: the positive-example loss of VAPO, arXiv 2504.05118."""
    tokens = sum(int(each.rollout.sampled.sum()) for each in learnt if each.passed)
    shares = sum(each.share * int(each.rollout.sampled.sum()) for each in learnt)
    return weight * shares / tokens if tokens else 0.0


def group_documents(
    row_id: str, learnt: Sequence[LearntRollout], shares: bool, most_tokens: int, nll: float = 0.0
) -> Iterator[Document]:
    """Documents of the rollouts of one prompt, which keep their order. shares: whether branches may continue a prompt. nll: of
    nll_weight."""

    def prompt_of(each: LearntRollout) -> bytes:
        return each.rollout.prompt.tobytes()

    for _, of_prompt in groupby(sorted(learnt, key=prompt_of), key=prompt_of):
        part: list[LearntRollout] = []
        tokens = 0
        for each in of_prompt:
            more = len(each.rollout.tokens) + 1
            if part and (not shares or tokens + more > most_tokens):
                yield _document(row_id, part, nll)
                part, tokens = [], 0
            tokens += more if part else len(each.rollout.prompt) + more
            part.append(each)
        yield _document(row_id, part, nll)


def nothing_learnt(row_id: str, prompt: Tokens) -> Document:
    """A document with one label that counts nothing, for a step without anything to learn."""
    targets = np.arange(len(prompt)) == len(prompt) - 1
    zeros = np.zeros(len(prompt), np.float32)
    streams = dict.fromkeys(("sampler", "reference", "advantages", "scales", "shares", "nll"), zeros)
    owners = np.where(np.roll(targets, -1), 0, NO_ROLLOUT)
    return Document(row_id, prompt, targets, {**streams, "ages": np.zeros(len(prompt), np.int64), "owners": owners})


def rollout_batches(documents: Sequence[Document], batch_tokens: int, numbers: Numbers) -> list[RolloutBatch]:
    """Micro-batches of a step. Each names the same numbers, of which the first one has the values."""
    batches = to_batches(documents, batch_tokens, kind=RolloutBatch)
    silent = dict.fromkeys(numbers, (0.0, 0.0))
    return [replace(batch, numbers=silent if place else numbers) for place, batch in enumerate(batches)]


def _document(row_id: str, learnt: Sequence[LearntRollout], nll: float) -> Document:
    """The trunk is the prompt and its first rollout; each other rollout is a branch, which begins with the prompt's last
    token."""
    prompt = learnt[0].rollout.prompt
    last = prompt[-1:]
    names = ("targets", "sampler", "advantages", "scales", "shares", "nll", "ages", "owners")
    ids, streams = list[np.ndarray](), {name: list[np.ndarray]() for name in names}
    for place, each in enumerate(learnt):
        rollout, context = each.rollout, last if place else prompt
        ids += [context, rollout.tokens]
        before = len(context)
        of_tokens = {
            "targets": rollout.sampled,
            "sampler": rollout.log_probs,
            "advantages": np.full(len(rollout.tokens), each.advantage),
            "scales": np.full(len(rollout.tokens), each.scale),
            "shares": np.full(len(rollout.tokens), each.share),
            "nll": np.full(len(rollout.tokens), nll * each.passed),
            "ages": np.where(rollout.sampled, each.step - rollout.versions, 0),
            "owners": np.where(rollout.sampled, each.number, NO_ROLLOUT),
        }
        for name, values in of_tokens.items():
            streams[name] += [np.full(before, NO_ROLLOUT if name == "owners" else 0, np.asarray(values).dtype), values]
    whole = {name: np.concatenate(parts) for name, parts in streams.items()}
    targets = whole.pop("targets").astype(bool)
    # a position's label is the next token, so its streams are those of the next token
    shifted = {name: np.roll(values, -1) for name, values in whole.items()}
    kinds = {name: np.int64 if name in ("ages", "owners") else np.float32 for name in shifted}
    branches = tuple(Branch(len(prompt) - 1, len(each.rollout.tokens) + 1) for each in learnt[1:])
    return Document(
        row_id,
        np.concatenate(ids),
        targets,
        {
            **{name: values.astype(kinds[name]) for name, values in shifted.items()},
            "reference": np.zeros(len(targets), np.float32),
        },
        branches,
    )
