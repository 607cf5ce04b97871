"""Gates: what was not measured has not passed; each gate can be switched off."""

from resources.lake import Lake
from resources.registry import Registry
from resources.release import Gates, approve, is_approved, judge, was_decided, withdraw, write_release

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


def test_a_withdrawn_approval_stays_withdrawn(tmp_path):
    lake = Lake.open(tmp_path / "lake")
    registry = Registry(lake, "tutor")
    model = registry.draft("model", "sft_model", "sft", ("model_ops/specs.py",), {}, [])
    (model.directory / "config.json").write_text("{}")
    target = registry.finish(model, {})
    draft = registry.draft("release", "release", "release", ("resources/release.py",), {}, [target.as_input()])
    write_release(draft.directory, "tutor", target, None, 3, [])
    registry.finish(draft, {})
    assert not was_decided(lake, draft.directory)
    approve(lake, draft.directory, by="ana")
    assert is_approved(lake, draft.directory)
    withdraw(lake, draft.directory, by="bo")
    assert was_decided(lake, draft.directory) and not is_approved(lake, draft.directory)
