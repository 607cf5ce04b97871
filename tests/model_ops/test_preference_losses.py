"""Each preference loss against its paper's formula, written once more in plain Python, and its gradient by differences."""

import inspect
import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from tiny_models import tiny_model

from model_ops.documents.documents import Branch, Document, to_batch
from model_ops.models.model_directory import load_model, save_model
from model_ops.operations.preference_settings import LOSSES, OF_ANSWERS, OF_PAIRS, READ_BY
from model_ops.parallel.mesh import pad
from model_ops.parallel.world import World
from model_ops.preferences import preference
from model_ops.preferences.preference import ANSWER_LOSSES, PAIR_LOSSES, WITHOUT_REFERENCE, AnswerLogProbs, log1mexp, sft
from model_ops.preferences.reward_loss import PairStreams, RewardBatch, RewardLoss, bradley_terry, validation_of_pairs
from model_ops.rewards.reward_model import with_score_head


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


PROMPT, CHOSEN, REJECTED = [5, 6, 7, 8], [20, 21, 2], [20, 30, 31, 32, 2]


@pytest.fixture(scope="module")
def model(tmp_path_factory, tiny_tokenizer):
    folder = tmp_path_factory.mktemp("base")
    save_model(tiny_model(layers=2, vocab_size=300), tiny_tokenizer, folder)
    return with_score_head(load_model(folder, dtype=torch.float32), tiny_tokenizer, seed=3)


def pair(row_id="a", prompt=PROMPT, chosen=CHOSEN, rejected=REJECTED):
    """As model_ops.preferences.preference_documents makes it: the branch begins with the last token that both answers share."""
    common = next(i for i in range(len(chosen)) if chosen[i] != rejected[i])
    at = len(prompt) + common - 1
    ids = np.array([*prompt, *chosen, *rejected[common - 1 :]], dtype=np.int32)
    return Document(row_id, ids, np.ones(len(ids), dtype=bool), branches=(Branch(at, len(ids) - len(prompt) - len(chosen)),))


def batch_of(pairs, margins, weights):
    streams = PairStreams(np.array(margins, float), np.array(weights, float))
    return to_batch([streams.added_to(document, index) for index, document in enumerate(pairs)], RewardBatch)


def score(model, ids):
    with torch.no_grad():
        hidden = model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        return float(model.score(hidden))


def test_the_loss_is_the_negative_log_likelihood_of_bradley_and_terry():
    chosen, rejected = torch.tensor([1.0, -0.5, 30.0]), torch.tensor([0.2, 0.4, -30.0])
    margins = torch.tensor([0.5, 0.0, 1.0])
    wanted = [np.log1p(np.exp(-(c - r - m))) + 0.01 * (c + r) ** 2 for c, r, m in zip(chosen, rejected, margins, strict=True)]
    torch.testing.assert_close(bradley_terry(chosen, rejected, margins, 0.01), torch.tensor(wanted).float())
    assert float(bradley_terry(torch.tensor([-200.0]), torch.tensor([200.0]))) == 400.0, "no overflow to infinity"


def test_its_gradient_is_sigma_of_the_negated_difference():
    chosen, rejected = torch.tensor([0.3], requires_grad=True), torch.tensor([-0.4], requires_grad=True)
    bradley_terry(chosen, rejected, 0.2, 0.05).sum().backward()
    pull = 1 / (1 + np.exp(0.7 - 0.2))
    assert float(chosen.grad) == pytest.approx(-pull + 0.1 * (0.3 - 0.4)) and float(rejected.grad) == pytest.approx(pull - 0.01)


def test_scores_are_those_of_the_two_whole_conversations(model):
    output = RewardLoss()(model, batch_of([pair(), pair("b", [9, 9], [40, 2], [40, 41, 2])], [0, 0], [1, 1]))
    chosen = [score(model, PROMPT + CHOSEN), score(model, [9, 9, 40, 2])]
    rejected = [score(model, PROMPT + REJECTED), score(model, [9, 9, 40, 41, 2])]
    wanted = sum(np.log1p(np.exp(r - c)) for c, r in zip(chosen, rejected, strict=True))
    assert float(output.terms["loss"].sum) == pytest.approx(wanted, abs=1e-5) and float(output.terms["loss"].count) == 2
    assert float(output.metrics["chosen_score"].sum) == pytest.approx(sum(chosen), abs=1e-5)
    assert float(output.metrics["accuracy"].sum) == sum(c > r for c, r in zip(chosen, rejected, strict=True))


def test_a_score_is_read_at_the_last_token_even_where_that_is_the_padding_token(model):
    """transformers would skip token 0, the model's pad_token_id, and read one token early."""
    ends_with_padding = pair(chosen=[20, 21, 0], rejected=[20, 30, 0])
    output = RewardLoss()(model, batch_of([ends_with_padding], [0], [1]))
    assert float(output.metrics["chosen_score"].sum) == pytest.approx(score(model, [*PROMPT, 20, 21, 0]), abs=1e-5)


def test_weights_and_margins_are_each_pairs_own(model):
    pairs = [pair(), pair("b", [9, 9], [40, 2], [40, 41, 2])]
    alone = [
        float(RewardLoss(0.1)(model, batch_of([document], [margin], [1])).terms["loss"].sum)
        for document, margin in zip(pairs, (0.5, 0.0), strict=True)
    ]
    output = RewardLoss(0.1)(model, batch_of(pairs, [0.5, 0.0], [2.0, 0.25]))
    assert float(output.terms["loss"].sum) == pytest.approx(2 * alone[0] + 0.25 * alone[1], abs=1e-5)
    assert float(output.terms["loss"].count) == 2.25


def test_padding_and_silenced_rows_add_nothing(model):
    batch = batch_of([pair()], [0.5], [1])
    plain, padded = (float(RewardLoss(0.1)(model, each).terms["loss"].sum) for each in (batch, pad(batch, 8)))
    assert padded == pytest.approx(plain, abs=1e-6)
    output = RewardLoss(0.1)(model, batch.silenced())
    output.terms["loss"].sum.backward()
    assert float(output.terms["loss"].sum) == float(output.terms["loss"].count) == 0
    assert float(model.score.weight.grad.abs().sum()) == 0
    model.zero_grad()


def test_validation_is_the_loss_without_margins_and_centring(model):
    batches = [batch_of([pair()], [0.9], [2]), batch_of([pair("b", [9, 9], [40, 2], [40, 41, 2])], [0], [1])]
    found = validation_of_pairs(model, batches, "float32", World.alone(torch.device("cpu")))()
    plain = [RewardLoss()(model, replace(each, margins=torch.zeros(1))) for each in batches]
    wanted = sum(float(output.terms["loss"].sum) for output in plain) / 3
    assert found["validation_loss"] == pytest.approx(wanted, abs=1e-6)
    assert validation_of_pairs(model, [], "float32", World.alone(torch.device("cpu"))) is None
