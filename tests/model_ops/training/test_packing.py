"""Plans: every document once in a pass, the same plan for the same settings, the same rows whatever the ranks."""

import bisect
import json
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_ops.documents import Branch, Document, Documents, PackedPlan, to_batch, to_batches
from model_ops.documents.bin_packing import fewest_rows, pack
from model_ops.parallel.mesh import Context, cut, pad
from model_ops.tensors.batch import IGNORED, Batch
from model_ops.training.settings import TrainingSettings


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


def documents(lengths):
    return [Document(f"row-{i}", np.arange(length) + 1000 * i, np.arange(length) % 2 == 0) for i, length in enumerate(lengths)]


def plan_settings(**values):
    base = {"steps": 6, "max_length": 32, "tokens_per_step": 64, "learning_rate": 1e-3}
    return TrainingSettings(**{**base, **values}).resolved()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 32), min_size=1, max_size=40), st.integers(0, 5))
def test_an_epoch_sees_every_document_once(lengths, seed):
    plan = PackedPlan(documents(lengths), plan_settings(steps=None, epochs=1.0, seed=seed))
    seen = [row for step in range(len(plan)) for batch in plan.step(step) for row in batch.row_ids]
    assert set(seen) == {f"row-{i}" for i in range(len(lengths))}
    assert len(seen) <= len(lengths) + max(len(row) for row in plan.rows) * plan.rows_per_step
    again = PackedPlan(documents(lengths), plan_settings(steps=None, epochs=1.0, seed=seed))
    assert [b.row_ids for b in plan.step(0)] == [b.row_ids for b in again.step(0)]


def test_labels_are_the_next_token_within_a_document_only():
    batch = to_batch(documents([4, 3]))
    assert batch.input_ids.tolist() == [0, 1, 2, 3, 1000, 1001, 1002]
    assert batch.labels.tolist() == [IGNORED, 2, IGNORED, IGNORED, IGNORED, 1002, IGNORED]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert batch.document_lengths == [4, 3]
    assert sum(d.target_tokens for d in documents([4, 3])) == int((batch.labels != IGNORED).sum())


@dataclass(frozen=True, kw_only=True)
class WithAdvantages(Batch):
    advantage: torch.Tensor = field(metadata={"padding": 0})


def test_an_objectives_own_stream_follows_its_tokens():
    rows = [
        Document("a", np.arange(3), np.ones(3, bool), {"advantage": np.array([1.0, 2.0, 3.0], np.float32)}),
        Document("b", np.arange(2), np.ones(2, bool), {"advantage": np.array([4.0, 5.0], np.float32)}),
    ]
    batch = to_batch(rows, WithAdvantages)
    assert batch.advantage.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    padded = pad(batch, 4)
    assert (
        padded.advantage.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 0.0, 0.0] and padded.labels[-3:].tolist() == [IGNORED] * 3
    )
    assert cut(padded, Context(None, rank=1, size=2)).advantage.tolist() == [5.0, 0.0, 0.0, 0.0]


def test_padding_is_a_document_that_continues_none():
    branched = Document("a", np.arange(7), np.ones(7, bool), branches=(Branch(3, 2),))
    padded = pad(to_batch([branched]), 4)
    assert padded.document_lengths == [5, 2, 1] and padded.document_prefixes == [(0, 0), (0, 3), (0, 0)]


def test_evaluation_batches_hold_everything_within_their_limit():
    batches = to_batches(documents([5, 40, 3, 17, 9]), batch_tokens=20)
    assert sorted(row for batch in batches for row in batch.row_ids) == [f"row-{i}" for i in range(5)]
    assert all(batch.tokens <= 20 or len(batch.row_ids) == 1 for batch in batches)


def test_steps_differ_between_passes_and_stay_near_the_tokens_asked_for():
    plan = PackedPlan(documents([16] * 64), plan_settings(steps=40))
    tokens = [sum(batch.tokens for batch in plan.step(i)) for i in range(len(plan))]
    assert set(tokens) == {64}
    first = [row for b in plan.step(0) for row in b.row_ids]
    second_pass = [row for b in plan.step(16) for row in b.row_ids]
    assert first != second_pass
    assert torch.is_tensor(plan.step(0)[0].labels)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_the_rows_of_all_ranks_together_are_those_of_one(ranks):
    """And every rank gets equally many micro-batches: a sharded model waits for all of them at each."""
    plan = PackedPlan(
        documents([20 + 37 * i % 180 for i in range(40)]), plan_settings(max_length=200, tokens_per_step=1_000, steps=3)
    )
    for index in range(3):
        alone = plan.step(index)
        shares = [plan.step(index, rank, ranks) for rank in range(ranks)]
        seen = sorted(row for share in shares for batch in share for row in batch.row_ids)
        assert seen == sorted(row for batch in alone for row in batch.row_ids)
        assert len({len(share) for share in shares}) == 1
        assert targets(batch for share in shares for batch in share) == targets(alone)


