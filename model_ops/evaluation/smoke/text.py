"""Compares a server's greedy answers with the target's own layers, or with the server's own reading of them.

A server may be fast, answer every request, and say nonsense: a wrong kernel, a drafter whose tokens are not verified, another
model's weights. Greedy tokens of the right model are ranked first by its own layers, up to ties of 16-bit arithmetic.

Where the target is too large to be loaded beside its server, the server reads its own answers as prompts and gives their
log-probabilities. Reading uses neither the drafter nor the cache that decoding fills, so drafted tokens that were not verified,
and wrong decoding kernels, show. Wrong weights do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from model_ops.evaluation.measurement import TIE_NATS
from model_ops.evaluation.smoke.answers import SmokeAnswer, SmokeResult
from model_ops.evaluation.smoke.asking import NoAnswerError, SmokeClient
from model_ops.jobs import ModelError

LEAST_AGREEMENT = 0.8
"""Least share of greedy tokens. Texts without token ids are tokenized again, and a few of their tokens are cut otherwise. The
gate served_agreement of a release is stricter, over more prompts."""
OWN_LAYERS, OWN_READING = "the target's own layers", "the server when it reads its own answers"

Scores = Callable[[list[dict[str, Any]]], dict[str, Any]]
"""Raises ModelError if the comparison cannot be made."""


def compare_text(asking: SmokeClient, answers: Sequence[SmokeAnswer], scores: Scores) -> Iterator[SmokeResult]:
    """Findings on the chat template and on the text."""
    try:
        compared = scores(
            [
                {
                    "row_id": answer.prompt.row_id,
                    "messages": answer.prompt.messages,
                    "tools": answer.prompt.tools,
                    "request": answer.prompt.request,
                    "prompt_ids": answer.prompt_ids,
                    "ids": answer.ids,
                    "text": answer.text,
                }
                for answer in answers
            ]
        )
    except ModelError as error:
        yield SmokeResult("own layers", None, str(error))
        yield _of_own_reading(asking, answers)
        return
    prompts, same = compared["prompts"], compared["same_prompts"]
    if prompts:
        said = f"{same} of {prompts} prompts have the tokens that the target was trained with"
        yield SmokeResult("template", same == prompts, said)
    yield _agreement(compared, OWN_LAYERS)


def _of_own_reading(asking: SmokeClient, answers: Sequence[SmokeAnswer]) -> SmokeResult:
    if asking.plain:
        return SmokeResult("text", None, "the server gives no token ids")
    try:
        return _agreement(read_scores(asking, answers), OWN_READING)
    except NoAnswerError as error:
        return SmokeResult("text", None, str(error))


def _agreement(agreement: dict[str, Any], of: str) -> SmokeResult:
    if not agreement["tokens"]:
        return SmokeResult("text", None, "it answered with no token")
    share, perplexity = agreement["agreed"] / agreement["tokens"], math.exp(min(agreement["nll"] / agreement["tokens"], 50.0))
    said = f"{share:z.1%} of {agreement['tokens']} greedy tokens equal those of {of}, perplexity {perplexity:.2f}"
    passed = share >= LEAST_AGREEMENT
    return SmokeResult("text", passed, said if passed else f"{said}: at least {LEAST_AGREEMENT:z.0%} have to agree")


def read_scores(asking: SmokeClient, answers: Sequence[SmokeAnswer]) -> dict[str, Any]:
    """tokens of the answers, how many of them are the likeliest (agreed), and the sum of their negative log-probabilities."""
    tokens, agreed, nll = 0, 0, 0.0
    for answer in answers:
        if not answer.prompt_ids or not answer.ids:
            continue
        ids = [*answer.prompt_ids, *answer.ids]
        choice = asking.completion(ids, echo=True, logprobs=1, max_tokens=1, temperature=0.0)
        try:
            said, first = choice["logprobs"], len(answer.prompt_ids)
            own, best = (said[name][first : len(ids)] for name in ("token_logprobs", "top_logprobs"))
            gaps = [max(top.values()) - logprob for logprob, top in zip(own, best, strict=True)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NoAnswerError("it gives no log-probabilities of a prompt (echo, logprobs)") from error
        tokens += len(gaps)
        agreed += sum(gap <= TIE_NATS for gap in gaps)
        nll -= sum(own)
    return {"tokens": tokens, "agreed": agreed, "nll": nll}
