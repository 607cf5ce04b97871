"""Graders `rubric` and `ranking`: a judge says which criteria an answer meets, or puts the answers to a prompt into an order.

Judges prefer places (arXiv 2306.05685), of criteria too (arXiv 2602.02219). So criteria stand in an order that differs from
answer to answer. Answers to be ranked stand in a random order and in its reverse, and the mean of both places counts: two
requests for a group, where comparing pairs takes n (n - 1). A group of one answer has no rank.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from model_ops.graders.grade import AskedGroup, Grade
from model_ops.graders.judge import MATERIAL, Judge, last_object, shown

RUBRIC = f"""You check an answer against numbered criteria. For each one, say whether the answer meets it. {MATERIAL}
Reply with one JSON object and nothing else, with every number as a key: {{"1": true, "2": false}}"""
RANKING = f"""You rank answers to the same question, the best one first: correct, complete, and what was asked for. {MATERIAL}
Reply with one JSON object and nothing else, in which every letter occurs once: {{"order": ["B", "A"]}}"""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NO_REPLY = "the judge gave no usable reply"


def graded_by_rubric(judge: Judge, criteria: Sequence[str], groups: Sequence[AskedGroup]) -> list[list[Grade]]:
    """Each criterion is a part of its grade, by its number. Raises ModelError as Judge.each does."""

    def ask(asked: tuple[AskedGroup, str]) -> Grade | None:
        group, text = asked
        order = random.Random(f"{group.row_id} {text}").sample(range(len(criteria)), len(criteria))
        listed = "\n".join(f"{place}. {criteria[number]}" for place, number in enumerate(order, start=1))
        said = last_object(judge.reply(RUBRIC, shown({"question": _question(group), "criteria": listed, "answer": text})))
        met = {
            number: float(said[str(place)])
            for place, number in enumerate(order, start=1)
            if isinstance(said.get(str(place)), bool)
        }
        if len(met) < len(criteria):
            return None
        return Grade(sum(met.values()) / len(met), {str(number + 1): met[number] for number in sorted(met)})

    asked = [(group, answer.content) for group in groups for answer in group.answers]
    grades = iter(judge.each(ask, asked))
    return [[next(grades) or Grade(problem=NO_REPLY) for _ in group.answers] for group in groups]


def ranked(judge: Judge, groups: Sequence[AskedGroup]) -> list[list[Grade]]:
    """Raises ModelError as Judge.each does. Equal texts share their mean. Groups of more than 26 answers have no grade."""

    def ask(group: AskedGroup) -> list[float] | None:
        texts, last = [answer.content for answer in group.answers], len(group.answers) - 1
        if not 1 <= last < len(LETTERS):
            return []
        order = random.Random(f"{group.row_id} {texts}").sample(range(last + 1), last + 1)
        ranks = [0.0] * (last + 1)
        for shuffled in (order, order[::-1]):
            letters = dict(zip(LETTERS, shuffled, strict=False))
            parts = {"question": _question(group), **{letter: texts[number] for letter, number in letters.items()}}
            said = last_object(judge.reply(RANKING, shown(parts))).get("order")
            if not isinstance(said, list) or sorted(map(str, said)) != sorted(letters):
                return None
            for place, letter in enumerate(said):
                ranks[letters[letter]] += (last - 2 * place) / last / 2
        alike = [[each for each, other in zip(ranks, texts, strict=True) if other == text] for text in texts]
        return [sum(each) / len(each) for each in alike]

    replies = judge.each(ask, groups)
    return [
        [Grade(problem=NO_REPLY)] * len(group.answers)
        if said is None
        else [Grade(each) for each in said]
        if said
        else [Grade()] * len(group.answers)
        for group, said in zip(groups, replies, strict=True)
    ]


def _question(group: AskedGroup) -> str:
    return json.dumps(group.messages, ensure_ascii=False)
