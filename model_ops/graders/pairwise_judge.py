"""A judge model compares two answers to an item, asked twice with the answers in either order.

An answer wins only if it is preferred in both orders, because judges prefer a position (Zheng et al. 2023, arXiv 2306.05685).
A judge that looks at little else is refused.
"""

from __future__ import annotations

import json
from collections import Counter
from threading import Lock

from model_ops.graders.judge import MATERIAL, Judge, last_object, shown
from model_ops.graders.settings import AnswerJudgeSettings
from model_ops.jobs import ModelError
from model_ops.tasks import JudgedItem

PROMPT = f"""You compare two answers, A and B, to the same question. Which one is correct, complete, and what was asked for?
{MATERIAL}
Reply with one JSON object and nothing else: {{"better": "A"}}, {{"better": "B"}} or {{"better": "tie"}}"""

OF_A_PLACE, FEWEST_OF_A_PLACE = 0.9, 20
"""Share of decided pairs, and number of them, from which a judge that prefers one place is refused. One that tosses coins
prefers the first place in a quarter of its pairs."""


class PairwiseJudge(Judge):
    """A judge that compares answers."""

    def __init__(self, settings: AnswerJudgeSettings, key: str = "evaluation.tasks.judge"):
        super().__init__(settings, key)
        self._said: Counter[tuple[str, str]] = Counter()
        self._counting = Lock()

    def compare_all(self, pairs: list[tuple[JudgedItem, str, str]]) -> list[float | None]:
        """`compare` for each (item, own answer, other answer), several at a time.

        Raises ModelError if the server refuses, or replies usably to too few items.
        """
        preferred = self.each(lambda pair: self.compare(*pair), pairs)
        self._refuse_a_place()
        return preferred

    def _refuse_a_place(self) -> None:
        """Raises ModelError for a judge that prefers the same place, whichever answer stands there."""
        with self._counting:
            of_place = {place: self._said[place, place] for place in "AB"}
            of_answer = self._said["A", "B"] + self._said["B", "A"]
        place, most = max(of_place.items(), key=lambda each: each[1])
        if most >= FEWEST_OF_A_PLACE and most >= OF_A_PLACE * (of_answer + sum(of_place.values())):
            raise ModelError(
                f"the judge at {self.settings.base_url} preferred answer {place} in both orders for {most:,} of "
                f"{of_answer + sum(of_place.values()):,} pairs that it decided, so it says nothing of the answers: "
                f"choose another {self.key}.model"
            )

    def compare(self, item: JudgedItem, own: str, other: str) -> float | None:
        """Which answer is better; None if either order has no usable reply."""
        first, second = self._better(item, own, other), self._better(item, other, own)
        if first is None or second is None:
            return None
        with self._counting:
            self._said[first, second] += 1
        if (first, second) == ("A", "B"):
            return 1.0
        return -1.0 if (first, second) == ("B", "A") else 0.0

    def _better(self, item: JudgedItem, first: str, second: str) -> str | None:
        """`A`, `B` or `tie`; None for anything else."""
        question = json.dumps(item.messages, ensure_ascii=False)
        parts = {"question": question, "reference": item.reference, "A": first, "B": second}
        text = shown({name: each for name, each in parts.items() if each or name in "AB"})
        said = last_object(self.reply(PROMPT, text)).get("better")
        return said if said in ("A", "B", "tie") else None
