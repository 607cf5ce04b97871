"""The golden losses: steps of a tiny Qwen3 on seeded random documents, as the trainer makes them.

    python -m tests.golden.losses.dump     writes tests/golden/losses/*.json anew; read the diff, and say why it changed

A refactoring leaves them as they are. They are compared within GAP, since another CPU's kernels add in another order; what
an algorithm does differently is farther apart than that (tests/model_ops/training/test_golden_losses.py tries some)."""

import json
import tempfile
from pathlib import Path

import torch

from benchmarks.parallel import documents, tiny
from model_ops.documents.packing import PackedPlan
from model_ops.jobs import Progress
from model_ops.objectives.sft import next_token_loss
from model_ops.training.settings import TrainingSettings
from model_ops.training.trainer import train

SHORT = {"precision": "bfloat16", "steps": 12, "tokens_per_step": 512}
"""A processor that emulates bfloat16 takes a second for one step of 1,024 tokens."""
CASES = {
    "adamw": {},
    "adamw-bfloat16": SHORT,
    "muon-wsd": {"optimizer": "muon", "schedule": "wsd"},
    "muon-bfloat16": {"optimizer": "muon", **SHORT},
}
GAP = {"adamw": 2e-4, "adamw-bfloat16": 4e-3, "muon-wsd": 2e-4, "muon-bfloat16": 4e-3}
"""Greatest relative difference of a loss or gradient norm."""


def path_of(case: str) -> Path:
    return Path(__file__).with_name(f"{case}.json")


def losses(case: str, **changes: object) -> list[list[float]]:
    """[loss, gradient norm] of every step."""
    settings = TrainingSettings(
        **{
            "steps": 25,
            "learning_rate": 3e-3,
            "tokens_per_step": 1_024,
            "max_length": 128,
            "precision": "float32",
            "weight_decay": 0.1,
            **CASES[case],
            **changes,
        }
    ).resolved()
    model = tiny("qwen3", hidden=32, layers=2, vocab=131, tie_word_embeddings=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(
            model,
            PackedPlan(documents(80, 100, 131), settings),
            next_token_loss,
            settings,
            Path(folder) / ".work",
            Progress(),
            "golden",
        )
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [[line["loss"], line["grad_norm"]] for line in map(json.loads, lines)]


if __name__ == "__main__":
    for name in CASES:
        steps = ",\n ".join(json.dumps(step) for step in losses(name))
        path_of(name).write_text(f"[{steps}]\n")
