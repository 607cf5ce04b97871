"""Passed answers that say least about their prompt: answers that may please their verifier and nobody else.

An answer to a question makes the question likelier than the answer to another one does; an answer that fits any question does
not. gain is (log p(prompt | answer) - log p(prompt | another prompt's answer)) per token of the prompt, under the base model,
over plain text: the mutual information of Li et al. (2016, arXiv 1510.03055), against the answers that passed. Around 0 and
below, the answer says nothing about its prompt. Each is compared with the OTHERS answers after it.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from model_ops.documents import Document, held_out_loss
from model_ops.evaluation.token_scores import scored_model
from model_ops.jobs import Progress
from model_ops.models import load_tokenizer

MOST_PASSED = 64
"""Most answers that are scored."""
MOST_TOKENS = 256
"""Most tokens that are read of a prompt's last message (its end) and of an answer (its beginning)."""
OTHERS = 2
BETWEEN = "\n\n"


class PromptScore(NamedTuple):
    """In nats per token of the prompt; given: log p(prompt | answer)."""

    row_id: str
    gain: float
    given: float


def about_prompts(base: Path, passed: dict[str, tuple[str, str]], progress: Progress) -> list[PromptScore]:
    """passed: (last message of the prompt, answer) by row; the first MOST_PASSED are scored."""
    tokenizer = load_tokenizer(base)

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    chosen, documents = list(passed.items())[:MOST_PASSED], []
    for place, (row_id, (prompt, _)) in enumerate(chosen):
        asked = ids(prompt)[-MOST_TOKENS:]
        for other in range(min(OTHERS + 1, len(chosen))):
            answer = chosen[(place + other) % len(chosen)][1][1]
            before = [*ids(answer)[:MOST_TOKENS], *ids(BETWEEN)]
            tokens = np.array([*before, *asked], np.int32)
            documents.append(Document(f"{other}:{row_id}", tokens, np.arange(len(tokens)) >= len(before)))
    losses = held_out_loss(scored_model(base), documents, progress=progress, phase="prompts of passed answers")
    given: dict[str, list[float]] = {}
    for row in losses:
        if row.tokens:
            given.setdefault(row.row_id.partition(":")[2], []).append(-row.nll_sum / row.tokens)
    scores = [PromptScore(name, own - fmean(others), own) for name, (own, *others) in given.items() if others]
    return sorted(scores, key=lambda each: (each.gain, each.row_id))
