"""Gates: what was not measured has not passed; each gate can be switched off."""

from resources.release import Gates, judge

MEASURED = {"recovery": 0.995, "tau_eagle3_t1": 1.6, "tau_eagle3_t1_low": 1.5}


def results(gates, measured=MEASURED, speculator=True):
    return {result.name: result.passed for result in judge(gates, measured, 1.0, speculator)}


def test_gates_hold_at_their_value_and_fail_below():
    assert results(Gates(recovery=0.995, acceptance_length=1.5)) == {"recovery": True, "acceptance_length": True}
    assert results(Gates(recovery=0.996, acceptance_length=1.51)) == {"recovery": False, "acceptance_length": False}


def test_the_lower_end_of_the_interval_counts():
    assert results(Gates(recovery=None, acceptance_length=1.55)) == {"acceptance_length": False}


def test_what_was_not_measured_has_not_passed():
    assert results(Gates(), measured={}) == {"recovery": False, "acceptance_length": False}


def test_a_release_without_drafter_has_no_acceptance_gate():
    assert results(Gates(), speculator=False) == {"recovery": True}


def test_gates_can_be_switched_off():
    assert results(Gates(recovery=None, acceptance_length=None)) == {}
