"""Decodes a model with a state besides keys and values (a linear recurrence, a convolution): transformers' own cache, one row
after the other.

    runner = StatefulModel(model)        # `model_ops.decoding.runner` chooses it

A state has no entries by position that could be left out, so a row whose drafts are taken back continues from a copy of its
cache that was made before them, and runs the accepted tokens again. After a row's first tokens the model gets one token at a
time, which every implementation of such layers supports.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache

from model_ops.decoding.transformers_runner import TransformersRunner


@dataclass
class _Row:
    """A row's tokens and the cache after all of them."""

    tokens: list[int] = field(default_factory=list)
    cache: Any = None
    before: tuple[int, Any] | None = None
    """(number of tokens, cache) before the last drafts, or None."""


class StateCache:
    """One transformers cache for each row."""

    def __init__(self, rows: int, device: torch.device | str):
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.rows = [_Row() for _ in range(rows)]

    def advance(self, tokens: int) -> None:
        """Makes `tokens` more of every row visible."""
        self.lengths = self.lengths + tokens

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Keeps only these rows, in this order."""
        self.lengths = self.lengths[rows]
        self.rows = [self.rows[row] for row in rows.tolist()]


class StatefulModel(TransformersRunner):
    """A causal language model over transformers' own caches."""

    def new_cache(self, rows: int) -> StateCache:
        """An empty cache for `rows` rows."""
        return StateCache(rows, self.device)

    def forward(self, ids: Int[Tensor, "rows tokens"], cache: StateCache, capture: Sequence[int] = (),
                ) -> tuple[Float[Tensor, "rows tokens hidden"], Float[Tensor, "rows tokens captured*hidden"] | None]:
        """Hidden states after the final norm of the next tokens of every row, and the captured states (None without any).

        The tokens become part of a row when the caller adds to `cache.lengths`.
        """
        found = [self._row(row, tokens, length, capture)
                 for row, tokens, length in zip(cache.rows, ids.tolist(), cache.lengths.tolist(), strict=True)]
        hidden = torch.cat([states for states, _ in found])
        return hidden, torch.cat([captured for _, captured in found]) if capture else None

    def _row(self, row: _Row, new: list[int], length: int, capture: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """The states of a row's new tokens, after its first `length` tokens."""
        self._rewind(row, length)
        if length and len(new) > 1:
            row.before = (length, copy.deepcopy(row.cache))
        found = self._read(row, new, capture)
        return torch.cat([states for states, _ in found], 1), torch.cat([of for _, of in found], 1) if capture else None

    def _rewind(self, row: _Row, length: int) -> None:
        """Brings the cache to the row's first `length` tokens."""
        if length == len(row.tokens):
            return
        kept = row.tokens[:length]
        row.tokens, row.cache = [], None
        if row.before is not None and row.before[0] <= length:
            row.tokens, row.cache = kept[:row.before[0]], row.before[1]
        row.before = None
        if len(row.tokens) < length:
            self._read(row, kept[len(row.tokens):], ())

    def _read(self, row: _Row, tokens: list[int], capture: Sequence[int]) -> list[tuple[Tensor, Tensor | None]]:
        """Runs a row's next tokens: the first ones at once, later ones one by one."""
        if row.cache is None:
            row.cache = DynamicCache(config=self.config)
            steps = [tokens]
        else:
            steps = [[token] for token in tokens]
        found = []
        for step in steps:
            positions = torch.arange(len(row.tokens), len(row.tokens) + len(step), device=self.device)[None]
            found.append(self.run(capture, input_ids=torch.tensor([step], device=self.device), position_ids=positions,
                                  past_key_values=row.cache, use_cache=True))
            row.tokens.extend(step)
        return found
