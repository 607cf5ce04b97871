"""The n-gram drafter on logged answers: the same counts as the reference implementation, and pieces that hold every byte."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_ops.drafting.lookup import replay
from model_ops.drafting.ngram import NgramIndex
from resources.curating.shingles import RaggedLists
from resources.inspecting.prompt_lookup import pieces_of, replayed


def ragged(lists):
    values = np.array([value for each in lists for value in each], np.uint64)
    return RaggedLists(values, np.cumsum([0, *map(len, lists)]).astype(np.int64))


def counted(rows, draft):
    return replayed(ragged([prompt for prompt, _ in rows]), ragged([answer for _, answer in rows]), draft)


tokens = st.lists(st.integers(0, 4), max_size=60)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.tuples(tokens, tokens), min_size=1, max_size=4), draft=st.integers(1, 6))
def test_counts_are_those_of_the_reference(rows, draft):
    found = counted(rows, draft)
    for place, (prompt, answer) in enumerate(rows):
        forwards, *_ = replay(NgramIndex(prompt), answer, [], draft)
        assert found.forwards[place] == forwards
        assert found.emitted[place] == max(len(answer) - 1, 0)


def test_an_answer_that_repeats_its_prompt_needs_few_forwards_and_a_new_one_as_many_as_tokens():
    copied, fresh = (list(range(100)), list(range(100))), (list(range(100)), list(range(100, 200)))
    found = counted([copied, fresh], 3)
    assert found.forwards.tolist() == [25, 99]
    assert (found.emitted / found.forwards).round(2).tolist() == [3.96, 1.0]


def test_one_answer_for_each_prompt():
    with pytest.raises(ValueError, match="2 prompts and 1 answers"):
        replayed(ragged([[1], [2]]), ragged([[1]]), 3)


@pytest.mark.parametrize("text, count", [
    ("", 0), (None, 0), ("hello world", 2), ("internationalisation", 3), ("12345", 2), ("a  b", 3), ("====", 1), ("x == y", 4),
    ("日本", 2), (" \n\n", 2),
])  # fmt: skip
def test_pieces(text, count):
    assert pieces_of(pa.array([text], pa.string())).lengths.tolist() == [count]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=5))
def test_the_same_texts_have_the_same_pieces_wherever_they_stand(texts):
    together = pieces_of(pa.array(texts, pa.string()))
    for place, text in enumerate(texts):
        alone = pieces_of(pa.array(["x" * 7, text], pa.string()).slice(1))
        assert together.values[together.offsets[place] : together.offsets[place + 1]].tolist() == alone.values.tolist()
