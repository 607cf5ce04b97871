"""The recipe's `release.drafting`: how it is decided what a release drafts with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from model_ops.serving.drafting_choice import P99_ABOVE
from model_ops.settings import Settings


class DraftingSettings(Settings):
    """What the release's serve scripts draft with."""

    choose: Literal["measured", "drafter", "none"] = Field(
        "measured", description="measured: what was fastest in the server of `evaluation.server`, or, where none is named, the "
        "drafter if it drafts better than the n-gram lookup. drafter: the trained drafter. none: no drafting")
    concurrency: list[Annotated[int, Field(ge=1, le=256)]] | None = Field(
        None, min_length=1, description="Requests at a time of the endpoint, which decide; each must be among "
        "`evaluation.server.concurrencies`. Left out: all of these")
    p99_above: float = Field(
        P99_ABOVE, ge=0, le=10, description="Most share by which the p99 latency of a drafting (of few requests, a lower "
        "quantile) may exceed that without drafting, at each concurrency")
