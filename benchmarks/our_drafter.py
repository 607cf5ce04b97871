"""Our EAGLE-3 training on given hidden states and given steps, in a process of its own: the side of the comparison with peers.

    python -m benchmarks.our_drafter JOB.json RESULT.json

JOB: threads, target, rows (jsonl), states (the cache's folder), batches (the rows of every step), settings (of the
speculator), start, output. RESULT: peak_mb, steps (seconds, tokens, loss). The drafter lies in output.
"""

from model_ops.machine.process import set_torch_environment

set_torch_environment()

import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402

from benchmarks.speculators_peer import peak_mb  # noqa: E402
from model_ops.decoding.target import load_runner  # noqa: E402
from model_ops.files.digests import target_digest  # noqa: E402
from model_ops.jobs import Progress  # noqa: E402
from model_ops.speculators.eagle3.network import Eagle3  # noqa: E402
from model_ops.speculators.losses.chain_loss import Teacher  # noqa: E402
from model_ops.speculators.losses.training_loss import SpeculatorLoss  # noqa: E402
from model_ops.speculators.operation import new_drafter  # noqa: E402
from model_ops.speculators.registry import speculator_settings  # noqa: E402
from model_ops.speculators.settings import SpeculatorSettings  # noqa: E402
from model_ops.speculators.states.hidden_states import AnswerRow, HiddenStates  # noqa: E402
from model_ops.speculators.states.speculator_batches import SpeculatorPlan, StateSource  # noqa: E402
from model_ops.training.trainer import train  # noqa: E402


class GivenSteps(SpeculatorPlan):
    """A plan with given rows in each step."""

    def __init__(self, rows: Sequence[AnswerRow], states: StateSource, settings: SpeculatorSettings, steps: list[list[int]]):
        super().__init__(rows, states, settings)
        self.steps = steps


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    target, output = Path(job["target"]), Path(job["output"])
    settings = speculator_settings(**job["settings"], steps=len(job["batches"])).resolved()
    rows = [AnswerRow(**json.loads(line)) for line in Path(job["rows"]).read_text().splitlines()]
    runner = load_runner(target)
    model, _ = new_drafter(target, runner, rows, [], settings)
    if job["start"] != "ours":
        begin_as(job["start"], model)
    states = HiddenStates(Path(job["states"]), rows, model.capture, target_digest(target))
    states.compute(runner, Progress())
    loss = SpeculatorLoss(Teacher(runner.head.weight, model.target_ids), settings)
    train(model, GivenSteps(rows, states, settings, job["batches"]), loss, settings, output / ".work", Progress(), "speculator")
    model.eval().save(output, settings.num_speculative_tokens)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [
        {"seconds": line["tokens"] / line["tokens_per_second"], "tokens": line["tokens"], "loss": line["loss"]}
        for line in lines
    ]
    Path(sys.argv[2]).write_text(json.dumps({"peak_mb": peak_mb(), "steps": steps}))


def begin_as(peer: str, model: Eagle3) -> None:
    """The peer's start in our model, read in its code: all layers random with standard deviation 0.02 and all norms 1; the
    output rows random as well and trained (specforge 0.2), or the target's and frozen (speculators 0.9)."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("embed_tokens.") or (name.startswith("lm_head.") and peer == "speculators"):
                continue
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.02)
            else:
                parameter.fill_(1.0)
    if peer == "speculators":
        model.lm_head.weight.requires_grad_(False)


if __name__ == "__main__":
    main()
