"""Plots of the evaluation: held-out loss by model; acceptance of each drafter by draft position and by kind of prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from model_ops.evaluation.measurement import CHAMPION
from model_ops.speculators.registry import ARCHITECTURES

COLORS = {"ngram": "#c8553d", "suffix": "#e0a030", CHAMPION: "#777777",
          **{name: found.color for name, found in ARCHITECTURES.items()}}
GROUPS_SHOWN = 6
LONGEST_NAME = 32


def plot_losses(losses: dict[str, float], path: Path) -> None:
    """Bar chart of the losses in nats per token, in the given order, with values."""
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
    """Left: share of target forwards that accept the draft at each position. Right: tau with its 95 % interval. One line or
    dot per drafter and way of sampling."""
    figure, (by_position, taus) = plt.subplots(1, 2, figsize=(10.4, 4.0), width_ratios=(3, 2), layout="constrained")
    for summary in summaries:
        shares = summary["accepted_by_position"]
        by_position.plot(range(1, len(shares) + 1), shares, marker="o", color=_color(summary["drafter"]),
                         linestyle="-" if summary["sampling"] == "greedy" else "--", label=_label(summary))
    by_position.set_xlabel("draft position")
    by_position.set_ylabel("share of forwards that accept it")
    by_position.set_xticks(range(1, max(len(summary["accepted_by_position"]) for summary in summaries) + 1))
    by_position.set_ylim(0, 1)
    by_position.grid(axis="y", alpha=0.3)
    by_position.legend(frameon=False)
    by_position.spines[["top", "right"]].set_visible(False)
    for place, summary in enumerate(reversed(summaries)):
        _interval(taus, summary, place, summary["drafter"], f"{summary['tau']:.2f}")
    taus.set_yticks(range(len(summaries)), [_label(summary) for summary in reversed(summaries)])
    _tau_axis(taus)
    _save(figure, path)


def plot_groups(summaries: list[dict[str, Any]], path: Path) -> bool:
    """tau of every drafter with its 95 % interval, grouped by each property in which the prompts differ; one column per
    way of sampling. Returns False, and draws nothing, if the prompts differ in no property."""
    ways = list(dict.fromkeys(summary["sampling"] for summary in summaries))
    prompts = {(property_, group): found["prompts"] for summary in summaries
               for property_, groups in summary["tau_by"].items() if len(groups) > 1
               for group, found in _largest(groups).items()}
    if not prompts:
        return False
    figure, columns = plt.subplots(1, len(ways), figsize=(3.0 + 3.4 * len(ways), 0.42 * len(prompts) + 1.5),
                                   sharex=True, sharey=True, squeeze=False, layout="constrained")
    drafters = list(dict.fromkeys(summary["drafter"] for summary in summaries))
    for axes, way in zip(columns[0], ways, strict=True):
        for summary in (summary for summary in summaries if summary["sampling"] == way):
            shift = 0.22 * ((len(drafters) - 1) / 2 - drafters.index(summary["drafter"]))
            for place, (property_, group) in enumerate(reversed(prompts)):
                if group in summary["tau_by"][property_]:
                    _interval(axes, summary["tau_by"][property_][group], place + shift, summary["drafter"])
        axes.set_title(way, fontsize=10)
        _tau_axis(axes)
    columns[0][0].set_yticks(range(len(prompts)), [f"{property_.replace('_', ' ')}: {_short(group)} ({count})"
                                                   for (property_, group), count in reversed(prompts.items())])
    handles = [plt.Line2D([], [], marker="o", color=_color(drafter), label=drafter) for drafter in drafters]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    _save(figure, path, dpi=90)
    return True


def _largest(groups: dict[str, Any]) -> dict[str, Any]:
    """The GROUPS_SHOWN groups with the most prompts, in their own order."""
    most = sorted(groups, key=lambda name: (-groups[name]["prompts"], name))[:GROUPS_SHOWN]
    return {name: groups[name] for name in sorted(most, key=_number_first)}


def _number_first(name: str) -> tuple[int, str]:
    digits = name.split("-")[0].split(" ")[0]
    return (int(digits) if digits.isdigit() else 0, name)


def _interval(axes, found: dict[str, Any], place: float, drafter: str, text: str = "") -> None:
    color = _color(drafter)
    axes.plot([found["tau_low"], found["tau_high"]], [place, place], color=color, linewidth=1.5)
    axes.plot([found["tau"]], [place], marker="o", markersize=4, color=color)
    if text:
        axes.annotate(text, (found["tau_high"], place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8)


def _tau_axis(axes) -> None:
    axes.axvline(1, color="#888888", linewidth=0.8)
    axes.set_xlabel("tau (95 % interval)")
    axes.margins(x=0.12)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _label(summary: dict[str, Any]) -> str:
    return f"{summary['drafter']}, {summary['sampling']}"


def _color(drafter: str) -> str:
    return COLORS.get(drafter, "#1b6ca8")


def _short(group: str) -> str:
    return group if len(group) <= LONGEST_NAME else group[:LONGEST_NAME - 1] + "\u2026"


def _save(figure, path: Path, dpi: int = 120) -> None:
    figure.savefig(path, dpi=dpi, metadata={"Software": None})
    plt.close(figure)
