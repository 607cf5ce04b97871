"""Divergences at their limits: a teacher that excludes tokens, a student that equals it, and the order of the two KLs."""

import pytest
import torch

from model_ops.objectives.divergences import generalised_jsd


def pair(rows=5, vocab=7):
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(rows, vocab, generator=generator).log_softmax(-1) for _ in range(2))


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_a_student_that_equals_its_teacher_learns_nothing(beta):
    log_p, _ = pair()
    values, gradient = generalised_jsd(log_p, log_p.clone(), beta)
    torch.testing.assert_close(values, torch.zeros(5), atol=1e-6, rtol=0)
    torch.testing.assert_close(gradient, torch.zeros(5, 7), atol=1e-6, rtol=0)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_token_that_the_teacher_excludes_leaves_numbers_finite(beta):
    log_p, log_q = pair()
    log_p[:, 2] = -torch.inf
    log_p = log_p.log_softmax(-1)
    values, gradient = generalised_jsd(log_p, log_q, beta)
    assert torch.isfinite(values).all() and torch.isfinite(gradient).all()
    assert (gradient[:, 2] > 0).all()  # descending lowers the token's logit


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
def test_values_and_gradients_are_the_definition_s(beta):
    """beta KL(p || m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q; at its ends the two KLs. In float64, by autograd."""
    log_p, logits = (each.double() for each in pair())
    logits.requires_grad_()
    p, q = log_p.exp(), logits.softmax(-1)
    m = beta * p + (1 - beta) * q
    wanted = {0.0: (p * (p / q).log()).sum(-1), 1.0: (q * (q / p).log()).sum(-1)}.get(
        beta, beta * (p * (p / m).log()).sum(-1) + (1 - beta) * (q * (q / m).log()).sum(-1)
    )
    values, gradient = generalised_jsd(log_p, logits.detach().log_softmax(-1), beta)
    torch.testing.assert_close(values, wanted.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted.sum(), logits)[0])


def test_jsd_lies_between_and_is_bounded():
    log_p, log_q = pair()
    half, _ = generalised_jsd(log_p, log_q, 0.5)
    assert (half > 0).all() and (half < torch.log(torch.tensor(2.0))).all()
    other, _ = generalised_jsd(log_q, log_p, 0.5)
    torch.testing.assert_close(half, other)


def test_no_gradient_is_computed_where_none_is_wanted():
    log_p, log_q = pair()
    for beta in (0.0, 0.5, 1.0):
        assert generalised_jsd(log_p, log_q, beta, gradient_wanted=False)[1] is None
