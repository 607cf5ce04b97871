"""The tail of latencies: the 99th percentile where there are enough requests for it."""

import numpy as np
import pytest

from model_ops.evaluation.served_forms import tail_quantile, tail_s


def test_the_quantile_grows_with_the_requests():
    assert [round(tail_quantile(number), 3) for number in (1, 8, 10, 50, 64, 500, 10_000)] == [
        0.5, 0.5, 0.5, 0.9, 0.922, 0.99, 0.99,
    ]  # fmt: skip


@pytest.mark.parametrize("number", [8, 64, 200])
def test_one_slow_request_does_not_move_it_and_a_slow_tail_does(number):
    even = list(np.linspace(1.0, 1.2, number))
    once = [*even[:-1], 9.0]
    assert tail_s(once) == pytest.approx(tail_s(even), rel=0.01)
    slow = [latency * (1.5 if place % 2 else 1) for place, latency in enumerate(even)]
    assert tail_s(slow) > 1.1 * tail_s(even)


def test_of_many_requests_it_is_the_99th_percentile():
    found = np.random.default_rng(0).exponential(size=5_000)
    assert tail_s(list(found)) == pytest.approx(np.percentile(found, 99))
    with pytest.raises(ValueError, match="no tail"):
        tail_s([])
