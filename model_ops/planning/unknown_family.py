"""Tries a family that the table does not know, on a small random model of its config, before anything is spent.

    found = try_family(config)          # a config.json
    found.train, found.decode, found.quantize      # None: it works; else one sentence

Tried are training (`trainable_family`), decoding with a cache equal to decoding without, and layers to quantize."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from model_ops.decoding import new_runner
from model_ops.families import attention_with_cache
from model_ops.jobs import ModelError
from model_ops.planning.trainable_family import VOCABULARY, random_model, said, small_model, train
from model_ops.quantization import block_layers


@dataclass(frozen=True)
class Trial:
    """Result of a trial: None for what works, or a sentence that says why not."""

    train: str | None = None
    decode: str | None = None
    quantize: str | None = None
    tried: bool = True
    """False if even the small model is too large."""


def try_family(config: Mapping[str, Any]) -> Trial:
    """Tries training, decoding and quantization. Takes seconds on a CPU."""
    try:
        small = small_model(config)
    except ModelError as error:
        return Trial(str(error), str(error), str(error))
    if small is None:
        return Trial(tried=False)
    return Trial(said(train, small), said(decode, small), said(quantize, small))


@torch.no_grad()
def decode(small: PretrainedConfig) -> None:
    """Raises ModelError if logits with a cache differ from logits without."""
    model = random_model(small, attention_with_cache(small))
    ids = torch.arange(3, 15)[None] % VOCABULARY
    whole = model(input_ids=ids, use_cache=False).logits.float()
    runner = new_runner(model)
    cache = runner.new_cache(1)
    parts = []
    for part in ids.split((7, 1, 4), dim=1):
        parts.append(runner.logits(runner.forward(part, cache)[0]))
        cache.lengths += part.shape[1]
    wrong = float((torch.cat(parts, 1) - whole).abs().max())
    if not wrong <= 1e-3 * max(1.0, float(whole.abs().max())):
        raise ModelError(
            f"decoding a {small.model_type} with a cache gives other logits than without (by {wrong:.2g}), so "
            "it cannot be decoded here"
        )


def quantize(small: PretrainedConfig) -> None:
    """Raises ModelError if the blocks hold nothing to quantize."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(small, dtype=torch.bfloat16)
    if not block_layers(model).matrices:
        raise ModelError(f"the blocks of a {small.model_type} hold no Linear layer to quantize")
