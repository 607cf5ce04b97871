"""The engine that decodes in the training process, with a copy of the model in training.

The copy is refreshed by `sync`, its adapters merged, in the dtype and with the caches of decoding. With a drafter it answers
faster, and its answers have the same distribution and log-probabilities (`model_ops.decoding.sampling`)."""

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from model_ops.adapters import merged_weights
from model_ops.answers.rollout import Sampled, SamplingSettings, Tokens
from model_ops.decoding import Completion, Drafter, Runner, decode, decoding_dtype, new_runner, runs_fast
from model_ops.families import attention_with_cache, stays_float32
from model_ops.parallel import World, whole_tensor


@dataclass(frozen=True)
class RolloutDrafting:
    """What an engine drafts with."""

    open: Callable[[Runner], Drafter]
    """A new drafter for the answers of one call, which depend on no earlier call then."""
    most: int
    """Tokens drafted at a time, at most."""
    cost: float
    """Of a draft, as a share of the target's forward pass of one token."""


class InProcessEngine:
    """An Engine. eos_ids: tokens that end an answer."""

    def __init__(
        self, model: nn.Module, eos_ids: Collection[int], settings: SamplingSettings, drafting: RolloutDrafting | None = None
    ):
        self.model, self.eos_ids, self.settings, self.drafting = model, frozenset(eos_ids), settings, drafting
        self._twin: nn.Module | None = None
        self._runner: Runner | None = None
        self._version = 0

    @property
    def exact(self) -> bool:
        return self.runner.dtype == torch.float32 and torch.device(self.runner.device).type == "cpu"

    @property
    def runner(self) -> Runner:
        """Of the weights of the last `sync`."""
        if self._runner is None:
            raise RuntimeError("the engine has no weights before its first sync")
        return self._runner

    @torch.no_grad()
    def sync(self, version: int) -> None:
        """As Engine.sync. A fast runner is built again, because it holds copies of some weights."""
        twin = self._twin = self._twin or decoding_twin(self.model)
        copy_merged(self.model, twin)
        if self._runner is None or runs_fast(twin.config):
            self._runner = None  # its fused weights, caches and graphs are freed before others are made
            self._runner = new_runner(twin)
        self._version = version

    def sample(self, prompts: Sequence[Tokens], names: Sequence[str], seed: int) -> list[Sampled]:
        """As Engine.sample. Raises ModelError for a prompt without room for an answer."""
        answers = self._decoded([prompt.tolist() for prompt in prompts], names, seed)
        return [
            Sampled(
                np.array(answer.tokens, np.int32),
                np.array(answer.log_probs, np.float32),
                self._version,
                answer.finish_reason == "stop",
            )
            for answer in answers
        ]

    def _decoded(
        self,
        prompts: Sequence[Sequence[int]],
        names: Sequence[str],
        seed: int,
        runner: Runner | None = None,
        on_tokens: Callable[[int, list[int], int], None] | None = None,
        on_answer: Callable[[int, Completion], None] | None = None,
    ) -> list[Completion]:
        """runner: in place of the engine's own. on_tokens, on_answer: as of `decode`."""
        drafting = self.drafting
        return decode(
            runner or self.runner,
            prompts,
            names,
            eos_ids=self.eos_ids,
            temperature=self.settings.temperature,
            max_new_tokens=self.settings.max_new_tokens,
            batch_size=self.settings.batch_size,
            seed=seed,
            log_probs=True,
            drafter=drafting.open(self.runner) if drafting else None,
            num_speculative_tokens=drafting.most if drafting else 0,
            draft_cost=drafting.cost if drafting else None,
            on_tokens=on_tokens,
            on_answer=on_answer,
        )


def decoding_twin(model: nn.Module) -> nn.Module:
    """A model of the same shape for decoding, without its values."""
    config, first = copy.deepcopy(model.config), next(model.parameters())
    dtype = decoding_dtype(first.device, sum(parameter.numel() for parameter in model.parameters()))
    config._attn_implementation = attention_with_cache(config)
    with first.device:
        twin = type(model)(config)
    for name, parameter in twin.named_parameters():
        if not stays_float32(twin, name):
            parameter.data = parameter.data.to(dtype)
    return twin.eval().requires_grad_(False)


@torch.no_grad()
def copy_merged(model: nn.Module, twin: nn.Module) -> None:
    """Copies a model's weights, its adapters merged, into a decoding_twin. Those of a sharded model are gathered, one at a
    time, so every process calls this."""
    left, own = twin.state_dict(), model.state_dict()
    for name, weight in merged_weights(model):
        left.pop(name).copy_(weight)
    for name, tensor in left.items():
        tensor.copy_(whole_tensor(own[name]))


class MeshEngine:
    """An Engine of the first process. engine: of each process, over its part of the model."""

    def __init__(self, engine: InProcessEngine, world: World):
        self.settings, self._engine, self._world = engine.settings, engine, world
        world.parts.update(sync=engine.sync, sample=self._sample_share)

    @property
    def exact(self) -> bool:
        return self._engine.exact

    def sync(self, version: int) -> None:
        """As Engine.sync."""
        self._world.ask("sync", version)

    def sample(self, prompts: Sequence[Tokens], names: Sequence[str], seed: int) -> list[Sampled]:
        """As Engine.sample."""
        shares = self._world.ask("sample", self.settings, prompts, names, seed)
        return [shares[place % len(shares)][place // len(shares)] for place in range(len(names))]

    def _sample_share(
        self, settings: SamplingSettings, prompts: Sequence[Tokens], names: Sequence[str], seed: int
    ) -> list[list[Sampled]]:
        """The answers of every process."""
        self._engine.settings = settings
        mine = slice(self._world.rank, None, self._world.size)
        return self._world.gather(self._engine.sample(prompts[mine], names[mine], seed) if names[mine] else [])
