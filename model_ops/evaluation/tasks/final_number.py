"""Task `number`: the answer's final number equals the item's, as GSM8K is scored.

    score_number(item, "... so 18 eggs. #### 18")       # 1.0

The final number is the one after the last `####`, else the last number of the text (Cobbe et al. 2021, arXiv 2110.14168).
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Literal

from model_ops.evaluation.tasks.item import Item

MARK = "####"
NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+]?\.\d+(?:[eE][-+]?\d+)?")


class NumberItem(Item):
    """A question whose answer ends in a number."""

    kind: Literal["number"] = "number"
    answer: str
    """The right number, as text such as `1,250` or `0.5`."""


def score_number(item: NumberItem, text: str) -> float:
    """1.0 if the final numbers are equal as numbers (18 equals 18.0), else 0.0."""
    found, wanted = final_number(text), final_number(item.answer)
    return float(found is not None and found == wanted)


def final_number(text: str) -> Decimal | None:
    """The number after the last ####, else the last number; None without a number."""
    marked = text.rpartition(MARK)
    found = NUMBER.findall(marked[2])[:1] if marked[1] else NUMBER.findall(text)[-1:]
    try:
        return Decimal(found[0].replace(",", "")) if found else None
    except InvalidOperation:
        return None
