"""Where greedy answers part: places and logits, compared with full forward passes and with torch's own bfloat16."""

import pytest
import torch
from tiny_models import write_target

from model_ops.evaluation.token_scores import bfloat16_step, difference_at, first_differences, scored_model, tie_bound
from model_ops.models.model_directory import load_model


@pytest.mark.parametrize("value", [1.0, 1.9, 2.0, 15.99, 16.0, 31.0, -17.3, 0.3])
def test_the_step_is_that_of_bfloat16(value):
    own = torch.tensor(value, dtype=torch.bfloat16).double().abs()
    above = torch.nextafter(own.to(torch.bfloat16), torch.tensor(torch.inf, dtype=torch.bfloat16)).double()
    assert bfloat16_step(float(own)) == float(above - own)


def test_the_bound_is_of_the_larger_logit():
    assert tie_bound(17.0, -3.0) == tie_bound(-3.0, 17.0) == 0.25 and tie_bound(15.9, 15.8) == 0.125
    assert bfloat16_step(0.0) == 0.0


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [([1, 2, 3], [1, 2, 3], None), ([1, 2, 3], [1, 5, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [4], 0), ([], [], None)],
)
def test_the_first_difference(one, other, place):
    assert difference_at(one, other) == place


@torch.no_grad()
def test_gaps_are_those_of_own_layers_after_the_shared_text(tmp_path):
    write_target(tmp_path / "model", layers=2)
    logits = load_model(tmp_path / "model", attention="sdpa")(torch.tensor([[5, 6, 7, 11, 12]])).logits[0, -1]
    ranked = logits.sort(descending=True).indices.tolist()
    alone = {
        "same": ([5, 6], [7, 8]), "near": ([5, 6, 7], [11, 12, ranked[0], 3]), "far": ([5, 6, 7], [11, 12, ranked[0]]),
        "ends": ([5], [9]), "elsewhere": ([5], [6]),
    }  # fmt: skip
    drafted = {
        "same": ([5, 6], [7, 8]), "near": ([5, 6, 7], [11, 12, ranked[1], 4]), "far": ([5, 6, 7], [11, 12, ranked[-1]]),
        "ends": ([5], [9, 10]),
    }  # fmt: skip
    found = {each.row_id: each for each in first_differences(scored_model(tmp_path / "model"), alone, drafted)}
    assert set(found) == {"near", "far", "ends"}
    assert (found["near"].token, found["near"].one, found["near"].other) == (2, ranked[0], ranked[1])
    for name, place in (("near", 1), ("far", -1)):
        gap = float(logits[ranked[0]] - logits[ranked[place]])
        assert found[name].gap == pytest.approx(gap, abs=1e-5) and found[name].signed_gap > 0
        assert found[name].is_tie == (gap <= 2 * bfloat16_step(float(max(abs(logits[ranked[0]]), abs(logits[ranked[place]])))))
    assert not found["far"].is_tie
    assert (found["ends"].one, found["ends"].other, found["ends"].gap, found["ends"].is_tie) == (None, 10, None, False)
