"""Losses of the drafter: formulas, gradients by finite differences, laws of alpha, and the piecewise head."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_ops.speculators import speculator_losses
from model_ops.speculators.speculator_losses import (
    LOSSES,
    acceptance,
    expected_acceptance_length,
    head_loss,
    kl_loss,
    lk_alpha_loss,
    lk_lambda_loss,
    loss_and_gradient,
    tv_loss,
)

torch.set_num_threads(1)  # the models are tiny: a second thread costs more than it gives


def distributions(seed, positions=5, full=9, draft=6, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(full, generator=generator)[:draft].sort().values
    target = (torch.randn(positions, full, generator=generator) * sharpness).softmax(-1)
    return torch.randn(positions, draft, generator=generator) * sharpness, target, ids


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), sharpness=st.floats(0.1, 30.0))
def test_alpha_is_a_probability_bounded_by_the_mass_of_the_draft_vocabulary(seed, sharpness):
    logits, target, ids = distributions(seed, sharpness=sharpness)
    alpha = acceptance(logits, target[:, ids])
    assert (alpha >= 0).all() and (alpha <= target[:, ids].sum(-1) + 1e-6).all()
    # TV over the full vocabulary, where q is 0 outside the draft vocabulary
    q = torch.zeros_like(target).index_copy_(1, ids, logits.softmax(-1))
    torch.testing.assert_close(tv_loss(logits, target[:, ids]), (target - q).abs().sum(-1) / 2, atol=1e-5, rtol=0)


def test_equal_distributions_lose_nothing():
    logits, _, _ = distributions(0)
    target = logits.softmax(-1)
    torch.testing.assert_close(acceptance(logits, target), torch.ones(5))
    for loss in LOSSES.values():
        torch.testing.assert_close(loss(logits, target), torch.zeros(5), atol=1e-5, rtol=0)


def test_one_hot_targets_make_cross_entropy():
    logits, _, _ = distributions(1)
    labels = torch.tensor([0, 5, 2, 3, 1])
    target = torch.nn.functional.one_hot(labels, 6).float()
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(lk_alpha_loss(logits, target), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(kl_loss(logits, target), expected, atol=1e-5, rtol=1e-5)


def test_eta_moves_lk_lambda_from_kl_to_tv():
    logits, target, ids = distributions(2)
    target = target[:, ids]
    torch.testing.assert_close(lk_lambda_loss(logits, target, eta=0.0), kl_loss(logits, target))
    torch.testing.assert_close(lk_lambda_loss(logits, target, eta=1e4), tv_loss(logits, target))
    alpha, weight = acceptance(logits, target), torch.exp(-3 * acceptance(logits, target))
    expected = weight * kl_loss(logits, target) + (1 - weight) * (1 - alpha)
    torch.testing.assert_close(lk_lambda_loss(logits, target), expected)


@pytest.mark.parametrize("kind", sorted(LOSSES))
@pytest.mark.parametrize("sharpness", [1.0, 4.0])
def test_closed_gradients_equal_autograd(kind, sharpness):
    logits, target, ids = distributions(3, sharpness=sharpness)
    target = target[:, ids]
    logits.requires_grad_()
    loss = LOSSES[kind](logits, target)
    (expected,) = torch.autograd.grad(loss.sum(), logits)
    closed_loss, alpha, gradient = loss_and_gradient(kind, logits.detach(), target)
    torch.testing.assert_close(closed_loss, loss.detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(alpha, acceptance(logits, target).detach())


def test_gradient_of_alpha_by_finite_differences():
    logits, target, ids = distributions(4, positions=1)
    logits, target = logits.double()[0], target[0, ids].double()
    q = logits.softmax(-1)
    inside = q < target
    formula = q * (inside.double() - q[inside].sum())
    for j in range(6):
        step = torch.zeros(6, dtype=torch.float64)
        step[j] = 1e-6
        def alpha(z):
            return torch.minimum(z.softmax(-1), target).sum()
        slope = (alpha(logits + step) - alpha(logits - step)) / 2e-6
        assert abs(slope - formula[j]) < 1e-8


def test_below_the_floor_the_gradient_goes_on():
    logits = torch.tensor([[-40.0, 0.0, 0.0]], requires_grad=True)
    target = torch.tensor([[1.0, 0.0, 0.0]])
    loss = lk_alpha_loss(logits, target)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss > 11 and gradient[0, 0] < 0
    torch.testing.assert_close(loss_and_gradient("lk_alpha", logits.detach(), target)[2], gradient)


@pytest.mark.parametrize("kind", sorted(LOSSES))
def test_the_piecewise_head_equals_the_plain_one(kind, monkeypatch):
    monkeypatch.setattr(speculator_losses, "LOGITS_AT_ONCE", 13)  # two positions a piece
    torch.manual_seed(0)
    hidden = torch.randn(7, 4, requires_grad=True)
    weight = torch.randn(6, 4, requires_grad=True)
    target, rows = torch.rand(9, 6).softmax(-1) * 0.9, torch.tensor([8, 0, 3, 3, 5, 1, 2])
    total, alpha = head_loss(kind, hidden, weight, target, rows)
    expected = LOSSES[kind](hidden @ weight.t(), target[rows]).sum()
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(alpha, acceptance(hidden @ weight.t(), target[rows]).detach())
    found = torch.autograd.grad(total * 2, (hidden, weight))
    wanted = torch.autograd.grad(expected * 2, (hidden, weight))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-3)


def test_expected_length_equals_a_simulated_chain():
    alpha = torch.tensor([0.8, 0.5, 0.3])
    tests = torch.rand(200_000, 3, generator=torch.Generator().manual_seed(0)) < alpha
    simulated = 1 + tests.to(torch.float32).cumprod(1).sum(1).mean()
    assert abs(expected_acceptance_length(alpha) - simulated) < 0.01
