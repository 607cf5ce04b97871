"""Evidence from a lake: the schedule, served acceptance."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest

from resources.deciding.causes import due
from resources.deciding.gather import DecisionRun, gather, settle_decision
from resources.endpoints.endpoints import Endpoint
from resources.lake.tables import SCHEMAS, Tables
from resources.releases.release import ReleaseRef
from tests.resources.deciding.examples import FACTS, SETTINGS, decision, with_settings
from tests.resources.deciding.examples import NOW as SETTLED
from tests.resources.deciding.small_lake import ANA, alarm_on, log_day, make_all, promote, trained_lake

NOW = datetime(2026, 6, 10, 12, tzinfo=UTC)


def test_a_schedule_counts_for_a_day_in_its_own_time_zone():
    assert due("0 3 * * *", "UTC", NOW) == "2026-06-10 03:00"
    assert due("0 13 * * *", "Europe/Amsterdam", NOW) == "2026-06-10 13:00"  # 14:00 there
    assert due("0 3 * * 1", "UTC", NOW) == ""  # Monday was two days ago


def test_an_alarm_that_lasts_for_months_keeps_its_first_day(lake):
    release, first = gather(lake, FACTS, NOW)[0].release, date(2026, 6, 1)
    alarm_on(lake, release, *(first + timedelta(days=day) for day in range(100)))
    alarm_on(lake, "earlier", *(first + timedelta(days=day) for day in range(-50, 100)))
    for days in (20, 61, 64, 99):
        [found] = gather(lake, FACTS, NOW + timedelta(days=days))[0].episodes
        assert found.start == first


def test_a_day_without_requests_counts_in_the_requests_a_day(tmp_path):
    lake = trained_lake(tmp_path, days=1, rows=70)  # 2026-06-01
    assert gather(lake, FACTS, NOW)[0].requests_a_day == 70  # the logs have one day
    log_day(lake, date(2026, 6, 8), 140)
    found = gather(lake, FACTS, NOW)[0]
    assert (found.requests_a_day, found.answer_tokens_a_request) == (20, 100)  # 2026-06-02 to -08
    log_day(lake, date(2026, 6, 5), 70)
    assert gather(lake, FACTS, NOW)[0].requests_a_day == 30
    log_day(lake, NOW.date(), 5_00)  # a day that is not over
    assert gather(lake, FACTS, NOW)[0].requests_a_day == 30


def test_rated_answers_of_millrace_chat_are_no_requests_a_day(tmp_path):
    lake = trained_lake(tmp_path, days=1, rows=70)  # 2026-06-01
    before = gather(lake, FACTS, NOW)[0]
    log_day(lake, date(2026, 6, 8), 30, source="millrace_chat")
    found = gather(lake, FACTS, NOW)[0]
    for each in (before, found):
        assert (each.requests_a_day, each.answer_tokens_a_request) == (70, 100)
    assert found.rows == before.rows + 30  # they are rows to train on


def test_costs_are_those_of_the_widened_evaluation_while_a_test_alarms(lake):
    before = gather(lake, FACTS, NOW)
    alarm_on(lake, before[0].release, date(2026, 6, 9), test="novelty")
    while_alarming = gather(lake, FACTS, NOW)[1]
    for action in ("drafter_continued", "full"):
        was, is_now = (found[action].stages for found in (before[1], while_alarming))
        assert is_now["evaluation_report"] == SETTINGS.drift_widens * was["evaluation_report"]


def window(release, start, minutes, **counts):
    """A row of serving_metrics."""
    about = {"workload": "shop", "release": release, "window_start": start, "drafts": 100, "draft_tokens": 300}
    return dict.fromkeys(SCHEMAS["serving_metrics"].names) | about | {"window_end": start + timedelta(minutes=minutes)} | counts


def test_served_acceptance_is_of_the_last_days_of_the_release(tmp_path):
    lake = trained_lake(tmp_path, days=1, rows=10)
    release = gather(lake, FACTS, NOW)[0].release
    rows = [
        window(of, NOW - timedelta(days=days, hours=hour), 60, accepted_tokens=accepted, tokens_per_second=500.0)
        for of, days, accepted in ((release, 1, 50), (release, 2, 60), (release, 30, 200), ("x", 1, 300))
        for hour in range(3)
    ]
    rows.append(rows[0] | {"window_end": rows[0]["window_start"] - timedelta(hours=1)})  # a clock that went backwards
    rows[3] = rows[3] | {"draft_tokens": None, "server": "sglang"}
    Tables(lake).append("serving_metrics", pa.Table.from_pylist(rows, schema=SCHEMAS["serving_metrics"]))
    seen = gather(lake, FACTS, NOW)[0]
    assert seen.tau_served == pytest.approx(1.55)
    on_four = gather(lake, with_settings(SETTINGS.model_copy(update={"devices_per_server": 4})), NOW)[0]
    assert (on_four.tokens_per_second, on_four.decode_hours_a_day) == (125.0, 4 * seen.decode_hours_a_day)
    told = SETTINGS.model_copy(update={"devices_per_server": 4, "tokens_per_second": 80.0})
    assert gather(lake, with_settings(told), NOW)[0].tokens_per_second == 80.0  # the recipe's is of one device
    assert seen.tokens_per_second == 500.0
    assert seen.decode_hours_a_day == pytest.approx(10 * 100 / 500 / 3600)


@pytest.mark.parametrize(
    ("speeds", "inter_token_ms", "speed"),
    [([5.0] * 36 + [500.0] * 4, [], 500.0), ([5.0] * 40, [("inter_token_mean", 20.0)], 50.0)],
)
def test_time_in_which_a_server_has_little_to_do_is_no_time_that_decoding_takes(tmp_path, speeds, inter_token_ms, speed):
    lake = trained_lake(tmp_path, days=1, rows=10)
    release = gather(lake, FACTS, NOW)[0].release
    counts = {"accepted_tokens": 50, "latency_ms": inter_token_ms}
    rows = [
        window(release, NOW - timedelta(minutes=minute + 1), 1, tokens_per_second=each, **counts)
        for minute, each in enumerate(speeds)
    ]
    Tables(lake).append("serving_metrics", pa.Table.from_pylist(rows, schema=SCHEMAS["serving_metrics"]))
    assert gather(lake, FACTS, NOW)[0].tokens_per_second == speed


def test_costs_are_those_of_the_versions_that_there_are(tmp_path):
    predicted = gather(trained_lake(tmp_path, days=1, rows=10), FACTS, NOW)[1]
    continued, full = predicted["drafter_continued"].stages, predicted["full"].stages
    assert (continued["speculator"], predicted["drafter_new"].stages["speculator"]) == (25.0, 100.0)
    assert (continued["evaluation_report"], full["evaluation_report"]) == (50.0, 100.0)
    assert "sft_model" not in continued and full["sft_model"] == 100.0 and full["base_model"] == 0.0


OPEN = decision(outcome="waiting", run_id=None, cost_s=None, settled_ts=None, evidence={"devices": 2, "tau_released": 1.6})
PRICED = SETTINGS.model_copy(update={"price_per_device_hour": 3.0})


def seen(status, run_id="run-2"):
    return DecisionRun(run_id, status, SETTLED, SETTLED + timedelta(hours=1))


def now_is(small, status, **more):
    return settle_decision(replace(OPEN, **more), seen(status), small, with_settings(PRICED))


@pytest.fixture
def small(tmp_path):
    return trained_lake(tmp_path, days=1, rows=10)


def test_without_a_run_it_waits_and_a_run_that_goes_on_is_running(small):
    assert settle_decision(OPEN, None, small, FACTS) is OPEN
    assert now_is(small, "QUEUED").outcome == "waiting"
    assert (now_is(small, "STARTED").outcome, now_is(small, "STARTED").run_id) == ("running", "run-2")


def test_cost_and_money_are_of_all_devices(small):
    found = now_is(small, "FAILURE")
    assert (found.outcome, found.cost_s, found.money, found.spent_hours) == ("failed", 3600, 6.0, 2.0)
    assert found.settled_ts == SETTLED + timedelta(hours=1)
    tried_twice = settle_decision(OPEN, replace(seen("FAILURE"), earlier_s=1800), small, with_settings(PRICED))
    assert (tried_twice.cost_s, tried_twice.money) == (5400, 9.0)


def test_a_candidate_waits_is_released_or_withdrawn(small):
    release = make_all(small, read=20, run_id="run-2", previous_expected_tau=1.8)
    waits = now_is(small, "SUCCESS")
    assert (waits.outcome, waits.run_id, waits.settled_ts) == ("waiting", "run-2", None)
    assert waits.gain == pytest.approx(2.0 / 1.8 - 1)  # both drafters on the same held-out answers
    promote(small, release)
    assert now_is(small, "SUCCESS").outcome == "released"
    later = make_all(small, read=30, run_id="run-3")
    Endpoint(small, "shop").decide("withdrawn", ReleaseRef.of(small.artefacts("release") / "shop" / later.version), ANA)
    assert settle_decision(OPEN, seen("SUCCESS", "run-3"), small, FACTS).outcome == "cancelled"


def test_a_new_drafter_is_compared_by_the_reports(small):
    make_all(small, read=20, run_id="run-2")
    assert now_is(small, "SUCCESS", action="drafter_new").gain == pytest.approx(2.0 / 1.6 - 1)


def test_a_run_that_made_nothing_new_is_no_better(small):
    assert now_is(small, "SUCCESS").outcome == "no_better"


def test_a_candidate_that_a_newer_one_replaced_is_no_better(small):
    make_all(small, read=20, run_id="run-2")
    make_all(small, read=30, run_id="run-3")
    assert now_is(small, "SUCCESS").outcome == "no_better"


def test_a_cancelled_run_is_cancelled(small):
    assert now_is(small, "CANCELED").outcome == "cancelled"


def test_gates_that_refuse_are_told_from_other_failures(small):
    release = make_all(small, read=20, run_id="run-2")
    place = small.artefacts("release") / "shop" / release.version / "release.json"
    gate = '{"name": "recovery", "wanted": 0.99, "measured": 0.5, "passed": false}'
    place.write_text(place.read_text().replace('"gates": []', f'"gates": [{gate}]'))
    assert now_is(small, "FAILURE").outcome == "refused_by_gates"
