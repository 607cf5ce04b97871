"""Contexts are the server's own tokens; answers are tokens of their own."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from model_ops.documents.conversations import tokenize
from model_ops.rendering.row import Row
from model_ops.rendering.tokens import TurnEncoder, TurnTokens, joined
from model_ops.rendering.turns import LearntTurn


def tokenizer_of(pre_tokenizer, merges=()):
    letters = sorted({*pre_tokenizers.ByteLevel.alphabet(), "▁", " ", "\n"})
    vocabulary = {piece: place for place, piece in enumerate([*letters, *("".join(merge) for merge in merges)])}
    backend = Tokenizer(models.BPE(vocabulary, list(merges)))
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel() if isinstance(pre_tokenizer, pre_tokenizers.ByteLevel) else decoders.Metaspace()
    backend.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in ("<s>", "<|end|>", "<|user|>")])
    backend.post_processor = processors.TemplateProcessing(
        "<s> $A <|end|>", None, [("<s>", backend.token_to_id("<s>")), ("<|end|>", backend.token_to_id("<|end|>"))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="<|end|>")


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPACES = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
LINES = [("Ċ", "Ċ"), ("o", "n"), ("on", "e")]


def test_a_text_begins_and_ends_as_the_tokenizers_own_rule_says():
    tokenizer = tokenizer_of(BYTES)
    documents, _ = tokenize([Row("a", [], text="one")], tokenizer, 100)
    assert tokenizer.decode(documents[0].input_ids) == "<s>one<|end|>"
    assert documents[0].targets.all()


def test_a_token_never_spans_prompt_and_answer():
    tokenizer = tokenizer_of(BYTES, LINES)
    [[turn]] = TurnEncoder(tokenizer).turns([[LearntTurn(1, "<|user|>o", "ne<|end|>")]])
    assert turn.prompt.tolist() == tokenizer.encode("<|user|>o", add_special_tokens=False)
    assert tokenizer.decode(turn.answer) == "ne<|end|>"


def test_an_answer_stays_in_later_contexts_as_the_model_gave_it():
    tokenizer = tokenizer_of(BYTES, LINES)
    turns = [LearntTurn(1, "<|user|>o", "ne<|end|>"), LearntTurn(3, "<|user|>one<|end|><|user|>ho\n", "x<|end|>")]
    [found] = TurnEncoder(tokenizer).turns([turns])
    assert found[1].prompt[: len(found[0].prompt) + len(found[0].answer)].tolist() == [*found[0].prompt, *found[0].answer]
    assert tokenizer.decode(found[1].prompt) == turns[1].context and len(joined(found)) == 1


@pytest.mark.parametrize("pre_tokenizer", [BYTES, SPACES])
@given(
    texts=st.lists(st.text("one \n", min_size=1, max_size=6), min_size=2, max_size=6),
    ends=st.lists(st.sampled_from(["<|end|>", ""]), min_size=6, max_size=6),
)
def test_every_prompt_has_the_servers_own_text_and_where_nothing_merges_its_tokens(pre_tokenizer, texts, ends):
    tokenizer = tokenizer_of(pre_tokenizer, LINES)
    turns, said = [], ""
    for number, ((question, reply), end) in enumerate(zip(itertools.pairwise(texts), ends, strict=False)):
        context = f"{said}<|user|>{question}"
        turns.append(LearntTurn(number, context, reply + end))
        said = context + reply + end
    found, merged = TurnEncoder(tokenizer).turns([turns])[0], False
    for turn, tokens in zip(turns, found, strict=True):
        exact = tokenizer.encode(turn.context, add_special_tokens=False)
        assert tokens.prompt.tolist() == exact or (merged and tokenizer.decode(tokens.prompt) == tokenizer.decode(exact))
        whole = tokenizer.encode(turn.context + turn.answer, add_special_tokens=False)
        merged = merged or whole[: len(exact)] != exact


def test_a_turn_continues_a_context_of_exactly_the_same_tokens():
    def turn(prompt, answer):
        return TurnTokens(np.array(prompt), np.array(answer))

    found = joined([turn([1], [2]), turn([1, 2, 3], [4]), turn([1, 5], [6])])
    assert [ids.tolist() for ids, _ in found] == [[1, 2, 3, 4], [1, 5, 6]]
    assert [targets.tolist() for _, targets in found] == [[False, True, False, True], [False, False, True]]
