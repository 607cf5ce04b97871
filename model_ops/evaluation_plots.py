"""The evaluation's two pictures: held-out loss by model, and acceptance by position of each drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

COLORS = {"eagle3": "#1b6ca8", "ngram": "#c8553d"}


def plot_losses(losses: dict[str, float], path: Path) -> None:
    """Bars of nats per token, in the order given; each labelled with its value."""
    figure, axes = plt.subplots(figsize=(6.4, 0.5 * len(losses) + 1.4), layout="constrained")
    names = list(losses)[::-1]
    values = [losses[name] for name in names]
    bars = axes.barh(names, values, color="#1b6ca8", height=0.6)
    axes.bar_label(bars, fmt="%.3f", padding=4)
    axes.set_xlabel("held-out loss, nats per assistant token (lower is better)")
    axes.set_xlim(0, max(values) * 1.15)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def plot_acceptance(summaries: list[dict[str, Any]], path: Path) -> None:
    """Share of target forwards that accept the draft at each position; one line a drafter and temperature."""
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for summary in summaries:
        shares = summary["accepted_by_position"]
        axes.plot(range(1, len(shares) + 1), shares, marker="o", color=COLORS.get(summary["drafter"], "#444444"),
                  linestyle="-" if summary["temperature"] == 0 else "--",
                  label=f"{summary['drafter']}, T = {summary['temperature']:g}: tau {summary['tau']:.2f}")
    axes.set_xlabel("draft position")
    axes.set_ylabel("share of forwards that accept it")
    axes.set_xticks(range(1, max(len(summary["accepted_by_position"]) for summary in summaries) + 1))
    axes.set_ylim(0, 1)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _save(figure, path: Path) -> None:
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)
