"""What is told: changes of traffic, candidates that wait or missed gates, the watch's rollbacks, used budgets, failed runs."""

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest

from resources.deciding.evidence import BudgetSettings
from resources.deciding.policy import refusal
from resources.endpoints.approvals import approve, roll_back, withdraw
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.monitoring.alerts.release_alerts import FailedRun, budget_alerts, drift_alerts, failed_run_alerts, release_alerts
from resources.monitoring.alerts.settings import AlertSettings
from resources.monitoring.alerts.tell import tell
from resources.releases.release import ReleasePolicy, ReleaseRef
from tests.resources.deciding.examples import NOW, decision

ANA, BOB, WATCH = (Actor(name, "MILLRACE_USER", "because") for name in ("ana", "bob", "millrace watch"))


@pytest.fixture
def lake(tmp_path):
    return LakeLayout.open(tmp_path / "lake")


def compared(lake, *days, test="novelty", alarm=True, release="", ts=datetime(2026, 8, 1, tzinfo=UTC)):
    """Rows of the table drift: days of July."""
    row = {
        **dict.fromkeys(SCHEMAS["drift"].names),
        "workload": "tutor",
        "release": release,
        "window_days": 1,
        "test": test,
        "value": 0.4,
        "bound": 0.25,
        "p": 1e-5,
        "alarm": alarm,
        "ts": ts,
    }
    rows = [{**row, "dt": date(2026, 7, 1) + timedelta(days=day - 1)} for day in days]
    Tables(lake).append("drift", pa.Table.from_pylist(rows, schema=SCHEMAS["drift"]))


def test_alarms_of_days_that_follow_each_other_are_one_change(lake):
    assert drift_alerts(Tables(lake), "tutor", "") == []
    compared(lake, 3, 4, 5, 9)
    compared(lake, 3, test="language")
    compared(lake, 1, 2, alarm=False)
    compared(lake, 1, release="other")
    [one] = drift_alerts(Tables(lake), "tutor", "")
    assert one.title == "tutor: drift since 2026-07-03 (language, novelty)" and one.facts["alarms"] == 5
    assert "language over 1 d: 0.4, alarms from 0.25; novelty" in one.text and "the first window of the logs" in one.text
    compared(lake, 10, 17)  # it goes on
    [same] = drift_alerts(Tables(lake), "tutor", "")
    assert same.id == one.id
    compared(lake, 25, 120)
    assert [each.cause for each in drift_alerts(Tables(lake), "tutor", "")] == ["/2026-07-03", "/2026-07-25", "/2026-10-28"]


def test_a_change_is_told_once_though_late_logs_move_its_first_day(lake, monkeypatch):
    monkeypatch.setenv("HOOK", "http://127.0.0.1:1")
    chosen, sent, now = AlertSettings(webhook={"url_env": "HOOK"}), [], datetime.now(UTC)

    def told():
        sent.clear()
        tell(
            lake,
            "tutor",
            chosen,
            drift_alerts(Tables(lake), "tutor", ""),
            now,
            send=lambda name, channel, alert, place, seconds: sent.append(alert.cause),
        )
        return sent

    compared(lake, 10, 12, 13, ts=now)
    assert told() == ["/2026-07-10"] and told() == []
    Tables(lake).replace("drift", SCHEMAS["drift"].empty_table(), workload="tutor", dt=date(2026, 7, 10))
    assert [each.cause for each in drift_alerts(Tables(lake), "tutor", "")] == ["/2026-07-12"] and told() == []
    compared(lake, 8, ts=now)
    assert told() == []
    compared(lake, 21, ts=now)  # eight days without an alarm: another change
    assert told() == ["/2026-07-21"]


@pytest.mark.parametrize(
    ("budget", "title", "waiting_helps"),
    [
        ({"runs_per_week": 0}, "tutor: the budget runs_per_week is 0", False),
        ({"device_hours_per_week": 1}, "tutor: the budget device_hours_per_week is too small", False),
        ({"device_hours_per_week": 5}, "tutor: the budget device_hours_per_week is used", True),
    ],
)
def test_waiting_for_a_budget_is_advised_only_where_it_helps(lake, budget, title, waiting_helps):
    why = refusal(BudgetSettings(**budget), [decision(days_ago=0.0, cost_s=4 * 3600.0)], cost_hours=2.0, money=None, now=NOW)
    row = {
        **dict.fromkeys(SCHEMAS["retraining_decisions"].names),
        "workload": "tutor",
        "decision_id": "d1",
        "ts": NOW,
        "cause": "new_logs",
        "why": f"nothing is run: {why}",
    }
    Tables(lake).append("retraining_decisions", pa.Table.from_pylist([row], schema=SCHEMAS["retraining_decisions"]))
    [one] = budget_alerts(Tables(lake), "tutor")
    assert one.title == title and ("Or wait" in one.todo) == waiting_helps


