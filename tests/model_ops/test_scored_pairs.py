"""The report on a reward model's held-out pairs, each number against an independent computation."""

import math

import numpy as np
import pytest

from model_ops.evaluation.scored_pairs import (
    ScoredPairs,
    expected_calibration_error,
    fitted_temperature,
    missed_bounds,
    reward_report,
    spearman,
    wilson,
)


def pairs(scores, lengths=None, sessions=None, reasons=None, later=None):
    scores = np.array(scores, dtype=float).reshape(-1, 2)
    count = len(scores)
    return ScoredPairs(
        scores,
        np.array(lengths if lengths is not None else [[3, 2]] * count).reshape(-1, 2),
        sessions or [f"s{i}" for i in range(count)],
        reasons or ["edited"] * count,
        np.array(later if later is not None else [False] * count, dtype=bool),
    )


NONE = pairs([])


def drawn(count, seed=0, temperature=1.0):
    """Pairs whose chosen answer is the better one with probability sigma(difference / temperature)."""
    draw = np.random.default_rng(seed)
    differences = draw.normal(0, 2, count)
    better = draw.random(count) < 1 / (1 + np.exp(-differences / temperature))
    return np.where(better, differences, -differences)


def test_accuracy_counts_equal_scores_half_and_is_told_by_source():
    report = reward_report(
        pairs([[1, 0], [0, 1], [2, 2], [3, 1]], reasons=["edited", "edited", "rated", "rated"], later=[0, 0, 0, 1]), NONE, 0.7
    )
    accuracy = report["accuracy"]
    assert accuracy["all"]["value"] == 2.5 / 4 and accuracy["edited"]["value"] == 0.5 and accuracy["rated"]["value"] == 0.75
    assert accuracy["later"] == {**accuracy["later"], "pairs": 1, "value": 1.0}
    assert accuracy["edited"]["sessions"] == 2 and list(accuracy) == ["all", "edited", "rated", "later"]


def test_trivial_rules_are_measured_beside_it():
    found = pairs([[1, 0]] * 4, lengths=[[5, 2], [5, 2], [2, 5], [3, 3]])
    for share, most in ((0.6, 2.5 / 4), (0.4, 1.5 / 4)):
        of_all = reward_report(found, NONE, share)["accuracy"]["all"]
        assert of_all["longer_wins"] == 2.5 / 4 and of_all["most_training_pairs"] == most
    above = reward_report(found, NONE, 0.6)["above_longer"]
    values = np.array([0, 0, 1, 0.5])
    reach = 3.182 * values.std(ddof=1) / 2
    assert above["value"] == pytest.approx(values.mean())
    assert (above["low"], above["high"]) == pytest.approx((values.mean() - reach, values.mean() + reach))


def test_wilsons_interval_is_that_of_his_paper():
    z = 1.95996
    for share, count in ((0.7, 40), (0.0, 12), (1.0, 5)):
        for end in wilson(share, count):  # the ends solve |share - p| = z sqrt(p (1 - p) / n)
            inside = 1e-9 < end < 1 - 1e-9
            assert not inside or abs(share - end) == pytest.approx(z * math.sqrt(end * (1 - end) / count))
    assert wilson(1.0, 5)[0] == pytest.approx(5 / (5 + z * z)) and wilson(1.0, 5)[1] == pytest.approx(1.0)


def test_pairs_of_one_session_count_as_what_they_are():
    scores = [[1, 0]] * 20 + [[0, 1]] * 20
    apart = reward_report(pairs(scores), NONE, 0.5)["accuracy"]["all"]
    alike = reward_report(pairs(scores, sessions=["a"] * 10 + ["b"] * 10 + ["c"] * 10 + ["d"] * 10), NONE, 0.5)["accuracy"][
        "all"
    ]
    assert (apart["low"], apart["high"]) == pytest.approx(wilson(0.5, 40), abs=0.01)
    assert alike["high"] - alike["low"] > 2 * (apart["high"] - apart["low"]), "four sessions, each of one kind"
    assert alike["sessions"] == 4


def test_one_session_says_no_more_than_one_pair():
    found = pairs([[1, 0]] * 30 + [[0, 1]] * 10, sessions=["one"] * 40)
    of_all = reward_report(found, NONE, 0.6)["accuracy"]["all"]
    assert (of_all["low"], of_all["high"]) == pytest.approx(wilson(0.75, 1))


