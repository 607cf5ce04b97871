"""Whether a further interval of a training pays: on lines whose slope is known, and on learning curves of real trainings."""

import json
import math
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_ops.training.learning_curve import DecodingWorth, LossWorth, further

PROJECT = Path(__file__).parents[3]
A_DAY = DecodingWorth(hours_a_day=10.0, days=14.0)


def line(count, slope, start=2.0, each=1_000):
    return [(each * place, start + slope * math.log2(place)) for place in range(1, count + 1)]


def test_a_line_gains_its_slope_and_saves_what_decoding_takes_less():
    found = further(line(8, 0.1), 8_000, 60.0, A_DAY, rises=True)
    assert found.gain == pytest.approx(0.1) and found.gain_high == pytest.approx(0.1, abs=1e-6)  # one doubling, no error
    tau = 2.0 + 0.1 * 3
    assert found.now == pytest.approx(tau)
    hours_less = 10.0 - 10.0 * tau / (tau + 0.1)  # decoding time is in inverse proportion to tau
    assert found.saves_s == pytest.approx(14 * 3600 * hours_less, rel=1e-5) and found.costs_s == 60.0 and found.pays


def test_hours_measured_at_another_acceptance_length_are_converted():
    at_two = DecodingWorth(10.0, 14.0, at_tau=2.0)
    assert at_two.saved_s(2.0, 2.5) == pytest.approx(A_DAY.saved_s(2.0, 2.5))
    assert at_two.saved_s(1.0, 1.25) == pytest.approx(
        2 * A_DAY.saved_s(1.0, 1.25)
    )  # at half of it decoding takes twice as long
    whole = at_two.saved_s(1.0, 2.0) + at_two.saved_s(2.0, 4.0)
    assert at_two.saved_s(1.0, 4.0) == pytest.approx(whole)  # two steps save what the step over both does


def test_a_falling_loss_is_worth_its_nats():
    found = further(line(8, -0.2, start=4.0), 8_000, 3_600.0, LossWorth(0.1), rises=False)
    assert found.gain == pytest.approx(0.2) and found.saves_s == pytest.approx(2 * 3_600.0, rel=1e-5) and found.pays
    assert not further(line(8, -0.2, start=4.0), 8_000, 7_201.0, LossWorth(0.1), rises=False).pays


@pytest.mark.parametrize("slope", [0.0, -0.1])
def test_a_drafter_that_no_longer_gains_never_pays(slope):
    found = further(line(8, slope), 1_000, 1e-3, A_DAY, rises=True)
    assert found.saves_s == 0.0 and not found.pays


def test_few_points_decide_nothing():
    assert further(line(3, 0.0), 1_000, 1e9, A_DAY, rises=True) is None
    assert further(line(4, 0.0), 1_000, 1e9, A_DAY, rises=True) is not None
    assert further([(1_000, 2.0)] * 4, 1_000, 1e9, A_DAY, rises=True) is None  # no tokens between them


def test_what_the_first_steps_learn_is_left_out():
    late = [(1_000, 0.0), (2_000, 0.1), *line(12, 0.01)[2:]]
    assert further(late, 12_000, 1.0, A_DAY, rises=True).gain == pytest.approx(0.01)


def test_noise_ends_no_training_that_a_line_of_the_same_slope_would_not():
    noisy = [(at, value + (-1) ** place * 0.05) for place, (at, value) in enumerate(line(10, 0.05))]
    exact = further(line(10, 0.05), 1_000, 1.0, A_DAY, rises=True)
    found = further(noisy, 1_000, 1.0, A_DAY, rises=True)
    assert found.gain_high > 1.5 * exact.gain_high and found.gain < found.gain_high


