"""The noise of recovery: small between a model and its rounded form, wide between two models."""

import math
import random

import pytest

from model_ops.documents.likelihood import RowLoss, mean_loss
from model_ops.evaluation.recovery_interval import recovery_interval
from model_ops.jobs.job import ModelError


def rows(loss_of, count=200, seed=0):
    draw = random.Random(seed)
    lengths = [draw.randint(5, 200) for _ in range(count)]
    return [RowLoss(f"r{row}", loss_of(row) * tokens, tokens) for row, tokens in enumerate(lengths)]


def hard(row):
    return random.Random(row).uniform(0.5, 4.0)


def test_what_makes_a_row_hard_for_both_models_is_no_noise():
    reference, served = rows(hard), rows(lambda row: hard(row) + random.Random(-row).gauss(0, 0.001))
    recovery = math.exp(mean_loss(reference) - mean_loss(served))
    low, high = recovery_interval(reference, served)
    assert low < recovery < high and high - low < 0.001


def test_a_difference_between_models_is_outside_the_noise_and_order_is_of_no_matter():
    reference, served = rows(lambda row: hard(row) + 0.1), rows(lambda row: hard(row) + random.Random(-row).gauss(0, 0.1))
    low, high = recovery_interval(reference, served)
    assert 1.08 < low < math.exp(0.1) < high < 1.13
    assert recovery_interval(reference[::-1], served) == (low, high)


def test_the_same_model_twice_has_no_noise():
    assert recovery_interval(rows(hard), rows(hard)) == (1.0, 1.0)


@pytest.mark.parametrize("count", [2, 3, 5, 10, 30])
def test_few_rows_of_equal_models_lie_beyond_1_as_rarely_as_95_percent_promises(count):
    """At either end in 2.5 % of cases: 100 of 4,000, with a standard deviation of 10. Rows of unequal length take a little
    more."""
    draw, beyond, trials = random.Random(count), [0, 0], 4_000
    for _ in range(trials):
        lengths = [draw.randint(50, 150) for _ in range(count)]
        reference = [RowLoss(f"r{row}", 2.0 * tokens, tokens) for row, tokens in enumerate(lengths)]
        served = [RowLoss(row.row_id, row.nll_sum + draw.gauss(0, 0.02) * row.tokens, row.tokens) for row in reference]
        low, high = recovery_interval(reference, served)
        beyond[0] += low > 1
        beyond[1] += high < 1
    spread = (0.025 * 0.975 / trials) ** 0.5
    for missed in beyond:
        assert 0.025 - 3 * spread < missed / trials < 0.035 + 2 * spread


def test_few_rows_of_equal_length_have_the_interval_of_a_paired_t_test():
    differences = [0.01, -0.02, 0.03, 0.0, 0.005]
    reference = [RowLoss(f"r{row}", 200.0, 100) for row in range(5)]
    served = [RowLoss(f"r{row}", 200.0 - 100 * by, 100) for row, by in enumerate(differences)]
    reach = 2.776 * 0.018027756 / math.sqrt(5)  # standard deviation of the differences
    assert recovery_interval(reference, served) == pytest.approx((math.exp(0.005 - reach), math.exp(0.005 + reach)), rel=1e-6)


def test_one_row_has_no_interval_and_rows_without_target_tokens_do_not_count():
    empty = RowLoss("empty", 0.0, 0)
    assert recovery_interval([RowLoss("a", 2.0, 1)], [RowLoss("a", 2.1, 1)]) is None
    assert recovery_interval([RowLoss("a", 2.0, 1), empty], [RowLoss("a", 2.1, 1), empty]) is None


def test_a_wide_interval_of_two_rows_is_a_finite_number():
    reference, served = [RowLoss("a", 900.0, 1), RowLoss("b", 1.0, 1)], [RowLoss("a", 1.0, 1), RowLoss("b", 900.0, 1)]
    low, high = recovery_interval(reference, served)
    assert 0 <= low < 1 < high < math.inf


def test_models_that_read_different_rows_cannot_be_compared():
    with pytest.raises(ModelError, match="no test row in common"):
        recovery_interval([RowLoss("a", 1.0, 1)], [RowLoss("b", 1.0, 1)])
