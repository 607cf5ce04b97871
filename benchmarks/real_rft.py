"""What reinforcement fine-tuning makes of SmolLM2-135M-Instruct on instructions that a verifier checks, beside TRL's GRPO.

    python -m benchmarks.real_rft --models DIR                # 40 minutes on 2 idle cores; without TRL
    python -m benchmarks.real_rft --models DIR --quick        # one seed and two steps; nothing is recorded
    python -m benchmarks.real_rft --models DIR --peers VENV   # with TRL 1.16 and peft in VENV: as long again

Task: benchmarks.instructions, one instruction on the form of an answer, in 12 kinds. Training: STEPS steps of the documented
defaults, with answers of at most MAX_NEW_TOKENS tokens. A seed draws the prompts and the order.

start, end     share of greedy answers that follow the instruction, to HELD_OUT prompts about other things in other words
gain           end less start
other_kinds    the same three of OTHER instructions of five kinds that no training prompt has
trl            TRL's GRPOTrainer on the first seed: the same prompts, weights, answers, steps, rank and rate, its loss dapo, and
               bfloat16 products
seconds        of the training by the clock, cpu_seconds of all its threads; peak_mb is its largest resident size
Brackets: mean and 95 % interval over seeds.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.instructions import MAX_NEW_TOKENS, Drawn, draw, followed
from benchmarks.real_models import PROJECT, SMALL, THREADS, arguments, asked, interval, model_of, process, train, write
from benchmarks.record import record
from benchmarks.trainer_vs_trl import OURS as SAME_ALLOCATOR
from model_ops.reinforcement import RftSettings

SEEDS, SEARCH_SEED = (0, 1, 2), 100
"""Rates and the size of a step were chosen on SEARCH_SEED."""
PROMPTS, HELD_OUT, OTHER, STEPS = 320, 240, 100, 40
SETTINGS: dict[str, Any] = {"grader": "verifier", "method": "lora", "steps": STEPS, "max_new_tokens": MAX_NEW_TOKENS}
OURS = RftSettings.model_validate(SETTINGS).resolved()
ANSWERS, ADAPTERS = OURS.answers, {"r": OURS.lora.rank, "lora_alpha": OURS.lora.alpha} if OURS.lora else {}
TRL: dict[str, Any] = {"bf16": True}
"""GRPOConfig's own defaults beside these: no clip of the answers' length, grades by the deviation of their group."""


def drawn_for(seed: int) -> Drawn:
    return draw(PROMPTS, HELD_OUT, OTHER, seed)


class Trial:
    """One seed: its prompts, what they start from, and what each side makes of it."""

    def __init__(self, model: Path, folder: Path, seed: int, quick: bool):
        self.model, self.folder, self.seed = model, folder, seed
        self.drawn, self.steps = drawn_for(seed), 2 if quick else STEPS
        self.held_out = {"held_out": self.drawn.held_out, "other_kinds": self.drawn.other_kinds}
        if quick:
            self.held_out = {name: prompts[:24] for name, prompts in self.held_out.items()}

    def passed(self, model: Path) -> dict[str, float]:
        """Share of greedy answers that follow their instruction, of each part."""
        return {name: followed(model, prompts) for name, prompts in self.held_out.items()}

    def ours(self) -> tuple[dict[str, Any], Path]:
        keys = [
            {"messages": json.dumps(asked(each["question"])), "verifier": json.dumps(each["verifier"])}
            for each in self.drawn.prompts
        ]
        rows = [{"row_id": each["row_id"], **key} for each, key in zip(self.drawn.prompts, keys, strict=True)]
        inputs = {"model": self.model, "prompts": write(rows, self.folder / "prompts")}
        output = self.folder / f"ours-{self.seed}"
        return train("rft", inputs, output, {**SETTINGS, "steps": self.steps, "seed": self.seed, "held_out_prompts": 0}), output

    def trl(self, python: Path) -> tuple[dict[str, Any], Path]:
        """TRL with adapters of the same rank, at the same constant rate."""
        output = self.folder / f"trl-{self.seed}"
        job = {
            "task": "train",
            "model": str(self.model),
            "rows": [
                {"prompt": asked(each["question"]), "verifier": json.dumps(each["verifier"])} for each in self.drawn.prompts
            ],
            "grader": [sys.executable, "-m", "benchmarks.instructions"],
            "project": str(PROJECT),
            "output": str(output),
            "steps": self.steps,
            "prompts": OURS.prompts_per_step,
            "answers": ANSWERS,
            "learning_rate": OURS.learning_rate,
            "max_new_tokens": MAX_NEW_TOKENS,
            "adapters": ADAPTERS,
            "settings": TRL,
            "threads": THREADS,
            "seed": self.seed,
        }
        peer = [str(python), str(PROJECT / "benchmarks/trl_grpo_peer.py")]
        return process(peer, output, job, self.folder, THREADS, **{**SAME_ALLOCATOR, "PYTHONPATH": ""}), output


def side(start: dict[str, float], end: dict[str, float], run: dict[str, Any]) -> dict[str, Any]:
    """What a training made of the start, and what it took."""
    return {
        **{f"{name}_end": value for name, value in end.items()},
        **{f"{name}_gain": value - start[name] for name, value in end.items()},
        **{key: round(sum(step[key] for step in run["steps"])) for key in ("seconds", "cpu_seconds")},
        "peak_mb": run["peak_mb"],
    }


def main() -> None:
    parser = arguments("real_rft", __doc__)
    parser.add_argument("--peers", type=Path, help="a virtual environment with TRL 1.16 and peft; left out: TRL is skipped")
    given = parser.parse_args()
    model, runs = model_of(given.models, SMALL), []
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory(prefix="millrace-real-rft-") as name:
        for seed in SEEDS[:1] if given.quick else SEEDS:
            trial = Trial(model, Path(name), seed, given.quick)
            start = trial.passed(model)
            run, output = trial.ours()
            runs.append({**{f"{part}_start": value for part, value in start.items()}, **side(start, trial.passed(output), run)})
            print(json.dumps({"seed": seed, **runs[-1]}), flush=True)
        trl = None
        if given.peers is not None:
            trial = Trial(model, Path(name), SEEDS[0], given.quick)
            run, output = trial.trl(given.peers.absolute() / "bin/python")
            start = {part: runs[0][f"{part}_start"] for part in trial.held_out}
            trl = side(start, trial.passed(output), run)
    figures = {key: interval([run[key] for run in runs]) for key in runs[0]}
    figures |= {"by_seed": runs, "trl": trl, "threads": THREADS, "settings": {**SETTINGS, "learning_rate": OURS.learning_rate}}
    record("real_rft", figures, keep=not given.quick)


if __name__ == "__main__":
    main()
