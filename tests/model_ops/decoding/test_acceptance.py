"""What acceptance rows add up to: tau, intervals that cover it, groups, and gains of one drafter over another."""

from dataclasses import replace

import numpy as np
import pytest

from model_ops.drafting.acceptance import AcceptanceRow, is_looping, length_bucket, paired_gain, summarize, tau_interval


def row(row_id, forwards, accepted_at, **labels):
    plain = AcceptanceRow(
        "eagle3",
        1.0,
        len(accepted_at),
        str(row_id),
        "tutor",
        "",
        50,
        1,
        False,
        False,
        40,
        "length",
        False,
        forwards,
        forwards,
        forwards * len(accepted_at),
        sum(accepted_at),
        accepted_at,
    )
    return replace(plain, **labels)


def test_looping_is_a_short_pattern_over_32_tokens():
    assert is_looping([5] * 32) and not is_looping([5] * 31)
    assert is_looping([9, 8, 7] + [1, 2, 3, 4] * 8) and not is_looping([1, 2, 3, 4] * 7 + [9])
    assert is_looping(list(range(13)) * 2 + list(range(6))) and not is_looping(list(range(14)) * 4)
    assert not is_looping([]) and not is_looping(list(range(500)))


TRIALS = 2_000
"""Of a simulation. The standard error of its coverage is 0.005."""


@pytest.mark.parametrize("prompts", [3, 5, 10, 50])
@pytest.mark.parametrize("spread", [0.0, 0.15], ids=["alike", "easy and hard"])
def test_the_interval_of_tau_covers_it_as_often_as_it_says(prompts, spread):
    generator, hits = np.random.default_rng(prompts), 0
    for _ in range(TRIALS):
        forwards = generator.integers(20, 80, prompts).astype(float)
        accepted = generator.binomial(forwards.astype(int), generator.uniform(0.4 - spread, 0.4 + spread, prompts)).astype(
            float
        )
        low, high = tau_interval(forwards, accepted, 2.0)
        hits += low <= 1.4 <= high
    assert 0.92 <= hits / TRIALS <= 0.97


def test_an_interval_holds_possible_values_only():
    assert tau_interval(np.zeros(3), np.zeros(3), 4.0) == (1.0, 1.0)
    assert tau_interval(np.array([10.0, 10.0]), np.array([0.0, 30.0]), 4.0) == (1.0, 4.0)
    assert tau_interval(np.array([10.0]), np.array([12.0]), 4.0) == (1.0, 4.0), "another prompt might have any value"


def test_an_interval_over_prompts_of_equal_length_is_that_of_the_textbook():
    rates = np.array([0.5, 0.7, 0.6, 0.9, 0.3])  # mean 0.6, standard deviation 0.2236
    reach = 2.776 * 0.22360680 / 5**0.5
    assert tau_interval(np.full(5, 10.0), 10 * rates, 4.0) == pytest.approx((1.6 - reach, 1.6 + reach))


def test_totals_positions_and_groups():
    rows = [
        row("a", 10, [6, 2], workload="tutor", prompt_tokens=100),
        row("b", 30, [9, 3], workload="airline", prompt_tokens=300, turns=5, has_tools=True),
        row("c", 0, [0, 0], workload="airline", prompt_tokens=2_048, drafts=0, drafted=0),
    ]
    summary = summarize(rows)
    assert summary["tau"] == 1.5 and summary["accepted_by_position"] == [15 / 40, 5 / 40]
    assert summary["acceptance_rate"] == 20 / 80 and summary["tau_of_drafts"] == 1.5
    assert summary["tau_by"]["workload"]["tutor"] == {"prompts": 1, "tau": 1.8, "tau_low": 1.0, "tau_high": 3.0}
    assert summary["tau_by"]["workload"]["airline"]["tau"] == 1.4
    assert list(summary["tau_by"]["prompt_tokens"]) == ["1-127", "2048-4095", "256-511"]
    assert summary["tau_by"]["prompt_tokens"]["2048-4095"]["tau"] == 1.0
    assert set(summary["tau_by"]["turns"]) == {"1", "4 or more"}
    assert summary["tau_by"]["tools"]["tools offered"]["prompts"] == 1
    assert [length_bucket(n) for n in (1, 127, 128, 255, 256, 9_000)] == [
        "1-127",
        "1-127",
        "128-255",
        "128-255",
        "256-511",
        "8192-16383",
    ]


