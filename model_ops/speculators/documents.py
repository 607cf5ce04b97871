"""A batch of documents for a drafter's training forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Documents:
    """Documents padded on the right to one length, and the window of each that step 0 is trained on.

    Entry a of a window has index j = start + a.

    ids: tokens x[0..]
    captured: the target's hidden states at the block boundaries that the drafter reads
    start: index j of each window's first entry
    window: number of entries in the longest window
    final: the target's hidden state after its final norm, at every entry
    windows: number of entries of each window; None: all windows have the longest length
    kept: for each draft step, the entries (indices into documents * window) to compute; None: all
    anchors: the entries at which a block drafter begins a block; None: all
    """

    ids: Int[Tensor, "documents tokens"]
    captured: Float[Tensor, "documents tokens captured*hidden"]
    start: Int[Tensor, " documents"]
    window: int
    final: Float[Tensor, "documents window hidden"] | None = None
    windows: Int[Tensor, " documents"] | None = None
    kept: Sequence[Int[Tensor, " entries"]] | None = None
    anchors: Bool[Tensor, "documents window"] | None = None
