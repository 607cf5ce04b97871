"""Each preference loss against its paper's formula, written once more in plain Python, and its gradient by differences."""

import inspect
import math
from dataclasses import fields, replace

import pytest
import torch

from model_ops.operations.preference_settings import LOSSES, OF_ANSWERS, OF_PAIRS, READ_BY
from model_ops.preferences import preference
from model_ops.preferences.preference import ANSWER_LOSSES, PAIR_LOSSES, WITHOUT_REFERENCE, AnswerLogProbs, log1mexp, sft


def sigma(x):
    return 1 / (1 + math.exp(-x))


def odds(p):
    return math.exp(p) / (1 - math.exp(p))


# w and r: (log p, log reference, tokens)
FORMULAS = {
    "dpo": lambda w, r: -math.log(sigma(0.1 * ((w[0] - w[1]) - (r[0] - r[1])))),
    "ipo": lambda w, r: ((w[0] - w[1]) / w[2] - (r[0] - r[1]) / r[2] - 1 / 0.2) ** 2,
    "robust_dpo": lambda w, r: (
        -(0.9 * math.log(sigma(0.1 * (w[0] - w[1] - r[0] + r[1]))) - 0.1 * math.log(sigma(-0.1 * (w[0] - w[1] - r[0] + r[1]))))
        / 0.8
    ),
    "apo_zero": lambda w, r: 1 - sigma(0.1 * (w[0] - w[1])) + sigma(0.1 * (r[0] - r[1])),
    "simpo": lambda w, r: -math.log(sigma(2.5 / w[2] * w[0] - 2.5 / r[2] * r[0] - 1.375)),
    "orpo": lambda w, r: -w[0] / w[2] - 0.1 * math.log(sigma(math.log(odds(w[0] / w[2]) / odds(r[0] / r[2])))),
}
# a: as above; good: whether it is desirable; z: z0 or the shift
ANSWER_FORMULAS = {
    "kto": lambda a, good, z: 1 - sigma(0.1 * (a[0] - a[1] - z)) if good else 1 - sigma(0.1 * (z - (a[0] - a[1]))),
    "bco": lambda a, good, z: (
        -math.log(sigma(0.1 * (a[0] - a[1]) - z)) if good else -math.log(sigma(-(0.1 * (a[0] - a[1]) - z)))
    ),
    "apo_zero_unpaired": lambda a, good, z: 1 - sigma(0.1 * (a[0] - a[1])) if good else sigma(0.1 * (a[0] - a[1])),
}
NUMBERS = {"kto": {"z0": 1.5}, "bco": {"shift": 0.3}}


def answers(seed, count=7):
    generator = torch.Generator().manual_seed(seed)

    def between(low, high):
        return low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)

    tokens, policy = torch.randint(3, 40, (count,), generator=generator), between(-90, -20)
    return AnswerLogProbs(policy, policy + between(-12, 12), tokens)


def numbers(of, place):
    return [float(getattr(of, each.name)[place]) for each in fields(of)]


def differences(value, of):
    """d value / d policy of each answer, by central differences."""
    gradient = torch.zeros_like(of.policy)
    for place in range(len(gradient)):
        step = torch.zeros_like(gradient)
        step[place] = 1e-5
        up, down = (value(replace(of, policy=of.policy + sign * step)) for sign in (1, -1))
        gradient[place] = (up - down) / 2e-5
    return gradient


def with_gradient(of):
    return replace(of, policy=of.policy.clone().requires_grad_())


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_a_loss_of_pairs_is_its_papers_formula(name):
    chosen, rejected = answers(1), answers(2)
    formula = FORMULAS[name]

    def total(w, r):
        return sum(formula(numbers(w, place), numbers(r, place)) for place in range(7))

    values = PAIR_LOSSES[name](chosen, rejected)
    assert values.tolist() == pytest.approx([formula(numbers(chosen, i), numbers(rejected, i)) for i in range(7)], rel=1e-10)
    w, r = with_gradient(chosen), with_gradient(rejected)
    ours = torch.autograd.grad(PAIR_LOSSES[name](w, r).sum(), [w.policy, r.policy])
    wanted = [differences(lambda side: total(side, rejected), chosen), differences(lambda side: total(chosen, side), rejected)]
    torch.testing.assert_close(list(ours), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ANSWER_LOSSES)
