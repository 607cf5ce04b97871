"""The bytes that each token of a vocabulary stands for, whatever way a tokenizer writes them.

    of_model = TokenBytes.of(tokenizer)
    of_model.bytes[17]         # b" the"

A byte-level BPE writes a space as "Ġ" and other bytes as stand-in letters; SentencePiece writes a space as "▁" and single
bytes as <0x0A>. Added tokens are their text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from model_ops.jobs import ModelError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class TokenBytes:
    """The bytes of every token of a vocabulary."""

    bytes: dict[int, bytes]
    """Bytes by token id."""
    byte_tokens: frozenset[int]
    """Ids of tokens that are one raw byte."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> TokenBytes:
        """Raises ModelError for a tokenizer that is neither byte-level nor SentencePiece's kind."""
        if not tokenizer.is_fast:
            raise ModelError("the tokenizer has no tokenizer.json; convert it to the tokenizers format first")
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        spelling = json.dumps([content.get("decoder"), content.get("pre_tokenizer")])
        if '"ByteLevel"' in spelling:
            by_id = _byte_level(tokenizer)
        elif "\\u2581" in spelling:
            by_id = _sentence_piece(tokenizer)
        else:
            raise ModelError(
                "the tokenizer is neither a byte-level BPE nor of SentencePiece's kind, so the bytes of its "
                "tokens are not known; give a model with one of them"
            )
        by_id |= {token_id: token.content.encode() for token_id, token in tokenizer.added_tokens_decoder.items()}
        spelt = {token_id for token, token_id in tokenizer.get_vocab().items() if _BYTE.fullmatch(token)}
        return cls(by_id, frozenset(spelt))


def _byte_level(tokenizer: PreTrainedTokenizerBase) -> dict[int, bytes]:
    of_letter = {letter: byte for byte, letter in bytes_to_unicode().items()}
    return {
        token_id: bytes(of_letter[letter] for letter in token)
        if all(letter in of_letter for letter in token)
        else token.encode()
        for token, token_id in tokenizer.get_vocab().items()
    }


def _sentence_piece(tokenizer: PreTrainedTokenizerBase) -> dict[int, bytes]:
    by_id = {}
    for token, token_id in tokenizer.get_vocab().items():
        byte = _BYTE.fullmatch(token)
        by_id[token_id] = bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
    return by_id
