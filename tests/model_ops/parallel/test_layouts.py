"""Two processes train what one trains: every axis of the mesh, on packed rows, with the trainer itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = {
    "fsdp": ("qwen3", {"dp_shard": 2}, {"tie_word_embeddings": True}),
    "replicas": ("llama", {"dp_replicate": 2}, {}),
    "more context processes than key heads": ("qwen3", {"cp": 2}, {"num_key_value_heads": 1}),
    "more tensor processes than key heads": ("qwen3", {"tp": 2}, {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "an mlp that tp does not divide, biases": ("qwen2", {"tp": 2}, {"intermediate_size": 51}),
    "a vocabulary that tp does not divide": ("llama", {"tp": 2}, {"vocab": 131, "tie_word_embeddings": True}),
    "heads kept whole by a rule": ("llama", {"tp": 2, "rules": [["heads", None]]}, {}),
    "key heads kept whole by a rule": ("llama", {"tp": 2, "rules": [["kv_heads", None]]}, {}),
    "a scaled embedding, windows": ("gemma3_text", {"tp": 2}, {"sliding_window": 16}),
    "more processes than rows": ("qwen3_moe", {"dp_shard": 2, "ep": 4}, {}),
    "experts over ep": ("qwen3_moe", {"ep": 2}, {}),
    "experts over tp": ("qwen3_moe", {"tp": 2}, {}),
    "experts that tp does not divide": ("qwen3_moe", {"tp": 2}, {"num_experts": 3}),
    "one expert for the processes of tp": ("gpt_oss", {"ep": 2, "tp": 2}, {"num_local_experts": 2}),
    "experts with biases over ep": ("gpt_oss", {"ep": 2}, {}),
    "sinks and experts over tp": ("gpt_oss", {"tp": 2}, {}),
    "sinks over cp": ("gpt_oss", {"cp": 2}, {}),
}

SCRIPT = """
import json, sys
import torch
from benchmarks.parallel import compare, documents, outcome, tiny
from model_ops.parallel.mesh_settings import MeshSettings

torch.set_num_threads(1)
found, rows = {}, documents(60, 64, 130)
for name, (kind, mesh, changes) in json.loads(sys.argv[1]).items():
    sizes = {"hidden": 32, "layers": 2, "vocab": 130, **changes}
    one = outcome(lambda: tiny(kind, **sizes), rows, MeshSettings(), 512, 64)
    found[name] = compare(kind, MeshSettings(**mesh), one, rows, sizes, 512, 64)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    done = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(CASES)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_what_one_trains(found, case):
    loss_gap, parameter_gap = found[case]
    assert loss_gap < 2e-6 and parameter_gap < 1e-5
