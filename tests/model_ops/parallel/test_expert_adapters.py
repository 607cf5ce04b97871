"""Adapters of experts and routers on two processes: sharded by FSDP they learn what one process learns; tp and ep refuse."""

import json

import pytest
import torch
from forked_script import forked_script
from safetensors.torch import load_file

from model_ops.models.model_directory import save_model
from model_ops.models.tiny_families import tiny_config

LAYOUTS = {"one": {}, "fsdp": {"dp_shard": 2}, "ep": {"ep": 2}}

SCRIPT = """
import json, sys
from pathlib import Path
from benchmarks.parallel import on_processes
from model_ops.jobs.job import ModelError
from model_ops.jobs.job import Job
from model_ops.operations import sft
from model_ops.jobs.job import Progress

model, dataset, output, layouts = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4])

def work(name, mesh):
    job = Job(operation="sft", inputs={"model": model, "dataset": dataset}, output=output / name, settings={
        "method": "lora", "lora": {"rank": 4, "targets": ["o_proj", "experts", "mlp.gate"]}, "steps": 3, "epsilon": 1e-5,
        "learning_rate": 1e-2, "tokens_per_step": 256, "max_length": 128, "micro_batch_tokens": 128, "precision": "float32",
        "mesh": mesh})
    job.output.mkdir(parents=True, exist_ok=True)
    try:
        sft.run(job, Progress())
    except ModelError as error:
        (job.output / "refused").write_text(str(error))

for name, mesh in layouts.items():
    on_processes(2, lambda: work(name, mesh)) if mesh else work(name, mesh)
"""


@pytest.mark.slow
def test_two_processes_learn_what_one_learns_and_expert_parallelism_refuses(tmp_path, tiny_tokenizer, chats):
    from transformers import AutoModelForCausalLM

    config = tiny_config("qwen3_moe")
    config.vocab_size = len(tiny_tokenizer)
    torch.manual_seed(0)
    save_model(AutoModelForCausalLM.from_config(config), tiny_tokenizer, tmp_path / "base", torch.float32)
    forked_script(SCRIPT, [tmp_path / "base", chats, tmp_path, json.dumps(LAYOUTS)], tmp_path / "script")
    one, two = (load_file(tmp_path / name / "adapter" / "adapter_model.safetensors") for name in ("one", "fsdp"))
    assert one.keys() == two.keys() and any(".mlp.experts.base_layer." in name for name in one)
    assert all(one[name].abs().sum() > 0 and torch.allclose(one[name], two[name], atol=2e-4) for name in one)
    assert "set tp and ep to 1" in (tmp_path / "ep" / "refused").read_text()
