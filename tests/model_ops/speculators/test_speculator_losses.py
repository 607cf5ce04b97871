"""Losses of the drafter: formulas, gradients by finite differences in float64, laws of alpha."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from model_ops.speculators.losses import chain_loss as module
from model_ops.speculators.losses import chain_loss as teacher_module
from model_ops.speculators.losses.chain_loss import DraftStep, Teacher, chain_loss
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


VOCAB, HIDDEN, WIDTH, CONTEXTS = 50, 8, 6, 37


def small_pieces(monkeypatch):
    """Pieces of one to three positions, so that their edges cut documents and steps everywhere."""
    monkeypatch.setattr(module, "LOGITS_HELD", {"cpu": 200})
    monkeypatch.setattr(module, "FEWEST_ROWS", 4)
    monkeypatch.setattr(module, "SOFTMAX_ELEMENTS", {"cpu": 100})
    monkeypatch.setattr(teacher_module, "FULL_LOGITS_AT_ONCE", {"cpu": 64})


def a_chain(draft_vocab, heads=1, seed=0):
    """(teacher, last, drafts, labels, leaves): four documents of 9 or 10 positions, three steps."""
    torch.manual_seed(seed)
    teacher = Teacher(torch.randn(VOCAB, HIDDEN), torch.randperm(VOCAB)[:draft_vocab].sort().values)
    rows = [torch.tensor([row for row in range(CONTEXTS) if row % 10 >= step]) for step in range(3)]
    states = [torch.randn(len(of_step), WIDTH, requires_grad=True) for of_step in rows]
    weights = [torch.randn(draft_vocab, WIDTH, requires_grad=True) for _ in range(heads)]
    drafts = [
        DraftStep(of_step, weights[step % heads], row) for step, (of_step, row) in enumerate(zip(states, rows, strict=True))
    ]
    return teacher, torch.randn(CONTEXTS, HIDDEN), drafts, torch.randint(VOCAB, (CONTEXTS,)), [*states, *weights]


def plain(kind, teacher, last, drafts, labels, eta, kl_shares=(None, None, None)):
    """The definition: all logits of all positions at once."""
    p = (last @ teacher.head.T).softmax(-1)[:, teacher.target_ids]
    known = {int(target): draft for draft, target in enumerate(teacher.target_ids)}
    own = torch.tensor([known.get(int(label), OUTSIDE) for label in labels])
    return [
        speculator_loss(kind, draft.states @ draft.head.T, p[draft.rows], own[draft.rows], eta, kl_share)
        for draft, kl_share in zip(drafts, kl_shares, strict=True)
    ]


@pytest.mark.parametrize(
    ("kind", "kl_shares"),
    [*((kind, None) for kind in ("kl", "lk_lambda", "lk_alpha", "tv", "cross_entropy")), ("lk_lambda", [0.9, 0.2, 1.0])],
)
@pytest.mark.parametrize("draft_vocab", [VOCAB, 21])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("cut", [True, False])
def test_pieces_equal_the_plain_formula(kind, kl_shares, draft_vocab, heads, cut, monkeypatch):
    if cut:
        small_pieces(monkeypatch)
    teacher, last, drafts, labels, leaves = a_chain(draft_vocab, heads)
    weights = [1.0, 0.8, 0.3]
    result = chain_loss(kind, drafts, teacher, last, weights, labels, eta=2.0, kl_shares=kl_shares)
    expected = plain(kind, teacher, last, drafts, labels, 2.0, kl_shares or [None] * 3)
    total = sum(weight * losses.sum() for weight, losses in zip(weights, expected, strict=True))
    torch.testing.assert_close(result.total, total)
    for found, losses in zip(result.losses, expected, strict=True):
        torch.testing.assert_close(found, losses.detach(), atol=2e-5, rtol=1e-4)
    for found, losses in zip(result.alphas, plain("tv", teacher, last, drafts, labels, 2.0), strict=True):
        torch.testing.assert_close(found, 1 - losses.detach(), atol=1e-6, rtol=1e-5)
    mass = (last @ teacher.head.T).softmax(-1)[:, teacher.target_ids].sum(-1)
    torch.testing.assert_close(result.mass, mass[drafts[0].rows])
    found = torch.autograd.grad(2 * result.total, leaves)
    wanted = torch.autograd.grad(2 * total, leaves)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_frozen_heads_and_states_get_no_gradient():
    teacher, last, drafts, _, leaves = a_chain(21)
    drafts[0].head.requires_grad_(False)
    chain_loss("kl", drafts, teacher, last).total.backward()
    assert drafts[0].head.grad is None and all(leaf.grad is not None for leaf in leaves[:3])
    with torch.no_grad():
        assert not chain_loss("kl", drafts, teacher, last).total.requires_grad


def test_products_take_autocasts_dtype_and_losses_stay_float32():
    teacher, last, drafts, _, leaves = a_chain(VOCAB)
    exact = chain_loss("lk_lambda", drafts, teacher, last)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = chain_loss("lk_lambda", drafts, teacher, last)
    assert rounded.total.dtype == torch.float32 and rounded.alphas[0].dtype == torch.float32
    assert rounded.total != exact.total
    torch.testing.assert_close(rounded.total, exact.total, rtol=2e-2, atol=0)
    wanted = torch.autograd.grad(exact.total, leaves)
    for gradient, of_exact in zip(torch.autograd.grad(rounded.total, leaves), wanted, strict=True):
        assert gradient.dtype == torch.float32
        assert (gradient - of_exact).norm() < 0.02 * of_exact.norm()


def test_what_does_not_fit_together_is_refused():
    teacher, last, drafts, _, _ = a_chain(21)
    with pytest.raises(ValueError, match="3 draft steps and 2 weights"):
        chain_loss("kl", drafts, teacher, last, [1.0, 0.5])
    with pytest.raises(ValueError, match="3 draft steps and 1 shares of KL"):
        chain_loss("lk_lambda", drafts, teacher, last, kl_shares=[0.5])
    turned = DraftStep(drafts[0].states, drafts[0].head, drafts[0].rows.flip(0))
    with pytest.raises(ValueError, match="ascend"):
        chain_loss("kl", [turned], teacher, last)


def test_steps_without_a_position_and_an_empty_batch_lose_nothing():
    teacher, last, drafts, _, _ = a_chain(21)
    none = DraftStep(torch.zeros(0, WIDTH, requires_grad=True), drafts[0].head, torch.zeros(0, dtype=torch.int64))
    alone = chain_loss("kl", drafts[:1], teacher, last)
    torch.testing.assert_close(chain_loss("kl", [drafts[0], none], teacher, last).total, alone.total)
    empty = chain_loss("kl", [none], teacher, last[:0])
    empty.total.backward()
    assert empty.total == 0 and len(empty.alphas[0]) == 0


def peak_bytes(vocab, draft_vocab, contexts=600):
    """What a loss and its gradients hold at most beyond the heads' own gradients, by the allocator's own account."""
    torch.manual_seed(0)
    teacher = Teacher(torch.randn(vocab, 4), torch.arange(vocab)[:draft_vocab])
    head = torch.randn(draft_vocab, 4, requires_grad=True)
    rows = torch.arange(contexts)
    drafts = [DraftStep(torch.randn(contexts - step, 4, requires_grad=True), head, rows[step:]) for step in range(3)]
    last = torch.randn(contexts, 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        chain_loss("lk_lambda", drafts, teacher, last).total.backward()
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"
    )
    held = torch.tensor([change for _, change in changes]).cumsum(0)
    return int(held.max()) - 2 * 4 * head.numel()  # its gradient, and the head in the products' dtype


def test_memory_does_not_grow_with_a_vocabulary(monkeypatch):
    monkeypatch.setattr(module, "LOGITS_HELD", {"cpu": 1 << 18})
    monkeypatch.setattr(module, "SOFTMAX_ELEMENTS", {"cpu": 1 << 15})
    monkeypatch.setattr(teacher_module, "FULL_LOGITS_AT_ONCE", {"cpu": 1 << 15})
    small = peak_bytes(1_000, 1_000)
    assert small > 1 << 18  # the account sees the piece that is held
    assert peak_bytes(8_000, 8_000) < 1.5 * small  # 600 x 8,000 logits alone are 18 times what is held
    assert peak_bytes(64_000, 1_000) < 1.5 * small
