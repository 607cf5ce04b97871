"""How many tokens a round drafts where the decoder chooses: text, log-probabilities and costs."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
from exactness import THREE_TOKENS, six_token_target, three_tokens_are_distributed_as_the_target
from tiny_drafters import tiny_eagle3
from tiny_models import tiny_model

from model_ops.answers import InProcessEngine, RolloutDrafting
from model_ops.decoding.decode_loop import ROUND_TOKENS, DraftLength, decode
from model_ops.decoding.drafters import ModelDrafter
from model_ops.decoding.incremental import IncrementalModel
from model_ops.drafting.measure_acceptance import baselines
from tests.thorough_cases import thorough_except

ROWS = 3_000
PROMPTS = [[3, 9, 4, 70, 8], [5], [6, 6, 31, 6, 6, 31, 6], [40, 41, 42, 43, 44, 45, 46]]


class Sampling:
    temperature, max_new_tokens, batch_size = 0.7, 3, 30


def near(target, seed=0):
    """A drafter that is right now and then."""
    torch.manual_seed(seed)
    small = tiny_model(layers=2, vocab_size=target.config.vocab_size, seed=8, eos_token_id=None)
    for parameter in small.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return ModelDrafter(IncrementalModel(small), target.config.vocab_size)


@pytest.mark.parametrize("form", thorough_except(["model", "suffix"], ["model", "eagle3", "suffix"]))
def test_rollouts_with_an_imperfect_drafter_have_the_policy_s_distribution(form):
    target = six_token_target(4)
    made = {
        "model": lambda runner: near(target),
        "eagle3": lambda runner: tiny_eagle3(target, draft_vocab_size=6).drafter(),
        "suffix": lambda runner: baselines()["suffix"],
    }
    seen = []

    def opened(runner):
        seen.append(made[form](runner))
        return seen[-1]

    engine = InProcessEngine(target, set(), Sampling(), RolloutDrafting(opened, 2, 0.05))
    engine.sync(1)
    prompt = torch.tensor(THREE_TOKENS).numpy()
    said = engine.sample([prompt] * ROWS, [str(row) for row in range(ROWS)], seed=0)
    three_tokens_are_distributed_as_the_target(target, [each.tokens.tolist() for each in said], Sampling.temperature)
    with torch.no_grad():
        whole = torch.tensor([[*THREE_TOKENS, *each.tokens.tolist()] for each in said])
        logs = (target(whole).logits[:, 2:5] / Sampling.temperature).log_softmax(-1)
    expected = logs.gather(-1, whole[:, 3:, None]).squeeze(-1)
    assert (expected - torch.tensor([each.log_probs.tolist() for each in said])).abs().max() < 1e-5
    again = engine.sample([prompt] * 30, [str(row) for row in range(30)], seed=0)
    assert all((a.log_probs == b.log_probs).all() and (a.tokens == b.tokens).all() for a, b in zip(said, again, strict=False))


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_lookups_change_neither_tokens_nor_log_probabilities(method):
    runner = IncrementalModel(tiny_model(layers=2, eos_token_id=None))
    options = {"eos_ids": {2}, "temperature": 0.6, "max_new_tokens": 24, "log_probs": True}
    alone = decode(runner, PROMPTS * 4, list("abcdefghijklmnop"), **options)
    drafting = {"drafter": baselines()[method], "num_speculative_tokens": 4, "draft_cost": 0.0}
    drafted = decode(runner, PROMPTS * 4, list("abcdefghijklmnop"), **drafting, **options)
    for one, other in zip(alone, drafted, strict=True):
        assert one.tokens == other.tokens and one.log_probs == pytest.approx(other.log_probs, abs=1e-5)


@pytest.mark.parametrize(("seed", "rounds", "drafted"), [(0, 8, 32), (5, 40, 120)], ids=["always right", "seldom right"])
def test_what_is_not_accepted_is_drafted_less(seed, rounds, drafted):
    runner = IncrementalModel(tiny_model(layers=2, eos_token_id=None))
    drafter = ModelDrafter(IncrementalModel(tiny_model(layers=2, seed=seed, eos_token_id=None)), 96)
    options = {"eos_ids": set(), "temperature": 1.0, "max_new_tokens": 41, "draft_cost": 0.1}
    [answer] = decode(runner, [[3, 4]], ["a"], drafter=drafter, num_speculative_tokens=4, **options)
    assert answer.forwards <= rounds and answer.drafted <= drafted, "of 160, if each of 40 rounds drafted 4"


def test_a_drafter_is_as_good_after_rounds_that_verify_no_draft(monkeypatch):
    counts = cycle((0, 3, 0, 0, 2))
    monkeypatch.setattr(DraftLength, "best", lambda self, rows: next(counts))
    runner = IncrementalModel(tiny_model(layers=2, eos_token_id=None))
    drafter = ModelDrafter(IncrementalModel(tiny_model(layers=2, eos_token_id=None)), 96)
    options = {"eos_ids": set(), "temperature": 1.0, "max_new_tokens": 21, "draft_cost": 0.1}
    answers = decode(runner, PROMPTS, list("abcd"), drafter=drafter, num_speculative_tokens=3, **options)
    assert all(answer.accepted == answer.drafted == 10 and answer.forwards == 10 for answer in answers)


def by_definition(rows, accepted, cost, most):
    """Tokens by cost of each number of drafts, with acceptance known exactly."""
    free = ROUND_TOKENS["cpu"]
    worth = [
        (1 + sum(accepted**place for place in range(1, drafts + 1)))
        / (free + rows * (drafts + 1) + max(drafts, 1) * cost * (free + rows))
        for drafts in range(most + 1)
    ]
    return worth.index(max(worth))


@pytest.mark.parametrize("cost", [0.0, 0.3])
@pytest.mark.parametrize("accepted", [0.0, 0.5, 0.75, 1.0])
def test_the_number_of_drafts_is_the_one_that_pays(accepted, cost):
    length, rows = DraftLength(4, "cpu", cost), 100_000  # so many that neither hope nor past counts
    length.see(4, [sum(row < accepted**place * rows for place in range(1, 5)) for row in range(rows)])
    for live in (1, 4, 16, 64, 256, 4_096):
        assert length.best(live) == by_definition(live, accepted, cost, 4), live
    assert length.best(1) >= length.best(4_096)


def test_a_full_batch_drafts_nothing_until_it_is_known_and_its_last_rows_do():
    length = DraftLength(8, "cpu", 0.0)
    assert length.best(2_000) == 0 < length.best(2)
    for _ in range(60):
        length.see(3, [0] * 20)
    assert length.best(2) == 0, "nothing was accepted"
    for _ in range(60):
        length.see(3, [3] * 20)
    assert length.best(2) >= 3, "what is new counts more"
