"""Two processes train the reward model that one trains: its head is sharded and gathered as the decoder's weights are."""

import json

import pytest
from forked_script import forked_script

CASES = {
    "fsdp": ("qwen3", {"dp_shard": 2}),
    "tensors, and rows that tp does not divide": ("qwen3", {"tp": 2}),
    "replicas": ("llama", {"dp_replicate": 2}),
    "experts over ep": ("qwen3_moe", {"ep": 2}),
    "windows over tp": ("gemma3_text", {"tp": 2}),
    "experts over ep and tp": ("gpt_oss", {"ep": 2, "tp": 2}),
}
FAST = ("fsdp", "tensors, and rows that tp does not divide")

SCRIPT = """
import json, sys, tempfile
from functools import partial
from pathlib import Path
import numpy as np
import torch.distributed as dist
from transformers import AutoTokenizer
from benchmarks import parallel
from benchmarks.parallel import gaps, on_processes, outcome, tiny
from model_ops.documents.documents import Branch, Document
from model_ops.preferences.reward_loss import PairPlan, PairStreams, RewardLoss
from model_ops.parallel.mesh_settings import MeshSettings
from model_ops.rewards.reward_model import with_score_head

cases, tokenizer = json.loads(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[2])
random = np.random.default_rng(0)

def pair(number):
    prompt, chosen, rejected = random.integers(4, 20, 3)
    ids = random.integers(1, 130, prompt + chosen + rejected).astype(np.int32)
    return Document(f"row-{number}", ids, np.ones(len(ids), bool), branches=(Branch(int(prompt), int(rejected)),))

rows = [pair(number) for number in range(40)]
streams = PairStreams(random.random(40), random.random(40) + 0.5)
parallel.STEPS, parallel.next_token_loss = 2, RewardLoss(0.01)
parallel.PackedPlan = lambda documents, settings: PairPlan(documents, settings, streams)

def trained(kind, mesh):
    build = lambda: with_score_head(tiny(kind, hidden=32, layers=2, vocab=130), tokenizer, seed=1)
    return outcome(build, rows, MeshSettings(**mesh), 256, 64)

ones = {name: trained(kind, {}) for name, (kind, _) in cases.items()}
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "gaps"
    def work(names):
        for name in names:
            many = trained(*cases[name])
            if dist.get_rank() == 0:
                with file.open("a") as found:
                    found.write(json.dumps([name, gaps(ones[name], many)]) + "\\n")
    counts = {name: MeshSettings(**mesh).resolved().processes for name, (_, mesh) in cases.items()}
    for count in sorted(set(counts.values())):
        on_processes(count, partial(work, [name for name in cases if counts[name] == count]))
    print(json.dumps(dict(map(json.loads, file.read_text().splitlines()))))
"""


def test_two_processes_train_the_reward_model_that_one_trains(tmp_path, tiny_model):
    check({name: CASES[name] for name in FAST}, tmp_path, tiny_model)


@pytest.mark.thorough
def test_two_processes_train_the_reward_model_that_one_trains_in_every_layout(tmp_path, tiny_model):
    check({name: case for name, case in CASES.items() if name not in FAST}, tmp_path, tiny_model)


def check(cases, folder, tokenizer):
    found = forked_script(SCRIPT, [json.dumps(cases), tokenizer], folder)
    assert found.keys() == cases.keys()
    for name, (loss_gap, parameter_gap) in found.items():
        assert loss_gap < 2e-6 and parameter_gap < 1e-5, name
