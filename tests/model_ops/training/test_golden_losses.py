"""The same seed gives the same losses: bit for bit on one machine, within rounding of the golden files on any.

Changed on purpose: `python -m tests.golden.losses.dump` writes them anew.
"""

import json

import pytest

from model_ops.training import optimizers, trainer
from tests.golden.losses.dump import CASES, GAP, losses, path_of
from tests.thorough_cases import thorough_except


def gap(found, golden):
    return max(
        abs(one - other) / abs(other)
        for step, kept in zip(found, golden, strict=True)
        for one, other in zip(step, kept, strict=True)
    )


@pytest.mark.parametrize("case", thorough_except(["adamw-bfloat16", "muon-wsd"], CASES))
def test_losses_are_those_of_the_golden_file_and_of_every_run(case):
    golden = json.loads(path_of(case).read_text())
    found = losses(case)
    assert len(golden) == CASES[case].get("steps", 25) and golden[-1][0] < golden[0][0]
    assert gap(found, golden) < GAP[case]
    assert found == losses(case)


OTHERS = [
    {"weight_decay": 0.0}, {"learning_rate": 3.1e-3}, {"seed": 1}, {"warmup_share": 0.1}, {"gradient_clip": 0.5},
    {"beta2": 0.99},
]  # fmt: skip


@pytest.mark.parametrize("changes", thorough_except(OTHERS[:2], OTHERS))
def test_another_algorithm_is_farther_from_the_golden_file_than_rounding(changes):
    assert gap(losses("adamw", **changes), json.loads(path_of("adamw").read_text())) > 5 * GAP["adamw"]


def test_a_schedule_that_is_one_step_late_is_noticed(monkeypatch):
    plain = optimizers.learning_rate_at
    monkeypatch.setattr(trainer, "learning_rate_at", lambda step, *given: plain(max(0, step - 1), *given))
    assert gap(losses("adamw"), json.loads(path_of("adamw").read_text())) > 5 * GAP["adamw"]
