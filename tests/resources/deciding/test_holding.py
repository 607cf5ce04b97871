"""What keeps a cause waiting: a run at work, an open candidate, the cool-down, back-off after failures, quiet hours."""

from dataclasses import replace
from datetime import timedelta

from resources.deciding.causes import held_by
from tests.resources.deciding.examples import NOW, SEEN, SETTINGS, decision


def held(*decisions, seen=SEEN, settings=SETTINGS, now=NOW):
    found = held_by(seen, decisions, settings, now)
    return found.kind if found else None


def test_one_run_and_one_candidate_at_a_time():
    assert held() is None
    assert held(decision(outcome="running", settled_ts=None)) == "at_work"
    assert held(decision(outcome="waiting", run_id=None, settled_ts=None)) == "at_work"
    assert held(seen=replace(SEEN, candidate="r2")) == "candidate"


def test_the_cool_down_begins_with_the_end_of_the_last_run():
    ended = decision(days_ago=1 / 24)  # settled now
    assert held(ended) == "cool_down"
    assert held(ended, now=NOW + timedelta(hours=11.9)) == "cool_down"
    assert held(ended, now=NOW + timedelta(hours=12.1)) is None


def test_failures_in_a_row_double_the_wait_up_to_a_bound():
    failed = [decision(number, days_ago=4 - number, outcome="failed") for number in (1, 2)]
    assert held(*failed, now=failed[-1].settled_ts + timedelta(hours=47)) == "cool_down"
    assert held(*failed, now=failed[-1].settled_ts + timedelta(hours=49)) is None
    many = [decision(number, days_ago=40 - number, outcome="failed") for number in range(30)]
    assert held(*many, now=many[-1].settled_ts + timedelta(days=13.9)) == "cool_down"
    assert held(*many, now=many[-1].settled_ts + timedelta(days=14.1)) is None


def test_a_bound_on_the_back_off_makes_no_wait_shorter_than_the_cool_down():
    once, short = decision(days_ago=1 / 24, outcome="failed"), SETTINGS.model_copy(update={"most_back_off_days": 0})
    assert held(once, settings=short, now=NOW + timedelta(hours=11.9)) == "cool_down"
    assert held(once, settings=short, now=NOW + timedelta(hours=12.1)) is None


def test_a_success_ends_the_back_off():
    assert held(decision(1, 4, "failed"), decision(2, 3, "failed"), decision(3, 0.6, "released")) is None


def test_a_failure_without_a_cool_down_still_waits_two_hours():
    once = decision(days_ago=1 / 24, outcome="failed")
    no_pause = SETTINGS.model_copy(update={"cool_down_hours": 0})
    assert held(once, settings=no_pause, now=NOW + timedelta(hours=1.9)) == "cool_down"
    assert held(once, settings=no_pause, now=NOW + timedelta(hours=2.1)) is None


def test_quiet_hours_are_in_the_recipe_s_time_zone():
    quiet = SETTINGS.model_copy(update={"quiet": ["* 12 * * *"]})
    assert held(settings=quiet) == "quiet"
    assert held(settings=quiet.model_copy(update={"timezone": "Europe/Amsterdam"})) is None  # 14:00 there
