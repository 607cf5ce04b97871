"""Formulas of merging, against the formulas written out here on numbers."""

import math
from functools import partial

import pytest
import torch

from model_ops.operations.merging.checkpoints import generator_of
from model_ops.operations.merging.merge_plan import from_base, largest, linear, random_share, slerp


def test_a_soup_is_the_weighted_mean():
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])
    assert linear([a, b], [3, 1]).tolist() == [(3 * 1 + 3) / 4, (3 * 2 - 2) / 4]


def test_slerp_on_a_circle_moves_by_the_angle():
    a, b = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 2.0])
    for t in (0.0, 0.25, 0.5, 1.0):
        wanted = [2 * math.cos(t * math.pi / 2), 2 * math.sin(t * math.pi / 2)]
        torch.testing.assert_close(slerp(a, b, t), torch.tensor(wanted))


def test_slerp_ends_at_its_models_and_flattens_matrices():
    torch.manual_seed(0)
    a, b = torch.randn(5, 7), torch.randn(5, 7)
    torch.testing.assert_close(slerp(a, b, 0.0), a)
    torch.testing.assert_close(slerp(a, b, 1.0), b)
    torch.testing.assert_close(slerp(a, b, 0.3).flatten(), slerp(a.flatten(), b.flatten(), 0.3))


@pytest.mark.parametrize("b", [[2.0, 4.0], [0.0, 0.0], [-1.0, -2.0]])
def test_slerp_is_linear_where_no_angle_can_be_used(b):
    a, b = torch.tensor([1.0, 2.0]), torch.tensor(b)
    torch.testing.assert_close(slerp(a, b, 0.25), 0.75 * a + 0.25 * b)


def test_task_arithmetic_adds_weighted_differences():
    base, a, b = torch.tensor([1.0]), torch.tensor([3.0]), torch.tensor([0.0])
    assert from_base(base, [a, b], [0.5, 2.0], scale=0.5).item() == 1 + 0.5 * (0.5 * (3 - 1) + 2.0 * (0 - 1))


def test_ties_keeps_the_largest_elects_signs_and_averages_what_agrees():
    base = torch.tensor([1.0, 1.0, 1.0, 1.0])
    first = base + torch.tensor([4.0, 3.0, 0.1, -2.0])  # the largest half: 4, 3
    second = base + torch.tensor([-1.0, 2.0, 0.2, -3.0])  # the largest half: 2, -3
    merged = from_base(
        base, [first, second], [1.0, 1.0], trim=lambda change, _: largest(change, 0.5), elect=True, normalize=True
    )
    # place 0: only 4. place 1: mean of 3 and 2. place 2: nothing. place 3: only -3.
    torch.testing.assert_close(merged - base, torch.tensor([4.0, 2.5, 0.0, -3.0]))


def test_ties_elects_the_sign_of_the_weighted_sum():
    base = torch.zeros(2)
    first, second = torch.tensor([3.0, 3.0]), torch.tensor([-2.0, -2.0])
    assert from_base(base, [first, second], [1.0, 1.0], elect=True, normalize=True).tolist() == [3.0, 3.0]
    assert from_base(base, [first, second], [1.0, 2.0], elect=True, normalize=True).tolist() == [-2.0, -2.0]
    assert from_base(base, [first, second], [1.0, 2.0], elect=True).tolist() == [-4.0, -4.0]


@pytest.mark.parametrize(("density", "kept"), [(0.1, 1), (0.5, 2), (0.8, 4), (1.0, 5)])
def test_trimming_keeps_the_largest_share(density, kept):
    values = torch.tensor([0.1, -5.0, 3.0, 0.2, -1.0])
    order = sorted(range(5), key=lambda index: -abs(values[index]))
    found = largest(values, density)
    assert {index for index in range(5) if found[index] != 0} == set(order[:kept])
    assert all(found[index] in (0, values[index]) for index in range(5))


def test_dare_has_the_difference_as_its_expectation():
    base, tuned = torch.zeros(50), torch.linspace(-1, 1, 50)
    merges = []
    for seed in range(4_000):
        merges.append(
            from_base(
                base,
                [tuned],
                [1.0],
                trim=lambda change, index, seed=seed: random_share(change, 0.25, generator_of(seed, "w", index)),
            )
        )
    drawn = torch.stack(merges)
    # each value is x / 0.25 with probability 0.25: variance 3 x^2, so the mean of 4,000 lies within 5 standard errors
    assert ((drawn.mean(0) - tuned).abs() <= 5 * (3 * tuned**2 / 4_000).sqrt() + 1e-6).all()
    assert abs((drawn[:, 0] != 0).float().mean().item() - 0.25) < 0.03
    assert set(drawn[:, 0].tolist()) == {0.0, -4.0}


def test_each_tensor_and_model_has_random_numbers_of_its_own_and_a_merge_repeats():
    keep = partial(random_share, torch.ones(64), 0.5)
    same = [keep(generator_of(1, "a", 0)), keep(generator_of(1, "a", 0))]
    others = [keep(generator_of(*key)) for key in ((1, "b", 0), (1, "a", 1), (2, "a", 0))]
    assert torch.equal(*same) and not any(torch.equal(same[0], other) for other in others)


def test_bfloat16_is_merged_in_float32():
    a, b = torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0078125], dtype=torch.bfloat16)
    assert linear([a, b], [1, 1]).item() == 1.00390625  # between two bfloat16 numbers
