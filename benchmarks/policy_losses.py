"""The losses of reinforcement fine-tuning against those of TRL 1.16 on the same batch.

    python -m benchmarks.policy_losses                  # a minute, besides the peer's environment
    python -m benchmarks.policy_losses --peers VENV     # an environment that holds TRL 1.16 already

NAME: value_gap      |ours - TRL's|: a model of two layers with random weights, GROUPS groups, sampler log-probabilities that
                     differ from the model's by noise, one thread
      gradient_gap   largest difference over all parameters, relative to the largest gradient
TRL's cispo caps ratios at `epsilon` (0.2, which makes every weight 0.2) unless epsilon_high is set; here it is set to 5. Its
`grpo` is a mean over rollouts; ours over tokens is its `dapo`.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.peer_environment import environment
from benchmarks.real_models import process
from benchmarks.record import record
from model_ops.answers import Rollout, Sampled
from model_ops.graders import Grade
from model_ops.losses.linear_cross_entropy import token_nll
from model_ops.models.model_directory import load_model, save_model
from model_ops.operations.tiny_base import new_model, train_tokenizer
from model_ops.operations.tiny_base_settings import TinyBaseSettings
from model_ops.reinforcement.policy_loss import PolicyLoss
from model_ops.reinforcement.rft_settings import OF_LOSS
from model_ops.reinforcement.rollout_batches import LearntRollout, group_documents, rollout_batches

GROUPS, LONGEST = 3, 24
TRL_LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
    "dr_grpo": {"loss_type": "dr_grpo", "epsilon": 0.2, "epsilon_high": 0.28, "max_completion_length": LONGEST},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
}
"""Each loss as TRL has it."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policy_losses", description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, help="a virtual environment with TRL 1.16; made afresh where left out")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="millrace-policy-losses-") as made:
        folder = Path(made)
        python = given.peers.resolve() / "bin/python" if given.peers else environment(folder / "peers", "trl")
        record("policy_losses", losses(folder / "losses", python))


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
    peer = [str(python), str(Path(__file__).with_name("trl_grpo_peer.py"))]
    theirs, found = process(peer, folder / "peer", job, folder, 1, PYTHONPATH=""), {}
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


if __name__ == "__main__":
    main()
