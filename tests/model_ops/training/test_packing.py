"""Plans: every document once in a pass, the same plan for the same settings, the same rows whatever the ranks."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_ops.documents.documents import Branch, Document, Documents, to_batch
from model_ops.documents.packing import PackedPlan, to_batches
from model_ops.parallel.mesh import Context, cut, pad
from model_ops.tensors.batch import IGNORED, Batch
from model_ops.training.settings import TrainingSettings


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
