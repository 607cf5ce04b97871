"""Learning rates: their shapes at known steps, and what holds for every schedule and length of run."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from model_ops.training.optimizers import learning_rate_at
from model_ops.training.settings import TrainingSettings

PEAK = 0.01


def rates(steps, **values):
    chosen = TrainingSettings(steps=steps, learning_rate=PEAK, **values).resolved()
    return [learning_rate_at(step, steps, chosen) / PEAK for step in range(steps)]


def test_cosine_ends_at_its_floor_and_is_halfway_in_the_middle():
    found = rates(12, warmup_share=0.25, final_learning_rate_share=0.2)
    assert found[:4] == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert found[-1] == pytest.approx(0.2)
    assert rates(101, warmup_share=0, final_learning_rate_share=0.2)[50] == pytest.approx(0.6)


def test_wsd_is_flat_and_then_falls_by_the_root():
    found = rates(100, schedule="wsd", warmup_share=0.1, decay_share=0.2)
    assert found[9:80] == pytest.approx([1.0] * 71)
    assert found[80] < 1
    assert found[89] == pytest.approx(1 - 0.9 * 0.5**0.5)
    assert found[-1] == pytest.approx(0.1)


def test_linear_falls_by_the_same_in_every_step():
    found = rates(11, schedule="linear", warmup_share=0, final_learning_rate_share=0)
    assert found == pytest.approx([1 - step / 10 for step in range(11)], abs=1e-12)


def test_constant_stays():
    assert rates(5, schedule="constant", warmup_share=0.4) == pytest.approx([0.5, 1, 1, 1, 1])


@given(
    st.sampled_from(["cosine", "wsd", "linear", "constant"]), st.integers(1, 300), st.floats(0, 0.5), st.floats(0, 1),
    st.floats(0.01, 0.5),
)  # fmt: skip
def test_every_schedule_rises_to_the_peak_and_never_again(schedule, steps, warmup, floor, decay):
    found = rates(steps, schedule=schedule, warmup_share=warmup, final_learning_rate_share=floor, decay_share=decay)
    rising = round(warmup * steps)
    assert all(0 <= rate <= 1 + 1e-12 for rate in found)
    assert all(a < b for a, b in itertools.pairwise(found[:rising]))
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(found[rising:]))
    if rising:
        assert found[rising - 1] == pytest.approx(1)
    if schedule in ("cosine", "linear", "wsd") and steps - rising > 1:
        assert found[-1] == pytest.approx(floor)


@pytest.mark.parametrize(
    "values,said",
    [
        ({"schedule": "wsd", "warmup_share": 0.5, "decay_share": 0.6}, "more than the whole run"),
        ({"schedule": "wsd", "warmup_share": 0.9}, "more than the whole run"),
        ({"schedule": "step"}, "constant"),
    ],
)
def test_shares_that_do_not_add_up_are_refused(values, said):
    with pytest.raises(ValidationError, match=said):
        TrainingSettings(**values)
