"""Gates: what was not measured has not passed; each gate can be switched off; recovery has a bound on either side."""

import json

import pytest

from resources.lake import Lake
from resources.releasing.gates import GateResult, Gates, check_gates, missed
from resources.releasing.release import recheck

MEASURED = {"recovery": 0.995, "tau_eagle3_t1": 1.6, "tau_eagle3_t1_low": 1.5}


def results(gates, measured=MEASURED, drafter="eagle3"):
    return {result.name: result.passed for result in check_gates(gates, measured, 1.0, drafter)}


def test_gates_hold_at_their_value_and_fail_below():
    assert results(Gates(recovery=0.995, acceptance_length=1.5)) == {"recovery": True, "acceptance_length": True}
    assert results(Gates(recovery=0.996, acceptance_length=1.51)) == {"recovery": False, "acceptance_length": False}


def test_the_lower_end_of_the_interval_counts():
    assert results(Gates(recovery=None, acceptance_length=1.55)) == {"acceptance_length": False}


def test_what_was_not_measured_has_not_passed():
    assert results(Gates(), measured={}) == {"recovery": False, "acceptance_length": False}


def test_a_release_without_drafter_has_no_acceptance_gate():
    assert results(Gates(), drafter=None) == {"recovery": True}


def test_gates_can_be_switched_off():
    assert results(Gates(recovery=None, acceptance_length=None)) == {}


def test_the_gate_reads_the_drafter_that_is_released():
    measured = {"recovery": 1.0, "tau_medusa_t1_low": 1.3, "tau_eagle3.1_t1_low": 1.1}
    assert results(Gates(), measured, "medusa")["acceptance_length"]
    assert not results(Gates(), measured, "eagle3.1")["acceptance_length"]
    assert not results(Gates(), measured, "eagle3")["acceptance_length"]


@pytest.mark.parametrize(("recovery", "low", "passed"), [
    (1.114, 1.08, False),     # an older model was measured in place of the served one
    (1.114, 0.90, False),     # and its noise excuses nothing: a quantized form differs far less
    (1.0004, 0.9994, True),
    (1.0004, 1.0003, True),   # rounding moves recovery by more than a bootstrap over rows sees
    (1.01, 1.009, False), (1.01, 0.995, True), (1.0, 1.0, True),
    (1.114, None, False), (1.0004, None, True), (1.02, None, False),    # a report of an earlier version
])
def test_recovery_beyond_1_by_more_than_its_noise_fails(recovery, low, passed):
    measured = {"recovery": recovery} | ({"recovery_low": low, "recovery_high": 2 * recovery - low} if low else {})
    [gate] = check_gates(Gates(acceptance_length=None), measured, 1.0, None)
    assert gate.passed == passed and (gate.low, gate.measured) == (low, recovery)
    assert ("beyond 1 by more than its noise" in gate.why and "run the recipe again" in gate.why) != passed
    assert (missed(gate) is None) == passed


def test_a_recovery_that_is_no_number_was_not_measured():
    [gate] = check_gates(Gates(acceptance_length=None), {"recovery": float("nan")}, 1.0, None)
    assert not gate.passed and gate.measured is None and "not measured" in gate.why
    json.dumps(gate.model_dump(), allow_nan=False)


def test_a_gate_says_what_it_measured_and_why():
    held, low = check_gates(Gates(recovery=0.99, acceptance_length=1.55), MEASURED | {"tau_eagle3_t1_high": 1.7}, 1.0, "eagle3")
    assert held.why == "0.995 is at least 0.99 and not beyond 1 by more than 0.01"
    assert low.why == "1.5 where at least 1.55 is wanted" and (low.low, low.high) == (1.5, 1.7)


def test_a_release_that_an_earlier_version_let_pass_is_judged_again(tmp_path, make_release):
    lake = Lake.open(tmp_path / "lake")
    assert recheck(lake, make_release(lake, 1)) == []
    [problem] = recheck(lake, make_release(lake, 2, recovery=1.114))
    assert "1.114 is beyond 1" in problem


def test_what_an_earlier_version_wrote_is_read():
    old = {"name": "recovery", "wanted": 0.95, "measured": 0.9999, "passed": True}
    assert missed(GateResult.model_validate(old)) is None


def test_the_refusal_beyond_1_names_a_remedy_that_can_help():
    measured = {"recovery": 1.02, "recovery_low": 1.01, "recovery_high": 1.03}
    [gate] = check_gates(Gates(acceptance_length=None), measured | {"test_rows": 5}, 1.0, None)
    assert gate.rows == 5
    assert gate.why.endswith("run the recipe again, and if it stays so, "
                             "add test rows (5 now) or set release.gates.recovery to null")
    [gate] = check_gates(Gates(acceptance_length=None), measured, 1.0, None)
    assert gate.rows is None and "add test rows or set" in gate.why
