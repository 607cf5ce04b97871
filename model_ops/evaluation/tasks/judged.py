"""Task `judge`: a judge model says which of two answers is better. Its comparison is in pairwise_judge.py."""

from __future__ import annotations

from typing import Literal

from model_ops.evaluation.tasks.item import Item


class JudgedItem(Item):
    """A question whose answers a judge compares."""

    kind: Literal["judge"] = "judge"
    reference: str = ""
    """An answer that is known to be right, which the judge sees; "" for none."""
