"""Items of a made task: to begin with, to train on, and to measure on. No question that is measured is ever learnt.

    drawn = drawn_items(letters, (960, 960, 256), seed)      # drawn.start, drawn.prompts, drawn.held_out

tests/benchmarks/test_held_out.py asserts of every benchmark that it measures on nothing that was learnt.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

Item = dict[str, Any]
DRAWS = 8
"""Items drawn for each held-out one: repeated and learnt ones are left out."""


class DrawnItems(NamedTuple):
    """start: what the first fine-tuning learns. prompts: what is trained on after it. held_out: distinct, in neither."""

    start: list[Item]
    prompts: list[Item]
    held_out: list[Item]


def drawn_items(draw: Callable[[int, int], list[Item]], counts: tuple[int, int, int], seed: int) -> DrawnItems:
    """`draw` makes (number, seed) items, with the key `question`. Raises ValueError for a task of too few questions."""
    start, prompts = draw(counts[0], seed * 7), draw(counts[1], seed * 7 + 1)
    learnt = {each["question"] for each in (*start, *prompts)}
    fresh = {each["question"]: each for each in draw(DRAWS * counts[2], seed * 7 + 2) if each["question"] not in learnt}
    if len(fresh) < counts[2]:
        raise ValueError(f"only {len(fresh)} of {counts[2]} questions are not learnt: the task is too small to hold items out")
    return DrawnItems(start, prompts, list(fresh.values())[: counts[2]])
