"""Whether what a server says is what the target says: its greedy answers under the target's own layers.

    compare_text(answers, scores)          # scores: of model_ops.evaluation.smoke.own_layers, run by the caller

A server may be fast, answer every request, and say nonsense: a wrong kernel, a drafter whose tokens are not verified, another
model's weights. Greedy tokens of the right model are ranked first by its own layers, up to ties of 16-bit arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from model_ops.errors import ModelError
from model_ops.evaluation.smoke.answers import SmokeAnswer
from model_ops.evaluation.smoke.finding import Finding

LEAST_AGREEMENT = 0.8
"""Least share of greedy tokens. Texts without token ids are tokenized again, and a few of their tokens are cut otherwise. The
gate served_agreement of a release is stricter, over more prompts."""

Scores = Callable[[list[dict[str, Any]]], dict[str, Any]]
"""Raises ModelError if the comparison cannot be made."""


def compare_text(answers: Sequence[SmokeAnswer], scores: Scores) -> Iterator[Finding]:
    """Two findings: the chat template, and the text."""
    try:
        found = scores([{"row_id": answer.prompt.row_id, "messages": answer.prompt.messages, "tools": answer.prompt.tools,
                         "request": answer.prompt.request, "prompt_ids": answer.prompt_ids, "ids": answer.ids,
                         "text": answer.text} for answer in answers])
    except ModelError as error:
        yield Finding("text", None, str(error))
        return
    prompts, same = found["prompts"], found["same_prompts"]
    if prompts:
        said = f"{same} of {prompts} prompts have the tokens that the target was trained with"
        yield Finding("template", same == prompts, said)
    if not found["tokens"]:
        yield Finding("text", None, "it answered with no token")
        return
    share, perplexity = found["agreed"] / found["tokens"], math.exp(min(found["nll"] / found["tokens"], 50.0))
    said = (f"{share:.1%} of {found['tokens']} greedy tokens are those of the target's own layers, perplexity under the target "
            f"{perplexity:.2f}")
    passed = share >= LEAST_AGREEMENT
    yield Finding("text", passed, said if passed else f"{said}: at least {LEAST_AGREEMENT:.0%} have to agree")
