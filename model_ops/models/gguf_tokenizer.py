"""Writes a tokenizer into a GGUF file, as llama.cpp reads it: byte-level BPE with one of the splits that llama.cpp knows.

llama.cpp has the regular expressions that cut text before BPE compiled in, and a file names one of them (`tokenizer.ggml.pre`).
A tokenizer with another split is refused: it would be read, and text would become other tokens than the model learnt.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from model_ops.errors import ModelError
from model_ops.models.model_directory import load_tokenizer

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
        raise ModelError(f"the tokenizer of {directory} cuts text in a way that is not known here to be one of llama.cpp's: "
                         "leave quantize.gguf out")
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
