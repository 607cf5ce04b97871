"""The share of a score that is kept: bootstrap intervals against an independent one, and suites without a right answer."""

import numpy as np
import pytest

from model_ops.evaluation.task_scores import AccuracyRatios


def scores(values):
    return {f"item-{n}": float(value) for n, value in enumerate(values)}


def test_ratio_and_interval_of_a_suite():
    generator = np.random.default_rng(5)
    reference = (generator.random(300) < 0.6).astype(float)
    own = np.where(generator.random(300) < 0.05, 1 - reference, reference)
    found = AccuracyRatios({"s": (scores(own), scores(reference))}).of("s")
    assert found.value == pytest.approx(own.sum() / reference.sum()) and found.items == 300
    # delta method: var(R) = mean((own - R reference)^2) / (n mean(reference)^2)
    spread = np.sqrt(np.mean((own - found.value * reference) ** 2) / 300) / reference.mean()
    assert found.low == pytest.approx(found.value - 1.96 * spread, abs=0.006)
    assert found.high == pytest.approx(found.value + 1.96 * spread, abs=0.006)


def test_the_average_gives_each_suite_the_same_weight():
    half, whole = scores([1, 0] * 20), scores([1, 1] * 20)
    many = scores([1] * 400)
    kept = AccuracyRatios({"a": (half, whole), "b": (many, many)})
    assert kept.of("a").value == 0.5 and kept.of("b").value == 1.0 and kept.average().value == pytest.approx(0.75)
    assert kept.average().low < 0.75 < kept.average().high < 0.9 and kept.average().items == 440


def test_equal_answers_still_have_an_interval():
    same = scores([1, 0, 1, 0, 1, 1])
    found = AccuracyRatios({"s": (same, same)})
    assert (found.of("s").low, found.of("s").high) == (0.5, 1.5) and found.average() == found.of("s")


def test_only_items_that_both_answered_count():
    found = AccuracyRatios({"s": (scores([1, 1, 0]), {"item-0": 1.0, "item-1": 1.0, "other": 1.0})}).of("s")
    assert found.value == 1.0 and found.items == 2


def test_no_ratio_without_a_right_answer():
    none = AccuracyRatios({"s": (scores([1, 0]), scores([0, 0]))})
    assert none.of("s") is None and none.average() is None
    single = AccuracyRatios({"s": (scores([1]), scores([1]))})
    assert single.of("s").low is None and single.average().value == 1.0