def test_documents_of_equal_length_meet_others_in_every_pass():
    plan = PackedPlan(documents([16, 48] * 16), plan_settings(steps=48, max_length=64))
    passes = [
        {frozenset(batch.row_ids) for step in range(first, first + 16) for batch in plan.step(step)} for first in (0, 16, 32)
    ]
    for met in passes:
        assert sorted(row for rows in met for row in rows) == sorted(f"row-{i}" for i in range(32))
    assert passes[0] != passes[1] != passes[2]
    assert all({batch.tokens for batch in plan.step(i)} == {64} for i in range(48))


def test_the_micro_batch_may_be_smaller_than_a_row_of_max_length_but_holds_the_longest_document():
    lengths = [40, 30, 20, 20, 10, 30, 50]
    for limit, most in ((60, 60), (16, 50), (200, 200)):
        plan = PackedPlan(
            documents(lengths),
            plan_settings(max_length=100, tokens_per_step=200, micro_batch_tokens=limit, steps=None, epochs=1.0),
        )
        batches = [batch for step in range(len(plan)) for batch in plan.step(step)]
        assert max(batch.tokens for batch in batches) <= most
        assert {row for batch in batches for row in batch.row_ids} == {f"row-{i}" for i in range(7)}


def test_documents_held_in_arrays_make_the_same_batches():
    listed = documents([5, 40, 3, 17, 9, 1])
    held = Documents.gather(iter(listed))
    assert len(held) == 6 and held[-1].row_id == "row-5" and [d.row_id for d in held[1:3]] == ["row-1", "row-2"]
    assert held.target_tokens.tolist() == [document.target_tokens for document in listed]
    chosen = plan_settings(max_length=64, steps=4)
    for index in range(4):
        for one, other in zip(PackedPlan(listed, chosen).step(index), PackedPlan(held, chosen).step(index), strict=True):
            assert one.row_ids == other.row_ids
            assert torch.equal(one.input_ids, other.input_ids) and torch.equal(one.labels, other.labels)
    with pytest.raises(IndexError):
        held[6]
    assert len(Documents.gather([])) == 0


def test_large_and_small_micro_batches_and_any_number_of_ranks_give_one_gradient():
    """The sum of all losses over the count of all targets, whatever cuts the step; a mean of means would differ here."""
    rng = np.random.default_rng(5)
    rows = [
        Document(f"row-{i}", rng.integers(0, 30, length), rng.random(length) < rng.random())
        for i, length in enumerate(rng.integers(4, 90, 40))
    ]

    def gradient(micro_batch_tokens, ranks):
        plan = PackedPlan(
            rows, plan_settings(max_length=100, tokens_per_step=4_000, micro_batch_tokens=micro_batch_tokens, steps=1)
        )
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(30, 8), torch.nn.Linear(8, 30)).double()
        count, batches = 0, [batch for rank in range(ranks) for batch in plan.step(0, rank, ranks)]
        for batch in batches:
            torch.nn.functional.cross_entropy(
                model(batch.input_ids), batch.labels, ignore_index=IGNORED, reduction="sum"
            ).backward()
            count += int((batch.labels != IGNORED).sum())
        return len(batches), count, [parameter.grad / count for parameter in model.parameters()]

    whole_batches, whole_count, whole = gradient(10_000, 1)
    assert whole_batches == 1
    for micro_batch_tokens, ranks in ((100, 1), (100, 4), (10_000, 3), (250, 7)):
        batches, count, found = gradient(micro_batch_tokens, ranks)
        assert batches > 1 and batches % ranks == 0
        assert count == whole_count
        for one, other in zip(found, whole, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)


def targets(batches):
    return sum(int((batch.labels != IGNORED).sum()) for batch in batches)


def test_steps_of_short_documents_hold_the_tokens_that_were_asked_for():
    plan = PackedPlan(documents([156] * 400), plan_settings(max_length=256, tokens_per_step=8_192, steps=4))
    tokens = [sum(len(batch.input_ids) for batch in plan.step(index)) for index in range(len(plan))]
    assert all(abs(count - 8_192) < 156 for count in tokens), tokens


def test_no_step_reads_a_row_twice():
    plan = PackedPlan(documents([100] * 20), plan_settings(max_length=256, tokens_per_step=65_536, steps=3))
    for index in range(3):
        ids = [row for batch in plan.step(index) for row in batch.row_ids]
        assert len(ids) == len(set(ids)) == 20
