"""Loads, checks and saves model directories in the Hugging Face layout. Nothing is downloaded, no code of a model's author
runs, and a directory whose tensors differ from its config is refused. Two vocabularies of the same size pass `refuse_misfit`:
the tokenizer comes from the model's own directory."""

import json
import os
import shutil
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from torch.distributed.tensor import DTensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from model_ops.families import attention_with_cache, stays_float32
from model_ops.files import template_files
from model_ops.jobs import ModelError
from model_ops.models import attention as packed_attention  # registers attention "packed"
from model_ops.models.experts import use_grouped_experts
from model_ops.models.isolation import TRAINED, isolate_documents
from model_ops.parallel import leads, wait_for_all, whole_tensors


def end_of_text_ids(directory: Path) -> frozenset[int]:
    """eos token ids from generation_config.json, or else from config.json. Raises ModelError if neither names one, because
    generation would not stop by itself."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.exists():
            ids = json.loads(path.read_text()).get("eos_token_id")
            if ids is not None:
                return frozenset(ids if isinstance(ids, list) else [ids])
    raise ModelError(
        f"{directory} names no eos_token_id in generation_config.json or config.json; set it, or answers never end"
    )


def add_end_of_text(model: PreTrainedModel, ids: list[int]) -> None:
    """Makes generation also stop at these ids, with which the training data ends answers."""
    known = model.generation_config.eos_token_id
    known = known if isinstance(known, list) else [] if known is None else [known]
    model.generation_config.eos_token_id = list(dict.fromkeys([*ids, *known])) or None


Attention = Literal["packed", "sdpa"]

assert packed_attention
transformers_logging.disable_progress_bar()


def load_model(
    directory: Path,
    dtype: torch.dtype = torch.float32,
    attention: Attention = "packed",
    device: torch.device | str | None = None,
    classifier: bool = False,
) -> PreTrainedModel:
    """Loads the model in `directory`, in evaluation mode. `model_ops.quantization` loads quantized ones. classifier: load a
    sequence classifier (a reward model), not a causal language model. device "meta": shapes of the config without values, if
    another process reads and checks them. Raises ModelError for a quantized model, and for a file or tensor that is missing,
    unexpected or of another shape."""
    if read_config(directory).get("quantization_config") is not None:
        raise ModelError(
            f"{directory} is quantized, and float weights are needed here: give the model that it was quantized from"
        )
    if device is not None and torch.device(device).type == "meta":
        return _without_values(directory, dtype, attention)
    if not headers(directory):
        raise ModelError(f"{directory} holds no .safetensors file; give a model saved as safetensors")
    model, report = _from_pretrained(directory, dtype, attention, classifier)
    refuse_wrong_tensors(directory, report)
    use_grouped_experts(model)
    if attention == "packed":
        isolate_documents(model, directory)
    return (model.to(device) if device is not None else model).eval()


def empty_model(directory: Path, dtype: torch.dtype, attention: Attention) -> PreTrainedModel:
    """The model of a directory's config on the meta device, without values. Raises ModelError if it is no language model."""
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
            )
    except (ValueError, OSError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ModelError(f"{directory} is no causal language model: {_first_line(error)}") from error
    use_grouped_experts(model)
    return model.eval()


def _without_values(directory: Path, dtype: torch.dtype, attention: Attention) -> PreTrainedModel:
    model = empty_model(directory, dtype, attention)
    if attention == "packed":
        isolate_documents(model, directory)
    return model


def check_model(directory: Path) -> None:
    """Compares the tensors in `directory` with its config, reading only the files' headers. If names or shapes differ (a layout
    that transformers converts while loading, or a broken one), the model is loaded, which decides. Raises ModelError like
    `load_model`."""
    if "quantization_config" in read_config(directory) or headers(directory) != expected_tensors(directory):
        load_model(directory)


def headers(directory: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in a directory's safetensors files. Raises ModelError for a damaged file."""
    shapes = {}
    for path in sorted(Path(directory).glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a dict)
                    shapes[name] = tuple(tensors.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is truncated or damaged, copy it again: {_first_line(error)}") from error
    return shapes


def expected_tensors(directory: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a directory's config requires; tied tensors under their first name only."""
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (ValueError, OSError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ModelError(f"{directory} is no causal language model: {_first_line(error)}") from error
    tied = model.all_tied_weights_keys
    return {name: tuple(value.shape) for name, value in model.state_dict().items() if name not in tied}


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in `directory`. Raises ModelError if it is missing or cannot be read."""
    if not directory.is_dir():
        raise ModelError(f"there is no model directory {directory}; check the path")
    if not (directory / "tokenizer.json").exists() and not (directory / "tokenizer_config.json").exists():
        raise ModelError(f"{directory} holds no tokenizer (tokenizer.json); copy the one the model was trained with")
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError, TypeError, ImportError) as error:
        if not (directory / "tokenizer.json").exists():
            raise ModelError(
                f"{directory} holds tokenizer_config.json but no tokenizer.json; copy the one the model was trained with"
            ) from error
        raise ModelError(f"the tokenizer in {directory} cannot be read: {_first_line(error)}") from error
    if not tokenizer.chat_template and (templates := template_files.chat_templates(directory)):  # a processor's
        tokenizer.chat_template = templates["default"] if templates.keys() == {"default"} else templates
    return tokenizer


def save_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Writes a model directory with weights in `dtype`, except those that the family keeps in float32; every file appears under
    its name only when it is complete. generation_config.json has the eos ids of model and tokenizer. With a model that is
    sharded over processes, all of them call this; the first one gathers the tensors one by one and writes them."""
    held = {name: value for name, value in model.state_dict().items() if name not in model.all_tied_weights_keys}
    spread = any(isinstance(value, DTensor) for value in held.values())
    exact = {name for name in held if stays_float32(model, name)}
    weights = whole_tensors(
        {name: value for name, value in held.items() if name not in exact}, keep=leads() or not spread, to=dtype
    )
    weights |= whole_tensors({name: held[name] for name in exact}, keep=leads() or not spread, to=torch.float32)
    if spread and not leads():
        wait_for_all()
        return
    beside = directory / ".saving"
    if beside.exists():
        shutil.rmtree(beside)
    beside.mkdir(parents=True)
    _settle_generation_config(model, tokenizer)
    model.save_pretrained(beside, state_dict=weights, max_shard_size="1TB")
    config = json.loads((beside / "config.json").read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    (beside / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save_pretrained(beside)
    for path in sorted(beside.iterdir(), key=lambda path: path.name == "config.json"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.chmod(0o644)
        path.replace(directory / path.name)
    beside.rmdir()
    if spread:
        wait_for_all()


def read_config(directory: Path) -> dict:
    """config.json as a dict. Raises ModelError if it is missing or not JSON."""
    path = Path(directory) / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError as error:
        if (Path(directory) / "adapter_config.json").exists():
            raise ModelError(f"{directory} holds an adapter, not a model; merge it into its base first") from error
        raise ModelError(f"{directory} holds no config.json; give a Hugging Face model directory") from error
    except (ValueError, OSError) as error:
        raise ModelError(f"{path} is not valid JSON, copy it again: {_first_line(error)}") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise ModelError(f"{path} names no model_type; give a model directory in the Hugging Face layout")
    return config


def training_device() -> torch.device:
    """The device for training: the first accelerator, else the CPU."""
    return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


def refuse_wrong_tensors(directory: Path, report: dict) -> None:
    """Raises ModelError with the first tensor that a loading report has as missing, of another shape, or unexpected."""
    for tensor in sorted(report["missing_keys"]):
        raise ModelError(f"{directory} lacks tensor {tensor}, which its config.json requires; copy the model again")
    for tensor, shape, wanted in sorted(report["mismatched_keys"], key=str):
        raise ModelError(
            f"{directory}: tensor {tensor} has shape {list(shape)}, its config.json requires {list(wanted)}; copy both again"
        )
    for tensor in sorted(report["unexpected_keys"]):
        raise ModelError(f"{directory} holds tensor {tensor}, which its config.json does not describe; copy both again")


def _from_pretrained(
    directory: Path, dtype: torch.dtype, attention: Attention, classifier: bool
) -> tuple[PreTrainedModel, dict]:
    try:
        return (AutoModelForSequenceClassification if classifier else AutoModelForCausalLM).from_pretrained(
            directory,
            dtype=dtype,
            attn_implementation=_available(directory, attention),
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except SafetensorError as error:
        raise ModelError(
            f"{directory}: a .safetensors file is truncated or damaged, copy it again ({_first_line(error)})"
        ) from error
    except (ValueError, OSError, KeyError, TypeError, AttributeError, ImportError) as error:
        if isinstance(error, KeyError) and error.args == (attention,):  # the model has its own table of attention functions
            raise ModelError(
                f"{directory}: this architecture's attention does not support packed documents; {TRAINED}"
            ) from error
        wanted = "sequence classifier" if classifier else "causal language model"
        raise ModelError(f"{directory} cannot be loaded as a {wanted}: {_first_line(error)}") from error


def _available(directory: Path, attention: Attention) -> str:
    """The attention implementation to load."""
    if attention != "sdpa":
        return attention
    return attention_with_cache(AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False))


def _settle_generation_config(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Merges the eos ids of model and tokenizer, and sets greedy defaults, so that saving does not fail."""
    known = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids = list(known) if isinstance(known, list | tuple) else [known]
    ids = [token for token in dict.fromkeys([*ids, tokenizer.eos_token_id]) if token is not None]
    if model.generation_config is None:
        model.generation_config = GenerationConfig()
    model.generation_config.eos_token_id = ids[0] if len(ids) == 1 else ids or None
    if model.generation_config.pad_token_id is None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
HEADS = ("lm_head.weight", "embed_out.weight")


def refuse_misfit(directory: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ModelError if a token has no row in the embedding, or head and embedding differ in vocabulary size. Rows without a
    token (a vocabulary padded to a round number) are fine."""
    shapes = headers(directory)
    embedding = _rows(shapes, EMBEDDINGS)
    head = _rows(shapes, HEADS)
    config = read_config(directory)
    stated = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    if head is not None and embedding is not None and head != embedding:
        raise ModelError(
            f"{directory}: the embedding has {embedding} rows, the head {head}: one of them was resized without "
            "the other; resize both (resize_token_embeddings) and save the model again"
        )
    rows = embedding if embedding is not None else stated
    if rows is None:
        return
    if stated is not None and stated != rows:
        raise ModelError(
            f"{directory}: config.json has vocab_size {stated}, the embedding {rows} rows: the vocabulary was "
            "resized without its config; save the model again with both"
        )
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest >= rows:
        raise ModelError(
            f"{directory}: the tokenizer has {len(tokenizer)} tokens with ids up to {highest}, the model's "
            f"embedding {rows} rows; copy the tokenizer it was trained with, or resize the embedding"
        )


def _rows(shapes: dict[str, tuple[int, ...]], ends: tuple[str, ...]) -> int | None:
    counts = [shape[0] for name, shape in shapes.items() if name.endswith(ends) and shape]
    return counts[0] if counts else None
