"""One call of a model, one attempt at a prompt, and who makes them.

    engine.sync(version=12)                                     # takes the policy's present weights
    engine.sample(prompts, names, seed=0)                       # a Sampled for each prompt
    maker.rollouts(asked, ["0:3", "0:7"], engine, seed=0)       # for each prompt a list of Rollout: its group

The same weights, prompts, names and seed, asked together, give the same tokens, so a killed run can continue with the same
rollouts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Float, Int
from transformers import PreTrainedTokenizerBase

from model_ops.graders import Grade
from model_ops.jobs import ModelError
from model_ops.rendering import ChatTemplate, Row, TurnEncoder, Unrenderable


@dataclass(frozen=True)
class SampledPrompt:
    """A prompt as a server renders it."""

    row_id: str
    text: str
    ids: list[int]
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    columns: dict[str, Any]
    """The row's other columns, and what its column `verifier` holds, by name."""

    @property
    def tokens(self) -> Int[np.ndarray, " tokens"]:
        """`ids` as an array."""
        return np.array(self.ids, np.int32)


def read_sampled_prompts(
    dataset: Path, tokenizer: PreTrainedTokenizerBase, longest: int, split: str = "train"
) -> tuple[list[SampledPrompt], dict[str, int]]:
    """The prompts of a split, and counts. longest: tokens of a prompt. Raises ModelError for a file that is not there or cannot
    be read, and if no prompt is left."""
    path, counts = dataset / f"{split}.parquet", Counter[str]()
    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ModelError(f"{path} cannot be read as Parquet: make the dataset again") from error
    template, encoder, prompts = ChatTemplate.of(tokenizer), TurnEncoder(tokenizer), dict[str, SampledPrompt]()
    for record in rows:
        row, columns = _parsed(record, path)
        key = json.dumps([row.messages, row.tools, columns.get("record")], sort_keys=True)
        if key in prompts:
            counts["repeated_prompts"] += 1
            continue
        try:
            text = template.prompt(row, len(row.messages))
        except Unrenderable:
            counts["unrenderable_prompts"] += 1
            continue
        ids = encoder.prompt(text)
        if not 0 < len(ids) <= longest:
            counts["long_prompts"] += 1
            continue
        prompts[key] = SampledPrompt(row.row_id, text, ids, row.messages, row.tools, columns)
    if not prompts:
        left_out = ", ".join(f"{name} {count}" for name, count in counts.items()) or "there are no rows"
        raise ModelError(
            f"{path} has no prompt that leaves room for answers ({left_out}): raise max_length, or lower max_new_tokens"
        )
    return list(prompts.values()), {name: counts[name] for name in ("repeated_prompts", "unrenderable_prompts", "long_prompts")}


def _parsed(record: dict[str, Any], path: Path) -> tuple[Row, dict[str, Any]]:
    """The prompt and the columns beside it. Raises ModelError for text that is no JSON."""
    columns = {name: value for name, value in record.items() if value is not None}
    try:
        messages = json.loads(columns.pop("prompt", None) or columns.pop("messages"))
        tools = json.loads(columns.pop("tools", "null"))
        columns |= {side: json.loads(columns[side])[0] for side in ("chosen", "rejected") if side in columns}
        verifier = json.loads(columns.pop("verifier", "{}"))
        request = json.loads(columns.pop("request", "null"))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ModelError(f"{path}: a column of row {record.get('row_id')} is not JSON text; make the dataset again") from error
    columns |= verifier if isinstance(verifier, dict) else {"verifier": verifier}
    return Row(str(record["row_id"]), messages, tools, request=request, ts=record.get("ts")), columns


Tokens = Int[np.ndarray, "_"]
NOT_SAMPLED = -1
"""Version of a token that no policy sampled."""


class HasAttempt(Protocol):
    """A rollout, or the numbers of one."""

    @property
    def attempt(self) -> int: ...


OfAttempt = TypeVar("OfAttempt", bound=HasAttempt)