def test_a_loss_of_answers_is_its_papers_formula(name):
    of, desirable, more = answers(3), torch.tensor([1, 0, 1, 1, 0, 0, 1]) > 0, NUMBERS.get(name, {})
    formula, z = ANSWER_FORMULAS[name], next(iter(more.values()), 0.0)

    def each(side):
        return [formula(numbers(side, place), bool(desirable[place]), z) for place in range(7)]

    assert ANSWER_LOSSES[name](of, desirable, **more).tolist() == pytest.approx(each(of), rel=1e-10)
    a = with_gradient(of)
    (ours,) = torch.autograd.grad(ANSWER_LOSSES[name](a, desirable, **more).sum(), [a.policy])
    torch.testing.assert_close(ours, differences(lambda side: sum(each(side)), of), rtol=1e-5, atol=1e-7)


def test_kto_weighs_its_classes_and_sft_is_the_likelihood():
    of, desirable = answers(4), torch.tensor([1, 0, 1, 1, 0, 0, 1]) > 0
    plain = ANSWER_LOSSES["kto"](of, desirable, 0.5)
    weighted = ANSWER_LOSSES["kto"](of, desirable, 0.5, desirable_weight=2.0, undesirable_weight=0.5)
    torch.testing.assert_close(weighted, plain * torch.where(desirable, 2.0, 0.5))
    assert sft(of).equal(-of.policy)


def test_robust_dpo_takes_the_noise_of_each_pair_and_none_is_dpo():
    chosen, rejected = answers(1), answers(2)
    plain = PAIR_LOSSES["dpo"](chosen, rejected)
    noise = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.0, 0.0, 0.5])
    robust = PAIR_LOSSES["robust_dpo"](chosen, rejected, noise)
    assert robust[noise == 0].tolist() == pytest.approx(plain[noise == 0].tolist())
    capped = PAIR_LOSSES["robust_dpo"](chosen, rejected, preference.MOST_NOISE)
    assert math.isfinite(float(robust[6])) and float(robust[6]) == pytest.approx(float(capped[6]))


@pytest.mark.parametrize("far", [-5_000.0, 5_000.0])
def test_values_and_gradients_stay_finite_far_from_the_reference(far):
    chosen, rejected = (with_gradient(answers(seed)) for seed in (5, 6))
    chosen = replace(chosen, reference=chosen.reference + far)
    desirable = torch.arange(7) % 2 > 0
    for name, function in PAIR_LOSSES.items():
        total = function(chosen, rejected).sum()
        gradients = torch.autograd.grad(total, [chosen.policy, rejected.policy])
        assert all(torch.isfinite(each).all() for each in (total, *gradients)), name
    for name, function in ANSWER_LOSSES.items():
        total = function(chosen, desirable, **({"z0": 0.0} if name == "kto" else {})).sum()
        assert all(torch.isfinite(each).all() for each in (total, *torch.autograd.grad(total, [chosen.policy]))), name


def test_log1mexp_is_exact_near_certainty_and_near_impossibility_and_finite_at_both():
    p = torch.tensor([-1e-9, -1e-3, -0.5, -1.0, -40.0], dtype=torch.float64)
    wanted = [math.log(-math.expm1(x)) if x > -1 else math.log1p(-math.exp(x)) for x in p.tolist()]
    assert log1mexp(p).tolist() == pytest.approx(wanted, rel=1e-12)
    edge = torch.tensor([0.0, -1e4], dtype=torch.float64, requires_grad=True)
    log1mexp(edge).sum().backward()
    assert torch.isfinite(edge.grad).all()


def test_settings_name_every_loss_and_which_of_them_reads_a_key():
    assert (tuple(PAIR_LOSSES), tuple(ANSWER_LOSSES)) == (OF_PAIRS, OF_ANSWERS)
    assert {*OF_PAIRS, *OF_ANSWERS, "sft"} == set(LOSSES)
    for key, readers in READ_BY.items():
        keyword = "noise" if key == "label_noise" else key
        reads = {
            name for name, each in {**PAIR_LOSSES, **ANSWER_LOSSES}.items() if keyword in inspect.signature(each).parameters
        }
        assert reads == set(readers), key
    assert all("beta" in inspect.signature(each).parameters for each in {**PAIR_LOSSES, **ANSWER_LOSSES}.values())


@pytest.mark.parametrize("name", {**PAIR_LOSSES, **ANSWER_LOSSES})
def test_a_loss_reads_the_reference_unless_it_is_named_as_one_that_does_not(name):
    chosen, rejected, moved = answers(1), answers(2), 3 * torch.rand(7, dtype=torch.float64)
    if name in PAIR_LOSSES:
        one, other = (
            PAIR_LOSSES[name](side, rejected) for side in (chosen, replace(chosen, reference=chosen.reference + moved))
        )
    else:
        sides = (chosen, replace(chosen, reference=chosen.reference + moved))
        one, other = (ANSWER_LOSSES[name](side, torch.ones(7) > 0, **NUMBERS.get(name, {})) for side in sides)
    assert one.equal(other) == (name in WITHOUT_REFERENCE)
