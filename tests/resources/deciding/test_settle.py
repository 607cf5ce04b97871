"""What came of a decision: by its run's end, its release and its measurements."""

from dataclasses import replace
from datetime import timedelta

import pytest

from resources.deciding.gather import DecisionRun, settle_decision
from resources.endpoints.endpoints import Endpoint
from resources.releases.release import ReleaseRef
from tests.resources.deciding.examples import FACTS, NOW, SETTINGS, decision, with_settings
from tests.resources.deciding.small_lake import ANA, make_all, promote, trained_lake

OPEN = decision(outcome="waiting", run_id=None, cost_s=None, settled_ts=None, evidence={"devices": 2, "tau_released": 1.6})
PRICED = SETTINGS.model_copy(update={"price_per_device_hour": 3.0})


def seen(status, run_id="run-2"):
    return DecisionRun(run_id, status, NOW, NOW + timedelta(hours=1))


def now_is(lake, status, **more):
    return settle_decision(replace(OPEN, **more), seen(status), lake, with_settings(PRICED))


@pytest.fixture
def lake(tmp_path):
    return trained_lake(tmp_path, days=1, rows=10)


def test_without_a_run_it_waits_and_a_run_that_goes_on_is_running(lake):
    assert settle_decision(OPEN, None, lake, FACTS) is OPEN
    assert now_is(lake, "QUEUED").outcome == "waiting"
    assert (now_is(lake, "STARTED").outcome, now_is(lake, "STARTED").run_id) == ("running", "run-2")


def test_cost_and_money_are_of_all_devices(lake):
    found = now_is(lake, "FAILURE")
    assert (found.outcome, found.cost_s, found.money, found.spent_hours) == ("failed", 3600, 6.0, 2.0)
    assert found.settled_ts == NOW + timedelta(hours=1)
    tried_twice = settle_decision(OPEN, replace(seen("FAILURE"), earlier_s=1800), lake, with_settings(PRICED))
    assert (tried_twice.cost_s, tried_twice.money) == (5400, 9.0)


def test_a_candidate_waits_is_released_or_withdrawn(lake):
    release = make_all(lake, read=20, run_id="run-2", previous_expected_tau=1.8)
    waits = now_is(lake, "SUCCESS")
    assert (waits.outcome, waits.run_id, waits.settled_ts) == ("waiting", "run-2", None)
    assert waits.gain == pytest.approx(2.0 / 1.8 - 1)  # both drafters on the same held-out answers
    promote(lake, release)
    assert now_is(lake, "SUCCESS").outcome == "released"
    later = make_all(lake, read=30, run_id="run-3")
    Endpoint(lake, "shop").decide("withdrawn", ReleaseRef.of(lake.artefacts("release") / "shop" / later.version), ANA)
    assert settle_decision(OPEN, seen("SUCCESS", "run-3"), lake, FACTS).outcome == "cancelled"


def test_a_new_drafter_is_compared_by_the_reports(lake):
    make_all(lake, read=20, run_id="run-2")
    assert now_is(lake, "SUCCESS", action="drafter_new").gain == pytest.approx(2.0 / 1.6 - 1)


def test_a_run_that_made_nothing_new_is_no_better(lake):
    assert now_is(lake, "SUCCESS").outcome == "no_better"


def test_a_candidate_that_a_newer_one_replaced_is_no_better(lake):
    make_all(lake, read=20, run_id="run-2")
    make_all(lake, read=30, run_id="run-3")
    assert now_is(lake, "SUCCESS").outcome == "no_better"


def test_a_cancelled_run_is_cancelled(lake):
    assert now_is(lake, "CANCELED").outcome == "cancelled"


def test_gates_that_refuse_are_told_from_other_failures(lake):
    release = make_all(lake, read=20, run_id="run-2")
    place = lake.artefacts("release") / "shop" / release.version / "release.json"
    gate = '{"name": "recovery", "wanted": 0.99, "measured": 0.5, "passed": false}'
    place.write_text(place.read_text().replace('"gates": []', f'"gates": [{gate}]'))
    assert now_is(lake, "FAILURE").outcome == "refused_by_gates"
