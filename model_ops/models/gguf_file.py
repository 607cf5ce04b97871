"""Writes a model and its tokenizer as one GGUF file with Q8_0 weights for llama.cpp, as its convert_hf_to_gguf.py does: for
`llama` rows of queries and keys are interleaved, since llama.cpp rotates neighbours. Matrices whose rows 32 does not divide are
float16. A tokenizer whose split before BPE llama.cpp has not compiled in is refused."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from model_ops.families import FAMILIES
from model_ops.files import TORCH_NAMES, TensorHeader, read_directory, renamed_when_complete
from model_ops.jobs import ModelError
from model_ops.models.model_directory import load_tokenizer, read_config

ARCHITECTURES = {"llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}
"""model_type -> gguf's name of the architecture."""
INTERLEAVED = ("llama", "mistral")
FILE = "model-q8_0.gguf"
GROUP = 32
FIXED_YARN = {"beta_fast": 32, "beta_slow": 1, "truncate": True}
"""What llama.cpp computes YaRN with for these architectures, whatever a file says: its common loader (llama-model.cpp) reads
type, factor, attn_factor and original_context_length; yarn_beta_fast and yarn_beta_slow are read for a few others only."""


def check_gguf(directory: Path) -> None:
    """Raises ModelError, one sentence, if the directory cannot be written as GGUF."""
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise ModelError(
            "quantize.gguf needs the package gguf, which is not installed: pip install 'millrace[gguf]'"
        ) from error
    config = read_config(directory)
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        titles = ", ".join(FAMILIES[name].title for name in ARCHITECTURES)
        raise ModelError(f"{directory} is a {kind} model, and GGUF is written here for {titles}: leave quantize.gguf out")
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if window is not None and window < config["max_position_embeddings"]:
        raise ModelError(
            f"{directory} attends to windows of {window} tokens, which llama.cpp's architecture has not: leave "
            "quantize.gguf out"
        )
    _rope(config)


def write_gguf(directory: Path, path: Path) -> int:
    """Writes the file; returns its bytes. Memory holds one tensor. Raises ModelError as `check_gguf` does."""
    import gguf

    check_gguf(directory)
    config = read_config(directory)
    architecture = getattr(gguf.MODEL_ARCH, ARCHITECTURES[config["model_type"]])
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    headers = read_directory(directory)
    with renamed_when_complete(path) as temporary:
        writer = gguf.GGUFWriter(temporary, gguf.MODEL_ARCH_NAMES[architecture])
        _write_metadata(writer, config, directory.name)
        write_tokenizer(writer, directory, config["vocab_size"])
        written = {}
        for name, header in headers.items():
            if name == "lm_head.weight" and config.get("tie_word_embeddings"):
                continue
            stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if stored is None:
                raise ModelError(f"{directory}: {name} has no name in GGUF: leave quantize.gguf out")
            kind = _kind(header.shape)
            written[stored] = header, kind, name
            writer.add_tensor_info(stored, header.shape, np.dtype(np.float32), _bytes(header.shape, kind), raw_dtype=kind)
        factors = _rope(config)[1]
        if factors is not None:
            writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for header, kind, name in written.values():
            writer.write_tensor_data(gguf.quants.quantize(_values(header, name, config), kind))
        if factors is not None:
            writer.write_tensor_data(factors)
        writer.close()
    return path.stat().st_size


