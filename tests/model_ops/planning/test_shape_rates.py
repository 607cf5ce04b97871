"""Speed of blocks and head on this CPU, measured on a small model; and assumed where nothing is measured."""

import pytest

from model_ops.models.tiny_families import tiny_config
from model_ops.planning.shape_rates import ShapeRates, measure_shapes


@pytest.mark.parametrize("kind, rank", [("qwen3", 0), ("llama", 4)])
def test_a_small_model_is_measured_in_every_part(kind, rank):
    rates = measure_shapes(tiny_config(kind).to_dict(), "float32", rank)
    parts = rates._asdict()
    above = {
        name: each
        for name, each in parts.items()
        if name not in ("row_s", "round_s", "head_round_s", "head_row_s", "output_s", "column_s")
    }
    assert all(0 < each < 1 for each in above.values()), above
    assert rates.round_s + 64 * rates.row_s > 0 and rates.column_s + 64 * rates.output_s > 0
    assert rates.step_s > rates.forward_s


def test_assumed_rates_are_in_proportion_to_the_speed_of_products():
    slow, fast = (ShapeRates.assumed(gflops, 1e7, 1e8) for gflops in (50.0, 100.0))
    assert slow.forward_s == pytest.approx(2 * 1e7 / (0.35 * 50e9)) and slow.forward_s == 2 * fast.forward_s
    assert slow.head_row_s == 2 * fast.head_row_s and slow.round_s == fast.round_s
