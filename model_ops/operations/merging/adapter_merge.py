"""Merges an adapter that another trainer wrote in PEFT's format into its base model, through the peft library.

merge_adapter(base, adapter, output)       # output: a whole model in the Hugging Face layout"""

import json
import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from model_ops.adapters import CONFIG, WEIGHTS, tokenizer_directory
from model_ops.jobs import ModelError
from model_ops.models import headers, load_model, load_tokenizer, read_config, save_model

REASON = 300
"""Characters of the library's own error in a message."""


def merge_adapter(base: Path, adapter: Path, output: Path) -> None:
    """Writes base + adapter to `output` in the base's dtype. Tokenizer and chat template are the adapter's if it has them, else
    the base's. Memory: the base model in its dtype. Raises ModelError if the weights are not a safetensors file, are damaged,
    belong to another model, or are of a kind that peft cannot merge."""
    weights = adapter / WEIGHTS
    if not weights.is_file():
        pickled = (adapter / "adapter_model.bin").exists()
        raise ModelError(
            f"{adapter} holds no {WEIGHTS}"
            + (
                ": adapter_model.bin is a pickle, which can run code; save the adapter with safe_serialization=True"
                if pickled
                else "; copy the whole adapter"
            )
        )
    shapes = headers(adapter)
    config = read_config(base)
    if "quantization_config" in config:
        raise ModelError(f"the adapter's base model {base} is quantized; name its unquantized form in {adapter / CONFIG}")
    dtype = getattr(torch, str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"))
    model = load_model(base, dtype=dtype, attention="sdpa")
    _fit_embeddings(model, json.loads((adapter / CONFIG).read_text()), shapes)
    save_model(_merged(model, adapter, set(shapes)), _tokenizer(base, adapter), output, dtype)


def _fit_embeddings(model: PreTrainedModel, settings: dict, shapes: dict[str, tuple[int, ...]]) -> None:
    """Changes the model's embeddings to those that the adapter was trained on."""
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    names = {name.rpartition(".")[2] for name, module in model.named_modules() if module is table or module is head}
    rows = {shape[0] for name, shape in shapes.items() if name.endswith(tuple(f"{name}.weight" for name in names))}
    if rows and max(rows) != table.num_embeddings:
        model.resize_token_embeddings(max(rows), mean_resizing=False)
    low_rank = any(f".{name}.lora_" in tensor for name in names for tensor in shapes)
    changed = low_rank or names.intersection(settings.get("modules_to_save") or ())
    if changed and model.config.tie_word_embeddings and not settings.get("ensure_weight_tying"):
        head = model.get_output_embeddings()
        head.weight = nn.Parameter(head.weight.detach().clone())
        model.config.tie_word_embeddings = False
        model.all_tied_weights_keys = {}


def _merged(model: PreTrainedModel, adapter: Path, names: set[str]) -> PreTrainedModel:
    from peft import PeftModel, get_peft_model_state_dict

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Found missing adapter keys")
            adapted = PeftModel.from_pretrained(model, str(adapter), local_files_only=True, torch_device="cpu")
        known = get_peft_model_state_dict(adapted, save_embedding_layers=True)
        if odd := sorted(names - set(known)):
            raise ModelError(f"the adapter in {adapter} holds {odd[0]}, which its base model does not have")
        parted = _part_tied_layers(model)
        merged = adapted.merge_and_unload(safe_merge=True)
        if parted:
            merged.config.tie_word_embeddings = True
            merged.get_output_embeddings().weight = merged.get_input_embeddings().weight
        return merged
    except UserWarning as error:
        raise ModelError(
            f"the adapter in {adapter} lacks tensors that its {CONFIG} asks for: it is of another model or cut short"
        ) from error
    except (
        ValueError,
        KeyError,
        RuntimeError,
        TypeError,
        AttributeError,
        NotImplementedError,
        ImportError,
        OSError,
        SafetensorError,
    ) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"peft cannot merge the adapter in {adapter} into {model.name_or_path}: {reason[:REASON]}") from error


def _part_tied_layers(model: PreTrainedModel) -> bool:
    """Gives an adapted head its own copy of the weight that it shares with the adapted input embeddings; whether it did."""
    layers = model.get_input_embeddings(), model.get_output_embeddings()
    table, head = (getattr(layer, "base_layer", None) for layer in layers)
    if table is None or head is None or table.weight is not head.weight:
        return False
    head.weight = nn.Parameter(head.weight.detach().clone())
    return True


def _tokenizer(base: Path, adapter: Path) -> PreTrainedTokenizerBase:
    tokenizer = load_tokenizer(tokenizer_directory(base, adapter))
    if not tokenizer.chat_template:
        tokenizer.chat_template = load_tokenizer(base).chat_template
    return tokenizer
