"""Rules against parameters: first that fits, whole units only, replicated and noted where nothing fits."""

import json
from types import SimpleNamespace

import pytest
import torch
from forked_script import forked_script
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from model_ops.jobs import ModelError
from model_ops.models.model_directory import save_model
from model_ops.models.tiny_families import tiny_config
from model_ops.operations.tiny_base_settings import TinyBaseSettings
from model_ops.parallel.mesh_settings import MeshSettings
from model_ops.parallel.sharding import axes_of, plan_sharding
from model_ops.speculators.registry import speculator_settings
from model_ops.training.settings import TrainingSettings

LAYOUTS = {"one": {}, "fsdp": {"dp_shard": 2}, "ep": {"ep": 2}}

SCRIPT = """
import json, sys
from pathlib import Path
from benchmarks.parallel import on_processes
from model_ops.jobs import ModelError
from model_ops.jobs import Job
from model_ops.operations import sft
from model_ops.jobs import Progress

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


def test_nothing_said_is_one_process():
    mesh = TrainingSettings().mesh.resolved()
    assert mesh.processes == 1 and set(mesh.sizes().values()) == {1}


def test_processes_alone_share_one_copy_of_the_model():
    assert MeshSettings(processes=4).sizes() == {"dp_replicate": 1, "dp_shard": 4, "cp": 1, "ep": 1, "tp": 1}


def test_dp_shard_takes_what_the_other_axes_leave():
    assert MeshSettings(processes=16, tp=2, cp=2).resolved().dp_shard == 4
    assert MeshSettings(dp_shard=-1, tp=2).resolved(accelerators=8).sizes()["dp_shard"] == 4
    assert MeshSettings(tp=4, dp_shard=2).resolved().processes == 8


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"processes": 6, "tp": 4}, "6 processes are not a multiple of 4 (tp 4)"),
        ({"processes": 2, "dp_replicate": 2, "tp": 2}, "2 processes are not a multiple of 4 (dp_replicate 2 x tp 2)"),
        ({"processes": 8, "dp_shard": 3, "tp": 2}, "dp_shard 3 times 2 (tp 2) is 6, but processes is 8"),
        ({"dp_shard": 0}, "dp_shard is a number of processes, or -1"),
    ],
)
def test_a_mesh_that_cannot_be_is_one_sentence(values, sentence):
    with pytest.raises(ValidationError) as caught:
        MeshSettings(**values)
    assert sentence in str(caught.value)


def test_all_accelerators_where_there_are_none():
    with pytest.raises(ValueError, match="no accelerators to count: give processes"):
        MeshSettings(dp_shard=-1).resolved(accelerators=0)


def test_drafters_are_copied_and_cut_and_nothing_else():
    assert speculator_settings(mesh={"dp_replicate": 2, "dp_shard": 4}).mesh.resolved().processes == 8
    assert speculator_settings(mesh={"dp_shard": -1}).mesh.dp_shard == -1
    for axis in ("cp", "ep", "tp"):
        with pytest.raises(
            ValidationError, match=f"{axis} is 2, but drafters support only dp_shard and dp_replicate: set {axis} to 1"
        ):
            speculator_settings(mesh={axis: 2})
    with pytest.raises(ValidationError, match="this stage trains in one process; leave mesh out"):
        TinyBaseSettings(mesh={"dp_shard": 2})


CONFIG = SimpleNamespace(num_attention_heads=8, num_key_value_heads=2, head_dim=16, hidden_size=128, model_type="qwen3")
Q, K, OUT = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qko")
SHAPES = {Q: (128, 128), K: (32, 128), OUT: (128, 128)}


@pytest.mark.parametrize(
    "kind", ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "gpt_oss"]
)
def test_every_parameter_of_every_architecture_has_logical_axes(kind):
    fields = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "head_dim": 8,
        "num_key_value_heads": 2,
        "vocab_size": 96,
        "num_experts": 4,
        "num_local_experts": 4,
        "attention_bias": True,
    }
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields))
    for name, parameter in model.named_parameters():
        axes = axes_of(name, parameter.ndim, kind)
        assert any(axes), name
        for axis, size in zip(axes, parameter.shape, strict=True):
            assert size == {"vocab": 96, "embed": 32, "heads": size, "kv_heads": 16, "expert": 4}.get(axis, size), name


def test_experts_of_gpt_oss_lie_the_other_way_round():
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert axes_of(name, 3, "gpt_oss") == ("expert", "embed", "mlp")
    assert axes_of(name, 3, "qwen3_moe") == ("expert", "mlp", "embed")


def test_a_dimension_is_cut_by_one_rule_and_fsdp_takes_the_next():
    plan = plan_sharding(SHAPES, CONFIG, MeshSettings(dp_shard=4, tp=2))
    assert plan[Q].placements == {"tp": 0, "fsdp": 1} and plan[Q].local_shape == (64, 32)
    assert plan[OUT].placements == {"tp": 1, "fsdp": 0} and plan[OUT].local_shape == (32, 64)
    assert plan_sharding(SHAPES, CONFIG, MeshSettings(dp_shard=4))[Q].placements == {"fsdp": 0}


def test_only_whole_heads_are_cut():
    plan = plan_sharding(SHAPES, CONFIG, MeshSettings(tp=4))
    assert plan[Q].placements == {"tp": 0}
    assert plan[K].placements == {} and plan[K].narrowed == 0
    assert plan[K].notes == ("tp 4 does not divide kv_heads 2: replicated",)


def test_what_fsdp_cannot_divide_is_padded_and_said():
    plan = plan_sharding({"model.norm.weight": (30,)}, CONFIG, MeshSettings(dp_shard=4))
    assert plan["model.norm.weight"].local_shape == (8,)
    assert plan["model.norm.weight"].notes == ("fsdp 4 divides no dimension: padded",)


def test_expert_parallel_needs_experts():
    with pytest.raises(ModelError, match="ep 2 cannot be used with this qwen3 model: it has no experts"):
        plan_sharding(SHAPES, CONFIG, MeshSettings(ep=2))


@pytest.mark.parametrize(("kind", "name"), [("qwen2_moe", "shared_expert"), ("phi3", "qkv_proj"), ("olmo2", "q_norm")])
def test_tensor_parallel_of_what_it_does_not_know_is_refused(kind, name):
    fields = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 96,
        "num_key_value_heads": 2,
        "num_experts": 4,
        "pad_token_id": 0,
    }
    config = AutoConfig.for_model(kind, **fields)
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in AutoModelForCausalLM.from_config(config).named_parameters()}
    plan_sharding(shapes, config, MeshSettings(dp_shard=2))
    with pytest.raises(
        ModelError, match=rf"tp cannot be used with this {kind} model: the logical axes of \S*{name}\S* are unknown"
    ):
        plan_sharding(shapes, config, MeshSettings(tp=2))


def test_experts_are_cut_as_wholes_or_not_at_all():
    shapes = {"model.layers.0.mlp.experts.gate_up_proj": (3, 64, 32), "model.layers.0.mlp.experts.down_proj": (3, 32, 32)}
    plan = plan_sharding(shapes | {Q: (128, 128)}, CONFIG, MeshSettings(tp=2))
    assert all(plan[name].placements == {} for name in shapes)


def test_tensor_parallel_that_divides_nothing_is_refused():
    with pytest.raises(ModelError, match="tp 3 divides no dimension"):
        plan_sharding(SHAPES, CONFIG, MeshSettings(tp=3))
