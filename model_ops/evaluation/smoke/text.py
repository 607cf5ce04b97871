"""Whether what a server says is what the target says: its greedy answers under the target's own layers.

    compare_text(asking, answers, scores)  # scores: of model_ops.evaluation.smoke.own_layers, run by the caller

A server may be fast, answer every request, and say nonsense: a wrong kernel, a drafter whose tokens are not verified, another
model's weights. Greedy tokens of the right model are ranked first by its own layers, up to ties of 16-bit arithmetic. Where the
target cannot be loaded beside its server, the server reads its own answers instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from model_ops.errors import ModelError
from model_ops.evaluation.smoke.answers import SmokeAnswer
from model_ops.evaluation.smoke.asking import Asking, NotAnswered
from model_ops.evaluation.smoke.finding import Finding
from model_ops.evaluation.smoke.own_reading import read_scores

LEAST_AGREEMENT = 0.8
"""Least share of greedy tokens. Texts without token ids are tokenized again, and a few of their tokens are cut otherwise. The
gate served_agreement of a release is stricter, over more prompts."""
OWN_LAYERS, OWN_READING = "the target's own layers", "the server when it reads its own answers"

Scores = Callable[[list[dict[str, Any]]], dict[str, Any]]
"""Raises ModelError if the comparison cannot be made."""


def compare_text(asking: Asking, answers: Sequence[SmokeAnswer], scores: Scores) -> Iterator[Finding]:
    """Findings on the chat template and on the text."""
    try:
        found = scores([{"row_id": answer.prompt.row_id, "messages": answer.prompt.messages, "tools": answer.prompt.tools,
                         "request": answer.prompt.request, "prompt_ids": answer.prompt_ids, "ids": answer.ids,
                         "text": answer.text} for answer in answers])
    except ModelError as error:
        yield Finding("own layers", None, str(error))
        yield _of_own_reading(asking, answers)
        return
    prompts, same = found["prompts"], found["same_prompts"]
    if prompts:
        said = f"{same} of {prompts} prompts have the tokens that the target was trained with"
        yield Finding("template", same == prompts, said)
    yield _agreement(found, OWN_LAYERS)


def _of_own_reading(asking: Asking, answers: Sequence[SmokeAnswer]) -> Finding:
    if asking.plain:
        return Finding("text", None, "the server gives no token ids")
    try:
        return _agreement(read_scores(asking, answers), OWN_READING)
    except NotAnswered as error:
        return Finding("text", None, str(error))


def _agreement(agreement: dict[str, Any], of: str) -> Finding:
    if not agreement["tokens"]:
        return Finding("text", None, "it answered with no token")
    share, perplexity = agreement["agreed"] / agreement["tokens"], math.exp(min(agreement["nll"] / agreement["tokens"], 50.0))
    said = f"{share:z.1%} of {agreement['tokens']} greedy tokens equal those of {of}, perplexity {perplexity:.2f}"
    passed = share >= LEAST_AGREEMENT
    return Finding("text", passed, said if passed else f"{said}: at least {LEAST_AGREEMENT:z.0%} have to agree")
