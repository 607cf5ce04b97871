"""The engine that takes new weights between two steps of decoding: running answers go on with them.

    engine = InFlightEngine(model, eos_ids, settings, PolicyFile(path), on_exchange)
    engine.answer(prompts, names, seed=0, on_answer=send)        # send(place, Sampled), as each answer ends

What was computed of the tokens so far is kept, as in vLLM's mode `keep`: a token after an exchange has the distribution of the
new weights over keys and values of the old ones, which is that of neither version. Its log-probability is that of exactly this
sampler, and the only right denominator of its ratio. Every token has the version that sampled it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model_ops.answers.in_process import InProcessEngine
from model_ops.answers.policy_file import PolicyFile, PolicyProbe
from model_ops.answers.rollout import Sampled, SamplingSettings
from model_ops.decoding import Completion


class InFlightEngine(InProcessEngine):
    """model: the one that the training began with; it takes the weights of the file. As runner of `decode` it looks for new
    weights before each forward. on_exchange: told of each exchange: version, gap (largest difference of log-probability to the
    trainer over the probe), exact (Engine.exact)."""

    def __init__(
        self,
        model: nn.Module,
        eos_ids: Collection[int],
        settings: SamplingSettings,
        policy: PolicyFile,
        on_exchange: Callable[..., None],
    ):
        super().__init__(model, eos_ids, settings)
        self._policy, self._on_exchange = policy, on_exchange

    def __getattr__(self, name: str) -> Any:
        """What else a runner has."""
        return getattr(self._runner, name)

    def forward(self, ids: Tensor, cache: Any, capture: Sequence[int] = ()) -> tuple[Tensor, Tensor | None]:
        """As Runner.forward, with the newest weights."""
        if self._exchange() and hasattr(cache, "graphs"):
            cache.graphs.clear()  # they compute with the weights before
        return self._runner.forward(ids, cache, capture)

    def answer(
        self, prompts: Sequence[Sequence[int]], names: Sequence[str], seed: int, on_answer: Callable[[int, Sampled], None]
    ) -> None:
        """Answers each prompt; on_answer hears of each answer with its prompt's place. Raises ModelError as `decode` does."""
        self._exchange()
        versions: list[list[int]] = [[] for _ in prompts]

        def note_versions(place: int, tokens: list[int], accepted: int) -> None:
            versions[place] += [self._version] * len(tokens)

        def pass_on(place: int, answer: Completion) -> None:
            each = np.array(versions[place], np.int64)
            tokens, log_probs = np.array(answer.tokens, np.int32), np.array(answer.log_probs, np.float32)
            on_answer(place, Sampled(tokens, log_probs, int(each[0]), answer.finish_reason == "stop", each))

        self._decoded(prompts, names, seed, runner=self, on_tokens=note_versions, on_answer=pass_on)

    def _exchange(self) -> bool:
        """Whether there were new weights, which are taken."""
        read = self._policy.read_into(self.model)
        if read is None:
            return False
        version, probe = read
        self.sync(version)
        self._on_exchange(version=version, gap=self._gap(probe), exact=self.exact)
        return True

    @torch.no_grad()
    def _gap(self, probe: PolicyProbe) -> float:
        """Largest difference of the engine's log-probabilities of the probe's tokens to the trainer's."""
        ids = probe.ids.to(self._runner.device)
        hidden, _ = self._runner.forward(ids[None], self._runner.new_cache(1))
        logs = (self._runner.logits(hidden[0, :-1]) / self.settings.temperature).log_softmax(dim=-1)
        return float((logs.gather(1, ids[1:, None]).squeeze(1).cpu() - probe.log_probs).abs().max())
