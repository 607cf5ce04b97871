"""Top-k, top-p and min-p leave what servers leave."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model_ops.decoding.sampling import NONE, Truncation, truncated

P = torch.tensor([[0.4, 0.3, 0.2, 0.07, 0.03]])


@pytest.mark.parametrize(
    ("truncation", "left"),
    [
        (NONE, 5),
        (Truncation(top_k=2), 2),
        (Truncation(top_k=9), 5),
        (Truncation(top_p=0.7), 2),
        (Truncation(top_p=0.71), 3),
        (Truncation(top_p=1e-6), 1),
        (Truncation(min_p=0.2), 3),
        (Truncation(min_p=1.0), 1),
        (Truncation(top_k=3, top_p=0.75), 2),  # of 0.9 that top-k leaves, 0.7 is more than 0.675
        (Truncation(min_p=0.2, top_k=4, top_p=0.99), 3),
    ],
)
def test_what_is_left(truncation, left):
    kept = truncated(P, truncation)
    assert torch.equal(kept[0, :left], P[0, :left]) and not kept[0, left:].any()
    shuffled = truncated(P[:, [3, 0, 4, 2, 1]], truncation)
    assert torch.equal(shuffled[:, [1, 4, 3, 0, 2]], kept)


@given(
    logits=st.lists(st.floats(-8, 8), min_size=2, max_size=40),
    top_p=st.floats(0.05, 1),
    top_k=st.integers(0, 50),
    min_p=st.floats(0, 1),
)
def test_something_is_left_and_it_is_the_likeliest(logits, top_p, top_k, min_p):
    p = torch.tensor([logits]).softmax(dim=-1)
    kept = truncated(p, Truncation(top_p, top_k, min_p))
    assert kept[0, p.argmax()] > 0 and ((kept == 0) | (kept == p)).all()
    if (kept == 0).any():
        assert p[kept == 0].max() <= p[kept > 0].min() + 1e-7
