"""Reinforcement fine-tuning against TRL 1.16's GRPOTrainer at the fastest of its settings, and its losses on the same batch.

    python -m benchmarks.rft_peers                  # 30 minutes on 2 quiet cores
    python -m benchmarks.rft_peers --quick          # one round of a few steps: the figures of speed mean nothing
    python -m benchmarks.rft_peers --losses         # the losses alone; nothing is recorded
    python -m benchmarks.rft_peers --peers VENV     # an environment that holds TRL 1.16 already

Task: count of benchmarks.rft_learns, from the same start of the house model (10M), PROMPTS prompts x ANSWERS answers a step.
Both sides have GRPO with token-level aggregation, clips 0.2 and 0.28, AdamW, a constant rate of RATE, no KL, float32, THREADS
threads and the same environment of the process (trainer_vs_trl). Search: TRL without checkpointing, by generate with a
dynamic and a static cache, by its continuous batching, and with bfloat16, SEARCHED steps each; the fastest by the clock goes
on. Comparison: one run of each side on every seed, one after the other, each in a process of its own.

samples_ratio, cpu_ratio   samples by second of ours over TRL's, by the clock and of all threads, without the first step
memory_ratio               ours over TRL's largest resident size
reward_gap                 ours less TRL's mean reward in the last quarter of the steps, at equal samples
generation_share           of TRL's seconds
Ratios are medians over seeds, `spread` has their smallest and largest value.

losses.NAME: value_gap      |ours - TRL's|: a model of two layers with random weights, GROUPS groups, sampler log-probabilities
                            that differ from the model's by noise, one thread
             gradient_gap   largest difference over all parameters, relative to the largest gradient
TRL's cispo caps ratios at `epsilon` (0.2, which makes every weight 0.2) unless epsilon_high is set; here it is set to 5. Its
`grpo` is a mean over rollouts; ours over tokens is its `dapo`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.peer_environment import environment
from benchmarks.preference_gain import asked
from benchmarks.record import record
from benchmarks.rft_learns import ANSWERS, MAX_NEW_TOKENS, START_ROWS, Trial
from benchmarks.rft_learns import PROMPTS_PER_STEP as PROMPTS
from benchmarks.trainer_vs_trl import OURS, PROJECT, SAME, THREADS
from model_ops.answers import Rollout, Sampled
from model_ops.graders import Grade
from model_ops.losses.linear_cross_entropy import token_nll
from model_ops.models.model_directory import load_model, save_model
from model_ops.operations.tiny_base import new_model, train_tokenizer
from model_ops.operations.tiny_base_settings import TinyBaseSettings
from model_ops.reinforcement.policy_loss import PolicyLoss
from model_ops.reinforcement.rft_settings import OF_LOSS
from model_ops.reinforcement.rollout_batches import LearntRollout, group_documents, rollout_batches

SEEDS, STEPS, SEARCHED, RATE = (0, 1, 2), 40, 3, 3e-5
GROUPS, LONGEST = 3, 24
SEARCH: dict[str, dict[str, Any]] = {
    "generate": {},
    "static cache": {"cache_implementation": "static"},
    "continuous batching": {"use_transformers_continuous_batching": True},
    "bfloat16": {"bf16": True},
}
TRL_LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
    "dr_grpo": {"loss_type": "dr_grpo", "epsilon": 0.2, "epsilon_high": 0.28, "max_completion_length": LONGEST},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
}
"""Each loss as TRL has it."""
Run = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rft_peers", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--losses", action="store_true", help="the losses alone; nothing is recorded")
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds models/house")
    parser.add_argument("--peers", type=Path, help="a virtual environment with TRL 1.16; made afresh where left out")
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory(prefix="millrace-rft-peers-") as made:
        folder = Path(made)
        python = given.peers.resolve() / "bin/python" if given.peers else environment(folder / "peers", "trl")
        figures: dict[str, Any] = {"losses": losses(folder / "losses", python)}
        print(json.dumps(figures), flush=True)
        if not given.losses:
            figures |= Peers(folder, python, given.shared.resolve() / "models/house", given.quick).compared()
        record("rft_peers", figures, keep=not (given.quick or given.losses))


def losses(folder: Path, python: Path) -> dict[str, dict[str, float]]:
    """Gaps of values and gradients on the same batch."""
    folder.mkdir()
    settings = TinyBaseSettings(
        vocab_size=512, hidden_size=64, layers=2, heads=4, kv_heads=2, head_dim=16, mlp_size=96, max_position_embeddings=256
    )
    tokenizer = train_tokenizer([f"how many rivers turn mill {n}" for n in range(100)], settings)
    made, draw = new_model(settings, tokenizer), np.random.default_rng(0)
    torch.manual_seed(1)
    for parameter in made.parameters():
        parameter.data += 0.08 * torch.randn_like(parameter)
    made.config.dtype = torch.float32
    save_model(made.float(), tokenizer, folder / "model")
    model = load_model(folder / "model", dtype=torch.float32).requires_grad_(True)
    groups = [_group(model, draw, number) for number in range(GROUPS)]
    rows = [
        {
            "prompt_ids": rollout.prompt.tolist(),
            "completion_ids": rollout.tokens.tolist(),
            "sampler": rollout.log_probs.tolist(),
            "advantage": advantage,
        }
        for group in groups
        for rollout, advantage in group
    ]
    job = {"task": "losses", "model": str(folder / "model"), "rows": rows, "losses": TRL_LOSSES, "output": str(folder)}
    theirs, found = _peer(python, folder, "losses", job), {}
    for name in TRL_LOSSES:
        value, gradients = _ours(model, groups, name)
        wanted = load_file(folder / f"{name}.safetensors")
        largest = max(float(gradient.abs().max()) for gradient in wanted.values())
        gap = max(float((gradients[key] - gradient).abs().max()) for key, gradient in wanted.items())
        gaps = {"value_gap": abs(value - theirs[name]["value"]), "gradient_gap": gap / largest}
        found[name] = {**gaps, "value": round(value, 6)}
    return found


def _group(model: Any, draw: np.random.Generator, number: int) -> list[tuple[Rollout, float]]:
    """Four rollouts of random tokens, with the model's own log-probabilities plus noise, and their advantages."""
    prompt = draw.integers(10, 500, 5 + 3 * number).astype(np.int32)
    found = []
    for _ in range(4):
        tokens = draw.integers(10, 500, int(draw.integers(3, LONGEST))).astype(np.int32)
        answer = Sampled(tokens, np.zeros(len(tokens), np.float32), 0, ended=True)
        read = LearntRollout(Rollout.of(prompt, answer, Grade(0.0)), 0, 0.0, 1.0, 1.0)
        [batch] = rollout_batches(list(group_documents("p", [read], True, 10**6)), 10**6, {})
        logs = -token_nll(model, batch)[0].numpy() + draw.normal(0, 0.4, len(tokens)).astype(np.float32)
        answer = Sampled(tokens, logs.astype(np.float32), 0, ended=True)
        found.append((Rollout.of(prompt, answer, Grade(0.0)), float(draw.normal())))
    return found


