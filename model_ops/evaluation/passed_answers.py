"""Passed answers that say least about their prompt: answers that may please their verifier and nobody else.

    told = about_prompts(base, passed, progress)      # [PromptScore(row_id, gain, given), ...], least first

An answer to a question makes the question likelier, an answer that fits any question does not. gain is (log p(prompt | answer)
- log p(prompt)) per token of the prompt, under the base model, over plain text: the pointwise mutual information of Li et al.
(2016, arXiv 1510.03055, MMI-bidi). Around 0, the answer says nothing about its prompt.
"""

from __future__ import annotations

from pathlib import Path
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
BETWEEN = "\n\n"


class PromptScore(NamedTuple):
    """gain, given: of log p(prompt | answer) over log p(prompt), and log p(prompt | answer), in nats per prompt token."""

    row_id: str
    gain: float
    given: float


def about_prompts(base: Path, passed: dict[str, tuple[str, str]], progress: Progress) -> list[PromptScore]:
    """passed: (last message of the prompt, answer) by row; the first MOST_PASSED are scored."""
    tokenizer = load_tokenizer(base)

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    documents = []
    for row_id, (prompt, answer) in list(passed.items())[:MOST_PASSED]:
        between, asked = ids(BETWEEN), ids(prompt)[-MOST_TOKENS:]
        for name, before in (("with", [*ids(answer)[:MOST_TOKENS], *between]), ("without", between)):
            tokens = np.array([*before, *asked], np.int32)
            documents.append(Document(f"{name}:{row_id}", tokens, np.arange(len(tokens)) >= len(before)))
    found = {
        row.row_id: -row.nll_sum / row.tokens
        for row in held_out_loss(scored_model(base), documents, progress=progress, phase="prompts of passed answers")
        if row.tokens
    }
    rows = (name.removeprefix("with:") for name in found if name.startswith("with:"))
    scores = [PromptScore(row, found[f"with:{row}"] - found[f"without:{row}"], found[f"with:{row}"]) for row in rows]
    return sorted(scores, key=lambda each: (each.gain, each.row_id))
