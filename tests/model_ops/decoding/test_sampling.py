"""Verification keeps the target's distribution, whatever the drafter; uniforms belong to rows, not to batches."""

import pytest
import torch

from model_ops.decoding.sampling import choose, row_uniforms, sample, verify_draws, verify_matches


def test_sample_follows_its_weights_and_never_picks_a_zero():
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 0.0]).expand(40_000, -1)
    drawn = sample(weights, torch.rand(40_000, generator=torch.Generator().manual_seed(0)))
    counts = drawn.bincount(minlength=5) / 40_000
    torch.testing.assert_close(counts, torch.tensor([0.0, 0.75, 0.0, 0.25, 0.0]), atol=0.01, rtol=0)
    edge = sample(weights[:2], torch.tensor([0.0, 1.0 - 2**-24]))
    assert edge.tolist() == [1, 3]
    assert sample(weights[:1], torch.tensor([1.0])).tolist() == [3]


def test_uniforms_depend_on_the_row_alone():
    first = row_uniforms(["a", "b", "c"], 9, seed=1)
    second = row_uniforms(["c", "a"], 17, seed=1)
    assert torch.equal(first[0], second[1, :9]) and torch.equal(first[2], second[0, :9])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], row_uniforms(["a"], 9, seed=2)[0])


def test_matches_stop_at_the_first_difference_and_at_padding():
    choices = torch.tensor([[5, 6, 7, 8], [5, 9, 7, 8], [5, 6, 7, 8]])
    drafts = torch.tensor([[5, 6, 7], [5, 6, 7], [5, 6, 7]])
    valid = torch.tensor([[True, True, True], [True, True, True], [True, False, True]])
    accepted, token = verify_matches(choices, drafts, valid)
    assert accepted.tolist() == [3, 1, 1] and token.tolist() == [8, 9, 6]


@pytest.mark.parametrize("target_ids", [[0, 1, 2, 3, 4, 5], [1, 2, 4]])
def test_what_is_emitted_first_is_distributed_as_the_target(target_ids):
    """Draft two tokens from q, verify against p, and look at the first emitted token and at acceptance."""
    generator = torch.Generator().manual_seed(3)
    rows, ids = 60_000, torch.tensor(target_ids)
    p = torch.randn(3, 6, generator=generator).mul(1.5).softmax(-1)
    q = torch.randn(2, len(ids), generator=generator).mul(1.5).softmax(-1)
    uniforms = torch.rand(rows, 3, 3, generator=generator)
    proposed = q.expand(rows, -1, -1)
    index = torch.stack([sample(proposed[:, k], uniforms[:, k, 0]) for k in range(2)], dim=1)
    drafts = ids[index]
    accepted, token = verify_draws(p.expand(rows, -1, -1), drafts, proposed, ids, index, uniforms[:, :2, 1], uniforms[:, :, 2])
    first = torch.where(accepted > 0, drafts[:, 0], token)
    torch.testing.assert_close(first.bincount(minlength=6) / rows, p[0], atol=0.01, rtol=0)
    # given that the first draft stood, the second emitted token follows p at its own position
    second = torch.where(accepted > 1, drafts[:, 1], token)[accepted > 0]
    torch.testing.assert_close(second.bincount(minlength=6) / len(second), p[1], atol=0.012, rtol=0)
    # acceptance of the first draft is sum min(p, q)
    full_q = torch.zeros(6).index_add_(0, ids, q[0])
    assert abs((accepted > 0).float().mean() - torch.minimum(p[0], full_q).sum()) < 0.01


def test_a_perfect_drafter_is_always_accepted():
    p = torch.randn(5, 3, 8).softmax(-1)
    index = torch.tensor([[1, 2]] * 5)
    accepted, token = verify_draws(p, index, p[:, :2].clone(), torch.arange(8), index, torch.rand(5, 2), torch.rand(5, 3))
    assert accepted.tolist() == [2] * 5 and ((token >= 0) & (token < 8)).all()


def test_temperature_zero_is_the_argmax():
    logits = torch.randn(4, 10)
    assert torch.equal(choose(logits, 0, torch.rand(4)), logits.argmax(-1))
