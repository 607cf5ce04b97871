"""Tries whether a family that the table does not know can be trained, on a small random model with the config's widths and
kinds of layers: documents of a row kept apart, and finite gradients."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from model_ops.families import FAMILIES
from model_ops.jobs import ModelError
from model_ops.models import FAILURES, isolate_documents, scatter_weights

VOCABULARY, NARROW, MOST_LAYERS = 64, 64, 4
WIDTHS = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "ffn_hidden_size")
"""Config values that are cut to NARROW; heads and the width of the residual stream stay."""

MOST_PARAMETERS = 300_000_000
"""A model that is still larger is not tried before the run; its training tries it."""


def refuse_untrainable(config: Mapping[str, Any]) -> None:
    """Raises ModelError for a family outside the table that cannot be trained; a family of the table is not tried."""
    if config.get("model_type") in FAMILIES:
        return
    try:
        small = small_model(config)
        reason = None if small is None else said(train, small)
    except ModelError as error:
        reason = str(error)
    if reason is not None:
        raise ModelError(f"{reason}; name a model of another family")


def small_model(config: Mapping[str, Any]) -> PretrainedConfig | None:
    """The config of the small model; None if even that is too large to try. Raises ModelError if transformers cannot build
    it."""
    try:
        small = small_config(config)
        with torch.device("meta"):
            whole = AutoModelForCausalLM.from_config(small, trust_remote_code=False)
    except (*FAILURES, ImportError, OSError, StrictDataclassError) as error:
        raise ModelError(
            f"transformers builds no causal language model from this {config.get('model_type')} config ({type(error).__name__})"
        ) from error
    return None if sum(parameter.numel() for parameter in whole.parameters()) > MOST_PARAMETERS else small


def small_config(config: Mapping[str, Any]) -> PretrainedConfig:
    """The config of a small model of the same kind: one layer of each kind, two at least."""
    values = {
        name: value
        for name, value in config.items()
        if name not in ("model_type", "quantization_config", "architectures", "dtype", "torch_dtype")
    }
    kinds = list(values.get("layer_types") or [])
    layers = 2
    if kinds:
        layers = max(2, min(MOST_LAYERS, max(kinds.index(kind) for kind in set(kinds)) + 1))
        values["layer_types"] = kinds[:layers]
    values |= {
        "num_hidden_layers": layers,
        "vocab_size": VOCABULARY,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    values |= {name: min(NARROW, values[name]) for name in WIDTHS if type(values.get(name)) is int}
    return AutoConfig.for_model(str(config["model_type"]), **values)


def said(step: Callable[[PretrainedConfig], None], small: PretrainedConfig) -> str | None:
    """The problem of a trial step, in one sentence; None if the step works. Leaves the caller's random state unchanged."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            step(small)
    except ModelError as error:
        return str(error)
    except (*FAILURES, ImportError, OSError) as error:
        return f"{small.model_type} does not run in the {step.__name__} trial ({type(error).__name__})"
    return None


def random_model(small: PretrainedConfig, attention: str) -> PreTrainedModel:
    """A model of the small config with random weights. Raises ModelError if its attention cannot be chosen."""
    try:
        model = AutoModelForCausalLM.from_config(small, attn_implementation=attention, dtype=torch.float32)
    except (KeyError, ValueError) as error:
        raise ModelError(f"the attention of {small.model_type} does not support packed documents") from error
    scatter_weights(model, seed=0)
    return model.eval()


def train(small: PretrainedConfig) -> None:
    """Raises ModelError if documents of a row influence each other or a gradient is not finite."""
    kind = small.model_type
    model = random_model(small, "packed")
    isolate_documents(model, Path(kind))
    ids = torch.arange(3, 14)[None] % VOCABULARY
    positions = torch.cat((torch.arange(5), torch.arange(6)))[None]
    logits = model(input_ids=ids, position_ids=positions, use_cache=False, document_lengths=[5, 6]).logits
    logits.float().logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            raise ModelError(f"the gradient of {name} in a {kind} is not finite, so it cannot be trained")
