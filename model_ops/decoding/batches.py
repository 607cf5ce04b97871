"""Splits prompts into batches of similar length, where that costs less than the padding of one large batch.

    for rows in batches([900, 40, 35, 870], most=64, per_batch=2_000): ...      # [[0, 3], [1, 2]], rows by length

A batch pads its prompts to the longest one. A further batch costs its own rounds of decoding, each of which takes as long as a
number of prompt tokens, however few its rows are. The split with the least sum of both is found exactly (dynamic programming
over prompts sorted by length).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ROUND_TOKENS = {"cpu": 60}
"""Prompt tokens that take as long as a round of one row: weights that are read, and overhead. Measured: 62 with a model of 10M
parameters on two cores (8.8 ms a round, 0.14 ms a prompt token). A larger model has a smaller share of overhead."""
ROUND_TOKENS_ELSEWHERE = 500
"""The same number on an accelerator: an estimate from its ratio of arithmetic to memory bandwidth, not measured."""


def cost_of_rounds(device: str, rounds: int) -> int:
    """Prompt tokens that take as long as so many rounds of a batch without rows. device: its type."""
    return rounds * ROUND_TOKENS.get(device, ROUND_TOKENS_ELSEWHERE)


def batches(lengths: Sequence[int], most: int, per_batch: int) -> list[list[int]]:
    """Places of the prompts by batch, longest first; at most `most` in each. per_batch: cost of a batch beside its padded
    prompts, in tokens."""
    order = sorted(range(len(lengths)), key=lambda row: lengths[row], reverse=True)
    longest = np.array([lengths[row] for row in order], dtype=np.int64)
    # of the first prompts: what the best split costs, and where its last batch begins
    least, begins = np.zeros(len(order) + 1, np.int64), [0]
    for end in range(1, len(order) + 1):
        begin = np.arange(max(0, end - most), end)
        costs = least[begin] + (end - begin) * longest[begin] + per_batch
        best = int(costs.argmin())
        least[end] = costs[best]
        begins.append(int(begin[best]))
    found, end = [], len(order)
    while end:
        found.append(order[begins[end]:end])
        end = begins[end]
    return found[::-1]
