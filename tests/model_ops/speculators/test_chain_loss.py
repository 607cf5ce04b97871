"""The loss of a chain of drafts, made piece by piece: against the plain formulas, in bounded memory."""

import pytest
import torch

from model_ops.speculators.losses import chain_loss as module
from model_ops.speculators.losses import chain_loss as teacher_module
from model_ops.speculators.losses.chain_loss import DraftStep, Teacher, chain_loss
from model_ops.speculators.losses.speculator_losses import OUTSIDE
from tests.model_ops.speculators.defined_losses import speculator_loss

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
