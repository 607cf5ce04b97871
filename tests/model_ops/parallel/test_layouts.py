"""Two processes train what one trains: every axis of the mesh, on packed rows, with the trainer itself."""

import json

import pytest
from forked_script import forked_script

CASES = {
    "fsdp": ("qwen3", {"dp_shard": 2}, {"tie_word_embeddings": True}),
    "replicas": ("llama", {"dp_replicate": 2}, {}),
    "more context processes than key heads": ("qwen3", {"cp": 2}, {"num_key_value_heads": 1}),
    "more tensor processes than key heads": ("qwen3", {"tp": 2}, {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "an mlp that tp does not divide, biases": ("qwen2", {"tp": 2}, {"intermediate_size": 51}),
    "a vocabulary that tp does not divide": ("llama", {"tp": 2}, {"vocab": 131, "tie_word_embeddings": True}),
    "a scaled embedding, windows": ("gemma3_text", {"tp": 2}, {"sliding_window": 16}),
    "more processes than rows": ("qwen3_moe", {"dp_shard": 2, "ep": 2}, {"tokens_per_step": 128}),
    "experts over ep": ("qwen3_moe", {"ep": 2}, {}),
    "experts over tp": ("qwen3_moe", {"tp": 2}, {}),
    "experts that tp does not divide": ("qwen3_moe", {"tp": 2}, {"num_experts": 3}),
    "one expert for the processes of tp": ("gpt_oss", {"ep": 2, "tp": 2}, {"num_local_experts": 2}),
    "experts with biases over ep": ("gpt_oss", {"ep": 2}, {}),
    "sinks and experts over tp": ("gpt_oss", {"tp": 2}, {}),
    "sinks over cp": ("gpt_oss", {"cp": 2}, {}),
}
FAST = ("fsdp", "sinks over cp", "experts over ep")
SLOW = (
    "replicas", "more context processes than key heads", "a vocabulary that tp does not divide", "more processes than rows",
    "one expert for the processes of tp", "sinks and experts over tp",
)  # fmt: skip
"""What the others have, too, is cut here: heads, vocabularies, experts and rows that processes cannot share out evenly."""

SCRIPT = """
import json, sys, tempfile
from pathlib import Path
import torch.distributed as dist
from benchmarks import parallel
from benchmarks.parallel import documents, gaps, on_processes, outcome, tiny
from model_ops.parallel.mesh_settings import MeshSettings

parallel.STEPS = 2
cases, rows, runs = json.loads(sys.argv[1]), documents(60, 64, 130), {}

def trained(kind, mesh, changes):
    sizes = {"hidden": 32, "layers": 2, "vocab": 130, **changes}
    tokens = sizes.pop("tokens_per_step", 256)
    return outcome(lambda: tiny(kind, **sizes), rows, MeshSettings(**mesh), tokens, 64)

for name, (_, mesh, _) in cases.items():
    runs.setdefault(MeshSettings(**mesh).resolved().processes, []).append(name)
ones = {name: trained(kind, {}, changes) for name, (kind, _, changes) in cases.items()}
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "gaps"
    def work():
        for name in names:
            many = trained(*cases[name])
            if dist.get_rank() == 0:
                with file.open("a") as found:
                    found.write(json.dumps([name, gaps(ones[name], many)]) + "\\n")
    for count, names in runs.items():
        on_processes(count, work)
    print(json.dumps(dict(map(json.loads, file.read_text().splitlines()))))
"""


def test_two_processes_train_what_one_trains(tmp_path):
    check({name: CASES[name] for name in FAST}, tmp_path)


@pytest.mark.slow
def test_two_processes_train_what_one_trains_on_uneven_shares(tmp_path):
    check({name: CASES[name] for name in SLOW}, tmp_path)


@pytest.mark.thorough
def test_two_processes_train_what_one_trains_in_every_layout(tmp_path):
    check({name: case for name, case in CASES.items() if name not in (*FAST, *SLOW)}, tmp_path)


def check(cases, folder):
    for name, (loss_gap, parameter_gap) in forked_script(SCRIPT, [json.dumps(cases)], folder).items():
        assert loss_gap < 2e-6 and parameter_gap < 1e-5, name
