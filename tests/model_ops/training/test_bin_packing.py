"""Laws of packing: every document once, no row above capacity, never more rows than best fit or fewer than can be."""

import bisect
import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_ops.documents.bin_packing import fewest_rows, pack


def best_fit_rows(lengths, capacity):
    """Best-fit decreasing as in a textbook: how many rows."""
    spaces = []
    rows = 0
    for length in sorted(lengths, reverse=True):
        place = bisect.bisect_left(spaces, length)
        space = spaces.pop(place) if place < len(spaces) else capacity
        rows += space == capacity
        bisect.insort(spaces, space - length)
    return rows


def optimal_rows(lengths, capacity):
    """The fewest rows there are, by trying everything."""
    best = len(lengths)

    def place(rest, spaces):
        nonlocal best
        if len(spaces) >= best:
            return
        if not rest:
            best = len(spaces)
            return
        for row in range(len(spaces)):
            if spaces[row] >= rest[0] and spaces[row] not in spaces[:row]:
                place(rest[1:], [*spaces[:row], spaces[row] - rest[0], *spaces[row + 1 :]])
        place(rest[1:], [*spaces, capacity - rest[0]])

    place(sorted(lengths, reverse=True), [])
    return best


def check(lengths, capacity):
    rows = pack(lengths, capacity)
    assert sorted(rows.documents.tolist()) == list(range(len(lengths)))
    sums = [sum(lengths[i] for i in row) for row in rows]
    assert max(sums, default=0) <= capacity
    assert rows.sums(np.asarray(lengths, dtype=np.int64)).tolist() == sums
    assert all(len(row) for row in rows)
    lower = fewest_rows(np.array([length for length in lengths if length > 0], dtype=np.int64), capacity)
    assert -(-sum(lengths) // capacity) <= lower <= len(rows)
    return rows


@settings(max_examples=300)
@given(
    st.integers(1, 200).flatmap(lambda capacity: st.tuples(st.lists(st.integers(0, capacity), max_size=80), st.just(capacity)))
)
def test_rows_hold_every_document_once_and_are_never_more_than_best_fit_makes(given_lengths):
    lengths, capacity = given_lengths
    rows = check(lengths, capacity)
    positive = [length for length in lengths if length > 0]
    assert len(rows) <= max(best_fit_rows(positive, capacity), 1 if lengths else 0)
    again = pack(np.array(lengths, dtype=np.int32), capacity)
    assert again.documents.tolist() == rows.documents.tolist() and again.starts.tolist() == rows.starts.tolist()


@settings(max_examples=150)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9))
def test_few_documents_are_packed_best_or_one_row_off_and_the_bound_is_one(lengths):
    optimal = optimal_rows(lengths, 30)
    assert fewest_rows(np.array(lengths), 30) <= optimal <= len(pack(lengths, 30)) <= optimal + 1


def test_a_row_is_filled_where_best_fit_leaves_room():
    """Best fit puts the fours together; a four takes two threes."""
    assert best_fit_rows([4, 4, 3, 3, 3, 3], 10) == 3
    assert len(check([4, 4, 3, 3, 3, 3], 10)) == 2


@pytest.mark.parametrize(
    "lengths",
    [[], [0], [0, 0, 0], [7], [10] * 5, [0, 10, 0, 10], [1] * 1_000, [5_001] * 50, [3_400] * 50, [2_501, 7_499] * 40],
    ids=lambda lengths: f"{len(lengths)} of {sorted(set(lengths))}",
)
def test_odd_cases(lengths):
    capacity = 10 if max(lengths, default=0) <= 10 else 10_000
    rows = check(lengths, capacity)
    expected = {
        (): 0,
        (0,): 1,
        (0, 0, 0): 1,
        (7,): 1,
        (10,) * 5: 5,
        (0, 10, 0, 10): 2,
        (1,) * 1_000: 100,
        (5_001,) * 50: 50,
        (3_400,) * 50: 25,
        (2_501, 7_499) * 40: 40,
    }
    assert len(rows) == expected[tuple(lengths)]


def distributions(documents):
    """Name, lengths, capacity, and the share of the bound that has to be reached."""
    rng = np.random.default_rng(11)
    mixed = rng.random(documents) < 0.5
    yield "uniform", rng.integers(1, 2_049, documents), 2_048, 0.995
    yield "a tenth to four tenths", rng.integers(205, 820, documents), 2_048, 0.99
    yield "log-normal", np.minimum(rng.lognormal(6, 1, documents).astype(int) + 1, 4_096), 4_096, 0.995
    yield "two kinds", np.where(mixed, rng.normal(900, 50, documents), rng.normal(300, 40, documents)).astype(int), 2_048, 0.965
    yield "above half", rng.integers(1_025, 2_049, documents), 2_048, 1.0
    yield "few tokens", rng.integers(0, 2, documents), 2_048, 0.999
    yield "long context", np.minimum(rng.lognormal(9, 1, documents).astype(int) + 1, 131_072), 131_072, 0.99


@pytest.mark.parametrize(
    "name,lengths,capacity,least", list(distributions(4_000)), ids=lambda value: value if isinstance(value, str) else ""
)
def test_rows_are_near_the_bound(name, lengths, capacity, least):
    rows = check(lengths.tolist(), capacity)
    assert fewest_rows(lengths[lengths > 0], capacity) / len(rows) >= least


def test_ties_go_by_the_order_given():
    rows = pack([5, 3, 5, 3, 5, 3], capacity=8)
    assert [sorted(row.tolist()) for row in rows] == [[0, 1], [2, 3], [4, 5]]


def test_a_document_longer_than_a_row_is_refused():
    with pytest.raises(ValueError, match="document 1 has 11 tokens"):
        pack([3, 11], capacity=10)


def test_a_million_lengths_take_seconds():
    lengths = np.random.default_rng(0).integers(400, 1_200, 1_000_000)  # the hard case: two to five in a row
    pack(lengths[:1_000], 2_048)
    started_s = time.process_time()
    rows = pack(lengths, 2_048)
    assert time.process_time() - started_s < 5
    assert lengths.sum() / 2_048 / len(rows) > 0.985


def test_real_dialogues_fill_their_rows(shared):
    """Full length, unsplit: best fit alone wastes a row here."""
    trials = json.loads((shared / "data" / "tau_airline.json").read_text())
    lengths = [len(json.dumps(trial["traj"])) // 4 for trial in trials]
    bound = -(-sum(lengths) // 16_384)
    assert len(check(lengths, 16_384)) <= bound * 1.01
