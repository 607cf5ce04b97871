"""Similarity of two texts, 0 to 1: what OpenAI's grader `text_similarity` names, but for embeddings and METEOR.

    similarity("rouge_l", "the cat sat", "the cat")       # 0.8

fuzzy_match   2 LCS / (n + m) over characters: the normalized Indel similarity
bleu          1- to 4-gram precisions, add-one smoothing from 2-grams on (Lin and Och 2004), brevity penalty
gleu          the smaller one of precision and recall over all 1- to 4-grams (Wu et al. 2016, arXiv 1609.08144)
rouge_1 ... 5, rouge_l     F1 of n-grams; of the longest common subsequence of words (Lin 2004)

Words are runs of letters and digits in lower case; BLEU and GLEU split at white space and keep case.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

LONGEST = 100_000
"""Most characters of a text that is compared."""


def similarity(metric: str, text: str, reference: str) -> float:
    """metric: one of METRICS."""
    return METRICS[metric](text[:LONGEST], reference[:LONGEST])


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence, a row of the table in the bits of a number (Hyyro 2004)."""
    places: dict[str, int] = {}
    for place, each in enumerate(first):
        places[each] = places.get(each, 0) | 1 << place
    whole = (1 << len(first)) - 1
    row = whole
    for each in second:
        common = row & places.get(each, 0)
        row = ((row + common) | (row - common)) & whole
    return len(first) - row.bit_count()


def _grams(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[place : place + size]) for place in range(len(words) - size + 1))


def _f1(common: int, first: int, second: int) -> float:
    return 2 * common / (first + second) if first + second else 0.0  # as rouge_score: texts shorter than n words have none


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _rouge(size: int) -> Callable[[str, str], float]:
    def score(text: str, reference: str) -> float:
        own, wanted = _grams(_words(text), size), _grams(_words(reference), size)
        return _f1((own & wanted).total(), own.total(), wanted.total())

    return score


def _rouge_l(text: str, reference: str) -> float:
    own, wanted = _words(text), _words(reference)
    return _f1(common_subsequence(own, wanted), len(own), len(wanted))


def _fuzzy_match(text: str, reference: str) -> float:
    return _f1(common_subsequence(text, reference), len(text), len(reference))


def _bleu(text: str, reference: str) -> float:
    own, wanted = text.split(), reference.split()
    if not own or not wanted:
        return float(own == wanted)
    logs = 0.0
    for size in range(1, 5):
        grams, extra = _grams(own, size), int(size > 1)
        right = (grams & _grams(wanted, size)).total() + extra
        if not right:
            return 0.0
        logs += math.log(right / (grams.total() + extra)) / 4
    return math.exp(logs + min(0.0, 1 - len(wanted) / len(own)))


def _gleu(text: str, reference: str) -> float:
    own, wanted = (sum((_grams(each.split(), size) for size in range(1, 5)), Counter()) for each in (text, reference))
    most = max(own.total(), wanted.total())
    return (own & wanted).total() / most if most else 0.0


METRICS: dict[str, Callable[[str, str], float]] = {
    "fuzzy_match": _fuzzy_match,
    "bleu": _bleu,
    "gleu": _gleu,
    **{f"rouge_{size}": _rouge(size) for size in range(1, 6)},
    "rouge_l": _rouge_l,
}
"""Name -> (text, reference) -> similarity."""