def _write_metadata(writer: Any, config: Mapping[str, Any], name: str) -> None:
    import gguf

    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    theta, _, scaling = _rope(config)
    writer.add_type("model")
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(theta)
    if scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling["type"]))
        writer.add_rope_scaling_factor(scaling["factor"])
        if scaling["type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(scaling["original"])
            writer.add_rope_scaling_attn_factors(scaling["attention"])


def _rope(config: Mapping[str, Any]) -> tuple[float, np.ndarray | None, dict[str, Any] | None]:
    """(base, factors that divide the frequencies, scaling in the metadata). Raises ModelError for another kind of RoPE."""
    given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(given.get("rope_theta") or config.get("rope_theta") or 10_000)
    kind = given.get("rope_type") or given.get("type") or "default"
    if given.get("partial_rotary_factor", 1) != 1:
        kind = "partial"
    if kind == "default":
        return theta, None, None
    if kind == "llama3":
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return theta, _llama3(given, theta, head_dim), None
    if kind == "linear":
        return theta, None, {"type": kind, "factor": float(given["factor"])}
    if kind == "yarn":
        return theta, None, _yarn(given, config["max_position_embeddings"])
    raise ModelError(f"config.json has RoPE of kind {kind}, which is not written to GGUF here: leave quantize.gguf out")


def _yarn(given: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """YaRN's settings. attention: what llama.cpp multiplies its own attention factor, 0.1 log(factor) + 1, by."""
    other = [f"{name} {given[name]}" for name, fixed in FIXED_YARN.items() if given.get(name) not in (None, fixed)]
    if other:
        raise ModelError(
            f"config.json has YaRN with {' and '.join(other)}, which llama.cpp does not read from a file of this "
            "architecture: leave quantize.gguf out"
        )
    original = given.get("original_max_position_embeddings") or longest
    factor = float(given.get("factor") or longest / original)

    def temperature(scale: float) -> float:
        return 0.1 * scale * math.log(max(factor, 1)) + 1

    scale, scale_all = given.get("mscale"), given.get("mscale_all_dim")
    usual = temperature(scale) / temperature(scale_all) if scale and scale_all else temperature(1)
    attention = (given.get("attention_factor") or usual) / temperature(1)
    return {"type": "yarn", "factor": factor, "original": original, "attention": attention}


def _llama3(given: Mapping[str, Any], theta: float, head_dim: int) -> np.ndarray:
    """Llama 3.1's factors: 1 for short waves, `factor` for long ones, in between interpolated (transformers' llama3 RoPE)."""
    waves = 2 * math.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    low, high, original = given["low_freq_factor"], given["high_freq_factor"], given["original_max_position_embeddings"]
    share = np.clip((original / waves - low) / (high - low), 0, 1)
    return (1 / ((1 - share) / given["factor"] + share)).astype(np.float32)


def _kind(shape: tuple[int, ...]) -> Any:
    import gguf

    if len(shape) < 2:
        return gguf.GGMLQuantizationType.F32
    return gguf.GGMLQuantizationType.F16 if shape[-1] % GROUP else gguf.GGMLQuantizationType.Q8_0


def _bytes(shape: tuple[int, ...], kind: Any) -> int:
    import gguf

    values, size = gguf.GGML_QUANT_SIZES[kind]
    return math.prod(shape) // values * size


def _values(header: TensorHeader, name: str, config: Mapping[str, Any]) -> np.ndarray:
    """A tensor as float32, in llama.cpp's order. Raises ModelError for values that are not finite."""
    dtype = getattr(torch, TORCH_NAMES[header.dtype])
    values = torch.frombuffer(bytearray(header.read()), dtype=dtype).view(header.shape).float()
    if not torch.isfinite(values).all():
        raise ModelError(f"{header.file}: {name} holds values that are not finite; train the model again")
    if config["model_type"] in INTERLEAVED and name.rpartition(".")[0].endswith(("q_proj", "k_proj")):
        heads = config["num_attention_heads"]
        values = interleaved(values, heads if "q_proj" in name else config.get("num_key_value_heads") or heads)
    return values.contiguous().numpy()


def interleaved(rows: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys with the two halves of each head's rotary pairs side by side."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(rows.shape)


NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""llama.cpp's types of tokens."""

DIGITS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
IGNORES_MERGES = ("llama-bpe",)
"""Splits with which llama.cpp takes a piece that is a token of its own whole, whatever the merges say."""
SPLITS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|" + DIGITS % "{1,3}": "llama-bpe",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|" + DIGITS % "": "qwen2",
}
"""Regular expression of a tokenizer.json -> llama.cpp's name of it (llama-vocab.cpp)."""


def write_tokenizer(writer: Any, directory: Path, vocabulary: int) -> None:
    """Adds the vocabulary, merges, special ids and chat template. vocabulary: rows of the embedding. Raises ModelError for a
    tokenizer that llama.cpp has no code for."""
    from gguf import SpecialVocab

    backend = load_tokenizer(directory).backend_tokenizer  # some families take a split of their own, whatever the file says
    tokenizer = json.loads(backend.to_str())
    split = split_name(tokenizer)
    if tokenizer["model"].get("type") != "BPE" or split is None:
        raise ModelError(
            f"the tokenizer of {directory} cuts text in a way that is not known here to be one of llama.cpp's: "
            "leave quantize.gguf out"
        )
    tokens, types = _tokens(tokenizer, vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    special = SpecialVocab(directory, load_merges=True, n_vocab=vocabulary)
    template = directory / "chat_template.jinja"
    if special.chat_template is None and template.is_file():
        special.chat_template = template.read_text()
    # without the key llama.cpp decides by the split
    special.add_special_token["bos"] = _begins_with_bos(backend, special.special_token_ids.get("bos"))
    special.add_to_gguf(writer, quiet=True)


def split_name(tokenizer: dict[str, Any]) -> str | None:
    """llama.cpp's name for how a tokenizer.json cuts text before BPE; None if it has none known here."""
    if tokenizer.get("normalizer") not in (None, {"type": "NFC"}):
        return None
    given = tokenizer.get("pre_tokenizer") or {}
    parts = given.get("pretokenizers", []) if given.get("type") == "Sequence" else [given]
    if [part.get("type") for part in parts] == ["ByteLevel"] and parts[0].get("use_regex", True):
        return None if parts[0].get("add_prefix_space") else "gpt-2"
    if [part.get("type") for part in parts] != ["Split", "ByteLevel"] or parts[1].get("use_regex", True):
        return None
    name = SPLITS.get(parts[0].get("pattern", {}).get("Regex"))
    return name if bool(tokenizer.get("model", {}).get("ignore_merges")) == (name in IGNORES_MERGES) else None


def _begins_with_bos(backend: Tokenizer, bos: int | None) -> bool:
    """Whether the tokenizer puts its bos before every text."""
    return bos is not None and backend.encode("a").ids[:1] == [bos]


def _tokens(tokenizer: dict[str, Any], vocabulary: int) -> tuple[list[str], list[int]]:
    """The token and its type for every row of the embedding; rows without a token are named after their number."""
    tokens, types = [f"[PAD{row}]" for row in range(vocabulary)], [UNUSED] * vocabulary
    for token, row in tokenizer["model"]["vocab"].items():
        tokens[row], types[row] = token, NORMAL
    for added in tokenizer.get("added_tokens", []):
        tokens[added["id"]], types[added["id"]] = added["content"], CONTROL if added.get("special") else USER_DEFINED
    return tokens, types
