"""The process of an engine: samples while the training goes on in the process that started it.

    python -m model_ops.answers.engine_child        # lines of JSON on standard input and output

The first line is an EngineStart. Then a request is {prompts, names, seed}, and its reply a line for each answer as it ends,
then {"done": true}. Between them stands {"version", "gap", "exact"} when it took other weights. {"refused": "why"} is its last
line. It ends with the process that started it, whose environment it has.

The engine takes new weights between two steps of decoding. What was computed of the tokens so far is kept, as in vLLM's mode
`keep`: a token after an exchange has the distribution of the new weights over keys and values of the old ones, which is that of
neither version. Its log-probability is that of exactly this sampler, and the only right denominator of its ratio.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model_ops.answers.in_process import InProcessEngine
from model_ops.answers.policy_file import PolicyFile, PolicyProbe
from model_ops.answers.rollout import Sampled, SamplingSettings
from model_ops.decoding import Completion
from model_ops.jobs import ModelError
from model_ops.training import TuningSettings, load_to_tune


@dataclass(frozen=True)
class EngineStart:
    """What an engine's process needs. Also the SamplingSettings of the engine."""

    base: str
    """Directory of the model that the training began with."""
    tuning: dict[str, Any]
    """TuningSettings, as JSON."""
    policy: str
    """The PolicyFile."""
    eos_ids: list[int]
    temperature: float
    max_new_tokens: int
    batch_size: int
    threads: int
    device: str


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
        return getattr(self.runner, name)

    def forward(self, ids: Tensor, cache: Any, capture: Sequence[int] = ()) -> tuple[Tensor, Tensor | None]:
        """As Runner.forward, with the newest weights."""
        if self._exchange() and hasattr(cache, "graphs"):
            cache.graphs.clear()  # they compute with the weights before
        return self.runner.forward(ids, cache, capture)

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
        ids = probe.ids.to(self.runner.device)
        hidden, _ = self.runner.forward(ids[None], self.runner.new_cache(1))
        logs = (self.runner.logits(hidden[0, :-1]) / self.settings.temperature).log_softmax(dim=-1)
        return float((logs.gather(1, ids[1:, None]).squeeze(1).cpu() - probe.log_probs).abs().max())


def main() -> None:
    """Answers requests until there are no more."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no reply
    start = EngineStart(**json.loads(sys.stdin.readline()))
    torch.set_num_threads(start.threads)

    def tell(**reply: Any) -> None:
        said.write(json.dumps(reply) + "\n")

    def on_answer(place: int, answer: Sampled) -> None:
        arrays = {"tokens": answer.tokens, "log_probs": answer.log_probs, "versions": answer.token_versions}
        tell(place=place, ended=answer.ended, **{name: each.tolist() for name, each in arrays.items()})

    try:
        model, _ = load_to_tune(Path(start.base), TuningSettings(**start.tuning), torch.device(start.device))
        policy = PolicyFile(Path(start.policy))
        engine = InFlightEngine(model.eval(), start.eos_ids, start, policy, tell)
        for line in sys.stdin:
            engine.answer(**json.loads(line), on_answer=on_answer)
            tell(done=True)
    except ModelError as error:
        tell(refused=str(error))


if __name__ == "__main__":
    main()
