"""Decisions on a lake: once for a cause, held by what holds, within the budget, retried when a hold ends."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from resources.deciding.decisions import Decisions
from resources.deciding.evidence import BudgetSettings
from resources.deciding.gather import gather
from resources.deciding.policy import decide, preview
from resources.deciding.requests import RetrainingRequest
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.releases.release import ReleaseRef
from stores.mirror.bucket import Conflict
from stores.s3 import S3Error
from tests.resources.deciding.examples import FACTS, SETTINGS, decision, with_settings
from tests.resources.deciding.small_lake import alarm_on, log_day, make_all

NOW = datetime(2026, 6, 5, 9, tzinfo=UTC)
BUSY = SETTINGS.model_copy(update={"requests_per_day": 10_000_000})


def test_nothing_new_is_no_cause(lake):
    assert decide(lake, with_settings(BUSY), [], NOW).decision is None


def test_a_new_day_refreshes_the_drafter_and_keeps_the_models(lake):
    log_day(lake, date(2026, 6, 4), 400)
    made = decide(lake, with_settings(BUSY), [], NOW)
    found = made.decision
    assert (found.cause, found.action, found.outcome) == ("new_logs", "drafter_continued", "waiting")
    assert found.evidence["new_rows_of_drafter"] == 400 and found.evidence["tau_released"] == 2.0
    assert set(made.work.pinned) == {"base_model", "sft_model", "student_model", "quantized_model"}
    assert made.work.stages[-5:] == ["speculator_dataset", "speculator", "evaluation_report", "release_candidate", "endpoint"]
    assert not set(made.work.pinned) & set(made.work.stages)
    assert (found.chosen.predicted_gain, found.chosen.stage_costs_s["speculator"]) == (None, 25.0)  # a quarter of its steps


def test_the_same_cause_is_decided_once_and_a_later_day_again(lake):
    log_day(lake, date(2026, 6, 4), 400)
    ledger = Decisions(lake, "shop")
    quiet = BUSY.model_copy(update={"requests_per_day": 1.0})
    worthless = decision(days_ago=20, action="sft_continued", gain=0.0)
    first = decide(lake, with_settings(quiet), [worthless], NOW).decision
    assert first.action == "nothing" and ledger.record(first) and not ledger.record(first)
    assert decide(lake, with_settings(quiet), [worthless, *ledger.all()], NOW).decision is None
    log_day(lake, date(2026, 6, 5), 100)
    assert decide(lake, with_settings(quiet), [worthless, *ledger.all()], NOW).decision.decision_id != first.decision_id


def test_a_hold_is_written_once_and_the_cause_is_decided_when_it_ends(lake):
    log_day(lake, date(2026, 6, 4), 400)
    ledger, quiet = Decisions(lake, "shop"), BUSY.model_copy(update={"quiet": ["* 9 * * *"]})
    held = decide(lake, with_settings(quiet), [], NOW)
    assert held.decision.action == "nothing" and "quiet" in held.decision.why and held.work is None
    ledger.record(held.decision)
    again = decide(lake, with_settings(quiet), ledger.all(), NOW)
    assert again.decision is None and again.again_at > NOW
    assert decide(lake, with_settings(quiet), ledger.all(), NOW + timedelta(hours=1)).decision.action == "drafter_continued"


def test_a_candidate_that_one_of_two_people_approved_still_holds_the_next_run(lake):
    log_day(lake, date(2026, 6, 4), 400)
    candidate = make_all(lake, read=301)
    directory = lake.artefacts("release") / "shop" / candidate.version
    path = directory / "release.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "policy": {"people": 2}}))
    for name, held in (("ana", True), ("ben", False)):
        Endpoint(lake, "shop").decide("approved", ReleaseRef.of(directory), Actor(name, "test", ""))
        assert (gather(lake, with_settings(BUSY), NOW)[0].candidate == candidate.version) == held


def test_an_open_candidate_holds_the_next_run(lake):
    make_all(lake, read=299)
    log_day(lake, date(2026, 6, 4), 400)
    assert "waits for an approval" in decide(lake, with_settings(BUSY), [], NOW).decision.why


def test_a_budget_of_0_runs_nothing_and_says_so(lake):
    log_day(lake, date(2026, 6, 4), 400)
    none = BUSY.model_copy(update={"budget": BudgetSettings(runs_per_week=0)})
    made = decide(lake, with_settings(none), [], NOW)
    assert made.decision.action == "nothing" and "is 0" in made.decision.why and made.work is None
    assert made.decision.outcome == "not_run"
    assert [each.action for each in made.decision.options if each.predicted_cost_s]  # what it would have been stays to read


def untimed(lake, stage="quantized_model"):
    """The lake, as if no version of a stage said how long it took."""
    for path in (lake.root / "models").glob(f"*/{stage}/*/manifest.json"):
        made = json.loads(path.read_text())
        del made["metrics"]["seconds"]
        path.write_text(json.dumps(made))


@pytest.mark.parametrize("budget", ["device_hours_per_week", "money_per_week"])
def test_a_run_of_unknown_cost_is_refused_by_a_budget_of_costs_and_the_sentence_says_what_helps(lake, budget):
    facts = replace(FACTS, cron="0 3 * * *")
    untimed(lake)
    settings = BUSY.model_copy(update={"price_per_device_hour": 1.0, "budget": BudgetSettings(**{budget: 100.0})})
    made = decide(lake, with_settings(settings, facts), [], NOW)
    assert made.work is None and made.decision.evidence["held"] == "budget"
    assert all(words in made.decision.why for words in (f"{budget} is set", "millrace run", "quantized_model"))
    assert "price_per_device_hour" not in made.decision.why
    assert decide(lake, with_settings(BUSY, facts), [], NOW).work is not None  # a budget of runs alone is kept anyway


def test_a_request_may_set_the_budget_aside_that_an_unknown_cost_does_not_suffice_for(lake):
    untimed(lake)
    settings, given = BUSY.model_copy(update={"budget": BudgetSettings(device_hours_per_week=1)}), Actor("ana", "test", "now")
    asked = [RetrainingRequest.of("shop", given, "full", despite) for despite in ((), ("budget",))]
    started = [preview(each, lake, with_settings(settings), [], NOW)[0] for each in asked]
    assert [each.action for each in started] == ["nothing", "full"] and "millrace run" in started[0].why


def test_a_dry_run_writes_what_it_would_do_and_the_real_one_does_it(lake):
    log_day(lake, date(2026, 6, 4), 400)
    dry = decide(lake, with_settings(BUSY.model_copy(update={"dry_run": True})), [], NOW)
    assert dry.decision.dry_run and dry.decision.action == "drafter_continued" and dry.work is None
    assert not dry.decision.started
    assert decide(lake, with_settings(BUSY), [dry.decision], NOW).work is not None


def test_a_killed_process_leaves_a_claim_and_the_next_look_writes_its_row(lake):
    log_day(lake, date(2026, 6, 4), 400)
    made, ledger = decide(lake, with_settings(BUSY), [], NOW).decision, Decisions(lake, "shop")
    ledger.record(made)
    shutil.rmtree(lake.table("retraining_decisions"))  # as if it was killed before the commit
    assert [each.decision_id for each in Decisions(lake, "shop").all()] == [made.decision_id]
    assert len(Decisions(lake, "shop")._in_table()) == 1


def test_a_claim_that_could_not_be_published_yields_to_another_machine(lake, monkeypatch):
    log_day(lake, date(2026, 6, 4), 400)
    made, ledger = decide(lake, with_settings(BUSY), [], NOW).decision, Decisions(lake, "shop")
    answers = [S3Error("the store is away"), S3Error("the store is away"), Conflict("another machine's claim is there")]

    def publish(path):
        if answers:
            raise answers.pop(0)

    monkeypatch.setattr(type(lake.mirror), "publish", lambda mirror, path: publish(path))
    for look in (lambda: ledger.record(made), ledger.all):
        with pytest.raises(S3Error):
            look()
        assert ledger._in_table() == []
    assert ledger.all() == [] and not answers
    assert ledger.record(made) and len(ledger.all()) == 1


def test_a_settled_decision_replaces_its_row(lake):
    log_day(lake, date(2026, 6, 4), 400)
    made, ledger = decide(lake, with_settings(BUSY), [], NOW).decision, Decisions(lake, "shop")
    ledger.record(made)
    ledger.settle(replace(made, outcome="released", cost_s=12.5, run_id="x", settled_ts=NOW))
    [found] = ledger.all()
    assert (found.outcome, found.cost_s, found.run_id) == ("released", 12.5, "x")
    assert found.options == made.options and found.evidence["rows"] == 700


def test_days_in_the_future_are_not_counted(lake):
    log_day(lake, date(2026, 7, 1), 400)
    assert decide(lake, with_settings(BUSY), [], NOW).decision is None


def test_a_lake_that_was_never_trained_is_left_to_a_person(tmp_path):
    from resources.lake.lake import LakeLayout

    lake = LakeLayout.open(tmp_path / "empty")
    log_day(lake, date(2026, 6, 4), 10)
    assert decide(lake, with_settings(BUSY), [], NOW).decision is None


def test_a_time_of_the_cron_that_is_held_for_days_is_decided_once_when_the_hold_ends(lake):
    facts, quiet = replace(FACTS, cron="0 3 * * 5"), BUSY.model_copy(update={"quiet": ["* * 5-9 6 *"]})
    ledger = Decisions(lake, "shop")
    ledger.record(decide(lake, with_settings(quiet, facts), [], NOW).decision)  # Friday the 5th
    for hours in (20, 26, 86):
        assert decide(lake, with_settings(quiet, facts), ledger.all(), NOW + timedelta(hours=hours)).decision is None
    free = NOW + timedelta(days=5)
    found = decide(lake, with_settings(quiet, facts), ledger.all(), free).decision
    assert (found.cause, found.evidence["window"], found.action) == ("schedule", "2026-06-05 03:00", "full")
    ledger.record(found)
    ended = [replace(each, outcome="no_better", run_id="x", settled_ts=free) if each.started else each for each in ledger.all()]
    assert decide(lake, with_settings(quiet, facts), ended, free + timedelta(hours=13)).decision is None


def test_the_next_look_is_no_later_than_the_next_time_of_the_cron(lake):
    facts = replace(FACTS, cron="0 3 * * *")
    early = datetime(2026, 6, 5, 1, tzinfo=UTC)
    seen = [decide(lake, with_settings(BUSY.model_copy(update={"timezone": "UTC"}), facts), [], early).decision]
    seen = [replace(each, outcome="no_better", run_id="x", settled_ts=early - timedelta(days=1)) for each in seen]
    assert decide(lake, with_settings(BUSY, facts), seen, early).again_at == datetime(2026, 6, 5, 3, tzinfo=UTC)
    assert decide(lake, with_settings(BUSY), seen, early).again_at == datetime(2026, 6, 6, tzinfo=UTC)


def test_a_newer_time_of_the_cron_replaces_one_that_is_held(lake):
    facts, quiet = replace(FACTS, cron="0 3 * * *"), BUSY.model_copy(update={"quiet": ["* * 5-9 6 *"]})
    held = [decide(lake, with_settings(quiet, facts), [], NOW + timedelta(days=day)).decision for day in range(3)]
    assert [each.evidence["window"][:10] for each in held] == ["2026-06-05", "2026-06-06", "2026-06-07"]
    found = decide(lake, with_settings(quiet, facts), held, NOW + timedelta(days=5)).decision
    assert found.evidence["window"] == "2026-06-10 03:00"


@pytest.mark.parametrize("why", ["nothing was seen of it", "it was a dry run"])
def test_a_time_of_the_cron_that_nothing_held_is_over_after_a_day(lake, why):
    facts = replace(FACTS, cron="0 3 * * 5")
    dry = with_settings(BUSY.model_copy(update={"dry_run": True}), facts)
    seen = [decide(lake, dry, [], NOW).decision] if "dry" in why else []
    assert decide(lake, with_settings(BUSY, facts), seen, NOW + timedelta(hours=17)).decision.cause == "schedule"
    assert decide(lake, with_settings(BUSY, facts), seen, NOW + timedelta(hours=26)).decision is None


def test_a_time_of_the_cron_is_kept_although_another_cause_is_held_before_it(lake):
    facts, quiet = replace(FACTS, cron="0 3 * * 5"), BUSY.model_copy(update={"quiet": ["* * 5-9 6 *"]})
    alarm_on(lake, gather(lake, with_settings(BUSY), NOW)[0].release, date(2026, 6, 4))
    held = []
    for _ in range(3):
        made = decide(lake, with_settings(quiet, facts), held, NOW)
        held += [made.decision] if made.decision else []
    assert [each.cause for each in held] == ["feedback", "schedule"]
    held.append(decision(days_ago=20, action="sft_continued", gain=0.0))  # no model is worth it
    later = decide(lake, with_settings(quiet, facts), held, NOW + timedelta(days=5))
    assert later.decision.cause == "feedback" and not later.decision.started
    after = decide(lake, with_settings(quiet, facts), [*held, later.decision], NOW + timedelta(days=5))
    assert after.decision.cause == "schedule" and after.decision.started


@pytest.mark.parametrize("again", [False, True])
def test_a_time_of_the_cron_is_decided_once_although_its_release_is_approved_meanwhile(lake, monkeypatch, again):
    facts = replace(FACTS, cron="0 3 * * *")
    first = decide(lake, with_settings(BUSY, facts), [], NOW).decision
    assert (first.cause, first.action) == ("schedule", "full")
    ended = replace(first, run_id="run", outcome="released", settled_ts=NOW)
    from resources.deciding import policy as module

    gathered = module.gather
    monkeypatch.setattr(module, "gather", lambda *given: (replace((found := gathered(*given))[0], release="another"), found[1]))
    later = NOW + timedelta(hours=13) + timedelta(days=again)
    found = decide(lake, with_settings(BUSY, facts), [ended], later).decision
    assert (found is not None and found.cause == "schedule") == again
