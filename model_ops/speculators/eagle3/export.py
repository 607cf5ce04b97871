"""Saves EAGLE-3 drafters as directories that servers load, and reads their configs.

    directory/               the "midlayer" layout of EAGLE-3 heads: vLLM (method eagle3) and SGLang (EAGLE3)
    directory/speculators/   the same weights in the speculators layout: `vllm serve directory/speculators` alone

Layer ids are written twice, because servers count differently: the top-level eagle_aux_hidden_state_layer_ids are boundaries,
as vLLM reads them; eagle_config's are blocks whose output is read, one less, because SGLang adds 1. Flags that the weights
depend on are also in the header of the weights' file, so that `millrace verify` detects a changed config.
"""

from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from model_ops.jobs import ModelError
from model_ops.speculators.decoder_config import rope_of
from model_ops.speculators.draft_model import SaveOptions
from model_ops.speculators.draft_model_files import decoder_fields, in_dtype, speculators_fields, write_both_layouts
from model_ops.speculators.eagle3.config import MOST_LAYERS, Eagle3Config, speculators_name


def save_eagle3(config: Eagle3Config, tensors: dict[str, Tensor], directory: Path, options: SaveOptions) -> None:
    """Writes both layouts."""
    weights = in_dtype(tensors, options.dtype)
    renamed = {speculators_name(name): tensor for name, tensor in weights.items()}
    trained_with = {"fc_norm": config.fc_norm, "norm_output": config.norm_output}
    in_speculators_layout = renamed, speculators_config(config, options)
    write_both_layouts(directory, weights, midlayer_config(config, options.dtype), in_speculators_layout, trained_with)


def midlayer_config(config: Eagle3Config, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of the midlayer layout (reference: SpecForge's configs, read by SGLang and vLLM)."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_llama_fields(config, dtype),
        "draft_vocab_size": config.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(config.layer_ids),
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [boundary - 1 for boundary in config.layer_ids],
            "use_aux_hidden_state": True,
        },
        "fc_norm": config.fc_norm,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "norm_output": config.norm_output,
        "num_aux_hidden_states": len(config.layer_ids),
        "target_hidden_size": config.hidden_size,
        "target_num_hidden_layers": config.target_layers,
    }


def speculators_config(config: Eagle3Config, options: SaveOptions) -> dict[str, Any]:
    """config.json of the speculators layout with every flag explicit, because defaults differ between servers and trainers."""
    layers = {"architectures": ["LlamaForCausalLM"], **_llama_fields(config, options.dtype)}
    return {
        **speculators_fields("eagle3", options, layers),
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": config.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(config.layer_ids),
        "embed_requires_grad": False,
        "fc_norm": config.fc_norm,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "norm_output": config.norm_output,
    }


def read_midlayer_config(directory: Path, raw: dict[str, Any]) -> Eagle3Config:
    """The module's config from a midlayer config.json; layer ids default to the servers' defaults. Raises ModelError for
    missing or unsupported fields."""
    where, eagle = directory / "config.json", raw.get("eagle_config")
    layer_ids = raw.get("eagle_aux_hidden_state_layer_ids")
    if layer_ids is None:
        layer_ids = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, dict) else None
        if layer_ids is None:
            raise ModelError(f"{where} has no eagle_aux_hidden_state_layer_ids; add the boundaries")
        layer_ids = [output + 1 if type(output) is int else output for output in layer_ids]
    names = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
        "draft_vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
    )
    missing = [name for name in names if raw.get(name) is None]
    if missing:
        raise ModelError(f"{where} lacks {missing[0]}")
    wrong = [name for name in names if type(raw[name]) not in (int, float) or raw[name] <= 0]
    if wrong:
        raise ModelError(f"{where}: {wrong[0]} is {raw[wrong[0]]!r}, not a number above 0")
    if not isinstance(layer_ids, list) or len(layer_ids) != 3:
        listed = f"{len(layer_ids)} layer ids" if isinstance(layer_ids, list) else repr(layer_ids)
        raise ModelError(f"{where} names {listed}, not 3")
    for flag in ("norm_before_residual", "norm_before_fc"):
        if raw.get(flag):
            raise ModelError(f"{where}: {flag} is true, which is not supported: give a head without it")
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"{where}: hidden_act is {raw['hidden_act']!r}; only silu is supported")
    layers = raw.get("num_hidden_layers", 1)
    if type(layers) is not int or not 1 <= layers <= MOST_LAYERS:
        raise ModelError(f"{where}: num_hidden_layers is {layers!r}, not 1 to {MOST_LAYERS}")
    try:
        return Eagle3Config(
            **{name: raw[name] for name in names},
            num_layers=layers,
            fc_norm=bool(raw.get("fc_norm")),
            norm_output=bool(raw.get("norm_output")),
            head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
            rope_parameters=rope_of(raw, 10_000.0),
            layer_ids=tuple(layer_ids),
            target_layers=raw.get("target_num_hidden_layers") or max(layer_ids) + 1,
            eos_token_id=raw.get("eos_token_id"),
            bos_token_id=raw.get("bos_token_id"),
            pad_token_id=raw.get("pad_token_id"),
        )
    except (ValidationError, TypeError) as error:
        problem = error.errors()[0] if isinstance(error, ValidationError) else {"loc": ("layer_ids",), "msg": str(error)}
        raise ModelError(f"{where}: {problem['loc'][0]}: {problem['msg']}") from error


def _llama_fields(config: Eagle3Config, dtype: torch.dtype) -> dict[str, Any]:
    return {**decoder_fields(config, dtype), "mlp_bias": False, "model_type": "llama"}
