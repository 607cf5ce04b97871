"""Penalties are those of vLLM's formula, and drafting changes nothing about penalized or truncated answers."""

from collections import Counter

import pytest
import torch
from tiny_models import write_target

from model_ops.decoding.decode_loop import decode
from model_ops.decoding.drafters import ModelDrafter
from model_ops.decoding.penalties import Penalties, TokenHistory, penalized
from model_ops.decoding.sampling import Truncation
from model_ops.decoding.target import load_runner
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
