"""Of reasoning beyond a budget only the closing mark and the end of turn are learnt."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken

from benchmarks.template_kinds import TOOLS, answer, call, tokenizer_of, user
from model_ops.documents.conversations import tokenize
from model_ops.models.model_directory import load_tokenizer
from model_ops.rendering.contexts import ReasoningBudget
from model_ops.rendering.row import Row
from model_ops.rendering.tokens import ServedTokens

HOUSE = Path(__file__).parents[4] / "shared" / "models" / "house"
THINKS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.reasoning_content and loop.last %}"
    "{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function.name + '</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
OPENS = (
    "{% for m in messages %}{{ m.role + ':' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:<think>\n' }}{% endif %}"
)
LONG = answer("12", reasoning="because")


def marked(tokenizer, messages, budget, **row):
    """The text of every document with its learnt tokens in {}, and what was counted."""
    counted = ReasoningBudget(budget)
    served = row.pop("served", None)
    documents, counts = tokenize([Row("row", messages, **row)], tokenizer, 10_000, served=served, budget=counted)
    texts = []
    for document in documents:
        ends = [0, *(1 + np.flatnonzero(np.diff(document.targets))), len(document)]
        pieces = [
            (document.targets[start], tokenizer.decode(document.input_ids[start:end]))
            for start, end in itertools.pairwise(ends)
        ]
        texts.append("".join(f"{{{text}}}" if is_learnt else text for is_learnt, text in pieces))
    return texts, counted, counts


@pytest.mark.parametrize("are_tokens", [False, True])
def test_longer_reasoning_is_cut_at_the_budget_and_its_end_alone_is_learnt(are_tokens):
    """The white space of the template counts where it follows the opening mark: a server counts it too."""
    tokenizer = tokenizer_of(THINKS)
    if are_tokens:
        tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in ("<think>", "</think>")])
    texts, counted, counts = marked(tokenizer, [user("one"), LONG], 5)
    begin = "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert texts == [begin + "beca{\n</think>}\n\n12{<|im_end|>}"]
    assert (counted.reasoning_answers, counted.closed_answers, counted.longest_reasoning) == (1, 1, 8)
    assert counts.target_tokens == (3 if are_tokens else 10)


def test_reasoning_within_the_budget_is_left_out():
    tokenizer = tokenizer_of(THINKS)
    texts, counted, counts = marked(tokenizer, [user("one"), LONG], 8)
    assert (texts, counts.rows, counts.dropped_rows) == ([], 1, 1)
    assert (counted.reasoning_answers, counted.closed_answers) == (1, 0)
    assert marked(tokenizer, [user("one"), LONG], 7)[1].closed_answers == 1


def test_each_turn_counts_by_itself():
    tokenizer = tokenizer_of(THINKS)
    talk = [user("a"), answer("1", reasoning="long enough"), user("b"), answer("2"), user("c"), answer("3", reasoning="no")]
    texts, counted, _ = marked(tokenizer, [*talk, user("d"), LONG], 5)
    assert [text[text.rindex("<think>") :] for text in texts] == [
        "<think>\nlong{\n</think>}\n\n1{<|im_end|>}",
        "<think>\nbeca{\n</think>}\n\n12{<|im_end|>}",
    ]
    assert texts[1].count("{") == 2 and (counted.reasoning_answers, counted.closed_answers) == (3, 2)


def test_a_block_that_the_prompt_opens_has_all_tokens_of_the_answer():
    texts, _, _ = marked(tokenizer_of(OPENS), [user("one"), LONG], 3)
    assert texts == ["user:one<|im_end|>assistant:<think>\nbec{\n</think>}\n\n12{<|im_end|>}"]


def test_an_answer_that_the_token_limit_ended_within_its_reasoning_has_no_end_to_learn():
    cut = {**answer("", reasoning="because"), "learnt_cut": True}
    [text], counted, _ = marked(tokenizer_of(THINKS), [user("one"), cut], 5)
    assert text.endswith("<think>\nbeca{\n</think>}") and counted.closed_answers == 1
    later = {**LONG, "learnt_cut": True}
    [text], _, _ = marked(tokenizer_of(THINKS), [user("one"), later], 5)
    assert text.endswith("<think>\nbeca{\n</think>}\n\n12")


def test_a_tool_call_after_the_reasoning_is_context():
    calls = {**answer("", reasoning="because"), "tool_calls": [call(1, "Oslo")]}
    [text], _, _ = marked(tokenizer_of(THINKS), [user("one"), calls], 5, tools=TOOLS)
    assert text.endswith("<think>\nbeca{\n</think>}\n\n<tool_call>weather</tool_call>{<|im_end|>}")


def test_reasoning_is_never_cut_within_a_character():
    [text], _, _ = marked(tokenizer_of(THINKS), [user("one"), answer("1", reasoning="日本語 or so")], 6)
    assert text.endswith("<think>\n日{\n</think>}\n\n1{<|im_end|>}")


def test_nothing_is_learnt_of_texts_and_token_ids():
    assert marked(tokenizer_of(THINKS), [], 1, text="some text")[0] == []
    assert marked(tokenizer_of(THINKS), [], 1, token_ids=[1, 2, 3])[0] == []


def test_served_tokens_are_cut_as_they_were_served():
    """The log's own tokens: the answer without its end of turn, and one that the token limit ended before the closing mark."""
    tokenizer = tokenizer_of(THINKS)
    prompt = tokenizer.encode("<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)

    def served(text, reason):
        ids = tokenizer.encode(text, add_special_tokens=False)
        return ServedTokens({"i": {"prompt_token_ids": prompt, "completion_token_ids": ids, "finish_reason": reason}})

    whole = served("<think>because</think>12", "stop")
    [text], _, counts = marked(tokenizer, [user("one"), LONG], 4, served=whole, interaction_ids=("i",))
    assert text.endswith("\n<think>beca{\n</think>}12{<|im_end|>}") and counts.served_answers == 1
    cut = {**answer("", reasoning="because it"), "learnt_cut": True}
    limit = served("<think>\nbecause it", "length")
    [text], _, _ = marked(tokenizer, [user("one"), cut], 1, served=limit, interaction_ids=("i",))
    assert text.endswith("\n<think>\n{\n</think>}")


@pytest.mark.skipif(not HOUSE.exists(), reason="needs ../shared/models/house")
def test_a_real_tokenizers_marks_of_several_tokens():
    tokenizer = load_tokenizer(HOUSE)
    said = answer("<think>\nbecause it is so.\n</think>\n\n12")
    counted = ReasoningBudget(3)
    documents, _ = tokenize([Row("row", [user("one"), said])], tokenizer, 1000, budget=counted)
    before = "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n<think>\nbecause"
    expected = [tokenizer.encode(text, add_special_tokens=False) for text in (before, "\n</think>", "\n\n12", "<|im_end|>")]
    assert documents[0].input_ids.tolist() == list(itertools.chain(*expected))
    mask = [is_learnt for ids, is_learnt in zip(expected, (False, True, False, True), strict=True) for _ in ids]
    assert documents[0].targets.tolist() == mask and counted.longest_reasoning == 7
