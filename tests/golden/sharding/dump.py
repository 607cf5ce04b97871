"""Who holds which part of which parameter, without a device: real models' shapes on fake process groups.

    python -m tests.golden.sharding.dump        # writes all the golden files anew, after a rule was changed on purpose

The model is made on the meta device and placed on the mesh by the code that training uses (model_ops.parallel.place);
what its DTensors then say is written down, for the first process and the last. Layers that are cut alike are one entry."""

import json
import re
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from model_ops.parallel.mesh import Mesh
from model_ops.parallel.mesh_settings import MeshSettings
from model_ops.parallel.place import describe, place
from model_ops.parallel.sharding import plan_sharding

HERE = Path(__file__).parent

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-8b": (
        "llama",
        {
            "hidden_size": 4_096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128_256,
            "tie_word_embeddings": False,
        },
    ),
    "qwen3-30b-a3b": (
        "qwen3_moe",
        {
            "hidden_size": 2_048,
            "intermediate_size": 6_144,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "head_dim": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "vocab_size": 151_936,
            "tie_word_embeddings": False,
        },
    ),
    "gpt-oss-20b": (
        "gpt_oss",
        {
            "hidden_size": 2_880,
            "intermediate_size": 2_880,
            "num_hidden_layers": 24,
            "num_attention_heads": 64,
            "head_dim": 64,
            "num_key_value_heads": 8,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "vocab_size": 201_088,
        },
    ),
}

MESHES: dict[str, list[MeshSettings]] = {
    "llama-8b": [
        MeshSettings(),
        MeshSettings(dp_shard=8),
        MeshSettings(dp_shard=16, tp=4),
        MeshSettings(dp_replicate=4, dp_shard=16, cp=2, tp=8),
    ],
    "qwen3-30b-a3b": [
        MeshSettings(),
        MeshSettings(dp_shard=2, ep=4),
        MeshSettings(dp_shard=4, ep=8, tp=2),
        MeshSettings(dp_replicate=4, dp_shard=4, ep=8, tp=8),
    ],
    "gpt-oss-20b": [
        MeshSettings(),
        MeshSettings(ep=8),
        MeshSettings(dp_shard=4, tp=16),
        MeshSettings(dp_shard=16, cp=2, ep=8, tp=4),
    ],
}
"""For 1, 8, 64 and 1,024 devices."""

CASES = [(name, mesh) for name, meshes in MESHES.items() for mesh in meshes]


def shape_model(name: str) -> PreTrainedModel:
    """A model of these shapes on the meta device."""
    kind, fields = MODELS[name]
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields), dtype=torch.float32)


def planned(name: str, mesh: MeshSettings) -> dict[str, Any]:
    """What the rules say, for the first process; no process group at all."""
    model = shape_model(name)
    plan = plan_sharding({key: tuple(value.shape) for key, value in model.named_parameters()}, model.config, mesh)
    return {
        key: {"shape": list(sharding.shape), "placements": sharding.placements, "local": list(sharding.local_shape)}
        for key, sharding in plan.items()
    }


def placed(name: str, mesh: MeshSettings, rank: int) -> dict[str, Any]:
    """What process `rank` of the mesh really holds."""
    processes = mesh.resolved().processes
    model = shape_model(name)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=processes)
    try:
        place(model, Mesh.over(mesh, "cpu"), "float32", torch.device("cpu"))
        return describe(model)
    finally:
        dist.destroy_process_group()


def golden(name: str, mesh: MeshSettings) -> dict[str, Any]:
    """One file's content."""
    processes = mesh.resolved().processes
    first, last = placed(name, mesh, 0), placed(name, mesh, processes - 1)
    sizes = {axis: size for axis, size in mesh.sizes().items() if size > 1}
    entries = {key: {**value, "last": last[key]["local"]} for key, value in first.items()}
    return {"model": name, "processes": processes, "mesh": sizes, "parameters": _folded(entries)}


def path_of(name: str, mesh: MeshSettings) -> Path:
    return HERE / f"{name}-{mesh.resolved().processes}.json"


def _folded(entries: dict[str, Any]) -> dict[str, Any]:
    """Parameters of all layers as one entry, `layers.*`, where they are cut alike; else each by its name."""
    alike: dict[str, list[str]] = {}
    for name in entries:
        alike.setdefault(re.sub(r"\.layers\.\d+\.", ".layers.*.", name), []).append(name)
    folded = {}
    for pattern, names in alike.items():
        if all(entries[name] == entries[names[0]] for name in names):
            folded[pattern] = entries[names[0]]
        else:
            folded |= {name: entries[name] for name in names}
    return folded


def written(content: dict[str, Any]) -> str:
    """One line a parameter, so that a changed rule reads well in a diff."""
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in content["parameters"].items())
    head = json.dumps({key: value for key, value in content.items() if key != "parameters"})
    return f'{head[:-1]},\n  "parameters": {{\n{lines}\n  }}}}\n'


if __name__ == "__main__":
    for name, mesh in CASES:
        path_of(name, mesh).write_text(written(golden(name, mesh)))
        print(path_of(name, mesh).name, flush=True)
