"""Losses of the drafter: formulas, gradients by finite differences in float64, laws of alpha."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from model_ops.speculators.losses.speculator_losses import OUTSIDE, TargetRows, expected_acceptance_length, loss_and_gradient
from tests.model_ops.speculators.defined_losses import (
    acceptance,
    cross_entropy_loss,
    kl_loss,
    lk_alpha_loss,
    lk_lambda_loss,
    speculator_loss,
    tv_loss,
)

DISTRIBUTIONAL = ("kl", "lk_lambda", "lk_alpha", "tv")
KINDS = (*DISTRIBUTIONAL, "cross_entropy")


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
    for kind in DISTRIBUTIONAL:
        torch.testing.assert_close(speculator_loss(kind, logits, target), torch.zeros(5), atol=1e-5, rtol=0)


def test_one_hot_targets_make_cross_entropy():
    logits, _, _ = distributions(1)
    labels = torch.tensor([0, 5, 2, 3, 1])
    target = F.one_hot(labels, 6).float()
    expected = F.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(lk_alpha_loss(logits, target), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(kl_loss(logits, target), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(cross_entropy_loss(logits, labels), expected)


def test_eta_moves_lk_lambda_from_kl_to_tv():
    logits, target, ids = distributions(2)
    target = target[:, ids]
    torch.testing.assert_close(lk_lambda_loss(logits, target, eta=0.0), kl_loss(logits, target))
    torch.testing.assert_close(lk_lambda_loss(logits, target, eta=1e4), tv_loss(logits, target))
    alpha, weight = acceptance(logits, target), torch.exp(-3 * acceptance(logits, target))
    expected = weight * kl_loss(logits, target) + (1 - weight) * (1 - alpha)
    torch.testing.assert_close(lk_lambda_loss(logits, target), expected)
    torch.testing.assert_close(lk_lambda_loss(logits, target, kl_share=0.3), 0.3 * kl_loss(logits, target) + 0.7 * (1 - alpha))


def the_cases():
    """(name, logits, p over the draft vocabulary, labels), float64: what a target and a drafter can be at their worst."""
    logits, target, ids = distributions(3, positions=4)
    logits, target = logits.double(), target.double()
    truncated = target[:, ids] / target.sum(-1, keepdim=True)
    labels = torch.tensor([0, OUTSIDE, 5, 2])
    one_hot = F.one_hot(labels.clamp(min=0), 6).double()
    close = logits.softmax(-1) * (1 - 1e-3 * torch.rand(4, 6, dtype=torch.float64)) * 0.999
    far = torch.tensor([[-6.0, 2, 1, 0, 1, 2]], dtype=torch.float64).repeat(4, 1)
    spike = torch.zeros_like(far).index_fill_(1, torch.tensor(0), 0.999)
    return [
        ("truncated", logits, truncated, labels),
        ("sharp", 4 * logits, truncated, labels),
        ("one-hot", logits, one_hot, labels),
        ("alpha near 1", logits, close, labels),
        ("alpha near 0", far, spike, labels),
        ("outside", logits, torch.zeros_like(truncated), labels),
        ("nearly outside", logits, truncated * 1e-12, labels),
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "logits", "target", "labels"), the_cases(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_closed_gradients_equal_finite_differences(kind, name, logits, target, labels):
    eta = 2.0
    rows = TargetRows.of(target, labels)
    losses, alpha, gradient = loss_and_gradient(kind, logits.clone(), rows, eta, scale=0.5)
    torch.testing.assert_close(losses, speculator_loss(kind, logits, target, labels, eta))
    torch.testing.assert_close(alpha, acceptance(logits, target))
    # lambda is not differentiated: it stays what it is where the slope is taken
    weight = torch.exp(-eta * acceptance(logits, target))

    def value(z):
        if kind == "lk_lambda":
            return weight * kl_loss(z, target) + (1 - weight) * tv_loss(z, target)
        return speculator_loss(kind, z, target, labels, eta)

    h = 1e-6
    for j in range(logits.shape[1]):
        step = torch.zeros(6, dtype=torch.float64).index_fill_(0, torch.tensor(j), h)
        slope = (value(logits + step) - value(logits - step)) / (2 * h)
        torch.testing.assert_close(gradient[:, j], 0.5 * slope, atol=2e-8, rtol=1e-6)
    if name == "outside":
        assert (alpha == 0).all()
        assert kind == "cross_entropy" or (gradient == 0).all()
    if name == "alpha near 0" and kind == "lk_alpha":
        assert (gradient.abs().amax(-1) > 0.4).all()  # what TV has lost, the division by alpha restores


@pytest.mark.parametrize(("kind", "kl_share"), [*((kind, None) for kind in KINDS), ("lk_lambda", 0.25)])
def test_closed_gradients_equal_autograd_in_float32(kind, kl_share):
    for name, logits, target, labels in the_cases():
        logits, target = logits.float().requires_grad_(), target.float()
        losses = speculator_loss(kind, logits, target, labels, kl_share=kl_share)
        (expected,) = torch.autograd.grad(losses.sum(), logits)
        found, _, gradient = loss_and_gradient(kind, logits.detach().clone(), TargetRows.of(target, labels), kl_share=kl_share)
        torch.testing.assert_close(found, losses.detach(), atol=1e-5, rtol=1e-4, msg=name)
        torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-3, msg=name)


def test_the_formula_of_the_gradient_of_alpha():
    """d alpha / d z_j = q_j (1[j in A] - Q_A), as it is written, against the coefficients that are used."""
    logits, target, ids = distributions(4)
    target = target[:, ids]
    q = logits.softmax(-1)
    in_a = q < target
    formula = q * (in_a.float() - torch.where(in_a, q, 0).sum(-1, keepdim=True))
    _, alpha, gradient = loss_and_gradient("tv", logits.clone(), TargetRows.of(target))
    torch.testing.assert_close(gradient, -formula)
    _, _, gradient = loss_and_gradient("lk_alpha", logits.clone(), TargetRows.of(target))
    torch.testing.assert_close(gradient, -formula / alpha[:, None])


def test_a_token_that_cannot_be_drafted_has_no_cross_entropy():
    logits = torch.randn(3, 6, requires_grad=True)
    losses = cross_entropy_loss(logits, torch.tensor([2, OUTSIDE, 4]))
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert losses[1] == 0 and (gradient[1] == 0).all() and (losses[[0, 2]] > 0).all()
    with pytest.raises(ValueError, match="tokens that the target generated"):
        speculator_loss("cross_entropy", logits, torch.rand(3, 6))


def test_half_precision_logits_are_reckoned_in_float32():
    logits, target, ids = distributions(5)
    for kind in DISTRIBUTIONAL:
        found = speculator_loss(kind, logits.bfloat16(), target[:, ids].bfloat16())
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, speculator_loss(kind, logits.bfloat16().float(), target[:, ids].bfloat16().float()))


def test_below_the_floor_the_gradient_goes_on():
    logits = torch.tensor([[-40.0, 0.0, 0.0]], requires_grad=True)
    target = torch.tensor([[1.0, 0.0, 0.0]])
    loss = lk_alpha_loss(logits, target)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss > 11 and gradient[0, 0] < 0
    torch.testing.assert_close(loss_and_gradient("lk_alpha", logits.detach().clone(), TargetRows.of(target))[2], gradient)


def test_expected_length_equals_a_simulated_chain():
    alpha = torch.tensor([0.8, 0.5, 0.3])
    tests = torch.rand(200_000, 3, generator=torch.Generator().manual_seed(0)) < alpha
    simulated = 1 + tests.to(torch.float32).cumprod(1).sum(1).mean()
    assert abs(expected_acceptance_length(alpha) - simulated) < 0.01