def _ours(model: Any, groups: list[list[tuple[Rollout, float]]], name: str) -> tuple[float, dict[str, torch.Tensor]]:
    """(value, gradient of each parameter) of a loss over all groups."""
    documents, number = [], 0
    for place, group in enumerate(groups):
        learnt = []
        for rollout, advantage in group:
            length = len(rollout.tokens)
            scale, share = {"token": (1.0, 1.0), "rollout": (1 / length, 1 / length), "constant": (1.0, LONGEST / length)}[
                OF_LOSS[name][1]
            ]
            learnt.append(LearntRollout(rollout, number, advantage, scale, share))
            number += 1
        documents += group_documents(f"{place}", learnt, True, 10**6)
    [batch] = rollout_batches(documents, 10**6, {})
    model.zero_grad()
    [mean] = PolicyLoss(name, {}, "none", 0.0, 1.0)(model, batch).terms.values()
    value = mean.sum / mean.count
    value.backward()
    return float(value.detach()), {key: each.grad.clone() for key, each in model.named_parameters() if each.grad is not None}


class Peers:
    """Both trainers on the same prompts."""

    def __init__(self, folder: Path, python: Path, house: Path, quick: bool):
        self.folder, self.python, self.house = folder, python, house
        self.steps, self.seeds = (3, SEEDS[:1]) if quick else (STEPS, SEEDS)
        self.search = dict(list(SEARCH.items())[:1]) if quick else SEARCH

    def compared(self) -> dict[str, Any]:
        searched: dict[str, float | str] = {}
        self._begin(self.seeds[0])
        for name, settings in self.search.items():
            try:
                searched[name] = round(self._seconds(self._trl(settings, SEARCHED, 0)), 3)
            except RuntimeError as error:
                searched[name] = str(error)
        done = {name: seconds for name, seconds in searched.items() if isinstance(seconds, float)}
        if not done:
            raise SystemExit(f"TRL failed with every setting: {searched}")
        best = min(done, key=lambda name: done[name])
        runs = []
        for seed in self.seeds:
            self._begin(seed)
            runs.append((self._ours(seed), self._trl(self.search[best], self.steps, seed)))
            print(json.dumps({"seed": seed, "rewards": [round(self._reward(run), 3) for run in runs[-1]]}), flush=True)
        ratios = {
            "samples_ratio": [self._seconds(trl) / self._seconds(ours) for ours, trl in runs],
            "cpu_ratio": [self._seconds(trl, "cpu_seconds") / self._seconds(ours, "cpu_seconds") for ours, trl in runs],
            "memory_ratio": [ours["peak_mb"] / trl["peak_mb"] for ours, trl in runs],
        }
        gaps = [self._reward(ours) - self._reward(trl) for ours, trl in runs]
        return {
            **{name: round(statistics.median(each), 3) for name, each in ratios.items()},
            "reward_gap": round(statistics.mean(gaps), 4),
            "reward_gaps": [round(gap, 4) for gap in gaps],
            "rewards": [[round(self._reward(run), 4) for run in pair] for pair in runs],
            "spread": {name: [round(min(each), 3), round(max(each), 3)] for name, each in ratios.items()},
            "generation_share": round(self._seconds(runs[-1][1], "generation") / self._seconds(runs[-1][1]), 3),
            "samples_per_second": [round(PROMPTS * ANSWERS / self._seconds(run), 2) for run in runs[-1]],
            "peak_mb": [round(run["peak_mb"]) for run in runs[-1]],
            "trl_setting": best,
            "searched": searched,
        }

    def _begin(self, seed: int) -> None:
        """The start model and the prompts of a seed."""
        trial = Trial(self.house, self.folder / f"trial-{seed}", "count", seed, quick=False)
        self.start = self.folder / f"trial-{seed}" / "start"
        if not (self.start / "model.safetensors").exists():
            trial.tuned(self.house, "start", trial.task.items(START_ROWS, seed * 7), trial.task.start_steps)
        self.trial = trial

    def _ours(self, seed: int) -> Run:
        settings = self.trial.rewards_settings() | {"steps": self.steps, "seed": seed, "learning_rate": RATE}
        inputs = {"model": str(self.start), "prompts": str(self.trial.written_prompts())}
        output = self.folder / f"ours-{seed}"
        job = {"operation": "rft", "output": str(output), "threads": THREADS, "inputs": inputs, "settings": settings}
        run = self._run([sys.executable, "-m", "benchmarks.our_trainer"], f"ours-{seed}", job, PROJECT, {})
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        for step, line in zip(run["steps"], lines, strict=True):
            step["reward"] = line["reward"]
        return run

    def _trl(self, settings: dict[str, Any], steps: int, seed: int) -> Run:
        """Raises RuntimeError with TRL's last line where it fails."""
        shutil.rmtree(self.folder / "trl", ignore_errors=True)
        job = {
            "task": "train",
            "model": str(self.start),
            "rows": [{"prompt": asked(each), "answer": each["answer"]} for each in self.trial.prompts],
            "output": str(self.folder / "trl"),
            "steps": steps,
            "prompts": PROMPTS,
            "answers": ANSWERS,
            "learning_rate": RATE,
            "max_new_tokens": MAX_NEW_TOKENS,
            "settings": settings,
            "threads": THREADS,
            "seed": seed,
        }
        peer = str(Path(__file__).with_name("trl_grpo_peer.py"))
        return self._run([str(self.python), peer], "trl", job, self.folder, _home(self.folder))

    def _run(self, command: list[str], name: str, job: Run, where: Path, more: dict[str, str]) -> Run:
        given, result = self.folder / f"{name}.json", self.folder / f"{name}.result.json"
        given.write_text(json.dumps(job))
        kept = {key: value for key, value in os.environ.items() if key not in {*SAME, *OURS, "MALLOC_ARENA_MAX", "LD_PRELOAD"}}
        done = subprocess.run(
            [*command, str(given), str(result)], cwd=where, capture_output=True, text=True, env={**kept, **SAME, **OURS, **more}
        )
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1][:300])
        return json.loads(result.read_text())

    @staticmethod
    def _seconds(run: Run, key: str = "seconds") -> float:
        """Mean seconds of a step after the first one."""
        return statistics.mean(step[key] for step in run["steps"][1:])

    @staticmethod
    def _reward(run: Run) -> float:
        """Mean reward of the last quarter of the steps."""
        return statistics.mean(step["reward"] for step in run["steps"][-max(1, len(run["steps"]) // 4) :])


def _home(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": tempfile.mkdtemp(dir=folder)}


def _peer(python: Path, folder: Path, name: str, job: dict[str, Any]) -> Any:
    given, result = folder / f"{name}.json", folder / f"{name}.result.json"
    given.write_text(json.dumps(job))
    peer = str(Path(__file__).with_name("trl_grpo_peer.py"))
    done = subprocess.run(
        [str(python), peer, str(given), str(result)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **_home(folder)},
    )
    if done.returncode:
        raise SystemExit(f"TRL failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return json.loads(result.read_text())


if __name__ == "__main__":
    main()
