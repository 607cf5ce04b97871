"""Losses, advantages and corrections of reinforcement fine-tuning against their formulas, written once more in plain Python."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from model_ops.reinforcement import policy_loss
from model_ops.reinforcement.advantages import ADVANTAGES, all_equal
from model_ops.reinforcement.policy_loss import CORRECTIONS, POLICY_LOSSES, SampledTokens, k3, kl_penalty
from model_ops.reinforcement.rft_settings import OF_LOSS

OWNERS = [0, 0, 0, 1, 1, 2]
"""Three rollouts, of 3, 2 and 1 tokens."""


def clip(ratio, low, high):
    return min(max(ratio, 1 - low), 1 + high)


def of_rollout(d, at):
    return [d[i] for i in range(len(d)) if OWNERS[i] == OWNERS[at]]


# d: log-ratios, a: advantages, p: log-probabilities, i: the token
FORMULAS = {
    "grpo": lambda d, a, p, i: -min(math.exp(d[i]) * a[i], clip(math.exp(d[i]), 0.2, 0.28) * a[i]),
    "dr_grpo": lambda d, a, p, i: -min(math.exp(d[i]) * a[i], clip(math.exp(d[i]), 0.2, 0.28) * a[i]),
    "rloo": lambda d, a, p, i: -min((r := math.exp(sum(of_rollout(d, i)))) * a[i], clip(r, 0.2, 0.2) * a[i]),
    "gspo": lambda d, a, p, i: -min((s := math.exp(np.mean(of_rollout(d, i)))) * a[i], clip(s, 3e-4, 4e-4) * a[i]),
    "cispo": lambda d, a, p, i: -min(math.exp(d[i]), 5.0) * a[i] * p[i],
    "dppo": lambda d, a, p, i: (
        1e-3 * d[i] ** 2
        - (0 if (a[i] > 0 and math.exp(p[i]) - math.exp(p[i] - d[i]) > 0.2)
           or (a[i] <= 0 and math.exp(p[i]) - math.exp(p[i] - d[i]) < -0.2) else math.exp(d[i]) * a[i])
    ),
    "kimi_k2": lambda d, a, p, i: (a[i] - 0.1 * sum(of_rollout(d, i))) ** 2 / 0.2,
}  # fmt: skip


def tokens_of(seed, spread=0.5):
    generator = torch.Generator().manual_seed(seed)
    policy = -torch.rand(6, generator=generator, dtype=torch.float64) * 2
    sampler = policy - spread * torch.randn(6, generator=generator, dtype=torch.float64)
    advantages = torch.randn(3, generator=generator, dtype=torch.float64)[torch.tensor(OWNERS)]
    return SampledTokens(policy.requires_grad_(), sampler, advantages, torch.tensor(OWNERS), 3)


@pytest.mark.parametrize("spread", [0.5, 3.0])
@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_each_loss_is_its_formula(name, spread):
    for seed in range(6):
        tokens = tokens_of(seed, spread)
        d, a, p = tokens.log_ratio.tolist(), tokens.advantages.tolist(), tokens.policy.tolist()
        expected = [FORMULAS[name](d, a, p, i) for i in range(6)]
        assert POLICY_LOSSES[name](tokens).tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_on_the_sampler_s_own_weights_every_gradient_is_that_of_reinforce(name):
    tokens = tokens_of(3, spread=0.0)
    scale = 1 / tokens.lengths[tokens.owners] if OF_LOSS[name][1] == "rollout" else torch.ones(6, dtype=torch.float64)
    (POLICY_LOSSES[name](tokens) * scale).sum().backward()
    whole = {"rloo": 1.0, "kimi_k2": 1.0}.get(name)
    expected = -tokens.advantages * (whole if whole else scale)
    torch.testing.assert_close(tokens.policy.grad, expected)


def test_a_token_without_a_log_probability_of_the_sampler_has_the_ratio_1():
    tokens = tokens_of(0)
    blind = SampledTokens(tokens.policy, torch.full_like(tokens.sampler, torch.nan), tokens.advantages, tokens.owners, 3)
    assert blind.log_ratio.tolist() == [0.0] * 6
    for name, loss in POLICY_LOSSES.items():
        assert loss(blind).isfinite().all(), name
    far = SampledTokens(tokens.policy, tokens.sampler - 1e4, tokens.advantages, tokens.owners, 3)
    assert all(loss(far).isfinite().all() for loss in POLICY_LOSSES.values())


def test_corrections_mask_and_cut_what_they_say():
    ratios = [0.4, 0.6, 1.0, 4.0, 6.0, 1.0]
    logs = torch.tensor(ratios, dtype=torch.float64).log()
    tokens = SampledTokens(logs, torch.zeros(6, dtype=torch.float64), torch.ones(6), torch.tensor(OWNERS), 3)
    assert CORRECTIONS["icepop"](tokens).tolist() == [0, 1, 1, 1, 0, 1]
    assert (CORRECTIONS["tis"](tokens) * tokens.log_ratio.exp()).tolist() == pytest.approx([0.4, 0.6, 1, 2, 2, 1])


def test_the_distance_from_the_start_has_the_gradient_of_the_divergence_and_k3_its_value():
    logits = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64, requires_grad=True)
    start = torch.tensor([0.1, 0.4, -0.5], dtype=torch.float64).log_softmax(-1)
    policy = logits.log_softmax(-1)
    exact = (policy.exp() * (policy - start)).sum()
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)
    share = policy.detach().exp()  # every token once, as often as the policy says it
    on_policy = SampledTokens(policy, policy.detach(), share, torch.arange(3), 3)
    (found,) = torch.autograd.grad((share * kl_penalty(on_policy, start)).sum(), logits, retain_graph=True)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close((share * k3(policy.detach(), start)).sum(), exact.detach())
    sampler = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    of_sampler = SampledTokens(policy, sampler.log(), share, torch.arange(3), 3)
    (found,) = torch.autograd.grad((sampler * kl_penalty(of_sampler, start)).sum(), logits)
    torch.testing.assert_close(found, expected)


def test_advantages_are_their_formulas():
    group, lengths = [1.0, 0.0, None, 0.5], [[3, 2, 4, 1]]
    known = np.array([1.0, 0.0, 0.5])
    found = {name: of([group], lengths)[0] for name, of in ADVANTAGES.items()}
    assert all(math.isnan(values[2]) for values in found.values())
    rest = {name: values[[0, 1, 3]] for name, values in found.items()}
    assert rest["centred"] == pytest.approx(known - 0.5)
    assert rest["group"] == pytest.approx((known - 0.5) / 0.5, rel=1e-5)
    assert rest["leave_one_out"] == pytest.approx([1 - 0.25, 0 - 0.75, 0.5 - 0.5])
    two = ADVANTAGES["reinforce_plus"]([[1.0, 0.0], [4.0, 2.0]], [[1, 3], [2, 2]])
    tokens = np.repeat([0.5, -0.5, 1.0, -1.0], [1, 3, 2, 2])
    assert np.concatenate(two) == pytest.approx((np.array([0.5, -0.5, 1.0, -1.0]) - tokens.mean()) / tokens.std(), rel=1e-5)


def test_a_group_says_nothing_where_its_grades_are_equal_or_fewer_than_two():
    assert all_equal([1.0, 1.0]) and all_equal([0.1 + 0.2, 0.3]) and all_equal([None, 1.0]) and all_equal([])
    assert not all_equal([1.0, None, 0.5])
    for name, of in ADVANTAGES.items():
        [alone] = of([[None, 1.0, None]], [[1, 1, 1]])
        assert all(math.isnan(value) or value == 0 for value in alone), name


# the loss of a step, with its corrections and the distance from the start

FAR = [0.1, -0.2, 3.0, 0.4, -0.9, 2.5]
"""Log-ratios with outliers: the third token in the first rollout of three, the last one alone in its own."""
REFERENCE_GAPS = [0.3, -0.1, 0.2, 0.5, -0.4, 0.1]


def step_of(monkeypatch, name, correction, d=FAR, kl=0.0, given=None):
    """(the loss, its gradient by each log-probability) of PolicyLoss, for rollouts with these log-ratios."""
    policy = torch.tensor([-0.5, -1.0, -0.2, -2.0, -1.5, -0.7], dtype=torch.float64, requires_grad=True)
    lengths = np.bincount(OWNERS)[OWNERS]
    share = torch.tensor(1 / lengths if OF_LOSS[name][1] == "rollout" else np.ones(6))
    batch = SimpleNamespace(
        labels=torch.zeros(6), owners=torch.tensor(OWNERS), sampler=policy.detach() - torch.tensor(d, dtype=torch.float64),
        advantages=torch.tensor([1.5, 1.5, 1.5, -0.5, -0.5, -1.0], dtype=torch.float64), scales=share, shares=share,
        reference=policy.detach() - torch.tensor(REFERENCE_GAPS, dtype=torch.float64), nll=torch.zeros(6), numbers={},
    )  # fmt: skip
    monkeypatch.setattr(policy_loss, "label_log_probs", lambda model, batch, temperature: (policy, torch.arange(6)))
    mean = policy_loss.PolicyLoss(name, given or {}, correction, kl, 1.0)(None, batch).terms["loss"]
    (gradient,) = torch.autograd.grad(mean.sum / mean.count, policy)
    return float((mean.sum / mean.count).detach()), gradient.numpy(), batch


def plain_step(name, correction, d, advantages, policy, shares, fixed):
    """The same by numpy. fixed: log-ratios at which weights without gradient are computed."""
    weight = {
        "none": np.ones(6),
        "icepop": ((np.exp(fixed) >= 0.5) & (np.exp(fixed) <= 5)).astype(float),
        "tis": np.minimum(1, 2 / np.exp(fixed)),
    }[correction]
    kept, owners, values = weight > 0, np.array(OWNERS), np.zeros(6)
    if name in ("rloo", "gspo", "kimi_k2"):  # what is left of a rollout has its whole weight
        shares = shares * (np.bincount(owners) / np.maximum(1, np.bincount(owners, kept)))[owners]
    for i in np.flatnonzero(kept):
        mine = kept & (owners == owners[i])
        logs, a = (d + np.log(np.where(kept, weight, 1.0)))[mine], advantages[i]
        if name == "kimi_k2":
            values[i] = (a - 0.1 * logs.sum()) ** 2 / 0.2
        elif name in ("rloo", "gspo"):
            low, high = (0.2, 0.2) if name == "rloo" else (3e-4, 4e-4)
            ratio = np.exp(logs.sum() if name == "rloo" else logs.mean())
            values[i] = -min(ratio * a, clip(ratio, low, high) * a)
        else:
            values[i] = weight[i] * FORMULAS[name](list(d), list(advantages), list(policy), i)
    return (values * shares).sum() / (shares * kept).sum()


@pytest.mark.parametrize("correction", ["none", "icepop", "tis"])
@pytest.mark.parametrize("name", [name for name in POLICY_LOSSES if name != "cispo"])
def test_a_correction_masks_or_cuts_an_outlier_before_it_is_in_the_ratio_of_its_rollout(monkeypatch, name, correction):
    """Of cispo, whose weights have no gradient, the next test compares the value."""
    value, gradient, batch = step_of(monkeypatch, name, correction)
    advantages, shares, d = batch.advantages.numpy(), batch.shares.numpy(), np.array(FAR)
    policy = batch.sampler.numpy() + np.array(FAR)

    def plain(moved):
        return plain_step(name, correction, d + moved, advantages, policy + moved, shares, fixed=d)

    assert value == pytest.approx(plain(np.zeros(6)), rel=1e-9)
    steps = np.eye(6) * 1e-6
    wanted = [(plain(step) - plain(-step)) / 2e-6 for step in steps]
    assert gradient.tolist() == pytest.approx(wanted, abs=1e-6)
    if correction == "icepop":
        assert gradient[2] == gradient[4] == gradient[5] == 0, "of tokens outside 0.5 to 5"


@pytest.mark.parametrize("name", ["rloo", "gspo", "kimi_k2"])
def test_a_masked_token_leaves_a_rollout_as_if_it_had_not_been_said(monkeypatch, name):
    _, masked, _ = step_of(monkeypatch, name, "icepop")
    _, masked_too, _ = step_of(monkeypatch, name, "icepop", [0.1, -0.2, 9.0, 0.4, -0.9, -7.0])
    assert masked.tolist() == masked_too.tolist() and masked[0] != 0, "how far an outlier is says nothing"
    _, plain, _ = step_of(monkeypatch, name, "none")
    assert plain[0] != pytest.approx(masked[0], rel=1e-2)


@pytest.mark.parametrize("name", ["rloo", "kimi_k2"])
def test_a_rollout_of_which_tokens_are_masked_keeps_its_weight(monkeypatch, name):
    """Two rollouts of ratio 1: one of three tokens, of which one is masked, and one of two. The third is masked whole."""
    _, gradient, _ = step_of(monkeypatch, name, "icepop", [0.0, 0.0, 9.0, 0.0, 0.0, 9.0])
    assert gradient.tolist() == pytest.approx([-1.5 / 2, -1.5 / 2, 0, 0.5 / 2, 0.5 / 2, 0])


def test_truncated_weights_are_in_the_geometric_mean_over_all_tokens():
    logs = torch.tensor([0.4, 1.5], dtype=torch.float64)
    tokens = SampledTokens(logs, torch.zeros(2, dtype=torch.float64), torch.tensor([-0.5, -0.5]), torch.tensor([0, 0]), 1)
    weights = CORRECTIONS["tis"](tokens)
    values = POLICY_LOSSES["gspo"](replace(tokens, weights=weights))
    assert values.tolist() == pytest.approx([0.5 * math.exp((0.4 + math.log(2)) / 2)] * 2)


def test_the_penalty_of_a_truncated_token_has_its_weight(monkeypatch):
    without, _, batch = step_of(monkeypatch, "grpo", "tis", kl=0.0)
    value, _, _ = step_of(monkeypatch, "grpo", "tis", kl=0.3)
    ratio, moved = np.exp(FAR), np.array(REFERENCE_GAPS)
    shares = batch.shares.numpy()
    wanted = (shares * 0.3 * np.minimum(ratio, 2) * moved**2 / 2).sum() / shares.sum()
    assert value - without == pytest.approx(wanted, rel=1e-6)


def test_weights_of_truncated_importance_sampling_multiply_the_values(monkeypatch):
    value, gradient, batch = step_of(monkeypatch, "cispo", "tis")
    a, policy = batch.advantages.numpy(), batch.sampler.numpy() + np.array(FAR)
    ratio = np.minimum(np.exp(FAR), 5)
    weight = np.minimum(1, 2 / np.exp(FAR))
    assert value == pytest.approx(float((-weight * ratio * a * policy).mean()), rel=1e-9)
    assert gradient.tolist() == pytest.approx((-weight * ratio * a / 6).tolist(), rel=1e-9)


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_the_distance_from_the_start_is_penalised(monkeypatch, name):
    """k2 as a loss: its gradient leads back to the start, with the weight `kl` and the ratio."""
    (plain, without, _), (value, gradient, batch) = (step_of(monkeypatch, name, "none", [0.05] * 6, kl) for kl in (0.0, 0.3))
    moved, shares = np.array(REFERENCE_GAPS), batch.shares.numpy()
    ratio = math.exp(0.05)
    assert value - plain == pytest.approx(float((0.3 * ratio * moved**2 / 2 * shares).sum() / shares.sum()), rel=1e-6)
    assert (gradient - without).tolist() == pytest.approx((0.3 * ratio * moved * shares / shares.sum()).tolist(), rel=1e-6)
    assert all(np.sign(gradient - without) == np.sign(moved)), "a token that became likelier than at the start becomes rarer"
