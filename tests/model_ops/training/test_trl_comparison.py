"""The comparison with TRL: rows that fit the steps, settings that make whole steps, and which of TRL's runs a ratio is taken
from."""

import pytest

from benchmarks.sft_material import fitting
from benchmarks.trainer_vs_trl import _finalists, _summarise
from benchmarks.trl_settings import FIRST, TrlSettings, refinements


def test_rows_fit_under_the_largest_limit():
    assert fitting([5, 9, 1, 2, 3], rows=3, tokens=9) == [0, 2, 3]
    with pytest.raises(ValueError, match="no 3 of 3 rows"):
        fitting([5, 9, 1], rows=3, tokens=9)


def test_every_setting_makes_whole_steps_of_the_same_rows():
    for settings in (*FIRST, *refinements(FIRST[0])):
        whole = 2 if settings.layout == "packed" else 20
        assert settings.rows * settings.passes(20, 2) == whole
    with pytest.raises(ValueError, match="3 rows a pass"):
        TrlSettings("padded", 3).passes(20, 2)


def searched(settings: TrlSettings, **run) -> dict:
    return {"settings": settings.named(), **run}


def test_finalists_are_the_best_by_clock_and_by_processor():
    packed, padded, compiled = TrlSettings("packed", 1), TrlSettings("padded", 20), TrlSettings("padded", 20, compiled=True)
    runs = [
        searched(padded, tokens_per_s=400, tokens_per_cpu_s=700),
        searched(packed, tokens_per_s=500, tokens_per_cpu_s=500),
        searched(compiled, failed="no compiler"),
    ]
    assert _finalists(runs) == {"trl-1": packed, "trl-2": padded}
    assert _finalists(runs[:1]) == {"trl-1": padded}


def test_ratios_are_of_the_faster_finalist_and_equal_checkpointing():
    finalists = {"trl-1": TrlSettings("packed", 1), "trl-2": TrlSettings("padded", 20, checkpointing=True)}
    speeds = {"off": (900, 800, 1500), "trl-1": (200, 300, 1900), "trl-2": (300, 250, 1000), "on": (600, 500, 800)}
    runs = {
        name: {"tokens_per_s": speed, "tokens_per_cpu_s": cpu, "peak_mb": peak, "needed_flops_per_s": 1e9}
        for name, (speed, cpu, peak) in speeds.items()
    }
    slower = {**runs, "on": {**runs["on"], "tokens_per_s": 450}}
    figures = {"spread": {}, "peer_settings": {}, "searches": {}, "rounds": {}}
    best = _summarise(figures, "small", finalists, [searched(FIRST[0], peak_mb=640)], [runs, runs, slower], 4e9)
    assert best == "trl-2"
    assert figures["ratio_small"] == 2.0 and figures["spread"]["ratio_small"] == [1.5, 2.0]
    assert figures["cpu_ratio_small"] == round(500 / 300, 3), "against the better of TRL's by processor time"
    assert figures["memory_ratio_small"] == 0.8
    assert figures["memory_ratio_small_to_leanest"] == 1.25
