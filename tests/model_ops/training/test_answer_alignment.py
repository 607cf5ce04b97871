"""Two tokenisations of one answer: every group stands for the same bytes in both."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from model_ops.jobs.errors import ModelError
from model_ops.objectives.paired_chats import aligned
from model_ops.rendering.token_bytes import TokenBytes, matched_ids


def pieces_of(pieces, special=()):
    """A vocabulary whose ids are the places of its pieces."""
    return TokenBytes(dict(enumerate(pieces)), frozenset(special), frozenset())


def by_hand(ours, theirs):
    """Groups of two cuts of one text, by walking along both: whoever is behind takes the next token."""
    groups, i, j, first, place, other = [], 0, 0, (0, 0), 0, 0
    while i < len(ours) or j < len(theirs):
        if place <= other and i < len(ours):
            place, i = place + len(ours[i]), i + 1
        else:
            other, j = other + len(theirs[j]), j + 1
        if place == other:
            groups.append([first[0], i - 1, first[1], j - 1])
            first = (i, j)
    return groups


@given(st.binary(min_size=1, max_size=40), st.sets(st.integers(1, 39)), st.sets(st.integers(1, 39)))
def test_groups_close_where_both_end_at_the_same_byte(text, first, second):
    def cut(places):
        ends = [0, *sorted(place for place in places if place < len(text)), len(text)]
        return [text[a:b] for a, b in pairwise(ends)]

    ours, theirs = cut(first), cut(second)
    found = aligned(range(len(ours)), range(len(theirs)), pieces_of(ours), pieces_of(theirs))
    assert found.tolist() == by_hand(ours, theirs)


def test_special_tokens_match_each_other_and_texts_that_differ_do_not():
    ours = pieces_of([b"hel", b"lo", b"<end>", b" call", b"(1)"], special=[2])
    theirs = pieces_of([b"hello", b"<|stop|>", b" call", b" [1]"], special=[1])
    assert aligned([0, 1, 2], [0, 1], ours, theirs).tolist() == [[0, 1, 0, 0], [2, 2, 1, 1]]
    assert aligned([0, 1, 3, 4, 2], [0, 2, 3, 1], ours, theirs).tolist() == [[0, 1, 0, 0], [2, 2, 1, 1], [4, 4, 3, 3]]
    assert aligned([0, 1], [3, 1], ours, theirs).tolist() == []


def test_a_space_that_only_one_tokenizer_writes_before_a_text_is_no_difference():
    ours, theirs = pieces_of([b" Hello", b" you"]), pieces_of([b"Hel", b"lo", b" you"])
    assert aligned([0, 1], [0, 1, 2], ours, theirs).tolist() == [[0, 0, 0, 1], [1, 1, 2, 2]]
    assert aligned([0, 1, 2], [0, 1], theirs, ours).tolist() == [[0, 1, 0, 0], [2, 2, 1, 1]]


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
    assert matched_ids(ours, theirs, [], []) == ([0, 1, 2, 3], [0, 1, 2, 4])
    assert matched_ids(ours, theirs, [5], [6]) == ([0, 1, 2, 3, 5], [0, 1, 2, 4, 6])


def test_a_tokenizer_of_another_kind_is_refused():
    backend = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with pytest.raises(ModelError, match="neither a byte-level BPE nor"):
        TokenBytes.of(PreTrainedTokenizerFast(tokenizer_object=backend))