@given(st.floats(0.001, 0.5), st.floats(0.01, 100), st.floats(1, 1e5), st.floats(1.0, 3.0))
def test_after_an_interval_that_does_not_pay_none_pays(slope, hours, costs, start):
    worth = DecodingWorth(hours, 30.0, at_tau=2.0)
    pays = [further(line(count, slope, start), 1_000, costs, worth, rises=True).pays for count in range(4, 40)]
    assert pays == sorted(pays, reverse=True)


def house_drafter(bins=10):
    """(tokens, expected acceptance length), a point for every ten of a hundred real steps."""
    found = json.loads((PROJECT / "tests/fixtures/learning_curves/house_drafter.json").read_text())
    tokens, taus = list(accumulate(found["tokens"])), found["expected_tau"]
    size = len(taus) // bins
    return [(tokens[end - 1], sum(taus[end - size : end]) / size) for end in range(size, len(taus) + 1, size)]


def ends_after(points, costs_s, worth, rises):
    """Points after which the rule ends the training; None if it never does."""
    for count in range(1, len(points)):
        found = further(points[:count], points[count][0] - points[count - 1][0], costs_s, worth, rises)
        if found is not None and not found.pays:
            return count
    return None


@pytest.mark.parametrize(("requests_a_day", "ended"), [(100, True), (1_000_000, False)])
def test_a_real_drafter_is_trained_on_where_there_is_traffic_for_it(requests_a_day, ended):
    """An interval of ten steps took about a minute on two cores. 200 tokens an answer, 1,000 tokens/s, a week."""
    points = house_drafter()
    hours = requests_a_day * 200 / 1_000 / 3_600
    found = ends_after(points, 60.0, DecodingWorth(hours, 7.0), rises=True)
    assert (found is not None) == ended


def test_the_next_points_of_a_real_drafter_lie_below_the_upper_bound():
    points = house_drafter()
    for count in range(4, len(points)):
        found = further(points[:count], points[count][0] - points[count - 1][0], 1.0, A_DAY, rises=True)
        assert points[count][1] - points[count - 1][1] < found.gain_high + 0.06  # and the noise of one interval


def test_a_real_loss_curve_ends_later_the_less_a_device_hour_has_to_bring():
    record = json.loads((PROJECT / "benchmarks/results/trainer_vs_trl.json").read_text())
    run = record["figures"]["rounds"]["small"][0]["on"]
    each = run["tokens"] / len(run["losses"])
    points = [(each * (place + 1), loss) for place, loss in enumerate(run["losses"])]
    costs = each / run["tokens_per_s"]  # seconds of a step
    wanted = [ends_after(points, costs, LossWorth(nats), rises=False) for nats in (1.0, 300.0, 1_000.0, 1e6)]
    reached = [len(points) if each is None else each for each in wanted]
    assert reached == sorted(reached, reverse=True) and reached[0] == len(points) and reached[-1] == 4


@pytest.mark.parametrize(("requests_a_day", "ended"), [(20, True), (20_000, False)])
def test_the_recorded_drafters_of_150_and_600_steps_say_for_which_traffic_the_further_steps_pay(requests_a_day, ended):
    """Acceptance at temperature 1 of benchmarks/results/drafter_drift.json, on a line in the logarithm of the tokens between
    both."""
    figures = json.loads((PROJECT / "benchmarks/results/drafter_drift.json").read_text())["figures"]
    few, many = (figures["runs"][name] for name in ("from_scratch_in_few_steps", "from_scratch"))
    low, high = (figures["taus"][name]["t1"]["tau"] for name in ("from_scratch_in_few_steps", "from_scratch"))
    slope = (high - low) / math.log2(many["tokens"] / few["tokens"])
    interval = few["tokens"] / 3  # fifty steps
    points = [(interval * place, low + slope * math.log2(place / 3)) for place in range(1, 13)]
    worth = DecodingWorth(requests_a_day * 200 / 1_000 / 3_600, 30.0)
    found = ends_after(points, interval * many["seconds"] / many["tokens"], worth, rises=True)
    assert (found is not None) == ended
