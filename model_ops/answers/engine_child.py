"""The process of an engine: samples while the training goes on in the process that started it.

    python -m model_ops.answers.engine_child        # lines of JSON on standard input and output

The first line is an EngineStart. Then a request is {prompts, names, seed}, and its reply a line for each answer as it ends,
then {"done": true}. Between them stands {"version", "gap", "exact"} when it took other weights. {"refused": "why"} is its last
line. It ends with the process that started it, whose environment it has.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from model_ops.answers.in_flight import InFlightEngine
from model_ops.answers.policy_file import PolicyFile
from model_ops.answers.rollout import Sampled
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
