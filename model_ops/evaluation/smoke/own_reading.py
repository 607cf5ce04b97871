"""Log-probabilities of a server's own answers, read back as prompts: for targets too large to be loaded a second time.

    read_scores(asking, answers)         # {"tokens", "agreed", "nll"}; raises NotAnswered

Reading uses neither the drafter nor the cache that decoding fills, so drafted tokens that were not verified, and wrong decoding
kernels, show. Wrong weights do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model_ops.evaluation.smoke.answers import SmokeAnswer
from model_ops.evaluation.smoke.asking import Asking, NotAnswered
from model_ops.evaluation.tie import TIE_NATS


def read_scores(asking: Asking, answers: Sequence[SmokeAnswer]) -> dict[str, Any]:
    """tokens of the answers, how many of them are the likeliest (agreed), and the sum of their negative log-probabilities."""
    tokens, agreed, nll = 0, 0, 0.0
    for answer in answers:
        if not answer.prompt_ids or not answer.ids:
            continue
        ids = [*answer.prompt_ids, *answer.ids]
        choice = asking.completion(ids, echo=True, logprobs=1, max_tokens=1, temperature=0.0)
        try:
            said, first = choice["logprobs"], len(answer.prompt_ids)
            own, best = (said[name][first:len(ids)] for name in ("token_logprobs", "top_logprobs"))
            gaps = [max(top.values()) - logprob for logprob, top in zip(own, best, strict=True)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotAnswered("it gives no log-probabilities of a prompt (echo, logprobs)") from error
        tokens += len(gaps)
        agreed += sum(gap <= TIE_NATS for gap in gaps)
        nll -= sum(own)
    return {"tokens": tokens, "agreed": agreed, "nll": nll}