class SamplingSettings(Protocol):
    """How answers are sampled. Neither top-p nor penalties: what is learnt must have the sampler's own distribution."""

    @property
    def temperature(self) -> float: ...

    @property
    def max_new_tokens(self) -> int: ...

    @property
    def batch_size(self) -> int:
        """Answers that are sampled at once."""


@dataclass(frozen=True)
class Sampled:
    """What a model answered in one call."""

    tokens: Int[np.ndarray, " tokens"]
    """With the end token, where it ended."""
    log_probs: Float[np.ndarray, " tokens"]
    """float32, of the sampler: of its logits divided by the temperature."""
    version: int
    """Optimizer steps after which the weights were that sampled the first token."""
    ended: bool
    """Whether an end token came before the limit."""
    versions: Int[np.ndarray, " tokens"] | None = None
    """Of each token, where the engine took other weights meanwhile; None: `version`."""

    @property
    def token_versions(self) -> Int[np.ndarray, " tokens"]:
        return np.full(len(self.tokens), self.version) if self.versions is None else self.versions

    def cut(self, most: int) -> Sampled:
        """Its first tokens, as a shorter limit leaves them."""
        versions = None if self.versions is None else self.versions[:most]
        return Sampled(self.tokens[:most], self.log_probs[:most], self.version, False, versions)


@dataclass(frozen=True)
class Rollout:
    """One attempt at a prompt: one answer, or the turns of an episode with what the environment says between them."""

    prompt: Tokens
    """The context before the first sampled token."""
    tokens: Int[np.ndarray, " tokens"]
    """All tokens after the prompt."""
    sampled: Bool[np.ndarray, " tokens"]
    """The tokens that a policy sampled. Only these are learnt."""
    log_probs: Float[np.ndarray, " tokens"]
    """float32, of the sampler; 0 where no policy sampled."""
    versions: Int[np.ndarray, " tokens"]
    """Version of the weights that sampled the token; NOT_SAMPLED for other tokens."""
    ended: bool
    """Whether the attempt came to its end; otherwise a limit cut it."""
    grade: Grade
    attempt: int = 0
    """Number of the attempt among those at the prompt. Rollouts of one attempt have one grade: an attempt has several where the
    chat template rewrites what was said before."""

    @classmethod
    def of(cls, prompt: Tokens, answer: Sampled, grade: Grade, attempt: int = 0) -> Rollout:
        """The rollout of a single answer."""
        whole = np.ones(len(answer.tokens), bool)
        return cls(prompt, answer.tokens, whole, answer.log_probs, answer.token_versions, answer.ended, grade, attempt)


def last_of_attempts(rollouts: Iterable[OfAttempt]) -> list[OfAttempt]:
    """The last rollout of each attempt of a group, which has several where the chat template rewrote what was said."""
    return list({rollout.attempt: rollout for rollout in rollouts}.values())


class Engine(Protocol):
    """What samples: the model in training, or a server."""

    settings: SamplingSettings
    """Read at each call of `sample`."""

    @property
    def exact(self) -> bool:
        """Whether it computes in float32 on a CPU, so that its log-probabilities are the trainer's but for rounding."""

    def sync(self, version: int) -> None:
        """Takes the policy's present weights, which are those after `version` optimizer steps. Raises ModelError if it
        cannot."""

    def sample(self, prompts: Sequence[Tokens], names: Sequence[str], seed: int) -> list[Sampled]:
        """An answer to each prompt. A name decides its answer's random numbers, together with the seed."""


class RolloutMaker(Protocol):
    """Makes graded attempts: one answer to each prompt, or episodes in an environment."""

    answers: int
    """Rollouts of each prompt."""

    def rollouts(
        self, prompts: Sequence[SampledPrompt], names: Sequence[str], engine: Engine, seed: int
    ) -> list[list[Rollout]]:
        """The group of each prompt. names: one for each prompt, unlike those of every other call. Raises ModelError if its
        grader or environment cannot work; a single failure is a Grade without a value."""
