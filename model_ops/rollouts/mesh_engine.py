"""The engine of a mesh: each process answers its share of the prompts, with its own copy of the whole weights.

engine = MeshEngine(InProcessEngine(model, eos_ids, settings), world)      # on every process
world.conduct(lambda: a_round(engine))              # the first process syncs and samples, the others take part
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from model_ops.parallel import World
from model_ops.rollouts.in_process import InProcessEngine
from model_ops.rollouts.rollout import Sampled, SamplingSettings, Tokens


class MeshEngine:
    """An Engine and a Sampler of the first process. engine: of each process, over its part of the model."""

    def __init__(self, engine: InProcessEngine, world: World):
        self.settings, self._engine, self._world = engine.settings, engine, world
        answered = {"sample": engine.sample, "answer": engine}
        world.parts.update(sync=engine.sync, **{name: partial(self._share, each) for name, each in answered.items()})

    @property
    def exact(self) -> bool:
        return self._engine.exact

    def __call__(self, prompts: Sequence[Sequence[int]], names: Sequence[str], seed: int) -> list[list[int]]:
        return self._asked("answer", prompts, names, seed)

    def sync(self, version: int) -> None:
        """As Engine.sync."""
        self._world.ask("sync", version)

    def sample(self, prompts: Sequence[Tokens], names: Sequence[str], seed: int) -> list[Sampled]:
        """As Engine.sample."""
        return self._asked("sample", prompts, names, seed)

    def _asked(self, part: str, prompts: Sequence[Any], names: Sequence[str], seed: int) -> list[Any]:
        shares = self._world.ask(part, self.settings, prompts, names, seed)
        return [shares[place % len(shares)][place // len(shares)] for place in range(len(names))]

    def _share(
        self,
        answered: Callable[..., list[Any]],
        settings: SamplingSettings,
        prompts: Sequence[Any],
        names: Sequence[str],
        seed: int,
    ) -> list[list[Any]]:
        """The answers of every process."""
        self._engine.settings = settings
        mine = slice(self._world.rank, None, self._world.size)
        return self._world.gather(answered(prompts[mine], names[mine], seed) if names[mine] else [])
