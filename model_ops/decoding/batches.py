"""Splits prompts into batches of similar length, where that costs less than the padding of one large batch.

    for rows in batches([900, 40, 35, 870], most=64, per_batch=2_000): ...      # [[0, 3], [1, 2]], rows by length

A batch pads its prompts to the longest one. A further batch costs its own rounds of decoding, each of which takes as long as a
number of prompt tokens, however few its rows are. The split with the least sum of both is found exactly (dynamic programming
over prompts sorted by length).
"""

from __future__ import annotations

from collections.abc import Sequence

ROUND_TOKENS = {"cpu": 40}
"""Prompt tokens that take as long as what a round costs beside its rows: weights that are read, and overhead. Measured with a
model of 10M parameters on two cores; larger models have a smaller share of overhead there."""
ROUND_TOKENS_ELSEWHERE = 500
"""The same on an accelerator, by its ratio of arithmetic to memory bandwidth and the overhead of small kernels."""


def cost_of_rounds(device: str, rounds: int) -> int:
    """Prompt tokens that take as long as so many rounds of a batch without rows. device: its type."""
    return rounds * ROUND_TOKENS.get(device, ROUND_TOKENS_ELSEWHERE)


def batches(lengths: Sequence[int], most: int, per_batch: int) -> list[list[int]]:
    """Places of the prompts by batch, longest first; at most `most` in each. per_batch: cost of a batch beside its padded
    prompts, in tokens."""
    order = sorted(range(len(lengths)), key=lambda row: lengths[row], reverse=True)
    least, begins = [0], [0]  # of the first prompts: the cost of the best split, and where its last batch begins
    for end in range(1, len(order) + 1):
        cost, begin = min((least[begin] + (end - begin) * lengths[order[begin]] + per_batch, begin)
                          for begin in range(max(0, end - most), end))
        least.append(cost)
        begins.append(begin)
    found, end = [], len(order)
    while end:
        found.append(order[begins[end]:end])
        end = begins[end]
    return found[::-1]