def drafts(generator, difficulty, chance):
    """Rows of prompts of which some are easier than others for any drafter."""
    return [
        row(place, 60, [int(generator.binomial(60, min(1, max(0, chance * ease))))]) for place, ease in enumerate(difficulty)
    ]


def test_a_paired_gain_is_sharper_than_two_intervals_and_covers_the_truth():
    generator = np.random.default_rng(1)
    hits, widths, apart = 0, [], []
    for _ in range(200):
        difficulty = generator.uniform(0.3, 1.7, 80)
        first, second = drafts(generator, difficulty, 0.4), drafts(generator, difficulty, 0.44)
        gain = paired_gain([first], [second])
        truth = (1 + 0.44 * difficulty.mean()) / (1 + 0.4 * difficulty.mean()) - 1
        hits += gain.low <= truth <= gain.high
        widths.append(gain.high - gain.low)
        one, other = summarize(first), summarize(second)
        apart.append((other["tau_high"] - one["tau_low"]) - (other["tau_low"] - one["tau_high"]))
    assert 0.92 <= hits / 200 <= 0.985 and gain.prompts == 80
    assert np.mean(widths) < 0.5 * np.mean(apart)


@pytest.mark.parametrize(("trainings", "prompts"), [(2, 10), (3, 5), (3, 10), (5, 10)])
def test_a_gain_over_few_trainings_covers_the_truth(trainings, prompts):
    """Mean rates of 0.4 and 0.44. Two trainings of one drafter differ by more than sampling does (0.08, standard deviation)."""
    generator, hits, trials = np.random.default_rng(trainings), 0, 400
    for _ in range(trials):
        sides = [
            [drafts(generator, np.ones(prompts), chance) for chance in mean + generator.normal(0, 0.08, trainings)]
            for mean in (0.4, 0.44)
        ]
        gain = paired_gain(*sides)
        hits += gain.low <= 1.44 / 1.4 - 1 <= gain.high
    assert 0.92 <= hits / trials <= 0.985


def test_a_gain_over_several_trainings_holds_what_another_seed_would_change():
    generator = np.random.default_rng(2)
    difficulty = generator.uniform(0.3, 1.7, 200)
    same = [drafts(generator, difficulty, 0.4) for _ in range(3)]
    lucky = [drafts(generator, difficulty, chance) for chance in (0.3, 0.4, 0.6)]
    narrow, wide = paired_gain(same, same[::-1]), paired_gain(same, lucky)
    assert narrow.share == pytest.approx(0) and narrow.low < 0 < narrow.high
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    assert wide.low < wide.share < wide.high


def test_a_gain_needs_the_same_prompts():
    rows = [row("a", 10, [5]), row("b", 10, [5])]
    with pytest.raises(ValueError, match="same prompts"):
        paired_gain([rows], [rows[:1]])
    with pytest.raises(ValueError, match="same prompts"):
        paired_gain([rows], [[replace(r, temperature=0.0) for r in rows]])
    same = paired_gain([rows], [rows[::-1]])
    assert (same.share, same.low, same.high) == (0, 0, 0)


def test_the_gain_on_a_single_prompt_might_be_anything():
    gain = paired_gain([[row("a", 10, [2, 1])]], [[row("a", 10, [8, 1])]])
    assert (gain.share, gain.low, gain.high) == (pytest.approx(1.9 / 1.3 - 1), pytest.approx(1 / 3 - 1), 2.0)
