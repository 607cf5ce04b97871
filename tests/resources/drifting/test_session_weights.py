"""Every session counts once in a test."""

import numpy as np

from resources.drifting.compare import sessions_alike
from resources.drifting.permutation import Columns, permutation_tests

SHAPES, ERRORS = Columns("shapes", "shares", 0, 2), Columns("errors", "rise", 2, 2)


def test_a_session_s_columns_sum_to_one_in_each_test_that_counts_it():
    counts = np.array([[30.0, 10.0, 4.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 3.0]])
    found = sessions_alike(counts, [SHAPES, ERRORS])
    assert found.tolist() == [[0.75, 0.25, 1, 0], [0, 1, 0, 0], [0, 0, 0.25, 0.75]] and counts[0, 0] == 30


def test_a_quarter_of_short_sessions_among_long_ones_is_found_by_session_and_not_by_row():
    rng = np.random.default_rng(1)

    def day(short):
        rows = rng.geometric(0.04, 200).astype(float)
        rows[:short] = 1
        shape = (np.arange(200) < short) * 1
        found = np.zeros((200, 4))
        found[np.arange(200), shape] = rows
        return found

    window, reference = day(50), np.concatenate([day(0), day(2), day(1)])
    by_row = permutation_tests([window], [reference], [SHAPES], rng, 1e-4)[0]
    by_session = permutation_tests(
        [sessions_alike(window, [SHAPES])], [sessions_alike(reference, [SHAPES])], [SHAPES], rng, 1e-4
    )[0]
    assert by_session.value > 10 * by_row.value and by_session.p < 2e-4
