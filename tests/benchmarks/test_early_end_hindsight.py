"""The hindsight of benchmarks/early_end.py, on curves whose best end can be computed by hand."""

import math

import pytest

from benchmarks.early_end_hindsight import TAU, End, hindsight, last_paying, lift_between, net_s, possible_ends, replayed
from model_ops.training.early_end_settings import EarlyEndOfDrafter
from model_ops.training.learning_curve import DecodingWorth
from model_ops.training.settings import TrainingSettings

STEPS, EVERY, TOKENS, LIFT = 100, 5, 100, 0.05
SETTINGS = TrainingSettings(steps=STEPS, learning_rate=1e-2, schedule="wsd").resolved()


def rule(hours=1.0, **changes):
    """A step of 100 tokens takes a second."""
    return EarlyEndOfDrafter(
        enabled=True,
        decode_hours_per_day=hours,
        decode_hours_at_tau=2.0,
        serves_days=1.0,
        trained_tokens_per_second=float(TOKENS),
        **changes,
    )


def log(curve):
    return [
        {"step": step, "tokens": TOKENS, **({TAU: curve(step)} if step % EVERY == 0 else {})} for step in range(1, STEPS + 1)
    ]


def logarithmic(step):
    return 2 + 0.1 * math.log2(step / EVERY)


def test_possible_ends_are_the_places_where_the_rule_may_end_and_the_whole_training():
    ends = possible_ends(log(logarithmic), SETTINGS, rule(), EVERY)
    assert [end.decided for end in ends] == [*range(25, 80, EVERY), 100]
    assert all(end.steps == end.decided + math.ceil(end.decided / 4) for end in ends[:-1])  # the fall is a fifth of all steps
    assert [end.tau for end in ends] == [logarithmic(end.decided) for end in ends]
    lifted = possible_ends(log(logarithmic), SETTINGS, rule(), EVERY, lambda decided: decided / 1_000)
    assert [more.tau - end.tau for more, end in zip(lifted, ends, strict=True)] == pytest.approx(
        [*(end.decided / 1_000 for end in ends[:-1]), 0.0]
    )
    assert [end.decided for end in possible_ends(log(logarithmic), SETTINGS, rule(least_share=0.7), EVERY)] == [70, 75, 100]


def falling(step):
    """The measurements of a training whose learning rate falls over its last fifth, by which they rise by LIFT."""
    return logarithmic(min(step, 80)) + LIFT * max(0, step - 80) / 20


def test_the_rule_ends_a_noiseless_curve_within_an_interval_of_the_best_end():
    ended = {}
    for hours in (0.01, 0.3, 0.5, 0.7, 50.0):
        ends = possible_ends(log(falling), SETTINGS, rule(hours), EVERY, lambda decided: LIFT)
        last = replayed(log(falling), SETTINGS, rule(hours), EVERY).last
        found = hindsight(ends, last, DecodingWorth(hours, 1.0, 2.0), 1.0)
        places = [end.steps for end in ends]
        assert abs(places.index(found.ended_at) - places.index(found.best_end)) <= 1, hours
        ended[hours] = found
    assert ended[0.01].ended_at == ended[0.01].best_end == 32 and ended[50.0].ended_at == ended[50.0].best_end == STEPS
    assert 32 < ended[0.5].ended_at < STEPS and ended[0.5].regret_share < 0.01


def test_net_value_and_regret():
    ends = [End(20, 25, 2.0), End(40, 50, 2.2), End(60, 75, 2.21), End(100, 100, 2.22)]
    worth = DecodingWorth(0.1, 1.0, 2.0)  # 720 s a day at one token a pass
    assert net_s(ends[0], worth, 1.0) == pytest.approx(720 * (1 - 1 / 2.0) - 25)
    found = hindsight(ends, 75, worth, 1.0)
    assert (found.ended_at, found.best_end) == (75, 50)
    assert found.best_net_s == pytest.approx(720 * (1 - 1 / 2.2) - 50)
    assert found.regret_share == pytest.approx(found.regret_s / found.best_net_s) and found.regret_s > 20
    costly = hindsight(ends, 25, worth, 100.0)
    assert costly.best_end == 25 and costly.regret_share is None
    with pytest.raises(ValueError, match=r"a training of 30 steps is none of the possible ends \[25, 50, 75, 100\]"):
        hindsight(ends, 30, worth, 1.0)


def test_the_last_interval_that_paid_is_found_by_what_was_measured():
    rising = {5: 1.0, 10: 1.5, 15: 1.8, 20: 2.0, 25: 2.2, 30: 2.4, 35: 2.4, 40: 2.6}
    ends = possible_ends(log(logarithmic), SETTINGS, rule(), EVERY)

    def last(hours, of):
        return last_paying(log(lambda step: of.get(step, 2.6)), ends, EVERY, 0.2, DecodingWorth(hours, 1.0, 2.0), 1.0)

    assert last(1.0, rising) == 40  # an interval costs 6.25 s; from 2.4 to 2.6 saves 3600 * 2 * (1 / 2.4 - 1 / 2.6) = 231 s
    assert last(1.0, {**rising, **dict.fromkeys(range(40, 101, 5), 2.4)}) == 30
    assert last(0.02, rising) == 0


def test_the_lift_is_linear_between_measured_places_and_constant_outside():
    lift = lift_between({80: 0.02, 40: 0.06})
    assert [lift(at) for at in (10, 40, 60, 80, 100)] == pytest.approx([0.06, 0.06, 0.04, 0.02, 0.02])
    assert lift_between({40: 0.05})(70) == 0.05
