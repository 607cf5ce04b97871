"""The linter of DFlash drafters: what is written is sound, and every mistake that servers would not tell is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tiny_drafters import tiny_dflash
from tiny_models import tiny_model, write_target

from model_ops.decoding.incremental import IncrementalModel
from model_ops.jobs import ModelError
from model_ops.speculators.factory import load_draft_model
from model_ops.verify import verify


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("verify-dflash")
    write_target(root / "model", layers=8)
    tiny_dflash(IncrementalModel(tiny_model(layers=8, vocab_size=300))).save(root / "drafter", 3)
    return root


@pytest.fixture
def copies(originals, tmp_path):
    return Path(shutil.copytree(originals, tmp_path / "copies"))


def edit(path, **changes):
    """Changes a config.json, `own__name` within dflash_config and `layer__name` within transformer_layer_config."""
    config = json.loads(path.read_text())
    for name, value in changes.items():
        where, _, inner = name.rpartition("__")
        place = config[{"own": "dflash_config", "layer": "transformer_layer_config"}[where]] if where else config
        place[inner] = value
    path.write_text(json.dumps(config))


def sentences(copies):
    return " | ".join(problem.sentence for problem in verify(copies / "drafter", copies / "model"))


def test_what_is_written_is_sound(originals):
    for folder in ("drafter", "drafter/speculators"):
        assert verify(originals / folder, originals / "model") == [], folder


BROKEN = {
    "target_layer_ids is None": {"own__target_layer_ids": None},
    "target_layer_ids is [2, 4, 6], the weights were trained with [1, 3, 5]": {"own__target_layer_ids": [2, 4, 6]},
    "are not distinct and ascending": {"own__target_layer_ids": [1, 5, 3]},
    "[1, 3, 8] are outside its 8": {"own__target_layer_ids": [1, 3, 8]},
    "fc.weight is [32, 96], config.json requires [32, 64]": {"own__target_layer_ids": [1, 3]},
    "mask_token_id is 300, not one of the target's 300": {"own__mask_token_id": 300},
    "mask_token_id is 7, the weights were trained with 299": {"own__mask_token_id": 7},
    "block_size is None, not a number of at least 2: SGLang would take 16": {"block_size": None},
    "block_size is 16, the weights were trained with 4": {"block_size": 16},
    "num_target_layers = None": {"num_target_layers": None},
    "num_target_layers is 36, the target's layers are 8": {"num_target_layers": 36},
    "which vLLM reads first, as boundaries: one above": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]},
    "eagle_config would be read by vLLM": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}},
    "dflash_config.causal is True": {"own__causal": True}, "is_causal is True": {"is_causal": True},
    "layer_types is ['full_attention', 'sliding_attention']": {"layer_types": ["full_attention", "sliding_attention"]},
    "is_neox_style is False": {"is_neox_style": False}, "model_type is 'llama'": {"model_type": "llama"},
    "tensor layers.2.self_attn.q_norm.weight is missing": {"num_hidden_layers": 3},
    "max_position_embeddings is 64, below the target's 256": {"max_position_embeddings": 64},
    "rope_theta is 7.0": {"rope_theta": 7.0}, "dflash_config is None": {"dflash_config": None},
}  # fmt: skip

BROKEN_TWINS = {
    "aux_hidden_state_layer_ids is None": {"aux_hidden_state_layer_ids": None},
    "target_layer_ids is [0, 2, 4], the weights were trained with [1, 3, 5]": {"aux_hidden_state_layer_ids": [1, 3, 5]},
    "speculative_tokens is 3, a block of 3 holds 2 drafts": {"block_size": 3},
    "sliding_window_non_causal is not true": {"sliding_window_non_causal": False},
    "sample_from_anchor is not false": {"sample_from_anchor": True},
    "draft_vocab_size is 200": {"draft_vocab_size": 200},
    "names no number of speculative_tokens": {"speculators_config": {}},
    "speculators_model_type 'dflash2' is not eagle3 or dflash": {"speculators_model_type": "dflash2"},
    "must be a llama or qwen3 config": {"transformer_layer_config": None},
    "num_hidden_layers = None": {"layer__num_hidden_layers": None},
}


@pytest.mark.parametrize(
    ("folder", "expected"), [*[(".", name) for name in BROKEN], *[("speculators", name) for name in BROKEN_TWINS]]
)
def test_broken_drafters_are_named(copies, folder, expected):
    edit(copies / "drafter" / folder / "config.json", **{**BROKEN, **BROKEN_TWINS}[expected])
    assert expected in sentences(copies)


def test_weights_of_the_two_layouts_that_differ_are_named(copies):
    path = copies / "drafter" / "speculators" / "model.safetensors"
    save_file({name: tensor + (name == "fc.weight") for name, tensor in load_file(path).items()}, path)
    assert "fc.weight differs between the two layouts" in sentences(copies)


UNREADABLE = {
    "target_layer_ids is None": {"own__target_layer_ids": None},
    "block_size: Input should be": {"block_size": 1},
    "dflash_config.causal, which is not supported": {"own__causal": True},
    "without full attention": {"layer_types": ["sliding_attention"] * 2},
    "num_layers: Input should be": {"num_hidden_layers": None},
    "holds an invalid value .TypeError": {"layer_types": 5},
    "holds an invalid value .KeyError: 'spiral'": {"rope_parameters": {"rope_type": "spiral", "rope_theta": 10_000.0}},
}


@pytest.mark.parametrize("expected", UNREADABLE)
def test_a_drafter_that_is_not_known_here_is_refused(copies, expected):
    edit(copies / "drafter" / "config.json", **UNREADABLE[expected])
    with pytest.raises(ModelError, match=expected):
        load_draft_model(copies / "drafter")
