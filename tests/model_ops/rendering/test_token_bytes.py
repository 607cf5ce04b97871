"""The bytes of tokens are known, whatever way a tokenizer writes them."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from model_ops.jobs import ModelError
from model_ops.rendering.endpoint_tokens import TokenBytes


def byte_level(vocabulary):
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def sentence_piece(vocabulary):
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_three_spellings_of_the_same_bytes_are_one_token():
    ours = TokenBytes.of(byte_level({"Ġthe": 0, "Ċ": 1, "Ã": 2, "a": 3, "Ġx": 4}))
    theirs = TokenBytes.of(sentence_piece({"▁the": 0, "<0x0A>": 1, "<0xC3>": 2, "<0x61>": 3, "a": 4, "▁y": 5}))
    assert ours.bytes == {0: b" the", 1: b"\n", 2: b"\xc3", 3: b"a", 4: b" x", 5: b"<|im_end|>"}
    assert theirs.bytes == {0: b" the", 1: b"\n", 2: b"\xc3", 3: b"a", 4: b"a", 5: b" y", 6: b"</s>"}


def test_a_tokenizer_of_another_kind_is_refused():
    backend = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with pytest.raises(ModelError, match="neither a byte-level BPE nor"):
        TokenBytes.of(PreTrainedTokenizerFast(tokenizer_object=backend))
