"""Saves DFlash drafters as directories that servers load, and reads their configs.

    directory/               z-lab's layout: vLLM (method dflash) and SGLang (DFLASH)
    directory/speculators/   the same weights in the speculators layout: `vllm serve directory/speculators` alone

Neither has an embedding or a head, since servers use the target's. dflash_config.target_layer_ids are target layers whose
output is read (both servers add 1); the speculators layout has boundaries. num_target_layers is required, because without it
SGLang checks the ids against the drafter's own layers; layer_types must be full attention, because vLLM makes sliding layers
causal.
"""

from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from model_ops.jobs import ModelError
from model_ops.speculators.decoder_config import rope_of
from model_ops.speculators.dflash.config import DFlashConfig
from model_ops.speculators.draft_model import SaveOptions
from model_ops.speculators.draft_model_files import decoder_fields, in_dtype, speculators_fields, write_both_layouts


def save_dflash(config: DFlashConfig, tensors: dict[str, Tensor], directory: Path, options: SaveOptions) -> None:
    """Writes both layouts. Raises ValueError for more drafts than a block has."""
    drafts = options.num_speculative_tokens
    if not 1 <= drafts < config.block_size:
        raise ValueError(f"a block of {config.block_size} holds {config.block_size - 1} drafts, not {drafts}")
    weights = in_dtype(tensors, options.dtype)
    trained_with = {
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": _outputs(config),
    }
    in_speculators_layout = weights, speculators_config(config, options)
    write_both_layouts(directory, weights, dflash_config(config, options.dtype), in_speculators_layout, trained_with)


def dflash_config(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of z-lab's layout."""
    return {
        "architectures": ["DFlashDraftModel"],
        **_qwen3_fields(config, dtype),
        "block_size": config.block_size,
        "dflash_config": {"mask_token_id": config.mask_token_id, "target_layer_ids": _outputs(config)},
        "num_target_layers": config.target_layers,
    }


def speculators_config(config: DFlashConfig, options: SaveOptions) -> dict[str, Any]:
    """config.json of the speculators layout, every flag explicit."""
    layers = {"architectures": ["Qwen3ForCausalLM"], **_qwen3_fields(config, options.dtype)}
    return {
        **speculators_fields("dflash", options, layers),
        "architectures": ["DFlashSpeculator"],
        "aux_hidden_state_layer_ids": list(config.layer_ids),
        "block_size": config.block_size,
        "draft_vocab_size": config.vocab_size,
        "mask_token_id": config.mask_token_id,
        "sample_from_anchor": False,
        "sliding_window_non_causal": True,
    }


def read_dflash_config(directory: Path, raw: dict[str, Any]) -> DFlashConfig:
    """The module's config from z-lab's config.json. Raises ModelError for missing fields and for unsupported values."""
    path, own = directory / "config.json", raw.get("dflash_config")
    own = own if isinstance(own, dict) else {}
    outputs = own.get("target_layer_ids")
    if not isinstance(outputs, list) or not all(type(output) is int for output in outputs):
        raise ModelError(f"{path}: dflash_config.target_layer_ids is {outputs!r}; list the target's layers that it reads")
    unknown = [
        name
        for name in (
            "causal",
            "use_swa",
            "attention_sink_bias",
            "attention_value_scale",
            "projector_type",
            "conv_kernel_size",
            "selector_rank",
            "sample_from_anchor",
        )
        if own.get(name)
    ]
    kinds = raw.get("layer_types") or []
    if unknown or raw.get("attention_bias") or any(kind != "full_attention" for kind in kinds):
        what = f"dflash_config.{unknown[0]}" if unknown else "attention_bias or a layer without full attention"
        raise ModelError(f"{path} has {what}, which is not supported: give a drafter without it")
    heads, hidden = raw.get("num_attention_heads"), raw.get("hidden_size")
    names = (
        "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps",
        "eos_token_id", "bos_token_id", "pad_token_id",
)  # fmt: skip
    try:
        return DFlashConfig(
            **{name: raw.get(name) for name in names},
            num_key_value_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or (hidden // heads if isinstance(hidden, int) and heads else None),
            num_layers=raw.get("num_hidden_layers"),
            rope_parameters=rope_of(raw, 1_000_000.0),
            layer_ids=[output + 1 for output in outputs],
            target_layers=raw.get("num_target_layers") or max(outputs, default=0) + 1,
            block_size=own.get("block_size", raw.get("block_size")),
            mask_token_id=own.get("mask_token_id", raw.get("mask_token_id")),
        )
    except ValidationError as error:
        problem = error.errors()[0]
        raise ModelError(f"{path}: {problem['loc'][0]}: {problem['msg']}") from error


def _outputs(config: DFlashConfig) -> list[int]:
    """The target's layers whose outputs are the boundaries that are read."""
    return [boundary - 1 for boundary in config.layer_ids]


def _qwen3_fields(config: DFlashConfig, dtype: torch.dtype) -> dict[str, Any]:
    return {
        **decoder_fields(config, dtype),
        "layer_types": ["full_attention"] * config.num_layers,
        "max_window_layers": config.num_layers,
        "model_type": "qwen3",
        "sliding_window": None,
        "use_sliding_window": False,
    }
