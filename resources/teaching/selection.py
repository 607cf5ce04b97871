"""Chooses one of several answers to a prompt: the best by score; ties by seed; none where all are below the least score.

    chosen = choose(candidates, settings, seed_text="row-7")       # the place of the kept one, or None
    pairs(candidates, chosen, settings)                             # places of rejected answers to learn preferences from
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from resources.teaching.kept_answers import KeptAnswer
from resources.teaching.settings import VerifySettings


@dataclass(frozen=True)
class Candidate:
    """One answer."""

    sample: int
    key: str
    """Key of its request."""
    answer: KeptAnswer
    score: float | None = None
    """None if it was not, or could not be, verified."""


def choose(candidates: Sequence[Candidate], settings: VerifySettings | None, seed: int, row_id: str) -> int | None:
    """The place of the answer that is kept. Without a verifier, or where it cannot score the row: the first by seed, unless the
    settings drop such rows."""

    def drawn(place: int) -> str:
        return hashlib.sha256(f"{seed} {row_id} {candidates[place].sample}".encode()).hexdigest()

    usable = [place for place, found in enumerate(candidates) if found.answer.message is not None]
    scored = [place for place in usable if candidates[place].score is not None]
    if settings is None or not scored:
        keeps = settings is None or settings.unverifiable == "keep"
        return min(usable, key=drawn, default=None) if keeps else None
    best = max(candidates[place].score for place in scored)
    if best < settings.least:
        return None
    return min((place for place in scored if candidates[place].score == best), key=drawn)


def pairs(candidates: Sequence[Candidate], chosen: int | None, settings: VerifySettings | None) -> list[int]:
    """Places of the answers that scored below the least score where another one was kept for its score: each is the rejected
    half of a preference."""
    if settings is None or chosen is None or candidates[chosen].score is None:
        return []
    seen = {candidates[chosen].answer.message_text}
    found = []
    for place, each in enumerate(candidates):
        if each.score is not None and each.score < settings.least and each.answer.message_text not in seen:
            seen.add(each.answer.message_text)
            found.append(place)
    return found
