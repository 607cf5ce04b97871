"""Blocks read one at a time: the weights, and what calibration makes of them, are those of the model in memory."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import tiny_model

from model_ops.calibration.walk import walk
from model_ops.documents import Document, to_batches
from model_ops.families.table import FAMILIES, PACKED
from model_ops.jobs import ModelError
from model_ops.models import load_blockwise, load_model
from model_ops.models.tiny_families import tiny_model as tiny_family
from model_ops.quantization.model_layers import block_layers, model_of_config

CPU = torch.device("cpu")


def rows(family):
    return to_batches(
        [Document(f"r{i}", np.random.default_rng(i).integers(3, 60, 33), np.ones(33, bool)) for i in range(3)],
        64 if family in PACKED else 1,
    )


def walked(model, family, layers):
    """(second moments of what layers read, what the last block says) with every Linear layer changed in its turn."""
    moments, block = {}, None
    for block in walk(model, rows(family), layers):
        moments |= {name: read.moment for name, read in block.inputs().items()}
        for name, layer in block.layers.items():
            block.replace(name, layer.weight * 0.9)
        block.advance()
    return moments, [run.hidden for run in block.runs]


@torch.no_grad()
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_blocks_from_files_are_those_in_memory_bit_for_bit(family, tmp_path):
    tiny_family(family).to(torch.bfloat16).save_pretrained(tmp_path)
    whole, blockwise = load_model(tmp_path, torch.bfloat16), load_blockwise(tmp_path, torch.bfloat16, CPU)
    assert all(tensor.is_meta for tensor in blockwise.module.parameters())
    wanted, seen = whole.state_dict(), set()
    for index in range(len(blockwise.blocks)):
        with blockwise.block(index):
            held = {
                name: value
                for name, value in blockwise.module.state_dict().items()
                if name.startswith(f"{blockwise.prefix}.{index}.")
            }
            assert all(value.dtype == wanted[name].dtype and torch.equal(value, wanted[name]) for name, value in held.items())
            seen |= held.keys()
    assert seen == {name for name in wanted if name.startswith(f"{blockwise.prefix}.")}
    layers = set(block_layers(model_of_config(whole.config.to_dict())).modules.values())
    ours, theirs = walked(blockwise, family, layers), walked(whole, family, layers)
    assert ours[0].keys() == theirs[0].keys() and all(torch.equal(ours[0][name], theirs[0][name]) for name in ours[0])
    assert all(torch.equal(*pair) for pair in zip(ours[1], theirs[1], strict=True))
    assert all(tensor.is_meta for tensor in blockwise.module.parameters())


def test_weights_are_held_for_the_embedding_and_one_block_at_a_time(tmp_path):
    tiny_model(layers=4).save_pretrained(tmp_path, max_shard_size="20KB")
    model, held = load_blockwise(tmp_path, torch.float32, CPU), []
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    for block in walk(model, rows("qwen3"), ()):
        held.append({name.split(".")[2] for name, tensor in model.module.named_parameters() if not tensor.is_meta})
        assert block.index == len(held) - 1
    assert held == [{str(index)} for index in range(4)]


def changed(directory, name, change):
    tensors = load_file(directory / "model.safetensors")
    tensors[name] = change(tensors[name])
    save_file(
        {name: value for name, value in tensors.items() if value is not None}, directory / "model.safetensors", {"format": "pt"}
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: None, "lacks tensor model.layers.2.post_attention_layernorm.weight"),
        (lambda value: value[:5].clone(), r"post_attention_layernorm.weight has shape \[5\], its config.json requires"),
    ],
)
def test_wrong_tensors_are_refused_before_weights_are_read(tmp_path, change, message):
    tiny_model(layers=3).save_pretrained(tmp_path)
    changed(tmp_path, "model.layers.2.post_attention_layernorm.weight", change)
    with pytest.raises(ModelError, match=message):
        load_blockwise(tmp_path, torch.float32, CPU)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.layers.1.mlp.up_proj.weight", r"model.layers.1.mlp.up_proj.weight holds values that are not finite"),
        (
            "model.embed_tokens.weight",
            r"model.layers.0.self_attn.q_proj reads values that are not finite on the calibration rows",
        ),
    ],
)
def test_values_that_are_not_finite_name_the_layer(tmp_path, name, message):
    tiny_model(layers=3).save_pretrained(tmp_path)
    changed(tmp_path, name, lambda value: value.index_fill(0, torch.arange(3, 40), torch.nan))
    with pytest.raises(ModelError, match=message):
        for block in walk(
            load_blockwise(tmp_path, torch.float32, CPU),
            rows("qwen3"),
            {f"model.layers.{index}.self_attn.q_proj" for index in range(3)},
        ):
            block.inputs()
