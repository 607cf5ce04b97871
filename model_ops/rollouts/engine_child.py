"""The process of an engine: samples while the training goes on in the process that started it.

    python -m model_ops.rollouts.engine_child        # lines of JSON on standard input and output

The first line is an EngineStart. Then a request is {prompts, names, seed}, and its reply a line for each answer as it ends,
then {"done": true}. Between them stands {"version", "gap", "exact"} when it took other weights. {"refused": "why"} is its last
line. It ends with the process that started it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from model_ops.machine import set_torch_environment


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
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no reply
    start = EngineStart(**json.loads(sys.stdin.readline()))
    set_torch_environment()
    from model_ops.jobs import ModelError

    try:
        serve(start, said)
    except ModelError as error:
        said.write(json.dumps({"refused": str(error)}) + "\n")


def serve(start: EngineStart, said: TextIO) -> None:
    """Answers requests until there are no more."""
    import torch

    from model_ops.rollouts.in_flight import InFlightEngine
    from model_ops.rollouts.policy_file import PolicyFile
    from model_ops.rollouts.rollout import Sampled
    from model_ops.training import TuningSettings, load_to_tune

    torch.set_num_threads(start.threads)

    def tell(**reply: Any) -> None:
        said.write(json.dumps(reply) + "\n")

    def on_answer(place: int, answer: Sampled) -> None:
        arrays = {"tokens": answer.tokens, "log_probs": answer.log_probs, "versions": answer.versions}
        tell(place=place, ended=answer.ended, **{name: each.tolist() for name, each in arrays.items()})

    model, _ = load_to_tune(Path(start.base), TuningSettings(**start.tuning), torch.device(start.device))
    engine = InFlightEngine(
        model.eval(),
        start.eos_ids,
        start,
        PolicyFile(Path(start.policy)),
        lambda version, gap: tell(version=version, gap=gap, exact=engine.exact),
    )
    for line in sys.stdin:
        engine.answer(**json.loads(line), on_answer=on_answer)
        tell(done=True)


if __name__ == "__main__":
    main()
