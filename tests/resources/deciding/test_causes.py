"""Causes of a retraining: each only with its own evidence, in order, with the window that it is decided once for."""

from dataclasses import replace
from datetime import date

from resources.deciding.causes import causes
from resources.deciding.evidence import Episode
from tests.resources.deciding.examples import SEEN, SETTINGS


def kinds(seen, settings=SETTINGS):
    return [each.kind for each in causes(seen, settings)]


def episode(test):
    return Episode(test, 1, date(2026, 6, 3), date(2026, 6, 9), 2.0, 1.0)


def test_new_rows_are_a_cause_from_both_bounds_on():
    [found] = causes(SEEN, SETTINGS)
    assert found.kind == "new_logs" and "300 rows" in found.text and "d1" in found.window and "2026-06-09" in found.window
    assert kinds(SEEN, SETTINGS.model_copy(update={"least_new_rows": 301})) == []
    assert kinds(SEEN, SETTINGS.model_copy(update={"least_new_share": 0.31})) == []
    assert kinds(replace(SEEN, drafter=None, model=None)) == []  # nothing was trained yet


def test_each_test_of_drift_is_the_cause_that_it_speaks_for():
    quiet = replace(SEEN, rows=1_000)
    assert kinds(replace(quiet, episodes=(episode("acceptance"),))) == ["acceptance"]
    assert kinds(replace(quiet, episodes=(episode("bad_feedback"),))) == ["feedback"]
    assert kinds(replace(quiet, episodes=(episode("novelty"), episode("language")))) == ["drift"]


def test_the_strongest_cause_comes_first_and_a_cause_that_is_not_listed_is_left_out():
    every = replace(SEEN, episodes=(episode("novelty"), episode("acceptance")), schedule_due="2026-06-10 03:00")
    assert kinds(every) == ["acceptance", "schedule", "new_logs", "drift"]
    assert kinds(every, SETTINGS.model_copy(update={"causes": ["drift"]})) == ["drift"]


def test_an_episode_has_one_window_as_long_as_it_goes_on():
    first = replace(SEEN, rows=1_000, episodes=(episode("acceptance"),))
    later = replace(first, episodes=(replace(first.episodes[0], end=date(2026, 6, 20), value=1.1),))
    assert causes(first, SETTINGS)[0].window == causes(later, SETTINGS)[0].window
