"""Requests of people: kept once, decided once and before all that was noticed, held by what holds unless the person says
not."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from resources.deciding.decisions import Decisions
from resources.deciding.evidence import BudgetSettings
from resources.deciding.policy import decide, preview, pulse
from resources.deciding.requests import DESPITE, RequestError, Requests, RetrainingRequest, folder_of
from resources.endpoints.endpoint_log import Actor
from resources.lake.lake import LakeLayout
from stores.mirror.bucket import Conflict
from tests.resources.deciding.examples import FACTS, SETTINGS, decision, with_settings
from tests.resources.deciding.small_lake import log_day

NOW = datetime(2026, 6, 5, 9, tzinfo=UTC)
ANA = Actor("ana", "MILLRACE_USER", "the prices of June are wrong")
BUSY = SETTINGS.model_copy(update={"requests_per_day": 10_000_000})
QUIET = BUSY.model_copy(update={"quiet": ["* 9 * * *"]})


def ask(lake, action="full", despite=(), by=ANA, now=NOW):
    return Requests(lake, "shop").ask(RetrainingRequest.of("shop", by, action, despite), now)


def test_a_request_is_decided_before_a_new_day_and_its_row_says_who_asked_and_why(lake):
    log_day(lake, date(2026, 6, 4), 400)
    request, is_new = ask(lake, "drafter_new")
    made = decide(lake, with_settings(BUSY), [], NOW)
    found = made.decision
    assert is_new and (found.cause, found.action, found.outcome) == ("request", "drafter_new", "waiting")
    assert found.cause_text == "ana asked for a new drafter: the prices of June are wrong"
    assert found.why.startswith("a new drafter costs about ") and found.why.endswith(": ana asks for it")
    who = {"by": "ana", "identity_from": "MILLRACE_USER", "why": "the prices of June are wrong"}
    asked = {"workload": "shop", "action": "drafter_new", "despite": [], "request_id": request.request_id}
    assert found.evidence["request"] == {**who, **asked, "ts": "2026-06-05T09:00:00+00:00"}
    assert "speculator" in made.work.stages and "sft_model" in made.work.pinned
    assert {each.why_not for each in found.options if each.action in ("full", "nothing")} == {"ana asked for a new drafter"}
    ended = replace(found, outcome="released", settled_ts=NOW - timedelta(days=1))
    assert decide(lake, with_settings(BUSY), [ended], NOW).decision.cause == "new_logs"  # and the request not once more


def test_the_same_words_are_one_request_until_it_is_decided(lake):
    first, is_new = ask(lake)
    again, second_is_new = ask(lake, now=NOW + timedelta(minutes=5))
    assert (is_new, second_is_new) == (True, False) and again == first
    others = ({"action": "drafter_new"}, {"by": replace(ANA, name="ben")})
    assert all(ask(lake, now=NOW + timedelta(minutes=6), **more)[1] for more in others)
    ledger = Decisions(lake, "shop")
    ledger.record(decide(lake, with_settings(BUSY), [], NOW).decision)
    later, third_is_new = ask(lake, now=NOW + timedelta(days=9))
    assert third_is_new and later.request_id != first.request_id
    assert [each.request_id for each in Requests(lake, "shop").waiting(ledger.seen())][-1] == later.request_id
    assert "nothing was added" in again.asked_sentence(second_is_new, BUSY)


def test_a_request_waits_for_quiet_hours_and_is_decided_when_they_end(lake):
    ask(lake)
    ledger = Decisions(lake, "shop")
    held = decide(lake, with_settings(QUIET), [], NOW).decision
    assert (held.cause, held.action) == ("request", "nothing") and "automation.decide.quiet" in held.why
    assert held.evidence["request"]["by"] == "ana" and ledger.record(held)
    assert decide(lake, with_settings(QUIET), ledger.all(), NOW).decision is None
    assert decide(lake, with_settings(QUIET), ledger.all(), NOW + timedelta(hours=1)).work is not None


def test_a_request_that_sets_quiet_hours_and_the_cool_down_aside_overtakes_one_that_waits(lake):
    settled = decision(action="full", days_ago=0, settled_ts=NOW - timedelta(hours=1))
    ask(lake)
    assert "nothing is started before" in decide(lake, with_settings(BUSY), [settled], NOW).decision.why
    ask(lake, despite=["cool_down", "quiet"], by=replace(ANA, name="ben"))
    made = decide(lake, with_settings(QUIET), [settled], NOW)
    assert made.decision.action == "full" and made.decision.evidence["request"]["despite"] == ["quiet", "cool_down"]
    assert "ben asked for everything that is out of date, despite the quiet hours and the cool-down" in made.decision.cause_text
    done = replace(made.decision, outcome="released", settled_ts=NOW)
    left = decide(lake, with_settings(BUSY), [settled, done], NOW).decision
    assert "nothing is started before" in left.why and left.evidence["request"]["by"] == "ana"


def test_a_run_at_work_holds_every_request(lake):
    ask(lake, despite=DESPITE)
    at_work = decision(outcome="running", settled_ts=None, cost_s=None)
    assert "is at work" in decide(lake, with_settings(BUSY), [at_work], NOW).decision.why


def test_a_budget_of_0_refuses_a_request_that_does_not_set_it_aside(lake):
    none = BUSY.model_copy(update={"budget": BudgetSettings(runs_per_week=0)})
    ask(lake)
    refused = decide(lake, with_settings(none), [], NOW)
    assert refused.work is None and "is 0" in refused.decision.why
    ask(lake, despite=["budget"], by=replace(ANA, name="ben"))
    made = decide(lake, with_settings(none), [refused.decision], NOW)
    assert made.work is not None and made.decision.evidence["request"]["by"] == "ben"


def test_an_action_that_the_recipe_cannot_do_is_answered_in_the_row_and_not_asked_again(lake):
    ask(lake, "sft_continued")
    facts = replace(FACTS, as_adapter=True)
    found = decide(lake, with_settings(BUSY, facts), [], NOW).decision
    assert (found.action, found.outcome) == ("nothing", "not_run") and found.why == (
        "nothing, although ana asks for a model continued from the previous one on new rows and some old ones: release.form is "
        "adapter, and a continued model has no adapter on the base model"
    )
    assert decide(lake, with_settings(BUSY, facts), [found], NOW).decision is None


def test_the_first_run_of_a_lake_may_be_asked_for(tmp_path):
    lake = LakeLayout.open(tmp_path / "empty")
    log_day(lake, date(2026, 6, 4), 10)
    ask(lake)
    made = decide(lake, with_settings(BUSY), [], NOW)
    assert made.decision.action == "full" and "whose cost is unknown" in made.decision.why and "base_model" in made.work.stages


def test_a_dry_run_of_the_recipe_writes_what_it_would_do_and_the_request_waits(lake):
    ask(lake)
    dry = decide(lake, with_settings(BUSY.model_copy(update={"dry_run": True})), [], NOW)
    assert dry.work is None and dry.decision.dry_run and dry.decision.action == "full"
    assert decide(lake, with_settings(BUSY), [dry.decision], NOW).work is not None


def test_a_preview_keeps_nothing_and_says_what_would_hold_it(lake):
    wanted = RetrainingRequest.of("shop", ANA, "drafter_continued")
    found, hold = preview(wanted, lake, with_settings(QUIET), [], NOW)
    assert (found.action, found.dry_run, found.outcome) == ("drafter_continued", True, "not_run") and "quiet" in hold
    said = found.preview_sentence(hold)
    assert said.startswith("dry run, nothing is kept or started. The decision would be: a drafter continued")
    assert "It would wait" in said
    assert Requests(lake, "shop").all() == [] and decide(lake, with_settings(BUSY), [], NOW).decision is None


def test_a_withdrawn_request_is_not_decided_and_a_decided_one_cannot_be_withdrawn(lake):
    requests, ledger = Requests(lake, "shop"), Decisions(lake, "shop")
    request, _ = ask(lake)
    assert requests.withdraw(request.request_id, Actor("ben", "test", "it was June of last year"), NOW) == request
    [row] = ledger.all()
    assert (row.outcome, row.why, row.started) == ("cancelled", "ben withdrew the request: it was June of last year", False)
    assert decide(lake, with_settings(BUSY), ledger.all(), NOW).decision is None and not requests.waiting(ledger.all())
    later, _ = ask(lake)
    ledger.record(decide(lake, with_settings(BUSY), ledger.all(), NOW).decision)
    with pytest.raises(RequestError, match=f"request {later.request_id} was decided already, as decision {later.decision_id}"):
        requests.withdraw(later.request_id, ANA, NOW)
    with pytest.raises(RequestError, match="shop has no request 123"):
        requests.withdraw("123", ANA, NOW)


def test_a_request_changes_the_pulse_that_lets_a_tick_look(lake):
    before = pulse(lake, FACTS)
    assert pulse(lake, FACTS) == before
    ask(lake)
    assert pulse(lake, FACTS) != before


@pytest.mark.parametrize(
    ("by", "action", "despite", "says"),
    [
        (replace(ANA, reason=""), "full", [], "the reason is empty"),
        (ANA, "drafter-new", [], "action is 'drafter-new', which does not exist; did you mean drafter_new?"),
        (ANA, "nothing", [], "it is one of drafter_continued, drafter_new, sft_continued, preference, full"),
        (ANA, "full", ["quiet", "candidate"], "despite is 'candidate'"),
    ],
)
def test_wrong_requests_are_refused_in_one_sentence(by, action, despite, says):
    with pytest.raises(RequestError, match=says):
        RetrainingRequest.of("shop", by, action, despite)


def test_a_file_that_is_no_request_is_left_out(lake):
    request, _ = ask(lake)
    for name, content in {
        "a.json": "{",
        "b.json": "[]",
        "c.json": json.dumps({"despite": []}),
        "d.json": '{"despite": 1}',
    }.items():
        (folder_of(lake, "shop") / name).write_text(content)
    assert Requests(lake, "shop").all() == [request]
    assert [each.cause for each in Decisions(lake, "shop").all()] == []


def test_the_same_request_on_two_machines_is_one(lake, monkeypatch):
    other = RetrainingRequest.of("shop", ANA)

    def publish(mirror, path):  # the other machine was faster; its file comes with the next look at the folder
        raise Conflict(path.name)

    def pull(mirror, folder):
        folder.mkdir(parents=True, exist_ok=True)
        if asked:
            record = replace(other, request_id=asked[0].removesuffix(".json"), ts=NOW - timedelta(minutes=1)).as_record()
            (folder / asked[0]).write_text(json.dumps(record))

    asked = []
    monkeypatch.setattr(type(lake.mirror), "publish", lambda mirror, path: asked.append(path.name) or publish(mirror, path))
    monkeypatch.setattr(type(lake.mirror), "pull_folder", pull)
    request, is_new = ask(lake)
    assert not is_new and request.ts == NOW - timedelta(minutes=1)
    assert list(folder_of(lake, "shop").glob(".*")) == []
