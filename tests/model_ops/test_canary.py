"""The canary of reinforcement fine-tuning: noise of another implementation passes, another temperature does not, nor what grows."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from model_ops.answers import Rollout, Sampled
from model_ops.graders import Grade
from model_ops.jobs import ModelError
from model_ops.reinforcement import canary
from model_ops.reinforcement.canary import CANARY_TOKENS, TILT, Canary, Reading, canary_rollouts, read, said_tilt, sampled_tilt

NOISE = {"bfloat16": 0.013, "int8": 0.019, "int4": 0.09}
"""Mean nats by token, as measured."""


def reading(sampled_at=1.0, said_at=1.0, noise=0.0, asked=1.0, tokens=900, seed=0, spread=2.0, unscored=()):
    """Of tokens that are sampled from random logits with the rule p ~ exp(logits / temperature)."""
    generator = np.random.default_rng(seed)
    logits = torch.from_numpy(generator.normal(0, spread, (tokens, 200)))
    drawn = torch.multinomial((logits / sampled_at).softmax(-1), 1, generator=torch.Generator().manual_seed(seed))

    def log_probs(temperature):
        return (logits / temperature).log_softmax(-1).gather(1, drawn)[:, 0]

    sampler = log_probs(said_at) + torch.from_numpy(generator.laplace(0, noise, tokens) if noise else np.zeros(tokens))
    sampler[list(unscored)] = torch.nan
    batch = SimpleNamespace(owners=torch.zeros(tokens, dtype=torch.int64), sampler=sampler)
    return read(lambda factor: log_probs(asked * factor), batch)


@pytest.mark.parametrize("asked", [1.0, 0.6])
def test_derivatives_by_the_temperature_are_those_of_the_softmax(asked):
    generator = np.random.default_rng(1)
    logits = torch.from_numpy(generator.normal(0, 2, (5, 30)))
    log_p = (logits / asked).log_softmax(-1)
    batch = SimpleNamespace(owners=torch.zeros(5, dtype=torch.int64), sampler=log_p[:, 3] + 0.25)
    found = read(lambda factor: (logits / (asked * factor)).log_softmax(-1)[:, 3], batch)
    mean = (log_p.exp() * logits / asked).sum(-1)
    torch.testing.assert_close(found.x, logits[:, 3] / asked - mean, rtol=0, atol=0.02)
    variance = (log_p.exp() * (logits / asked).square()).sum(-1) - mean.square()
    torch.testing.assert_close(found.v, variance, rtol=0.02, atol=0.02)
    assert found.difference.tolist() == pytest.approx([0.25] * 5)


@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
@pytest.mark.parametrize("asked", [1.0, 0.7])
def test_noise_of_another_precision_passes_round_after_round(noise, asked):
    watched = Canary()
    for seed in range(8):
        watched.check(reading(asked, asked, noise, asked, seed=seed), exact=False, number=seed)
    assert watched.noise == pytest.approx(noise, rel=0.15), "that of the first round"


@pytest.mark.parametrize("noise", [0.0, *NOISE.values()], ids=["exact", *NOISE])
@pytest.mark.parametrize(
    ("sampled_at", "said_at", "what"),
    [
        (0.7, 0.7, "log-probabilities"),
        (0.7, 1.0, "tokens"),
        (1.0, 0.7, "log-probabilities"),
        (0.8, 0.8, "log-probabilities"),
        (1.3, 1.3, "log-probabilities"),
        (1.4, 1.0, "tokens"),
    ],
)
def test_another_temperature_is_refused_at_the_first_sync(monkeypatch, sampled_at, said_at, what, noise):
    monkeypatch.setattr(canary, "FIRST_GAP", 9.0)  # the difference alone would refuse most of them
    seen = reading(sampled_at, said_at, noise)
    with pytest.raises(ModelError, match=rf"round 0: the engine's {what} are those of another temperature, or of top-p"):
        Canary().check(seen, exact=False, number=0)
    if what == "tokens" and not noise:
        with pytest.raises(ModelError, match="the engine's tokens are those of another temperature"):
            Canary().check(seen, exact=True, number=0)


@pytest.mark.parametrize("temperature", [0.7, 0.9])
def test_a_flat_model_tells_a_temperature_too_though_it_changes_little(temperature):
    seen = reading(temperature, temperature, noise=0.005, spread=0.3)
    assert float(seen.difference.abs().mean()) < canary.FIRST_GAP / 2
    with pytest.raises(ModelError, match="log-probabilities are those of another temperature"):
        Canary().check(seen, exact=False, number=0)


def test_tokens_of_the_nucleus_alone_are_refused():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1_200, 2_000, generator=generator, dtype=torch.float64)
    p, order = logits.softmax(-1).sort(descending=True)
    nucleus = torch.where(p.cumsum(-1) - p < 0.9, p, 0.0)
    place = torch.multinomial(nucleus, 1, generator=generator)
    drawn, said = order.gather(1, place), (nucleus / nucleus.sum(-1, keepdim=True)).gather(1, place)[:, 0].log()
    batch = SimpleNamespace(owners=torch.zeros(1_200, dtype=torch.int64), sampler=said)
    seen = read(lambda factor: (logits / factor).log_softmax(-1).gather(1, drawn)[:, 0], batch)
    with pytest.raises(ModelError, match="tokens are those of another temperature, or of top-p or top-k"):
        Canary().check(seen, exact=False, number=0)


def test_few_or_certain_tokens_are_no_proof():
    for seed in range(300):
        few = reading(tokens=3, noise=0.01, seed=seed)
        peaked = reading(tokens=20, spread=12.0, seed=seed)
        assert said_tilt(few) == sampled_tilt(few) == sampled_tilt(peaked) == 0, seed
    logits, drawn = torch.tensor([[0.0, -7.0]] * 20, dtype=torch.float64), torch.tensor([[1]] + [[0]] * 19)
    batch = SimpleNamespace(owners=torch.zeros(20, dtype=torch.int64), sampler=torch.zeros(20))
    rare = read(lambda factor: (logits / factor).log_softmax(-1).gather(1, drawn)[:, 0], batch)
    assert rare.x.sum().abs() > 7 * rare.v.sum().sqrt() and sampled_tilt(rare) == 0, "one token of a thousandth in twenty"


def test_later_differences_are_held_at_a_multiple_of_the_first_and_a_floor():
    watched = Canary()
    watched.check(reading(noise=0.03), exact=False, number=0)
    watched.check(reading(noise=0.1, seed=1), exact=False, number=1)
    with pytest.raises(ModelError, match=r"round 2: .* by 0.1\d on average \(allowed: 0.1\d\), so it has other weights"):
        watched.check(reading(noise=0.15, seed=2), exact=False, number=2)
    assert watched.noise == pytest.approx(0.03, rel=0.15), "what was refused changes nothing"
    with pytest.raises(ModelError, match=r"round 0: .* on average \(allowed: 0.25\), so it has other weights"):
        Canary().check(reading(noise=0.3), exact=False, number=0)
    close = Canary()
    close.check(reading(noise=1e-5), exact=False, number=0)
    close.check(reading(noise=0.015, seed=1), exact=False, number=1)
    with pytest.raises(ModelError, match=r"round 2: .* \(allowed: 0.02\)"):
        close.check(reading(noise=0.03, seed=2), exact=False, number=2)


def test_tokens_without_a_log_probability_are_passed_over():
    watched = Canary()
    watched.check(reading(noise=0.01, unscored=range(0, 900, 3)), exact=False, number=0)
    with pytest.raises(ModelError, match="log-probabilities are those"):
        Canary().check(reading(0.9, 0.9, unscored=range(0, 900, 3)), exact=False, number=1)
    with pytest.raises(ModelError, match="by nan on average"):
        Canary().check(reading(unscored=range(900)), exact=False, number=0)


def rollout(tokens, name):
    answer = Sampled(np.full(tokens, name, np.int32), np.zeros(tokens, np.float32), 0, True)
    return Rollout.of(np.array([3], np.int32), answer, Grade(0.0))


def test_the_canary_reads_an_answer_to_each_prompt_before_a_second_one_and_enough_tokens():
    groups = [[rollout(100, 10 * prompt + answer) for answer in range(3 + prompt)] for prompt in range(5)]
    names = [int(each.tokens[0]) for each in canary_rollouts(groups)]
    assert names == [0, 10, 20, 30, 40, 1, 11, 21, 31, 41, 2] and len(names) * 100 >= CANARY_TOKENS
    long = [[rollout(CANARY_TOKENS, 10 * prompt + answer) for answer in range(3)] for prompt in range(2)]
    assert [int(each.tokens[0]) for each in canary_rollouts(long)] == [0, 10, 1, 11]
    assert canary_rollouts([[rollout(0, 1)], []]) == []


@pytest.mark.parametrize(("deviations", "is_proof"), [(3.5, False), (6.0, True)])
def test_a_sum_within_five_deviations_is_chance(deviations, is_proof):
    """Many tokens of little weight: the bound's term for single ones is small."""
    count = 10_000
    v = torch.full((count,), 1e-3, dtype=torch.float64)
    x = torch.full((count,), deviations * float(v.sum().sqrt()) / count, dtype=torch.float64)
    seen = Reading(torch.zeros(count, dtype=torch.float64), x, v)
    assert (abs(sampled_tilt(seen)) > TILT) == is_proof
