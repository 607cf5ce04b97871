"""Reinforcement fine-tuning whose answers a quantized copy of the model samples, with and without a correction.

    python -m benchmarks.quantized_sampler --shared ../shared               # about 10 minutes on two idle cores
    python -m benchmarks.quantized_sampler --shared ../shared --quick       # one seed, few steps; nothing is recorded

The task maybe of benchmarks.rft_learns, with its steps, from one start for each seed. The model learns in float32; after each
step the sampler's linear layers are encoded anew, by channel or group without calibration, and compute as a server computes
them: int8 weights and activations (W8A8), or int4 weights; float32 is the product's own. `gap` is the mean difference of
the log-probability of a token between model and sampler over the run, `outside` the share of tokens whose ratio icepop masks.
`reward` is the mean grade of all sampled answers: how fast it learns. `end` is the share of right greedy answers of the float32
model to new items. Gains are those less the ones of the float32 sampler on the same seed, with Student's t over the seeds.

Last line: {start: [mean, low, high], SAMPLER: {CORRECTION: {end, end_gain, reward, reward_gain: [...], gap, ...}}}.
"""

import argparse
import copy
import json
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.preference_gain import PROJECT, interval
from benchmarks.record import record
from benchmarks.rft_learns import SEEDS, START_ROWS, Trial
from model_ops.decoding import Runner, new_runner
from model_ops.operations import rft
from model_ops.quantization import SCHEMES, block_layers, served_layer

TASK, THREADS, FLOAT = "maybe", 1, "float32"
ARMS = ((FLOAT, "none"), ("w8a8", "none"), ("w8a8", "icepop"), ("w4a16", "none"), ("w4a16", "icepop"))


def quantized_runner(twin: nn.Module, scheme: str) -> Runner:
    """Decodes with the scheme's own layers in the place of the model's."""
    model, found = copy.deepcopy(twin), SCHEMES[scheme]
    for name in block_layers(model).linear.values():
        layer = model.get_submodule(name)
        parent, _, child = name.rpartition(".")
        stored = found.load_layer().encode(layer.weight.float())
        made = served_layer(found, stored, tuple(layer.weight.shape), layer.bias, layer.weight.dtype)
        setattr(model.get_submodule(parent), child, made)
    return new_runner(model)


class Arms(Trial):
    """One seed: its start, and what each way of sampling makes of it."""

    def run(self) -> dict[str, Any]:
        """Arm, or `start` -> its figures."""
        start = self.tuned(
            self.house, "start", self.task.items(START_ROWS, self.seed * 7), self.task.start_steps, self.task.words
        )
        found: dict[str, Any] = {"start": self.success(start)}
        inputs = {"model": start, "prompts": self.written_prompts()}
        for sampler, correction in ARMS:
            found[f"{sampler} {correction}"] = arm = self.learnt(inputs, sampler, correction)
            print(json.dumps({"seed": self.seed, "arm": f"{sampler} {correction}", **arm}), flush=True)
        return found

    def learnt(self, inputs: dict[str, Path], sampler: str, correction: str) -> dict[str, float]:
        began_s, engine = time.monotonic(), "model_ops.answers.in_process"
        settings = {**self.rewards_settings(), "correction": correction, "schedule": "linear"}
        settings["steps"] = 2 if self.quick else self.task.steps
        with ExitStack() as patches:
            if sampler in SCHEMES:
                patches.enter_context(patch(f"{engine}.new_runner", partial(quantized_runner, scheme=sampler)))
                patches.enter_context(patch(f"{engine}.InProcessEngine.exact", False))  # the canary's bound is that of bfloat16
            self._done(rft, inputs, "rft", settings)
        lines = [json.loads(line) for line in (self.folder / "rft/metrics.jsonl").read_text().splitlines()]
        found = {name: fmean(line[name] for line in lines) for name in ("gap", "outside", "reward")}
        found |= {"end": self.success(self.folder / "rft"), "seconds": time.monotonic() - began_s}
        shutil.rmtree(self.folder / "rft")
        return found


def arms(house: Path, folder: Path, seed: int, quick: bool) -> dict[str, Any]:
    return Arms(house, folder, TASK, seed, quick).run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantized_sampler", description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="folder with models/house")
    parser.add_argument("--quick", action="store_true", help="one seed and few steps; nothing is recorded")
    parser.add_argument("--processes", type=int, default=2, help="seeds that are learnt at once, one thread each")
    given = parser.parse_args()
    house, seeds = given.shared.resolve() / "models/house", SEEDS[:1] if given.quick else SEEDS
    with (
        tempfile.TemporaryDirectory(prefix="millrace-quantized-sampler-") as name,
        ProcessPoolExecutor(given.processes, get_context("spawn"), torch.set_num_threads, (THREADS,)) as pool,
    ):
        waiting = [pool.submit(arms, house, Path(name) / str(seed), seed, given.quick) for seed in seeds]
        found = [each.result() for each in waiting]
    figures: dict[str, Any] = {"start": interval([of_seed["start"] for of_seed in found])}
    for sampler, correction in ARMS:
        runs, floats = ([of_seed[arm] for of_seed in found] for arm in (f"{sampler} {correction}", f"{FLOAT} none"))
        figures.setdefault(sampler, {})[correction] = {
            "end": interval([run["end"] for run in runs]),
            "end_gain": interval([run["end"] - beside["end"] for run, beside in zip(runs, floats, strict=True)]),
            **{name: round(fmean(run[name] for run in runs), 5) for name in ("gap", "outside")},
            "reward": interval([run["reward"] for run in runs]),
            "reward_gain": interval([run["reward"] - beside["reward"] for run, beside in zip(runs, floats, strict=True)]),
            "seconds": round(fmean(run["seconds"] for run in runs), 1),
            "by_seed": [round(run["end"], 3) for run in runs],
        }
    record("quantized_sampler", figures, keep=not given.quick)


if __name__ == "__main__":
    main()
