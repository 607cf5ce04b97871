"""Decides whether the target's hidden states are cached on disk or computed with each batch.

A cache takes 2 * hidden * (captured + 1) bytes per token and is read once per epoch; `online` costs a forward pass of the
target in every epoch. `auto` uses the cache if rows are read more than once and it fits (measured: docs/speculators.md).
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from model_ops.jobs import ModelError, counted, filled
from model_ops.speculators.settings import SpeculatorSettings
from model_ops.speculators.states.hidden_states import AnswerRow, bytes_of

GIB = 2**30
DISK_SHARE = 0.8
"""Share of the free disk space that a cache may take if the settings give no budget."""


@dataclass(frozen=True)
class StateChoice:
    """The decision, and its reason."""

    mode: Literal["online", "cache"]
    reason: str
    cache_gib: float = 0.0


def choose_states(
    settings: SpeculatorSettings, rows: Sequence[AnswerRow], captured: int, hidden_size: int, folder: Path, there: int = 0
) -> StateChoice:
    """Chooses between cache and online. settings: resolved. captured: boundary states per token. there: bytes of the cache that
    exist in `folder` already.

    Raises ModelError if the settings require a cache that exceeds its budget or the disk.
    """
    if settings.hidden_states == "online":
        return StateChoice("online", "asked for")
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(bytes_of(row, captured, hidden_size) for row in rows)
    disk = shutil.disk_usage(folder).free * DISK_SHARE + there
    budget = disk if settings.cache_gib is None else min(settings.cache_gib * GIB, disk)
    what = f"hidden states of {counted(len(rows), 'answer')} take {_binary(needed)}"
    if settings.hidden_states == "auto":
        read = reads(settings, rows)
        if read <= 1:
            return StateChoice("online", "each answer is read once: a cache would be written to be read once")
        if needed > budget:
            return StateChoice("online", f"{what} and a cache may take {_binary(budget)}")
        return StateChoice("cache", f"each answer is read {read:.1f} times, and {what}", needed / GIB)
    if needed > budget:
        limit = "cache_gib allows" if budget < disk else "of disk are free"
        room = f"{limit} {_binary(budget)}" if budget < disk else f"{_binary(budget)} {limit}"
        raise ModelError(
            f"{what} and {room}: {fitting(rows, captured, hidden_size, budget)} of them would fit; set "
            "hidden_states to online, answers.prompts lower, or cache_gib higher"
        )
    return StateChoice("cache", what, needed / GIB)


def _binary(count: float) -> str:
    return f"{count / GIB:.2f} GiB" if count >= 0.1 * GIB else f"{count / 2**20:,.1f} MiB"


def reads(settings: SpeculatorSettings, rows: Sequence[AnswerRow]) -> float:
    """Number of times that the average answer is read during training."""
    if settings.steps is None:
        return filled(settings.epochs)
    return settings.steps * filled(settings.tokens_per_step) / max(1, sum(len(row.ids) for row in rows))


def fitting(rows: Sequence[AnswerRow], captured: int, hidden_size: int, budget: float) -> int:
    """Number of answers, in their order, that fit into a cache of `budget` bytes."""
    count = 0
    for row in rows:
        budget -= bytes_of(row, captured, hidden_size)
        if budget < 0:
            break
        count += 1
    return count
