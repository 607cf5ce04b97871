"""Batches of similar length: every prompt once, never more than asked for, and no split costs less."""

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_ops.decoding.decode_loop import batches, cost_of_rounds


def cost(lengths, split, per_batch):
    return sum(len(rows) * max(lengths[row] for row in rows) + per_batch for rows in split)


@given(st.lists(st.integers(1, 60), max_size=9), st.integers(1, 5), st.integers(0, 80))
def test_no_other_split_costs_less(lengths, most, per_batch):
    found = batches(lengths, most, per_batch)
    assert sorted(row for rows in found for row in rows) == list(range(len(lengths)))
    assert all(0 < len(rows) <= most for rows in found)
    in_order = [lengths[row] for rows in found for row in rows]
    assert in_order == sorted(lengths, reverse=True)
    order = sorted(range(len(lengths)), key=lambda row: lengths[row], reverse=True)
    for cuts in product([False, True], repeat=max(0, len(lengths) - 1)):
        begins = [0, *(place for place, cut in enumerate(cuts, 1) if cut), len(lengths)]
        split = [order[begin:end] for begin, end in pairwise(begins) if begin < end]
        if all(len(rows) <= most for rows in split):
            assert cost(lengths, found, per_batch) <= cost(lengths, split, per_batch)


@pytest.mark.parametrize(("per_batch", "sizes"), [(0, [2, 2]), (2_000, [4]), (1_500, [2, 2])])
def test_a_batch_is_split_where_its_padding_costs_more_than_its_rounds(per_batch, sizes):
    found = batches([900, 40, 40, 900], 64, per_batch)  # one batch pads 2 * 860 tokens
    assert [len(rows) for rows in found] == sizes


def test_short_prompts_stay_together():
    assert len(batches([30 + number % 9 for number in range(64)], 64, cost_of_rounds("cpu", 48))) == 1
    assert len(batches([3_000] * 8 + [60] * 32, 64, cost_of_rounds("cpu", 48))) == 2
    assert batches([], 4, 10) == []
