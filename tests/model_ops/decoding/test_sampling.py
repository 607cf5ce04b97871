"""Verification keeps the target's distribution, whatever the drafter; uniforms belong to rows, not to batches."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import write_target

from model_ops.decoding import ModelDrafter, decode, load_runner
from model_ops.decoding.penalties import Penalties, TokenHistory, penalized
from model_ops.decoding.sampling import NONE, Truncation, choose, row_uniforms, sample, truncated, verify_draws, verify_matches
from model_ops.drafting.drafts import NgramIndex
from model_ops.drafting.measure_acceptance import LookupDrafter

PROMPTS = [[5, 6, 7, 5, 6], [9, 8, 9, 8], [3]]


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    directory = tmp_path_factory.mktemp("penalties") / "target"
    write_target(directory)
    return load_runner(directory)


def test_the_formula_token_by_token():
    penalties = Penalties(repetition=1.5, presence=0.25, frequency=0.5)
    prompts, answers, drafts = [[1, 2], [0, 0]], [[3, 3], [4, 1]], [[2, 3], [5, 5]]
    logits = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(1))
    history = TokenHistory(prompts, 6, "cpu")
    history.add(torch.tensor([[*answer, 0] for answer in answers]), torch.tensor([2, 2]))  # the third token is padding
    found = penalized(logits, penalties, history, torch.tensor(drafts))
    for row in range(2):
        for position in range(3):
            counts = Counter([*answers[row], *drafts[row][:position]])
            for token in range(6):
                wanted = logits[row, position, token].item()
                if token in prompts[row] or counts[token]:
                    wanted = wanted / 1.5 if wanted > 0 else wanted * 1.5
                wanted -= 0.5 * counts[token] + 0.25 * (counts[token] > 0)
                assert found[row, position, token].item() == pytest.approx(wanted, abs=1e-6)


class Oracle:
    """Drafts what the target will answer."""

    def __init__(self, answer):
        self.left = list(answer)

    def extend(self, tokens):
        self.left = self.left[len(tokens) :]

    def propose(self, count):
        return self.left[:count]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0, "penalties": Penalties(repetition=1.3, frequency=0.4, presence=0.2)},
        {"temperature": 1.0, "penalties": Penalties(frequency=1.5), "truncation": Truncation(top_k=20)},
    ],
    ids=["greedy", "sampled"],
)
def test_a_deterministic_drafter_changes_no_token(runner, options):
    given = {"eos_ids": [2], "max_new_tokens": 24, "seed": 3, **options}
    names = ["a", "b", "c"]
    alone = decode(runner, PROMPTS, names, **given)
    drafted = decode(runner, PROMPTS, names, drafter=LookupDrafter(NgramIndex), num_speculative_tokens=4, **given)
    assert [answer.tokens for answer in drafted] == [answer.tokens for answer in alone]
    for name, prompt, answer in zip(names, PROMPTS, alone, strict=True):
        told = LookupDrafter(lambda _, answer=answer: Oracle(answer.tokens))
        [oracle] = decode(runner, [prompt], [name], drafter=told, num_speculative_tokens=4, **given)
        assert oracle.tokens == answer.tokens and oracle.accepted >= 0.7 * (len(answer.tokens) - 1)
    plain = decode(runner, PROMPTS, names, **given | {"penalties": Penalties()})
    assert [answer.tokens for answer in plain] != [answer.tokens for answer in alone]


def test_a_sampling_drafter_keeps_the_truncated_distribution(runner):
    """First drafted token over many seeds: only the three likeliest tokens occur, with the target's shares."""
    options = {"eos_ids": [2], "temperature": 1.0, "max_new_tokens": 2, "truncation": Truncation(top_k=3)}
    rows = 600
    drafter = ModelDrafter(runner, runner.embedding.shape[0])
    names = [f"row {number}" for number in range(rows)]
    drafted = decode(runner, [PROMPTS[0]] * rows, names, drafter=drafter, num_speculative_tokens=1, batch_size=rows, **options)
    alone = decode(runner, [PROMPTS[0]] * rows, names, batch_size=rows, seed=9, **options)
    seconds = [Counter(answer.tokens[1] for answer in each if len(answer.tokens) > 1) for each in (drafted, alone)]
    tokens = set(seconds[0]) | set(seconds[1])
    assert len(tokens) <= 9
    assert sum(abs(seconds[0][token] - seconds[1][token]) for token in tokens) / rows < 0.2


P = torch.tensor([[0.4, 0.3, 0.2, 0.07, 0.03]])


@pytest.mark.parametrize(
    ("truncation", "left"),
    [
        (NONE, 5),
        (Truncation(top_k=2), 2),
        (Truncation(top_k=9), 5),
        (Truncation(top_p=0.7), 2),
        (Truncation(top_p=0.71), 3),
        (Truncation(top_p=1e-6), 1),
        (Truncation(min_p=0.2), 3),
        (Truncation(min_p=1.0), 1),
        (Truncation(top_k=3, top_p=0.75), 2),  # of 0.9 that top-k leaves, 0.7 is more than 0.675
        (Truncation(min_p=0.2, top_k=4, top_p=0.99), 3),
    ],
)
def test_what_is_left(truncation, left):
    kept = truncated(P, truncation)
    assert torch.equal(kept[0, :left], P[0, :left]) and not kept[0, left:].any()
    shuffled = truncated(P[:, [3, 0, 4, 2, 1]], truncation)
    assert torch.equal(shuffled[:, [1, 4, 3, 0, 2]], kept)


@given(
    logits=st.lists(st.floats(-8, 8), min_size=2, max_size=40),
    top_p=st.floats(0.05, 1),
    top_k=st.integers(0, 50),
    min_p=st.floats(0, 1),
)
def test_something_is_left_and_it_is_the_likeliest(logits, top_p, top_k, min_p):
    p = torch.tensor([logits]).softmax(dim=-1)
    kept = truncated(p, Truncation(top_p, top_k, min_p))
    assert kept[0, p.argmax()] > 0 and ((kept == 0) | (kept == p)).all()
    if (kept == 0).any():
        assert p[kept == 0].max() <= p[kept > 0].min() + 1e-7


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
