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
    """Three tokens after one prompt, over many rows: Pearson's chi-squared against the target's exact joint distribution,
    at most four standard deviations above its mean."""
    prompt, vocab = [3, 4, 5], target.config.vocab_size
    with torch.no_grad():
        first = target(torch.tensor([prompt])).logits[0, -1].softmax(-1)
        second = target(torch.tensor([[*prompt, t] for t in range(vocab)])).logits[:, -1].softmax(-1)
        third = target(torch.tensor([[*prompt, t, u] for t in range(vocab) for u in range(vocab)])).logits[:, -1].softmax(-1)
    joint = ((first[:, None] * second).flatten()[:, None] * third).flatten()
    answers = decode(
        IncrementalModel(target),
        [prompt] * ROWS,
        [str(row) for row in range(ROWS)],
        eos_ids=set(),
        temperature=1.0,
        max_new_tokens=3,
        drafter=drafter,
        num_speculative_tokens=num_speculative_tokens,
        batch_size=2_000,
    )
    triples = torch.tensor([(answer.tokens[0] * vocab + answer.tokens[1]) * vocab + answer.tokens[2] for answer in answers])
    found = triples.bincount(minlength=joint.numel()) / ROWS
    statistic = (((found - joint) ** 2) / joint).sum() * ROWS
    degrees = joint.numel() - 1
    assert statistic < degrees + 4 * (2 * degrees) ** 0.5
    return answers
