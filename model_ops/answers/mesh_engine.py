"""The engine of a mesh: each process answers its share of the prompts, with its own copy of the whole weights."""

from collections.abc import Sequence

from model_ops.answers.in_process import InProcessEngine
from model_ops.answers.rollout import Sampled, SamplingSettings, Tokens
from model_ops.parallel import World


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
