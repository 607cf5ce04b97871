"""Writes a drafter's directory: model.safetensors, and config.json for servers with transformers 4 and 5.

    {**decoder_fields(config, torch.bfloat16), "model_type": "llama", "mlp_bias": False}

Braces hold the fields of the drafter's decoder layers (`decoder_fields`); an export adds its own.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from model_ops.files import renamed_when_complete, tensor_files
from model_ops.speculators.decoder_config import DecoderConfig
from model_ops.speculators.draft_model import SaveOptions
from model_ops.speculators.verify_layers import SPECULATORS_LAYOUT, TRAINED_WITH


def in_dtype(weights: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors for a file: on the CPU, contiguous, floating-point ones in `dtype`."""
    return {
        name: tensor.detach().cpu().to(dtype).contiguous() if tensor.is_floating_point() else tensor.cpu()
        for name, tensor in weights.items()
    }


def write_directory(
    directory: Path, weights: dict[str, Tensor], config: dict[str, Any], metadata: dict[str, str] | None = None
) -> None:
    """Writes model.safetensors, with `metadata` in its header and visible only when complete, and config.json."""
    with renamed_when_complete(directory / "model.safetensors") as temporary:
        save_file(weights, temporary, metadata={"format": "pt", **(metadata or {})})
        tensor_files.order_metadata(temporary)
        temporary.chmod(0o644)
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_both_layouts(
    directory: Path,
    weights: dict[str, Tensor],
    config: dict[str, Any],
    in_speculators_layout: tuple[dict[str, Tensor], dict[str, Any]],
    trained_with: dict[str, Any],
) -> None:
    """Writes a drafter's directory, and below it the same weights in the speculators layout (tensors, config.json).
    trained_with: values of training that the weights depend on, for the header of both files."""
    metadata = {TRAINED_WITH: json.dumps(trained_with)}
    write_directory(directory / SPECULATORS_LAYOUT, *in_speculators_layout, metadata)
    write_directory(directory, weights, config, metadata)


def speculators_fields(algorithm: str, options: SaveOptions, layers: dict[str, Any]) -> dict[str, Any]:
    """Fields that config.json of the speculators layout has for every algorithm. layers: the config of its decoder layers."""
    proposal = {
        "accept_tolerance": 0.0,
        "proposal_type": "greedy",
        "speculative_tokens": options.num_speculative_tokens,
        "verifier_accept_k": 1,
    }
    return {
        "dtype": name_of(options.dtype),
        "has_no_defaults_at_init": False,
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"architectures": options.verifier_architectures, "name_or_path": options.verifier},
        },
        "speculators_model_type": algorithm,
        "speculators_version": "0.6.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "torch_dtype": name_of(options.dtype),
        "transformer_layer_config": layers,
    }


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype in config.json, such as bfloat16."""
    return str(dtype).removeprefix("torch.")


ROPE_KEYS_OF_V4 = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
)


def decoder_fields(config: DecoderConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Fields of all kinds of layers: shapes, positions, eos ids. dtype: of the weights."""
    rope = config.rope_parameters
    kind = rope.get("rope_type", "default")
    scaling = None
    if kind != "default":
        scaling = {"rope_type": kind, **{key: rope[key] for key in ROPE_KEYS_OF_V4 if key in rope}}
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": config.bos_token_id,
        "dtype": name_of(dtype),
        "eos_token_id": config.eos_token_id,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "pad_token_id": config.pad_token_id,
        "rms_norm_eps": config.rms_norm_eps,
        # transformers 5 reads rope_parameters, transformers 4 the other two fields
        "rope_parameters": dict(rope),
        "rope_scaling": scaling,
        "rope_theta": rope.get("rope_theta", 10_000.0),
        "tie_word_embeddings": False,
        "torch_dtype": name_of(dtype),
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }


def rotary_embedding(config: DecoderConfig) -> nn.Module:
    """transformers' rotary embedding for the positions of a drafter's decoder layers."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters=config.rope_parameters,
        )
    )