def test_the_fitted_temperature_undoes_a_scale():
    differences = drawn(4_000)
    assert fitted_temperature(differences) == pytest.approx(1.0, abs=0.1)
    assert fitted_temperature(differences * 5) == pytest.approx(5 * fitted_temperature(differences), rel=1e-6)
    grid = np.geomspace(0.3, 3, 400)
    losses = [np.logaddexp(0, -differences / temperature).mean() for temperature in grid]
    assert fitted_temperature(differences) == pytest.approx(grid[int(np.argmin(losses))], rel=0.01)
    assert fitted_temperature(differences[:19]) == 1.0, "too few pairs to fit one"
    assert fitted_temperature(np.full(50, 3.0)) == pytest.approx(0.01, rel=0.01), "separable: bounded, not 0"


def test_calibration_is_measured_before_and_after():
    draws = drawn(6_000, temperature=3.0)
    scores = np.stack([draws, np.zeros_like(draws)], 1)
    report = reward_report(pairs(scores[:3_000]), pairs(scores[3_000:]), 0.5)
    assert report["fitted_on"] == 3_000 and report["temperature"] == pytest.approx(3, abs=0.3)
    assert report["ece"] > 0.15 and report["calibrated_ece"] < 0.04
    assert report["log_loss"] == pytest.approx(np.log1p(np.exp(-draws[:3_000])).mean())
    assert report["calibrated_log_loss"] < report["log_loss"]


def test_the_calibration_error_is_the_mean_gap_of_its_bins():
    differences = np.array([0.1, -0.1, 3.0, 3.0, -3.0])
    confidence = 1 / (1 + np.exp(-np.abs(differences)))
    wanted = (abs(2 * confidence[0] - 1) + abs(3 * confidence[2] - 2)) / 5
    assert expected_calibration_error(differences) == pytest.approx(wanted)


def test_spearman_takes_mean_ranks_of_ties():
    one, other = np.array([1.0, 2, 2, 4, 5]), np.array([3.0, 1, 4, 4, 9])
    ranks = np.array([1, 2.5, 2.5, 4, 5]), np.array([2, 1, 3.5, 3.5, 5])
    assert spearman(one, other) == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert spearman(one, np.ones(5)) is None


def test_length_matched_accuracy_is_a_half_for_a_model_of_length_alone():
    lengths = np.array([[5, 2]] * 8 + [[2, 5]] * 2)
    report = reward_report(pairs(lengths, lengths=lengths), NONE, 0.8)
    assert report["accuracy"]["all"]["value"] == 0.8 and report["length_matched_accuracy"] == 0.5
    assert report["spearman"] == pytest.approx(1.0) and report["above_longer"]["value"] == 0.0
    equal = pairs([*lengths, [9, 1]], lengths=[*lengths, [3, 3]])
    assert reward_report(equal, NONE, 0.8)["length_matched_accuracy"] == 0.5, "answers of one length say nothing of length"
    assert reward_report(pairs(lengths[:8], lengths=lengths[:8]), NONE, 0.8)["length_matched_accuracy"] is None


def test_a_bound_is_held_by_the_lower_end():
    report = reward_report(pairs([[1, 0]] * 30, lengths=[[2, 5]] * 30), NONE, 0.5)
    low = report["accuracy"]["all"]["low"]
    assert 0.85 < low < 0.9 and missed_bounds(report, low - 0.001, 0.0) == []
    (sentence,) = missed_bounds(report, low + 0.01, None)
    assert sentence.startswith("held-out accuracy is 1.000 with a lower end of 0.88")
    above = reward_report(pairs([[1, 0]] * 30, lengths=[[2, 5]] * 30), NONE, 0.5)["above_longer"]
    assert (above["low"], above["high"]) == pytest.approx((1 - 3 / 30, 1 + 3 / 30)), "30 pairs alike: the rule of three"
    short = reward_report(pairs([[1, 0]] * 30), NONE, 0.5)
    assert len(missed_bounds(short, None, 0.01)) == 1, "the longer answer always wins, too"
    assert "one session" in missed_bounds(reward_report(pairs([[1, 0]] * 3, sessions=["a"] * 3), NONE, 0.5), None, 0.0)[0]
    assert missed_bounds(reward_report(NONE, NONE, 0.5), None, None)[0].startswith("no held-out pair")


def test_an_empty_split_has_no_numbers():
    report = reward_report(NONE, NONE, 0.5)
    assert report["accuracy"]["all"]["value"] is report["ece"] is report["spearman"] is report["mean"] is None


def test_sessions_that_all_say_the_same_leave_no_doubt_of_the_mean():
    """Each session has a pair that is won and one that is lost: their means do not differ, and both ends are the mean."""
    scores, lengths = np.array([[1.0, 0.0], [0.0, 1.0]] * 4), np.array([[5, 9]] * 8)
    pairs = ScoredPairs(scores, lengths, [f"s{place // 2}" for place in range(8)], ["edited"] * 8, np.zeros(8, bool))
    above = reward_report(pairs, pairs, longer_share=0.5)["above_longer"]
    assert above == {"value": 0.5, "low": 0.5, "high": 0.5}
