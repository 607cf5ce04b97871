"""Each preference loss, value and gradient, against TRL 1.16 on the same batch: the same model, reference and token ids.

    python -m benchmarks.preference_losses                 # minutes, most of them for TRL's environment
    python -m benchmarks.preference_losses --peers VENV    # an environment that holds TRL 1.16 already

A model of two layers with random weights, another one as its reference, eight pairs of unequal length, float32, one thread.
Ours computes packed pairs with shared prompts and never the whole logits; TRL computes each answer with its prompt.

    LOSS: value_gap       |ours - TRL's|
          gradient_gap    largest difference over all parameters, relative to the largest gradient

`z0_gap` compares KTO's z0. What TRL computes otherwise is compared without it: bco with a shift of 0, orpo without its
likelihood (TRL's includes the prompt), and pairs one by one, because TRL's likelihood terms are means over a batch's tokens.
tests/model_ops/test_preference_losses.py compares every loss, those parts included, with the formulas of the papers.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file

from benchmarks.peer_environment import environment
from benchmarks.record import record
from model_ops.losses.linear_cross_entropy import token_nll
from model_ops.models.model_directory import load_model, load_tokenizer, save_model
from model_ops.operations.tiny_base import new_model, train_tokenizer
from model_ops.operations.tiny_base_settings import TinyBaseSettings
from model_ops.parallel.world import World
from model_ops.preferences.held_out_preferences import mean_log_ratio, mismatched_answers
from model_ops.preferences.preference import PreferenceLoss
from model_ops.preferences.preference_batches import label_starts, preference_batch, shared_batches
from model_ops.preferences.preference_documents import answer_masks, read_preferences

PAIRS = 8
TRL: dict[str, dict[str, Any]] = {
    "dpo": {"kind": "dpo", "settings": {"beta": 0.1}},
    "ipo": {"kind": "dpo", "settings": {"beta": 0.1, "loss_type": ["ipo"]}},
    "robust_dpo": {"kind": "dpo", "settings": {"beta": 0.1, "loss_type": ["robust"], "label_smoothing": 0.1}},
    "apo_zero": {"kind": "dpo", "settings": {"beta": 0.1, "loss_type": ["apo_zero"]}},
    "bco": {"kind": "dpo", "settings": {"beta": 0.1, "loss_type": ["bco_pair"]}},
    "simpo": {"kind": "cpo", "settings": {"beta": 2.5, "loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": 1.375}},
    "orpo": {"kind": "orpo", "settings": {"beta": 0.1}},
    "kto": {"kind": "kto", "settings": {"beta": 0.1, "loss_type": "kto"}},
    "apo_zero_unpaired": {"kind": "kto", "settings": {"beta": 0.1, "loss_type": "apo_zero_unpaired"}},
}
"""Each loss as TRL has it."""
GIVEN: dict[str, dict[str, float]] = {"robust_dpo": {"noise": 0.1}, "orpo": {"nll_weight": 0.0}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, help="a virtual environment with TRL 1.16; made afresh where left out")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="millrace-preference-") as made:
        folder = Path(made)
        python = given.peers.resolve() / "bin/python" if given.peers else environment(folder / "peers", "trl")
        rows, model, reference = _material(folder)
        logs = _log_probs(reference, rows)
        theirs = _trl(folder, python, rows)
        figures: dict[str, Any] = {}
        for name in TRL:
            value, gradients, z0 = _ours(model, reference, rows, logs, name)
            wanted = load_file(folder / "trl" / f"{name}.safetensors")
            largest = max(float(gradient.abs().max()) for gradient in wanted.values())
            gap = max(float((gradients[key] - gradient).abs().max()) for key, gradient in wanted.items())
            figures[name] = {
                "value_gap": abs(value - theirs[name]["value"]),
                "gradient_gap": gap / largest,
                "value": round(value, 6),
                **({"z0": round(z0, 4), "z0_gap": abs(z0 - theirs[name]["z0"])} if name == "kto" else {}),
            }
    record("preference_losses", figures)


def _material(folder: Path):
    """Preference rows as documents, the model, and a reference that is another model."""
    words = ["the", "model", "answers", "a", "question", "about", "rivers", "and", "mills", "in", "few", "or", "many"]
    generator = np.random.default_rng(0)

    def said(count: int) -> str:
        return " ".join(generator.choice(words, count))

    settings = TinyBaseSettings(
        vocab_size=512, hidden_size=64, layers=2, heads=4, kv_heads=2, head_dim=16, mlp_size=96, max_position_embeddings=512
    )
    tokenizer = train_tokenizer([said(40) for _ in range(50)], settings)
    for place, seed in (("model", 9), ("reference", 5)):  # the other way round z0 is cut to 0, and says nothing
        made = new_model(settings, tokenizer)
        torch.manual_seed(seed)  # after new_model, which sets the seed: the reference has to be another model
        for parameter in made.parameters():
            parameter.data += 0.08 * torch.randn_like(parameter)
        made.config.dtype = torch.float32
        save_model(made.float(), tokenizer, folder / place)
    shared = [said(int(generator.integers(1, 6))) for _ in range(PAIRS)]
    answers = [[f"{shared[i]} {said(int(generator.integers(3, 25)))}" for _ in range(2)] for i in range(PAIRS)]
    message = [[json.dumps([{"role": "assistant", "content": side}]) for side in pair] for pair in answers]
    prompts = [json.dumps([{"role": "user", "content": said(int(generator.integers(8, 40)))}]) for _ in range(PAIRS)]
    table = pa.table(
        {
            "row_id": [f"pair-{i}" for i in range(PAIRS)],
            "prompt": prompts,
            "chosen": [pair[0] for pair in message],
            "rejected": [pair[1] for pair in message],
        }
    )
    (folder / "rows").mkdir()
    pq.write_table(table, folder / "rows" / "train.parquet")
    rows = read_preferences(folder / "rows", "train", load_tokenizer(folder / "model"), 512, "pairs", shares=True)
    models = [load_model(folder / place, dtype=torch.float32) for place in ("model", "reference")]
    return rows, models[0].requires_grad_(True), models[1].requires_grad_(False)


def _log_probs(reference, rows) -> np.ndarray:
    """What the reference says of each label."""
    starts = label_starts(rows)
    batch = preference_batch(rows, range(PAIRS), starts, None)
    nll, kept = token_nll(reference, batch)
    logs = np.zeros(int(starts[-1]), np.float32)
    logs[batch.places[kept].numpy()] = -nll.numpy()
    return logs


def _ours(model, reference, rows, logs: np.ndarray, name: str) -> tuple[float, dict[str, torch.Tensor], float]:
    """(value, gradient of each parameter, z0) of one loss over all pairs."""
    batch, world, z0 = preference_batch(rows, range(PAIRS), label_starts(rows), logs), World.alone(torch.device("cpu")), 0.0
    if name == "kto":
        mismatched = mismatched_answers(rows, 512)
        theirs = _log_probs(reference, mismatched)
        z0 = mean_log_ratio(model, shared_batches(mismatched, range(PAIRS), 4_096, world, theirs), world, "float32")
        object.__setattr__(batch, "z0", z0)
    model.zero_grad()
    output = PreferenceLoss({name: 1.0}, GIVEN.get(name, {}))(model, batch)
    [mean] = output.terms.values()
    value = mean.sum / mean.count
    value.backward()
    found = {key: parameter.grad.clone() for key, parameter in model.named_parameters() if parameter.grad is not None}
    return float(value.detach()), found, z0


def _trl(folder: Path, python: Path, rows) -> dict[str, dict[str, float]]:
    """TRL's values; its gradients are in folder/trl."""
    (folder / "trl").mkdir()
    mismatched, asked = mismatched_answers(rows, 512).documents, []
    for row, document in enumerate(rows.documents):
        chosen, rejected = answer_masks(document)
        ids, other = document.input_ids, mismatched[row]
        asked.append(
            {
                "prompt_ids": ids[: int(np.argmax(chosen))].tolist(),
                "chosen_ids": ids[chosen].tolist(),
                "rejected_ids": ids[rejected].tolist(),
                "KL_chosen_ids": other.input_ids[other.targets].tolist(),
            }
        )
    job = {
        "task": "losses",
        "model": str(folder / "model"),
        "reference": str(folder / "reference"),
        "rows": asked,
        "losses": TRL,
        "output": str(folder / "trl"),
    }
    (folder / "job.json").write_text(json.dumps(job))
    peer = Path(__file__).with_name("trl_preference_peer.py")
    done = subprocess.run(
        [str(python), str(peer), str(folder / "job.json"), str(folder / "result.json")],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise SystemExit(f"TRL failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return json.loads((folder / "result.json").read_text())


if __name__ == "__main__":
    main()
