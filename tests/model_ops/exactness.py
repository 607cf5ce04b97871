"""What no drafter may change: the target's text. Two checks that every kind of drafter goes through.

    answers = greedy_text_is_the_targets(target, drafter)                          # token for token
    answers = sampled_text_is_distributed_as_the_target(six_token_target(), drafter)

Both assert, and return the drafted answers: a caller asserts besides that drafts were accepted and rejected, without which
neither check proves anything.
"""

from __future__ import annotations

import torch
from tiny_models import tiny_model

from model_ops.decoding.decode_loop import Completion, decode
from model_ops.decoding.incremental import IncrementalModel

ROWS = 6_000
THREE_TOKENS = [3, 4, 5]
"""The prompt."""


def greedy_text_is_the_targets(target, drafter, num_speculative_tokens: int = 3) -> list[Completion]:
    """Five prompts of 1 to 14 tokens, answered three at a time, so that rows of a batch end and others take their place."""
    runner = IncrementalModel(target)
    generator = torch.Generator().manual_seed(0)
    prompts = [
        torch.randint(3, target.config.vocab_size, (length,), generator=generator).tolist() for length in (9, 3, 1, 14, 6)
    ]
    options = {"eos_ids": {2}, "temperature": 0.0, "max_new_tokens": 24, "batch_size": 3}
    alone = decode(runner, prompts, list("abcde"), **options)
    drafted = decode(runner, prompts, list("abcde"), drafter=drafter, num_speculative_tokens=num_speculative_tokens, **options)
    assert [answer.tokens for answer in drafted] == [answer.tokens for answer in alone]
    return drafted


def six_token_target(layers: int = 2):
    """A target with so few tokens that the distribution of its next three is known exactly; it never ends."""
    return tiny_model(layers=layers, vocab_size=6, seed=8, eos_token_id=None)


def sampled_text_is_distributed_as_the_target(target, drafter, num_speculative_tokens: int = 2) -> list[Completion]:
    """Three tokens after one prompt, over many rows, have the target's distribution."""
    answers = decode(
        IncrementalModel(target),
        [THREE_TOKENS] * ROWS,
        [str(row) for row in range(ROWS)],
        eos_ids=set(),
        temperature=1.0,
        max_new_tokens=3,
        drafter=drafter,
        num_speculative_tokens=num_speculative_tokens,
        batch_size=2_000,
    )
    three_tokens_are_distributed_as_the_target(target, [answer.tokens for answer in answers])
    return answers


def three_tokens_are_distributed_as_the_target(target, answers, temperature: float = 1.0) -> None:
    """Answers of three tokens after THREE_TOKENS: Pearson's chi-squared against the target's exact joint distribution, at most
    four standard deviations above its mean."""
    prompt, vocab = THREE_TOKENS, target.config.vocab_size

    def after(rows):
        return (target(torch.tensor(rows)).logits[:, -1] / temperature).softmax(-1)

    with torch.no_grad():
        first, second = after([prompt])[0], after([[*prompt, t] for t in range(vocab)])
        third = after([[*prompt, t, u] for t in range(vocab) for u in range(vocab)])
    joint = ((first[:, None] * second).flatten()[:, None] * third).flatten()
    triples = torch.tensor([(one * vocab + two) * vocab + three for one, two, three in answers])
    found = triples.bincount(minlength=joint.numel()) / len(answers)
    statistic = (((found - joint) ** 2) / joint).sum() * len(answers)
    degrees = joint.numel() - 1
    assert statistic < degrees + 4 * (2 * degrees) ** 0.5
