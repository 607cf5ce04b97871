"""Two processes train what one trains: every axis of the mesh, on packed rows, with the trainer itself."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
import torch
from benchmarks.parallel import compare, documents, outcome, tiny
from model_ops.training.settings import MeshSettings

torch.set_num_threads(1)
kind, mesh, changes = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
sizes = {"hidden": 32, "layers": 2, "vocab": 130, **changes}
rows = documents(60, 64, 130)
one = outcome(tiny(kind, **sizes), rows, MeshSettings(), 512, 64)
print(json.dumps(compare(kind, MeshSettings(**mesh), one, rows, sizes, 512, 64)))
"""


@pytest.mark.parametrize(("kind", "mesh", "changes"), [
    ("qwen3", {"dp_shard": 2}, {"tie_word_embeddings": True}),
    ("llama", {"dp_replicate": 2}, {}),
    ("qwen3", {"cp": 2}, {"num_key_value_heads": 1}),
    ("qwen3", {"tp": 2}, {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    ("qwen2", {"tp": 2}, {"intermediate_size": 51}),
    ("llama", {"tp": 2}, {"vocab": 131, "tie_word_embeddings": True}),
    ("gemma3_text", {"tp": 2}, {}),
    ("qwen3_moe", {"ep": 2}, {}),
    ("qwen3_moe", {"tp": 2}, {}),
    ("gpt_oss", {"ep": 2}, {}),
    ("gpt_oss", {"tp": 2}, {}),
    ("gpt_oss", {"cp": 2}, {}),
], ids=lambda value: value if isinstance(value, str) else "-".join(f"{k}{v}" for k, v in value.items()))
def test_two_processes_train_what_one_trains(kind, mesh, changes):
    done = subprocess.run([sys.executable, "-c", SCRIPT, kind, json.dumps(mesh), json.dumps(changes)],
                          env={**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    loss_gap, parameter_gap = json.loads(done.stdout)
    assert loss_gap < 1e-5 and parameter_gap < 1e-4