@pytest.mark.parametrize(
    ("budget", "hours", "helps"),
    [
        ({"device_hours_per_week": 5}, None, "millrace run RECIPE"),
        ({"money_per_week": 5}, 2.0, "price_per_device_hour"),
        ({"money_per_week": 5}, None, "millrace run RECIPE"),
    ],
)
def test_a_budget_that_an_unknown_cost_cannot_be_held_against_is_not_said_to_be_used(lake, budget, hours, helps):
    why = refusal(BudgetSettings(**budget), [], cost_hours=hours, money=None, now=NOW)
    row = {
        **dict.fromkeys(SCHEMAS["retraining_decisions"].names),
        "workload": "tutor",
        "decision_id": "d1",
        "ts": NOW,
        "cause": "schedule",
        "why": f"nothing is run: {why}",
    }
    Tables(lake).append("retraining_decisions", pa.Table.from_pylist([row], schema=SCHEMAS["retraining_decisions"]))
    [one] = budget_alerts(Tables(lake), "tutor")
    [name] = budget
    assert one.title == f"tutor: the budget {name} needs a cost that is unknown"
    assert helps in one.todo and "Raise" not in one.todo and "wait" not in one.todo


def test_a_candidate_waits_until_enough_people_approved_it_or_one_withdrew_it(lake, make_release):
    assert release_alerts(lake, "tutor") == []
    release = make_release(lake, 1, policy=ReleasePolicy(people=2))
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(release))
    [first] = release_alerts(lake, "tutor")
    assert first.kind == "approval" and first.title == f"tutor: release {release.name} waits for 2 people"
    assert f"millrace approve {release.name} --lake {lake.place}" in first.todo and "recovery 0.999" in first.text
    approve(lake, release, ANA)
    [second] = release_alerts(lake, "tutor")
    assert (
        second.id != first.id and second.title.endswith("waits for one more person") and "Approved so far by 1." in second.text
    )
    approve(lake, release, BOB)
    assert release_alerts(lake, "tutor") == []
    withdraw(lake, release, ANA)
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(release))
    assert [each for each in release_alerts(lake, "tutor") if each.kind == "approval"] == []


def test_missed_gates_are_told_with_their_numbers(lake, make_release):
    release = make_release(lake, 1, recovery=0.9)
    Endpoint(lake, "tutor").nominate(ReleaseRef.of(release))
    [one] = release_alerts(lake, "tutor")
    assert one.kind == "gates" and one.title == f"tutor: release {release.name} missed 1 gate"
    assert "gate recovery: 0.9" in one.text and "at least 0.99" in one.text


def test_only_the_rollback_of_the_watch_is_told(lake, make_release):
    first, second = make_release(lake, 1), make_release(lake, 2)
    for release in (first, second):
        approve(lake, release, ANA)
        Endpoint(lake, "tutor").promote(ReleaseRef.of(release), ANA)
    roll_back(lake, first, BOB)
    assert release_alerts(lake, "tutor") == []
    approve(lake, second, ANA)
    Endpoint(lake, "tutor").promote(ReleaseRef.of(second), ANA)
    roll_back(lake, first, WATCH)
    [one] = release_alerts(lake, "tutor")
    assert one.kind == "rollback" and one.text == "because." and one.facts["replaced"] == second.name


def test_a_failed_run_names_steps_and_kinds_of_errors_but_no_message():
    at = datetime(2026, 7, 1, tzinfo=UTC)
    [one] = failed_run_alerts(
        "tutor", [FailedRun("0a1b2c3d-44", "train", at, ["sft_model", "student_model"], ["WorkerKilled", ""])]
    )
    assert one.title == "tutor: a run of train failed at sft_model, student_model"
    assert "Failed: sft_model (WorkerKilled), student_model." in one.text and "run 0a1b2c3d in" in one.todo
    [gone] = failed_run_alerts("tutor", [FailedRun("0a1b2c3d-44", "train", at, process_is_gone=True)])
    assert "Its process is gone." in gone.text and gone.id == one.id  # once, whether it is marked as failed later or not


def test_a_refused_decision_is_no_failed_run():
    at = datetime(2026, 7, 1, tzinfo=UTC)
    assert failed_run_alerts("tutor", [FailedRun("0a1b2c3d-44", "approve", at, ["approve_release"], ["Failure"])]) == []
    [one] = failed_run_alerts("tutor", [FailedRun("0a1b2c3d-44", "rollback", at, ["roll_back_endpoint"], ["OSError"])])
    assert "did not move" not in one.text and "continues" not in one.todo
    assert failed_run_alerts("tutor", [FailedRun("0a1b2c3d-44", "train", at, ["sft_model"], ["Failure"])])


@pytest.mark.parametrize("job", ["retrain", "withdraw_request"])
def test_a_refused_request_is_no_failed_run(job):
    at = datetime(2026, 7, 1, tzinfo=UTC)
    assert failed_run_alerts("tutor", [FailedRun("0a1b2c3d-44", job, at, ["ask"], ["Failure"])]) == []
    [one] = failed_run_alerts("tutor", [FailedRun("0a1b2c3d-44", job, at, ["ask"], ["OSError"])])
    assert "Finished steps" not in one.text and "continues" not in one.todo and "millrace decisions tutor" in one.todo
