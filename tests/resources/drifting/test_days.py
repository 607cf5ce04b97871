"""Which days are the reference, and what each window is compared with."""

from datetime import date, timedelta

from resources.drifting.days import reference_of, strata_of, window_of

FIRST = date(2026, 6, 1)  # a Monday


def days(count, first=FIRST):
    return [first + timedelta(day) for day in range(count)]


def test_the_first_full_window_is_the_reference_and_its_first_quarter_the_vocabulary():
    found = reference_of(days(40), 28, FIRST + timedelta(40))
    assert (found.start, found.end) == (FIRST, date(2026, 6, 28))
    assert list(found.vocabulary) == days(7) and list(found.comparison) == days(21, date(2026, 6, 8))


def test_a_window_that_is_not_over_is_none():
    assert reference_of(days(28), 28, date(2026, 6, 28)) is None
    assert reference_of(days(28), 28, date(2026, 6, 29)) is not None
    assert reference_of([], 28, FIRST) is None
    assert reference_of(days(3, FIRST + timedelta(100)), 28, FIRST) is None  # all of it in the future


def test_a_release_is_compared_with_the_window_before_it_if_that_is_full():
    made = date(2026, 7, 20)
    found = reference_of(days(60), 28, date(2026, 8, 1), before=made)
    assert (found.start, found.end) == (date(2026, 6, 22), date(2026, 7, 19))
    assert reference_of(days(60), 28, date(2026, 8, 1), before=date(2026, 6, 10)).start == FIRST


def test_days_without_traffic_are_left_out_and_a_part_without_days_is_no_reference():
    some = [day for day in days(28) if day.weekday() < 5]
    assert len(reference_of(some, 28, date(2026, 7, 1)).comparison) == 15
    assert reference_of([FIRST, date(2026, 7, 20)], 28, date(2026, 8, 1)) is None


def test_a_window_holds_days_after_the_reference_only():
    traffic = set(days(40))
    assert window_of(date(2026, 7, 1), 7, traffic, date(2026, 6, 28)) == days(3, date(2026, 6, 29))
    assert window_of(date(2026, 7, 1), 1, traffic, date(2026, 6, 28)) == [date(2026, 7, 1)]


def test_mondays_are_compared_with_mondays_where_there_are_two():
    comparison = days(21, date(2026, 6, 8))
    [(inside, outside)] = strata_of([date(2026, 6, 29)], comparison)
    assert inside == [date(2026, 6, 29)] and outside == [date(2026, 6, 8), date(2026, 6, 15), date(2026, 6, 22)]
    assert len(strata_of(days(7, date(2026, 6, 29)), comparison)) == 7
    assert strata_of([date(2026, 6, 29)], days(10)) == [([date(2026, 6, 29)], days(10))]
    weekdays = [day for day in comparison if day.weekday() < 5]
    assert strata_of([date(2026, 7, 4)], weekdays) == [([date(2026, 7, 4)], weekdays)]
    assert strata_of([date(2026, 6, 29)], []) == [] and strata_of([], comparison) == []
