"""Charts of a release's pages as inline SVG: no script, no network, narrow enough for a phone.

A report has charts of losses, acceptance by position and by shape of prompts, speed and latency by concurrency. Text is
escaped; colours of text and axes follow the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from model_ops.evaluation import AS_LOGGED
from resources.releasing.server_sections import FORMS
from resources.releasing.server_sections import TITLE as IN_A_SERVER

WIDTH, LABELS, ROW, RIGHT = 360, 124, 24, 52
COLORS = ("#2a7fb8", "#c8553d", "#4f9d69", "#8f6bb3", "#d09a2c", "#6b7280")
LONGEST_LABEL = 18


@dataclass(frozen=True)
class Bar:
    """low, high: the 95 % interval, if it is known."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None


def bars(title: str, given: Sequence[Bar], unit: str, digits: int = 3, whole_labels: bool = False) -> Markup:
    """Horizontal bars with intervals, from 0, in the given order. whole_labels: each label above its bar, uncut; names of
    shapes must be whole, so that an erasure finds them."""
    most = max((bar.high if bar.high is not None else bar.value for bar in given), default=1.0) or 1.0
    left, row = (0, 2 * ROW - 12) if whole_labels else (LABELS, ROW)
    room = WIDTH - left - RIGHT
    parts = []
    for place, bar in enumerate(given):
        y = 8 + place * row
        if whole_labels:
            parts.append(Markup('<text x="0" y="{}">{}</text>').format(y + 9, bar.label))
            y += 14
        else:
            parts.append(Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(left - 6, y + 11, _short(bar.label)))
        length = max(0.0, bar.value / most * room)
        parts.append(Markup('<rect x="{}" y="{}" width="{:.1f}" height="13" fill="{}"/>').format(left, y, length, COLORS[0]))
        if bar.low is not None and bar.high is not None:
            parts.append(
                Markup('<path d="M{:.1f} {}H{:.1f}" stroke="currentColor" stroke-width="1.5"/>').format(
                    left + max(0.0, bar.low) / most * room, y + 6.5, left + bar.high / most * room
                )
            )
        parts.append(
            Markup('<text x="{:.1f}" y="{}">{}</text>').format(
                left + max(length, (bar.high or 0) / most * room) + 5, y + 11, f"{bar.value:z.{digits}f}"
            )
        )
    return _figure(title, unit, 12 + len(given) * row, parts)


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str) -> Markup:
    """One line per series over at least one point; x values are evenly spaced, as concurrencies double."""
    places = sorted({x for points in series.values() for x, _ in points})
    most, least = (chosen((0.0, *(y for points in series.values() for _, y in points))) for chosen in (max, min))
    span = (most - least) or 1.0
    left, top, bottom = 46, 10, 150
    step = (WIDTH - left - 16) / max(1, len(places) - 1)
    at = {x: left + index * step if len(places) > 1 else (left + WIDTH) / 2 for index, x in enumerate(places)}
    parts = [
        Markup('<path d="M{0} {1}V{2}H{3}" fill="none" stroke="currentColor" opacity=".4"/>').format(
            left, top, bottom, WIDTH - 10
        )
    ]
    for share in (0, 0.5, 1):
        parts.append(
            Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                left - 5, bottom - share * (bottom - top) + 4, _number(least + share * span)
            )
        )
    parts += [
        Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(at[x], bottom + 15, _number(x)) for x in places
    ]
    for index, (name, points) in enumerate(series.items()):
        color, dash = COLORS[index % len(COLORS)], "4 3" if index >= len(COLORS) else "none"
        drawn = [(at[x], bottom - (y - least) / span * (bottom - top)) for x, y in points]
        path = " ".join(f"{'M' if not place else 'L'}{x:.1f} {y:.1f}" for place, (x, y) in enumerate(drawn))
        parts.append(
            Markup('<path d="{}" fill="none" stroke="{}" stroke-width="2" stroke-dasharray="{}"/>').format(path, color, dash)
        )
        parts += [Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}"/>').format(x, y, color) for x, y in drawn]
        y = bottom + 34 + index * 16
        parts.append(
            Markup(
                '<path d="M{} {}h18" stroke="{}" stroke-width="2" stroke-dasharray="{}"/><text x="{}" y="{}">{}</text>'
            ).format(left, y - 4, color, dash, left + 24, y, _short(name, 40))
        )
    return _figure(title, f"{y_label} by {x_label}", bottom + 30 + len(series) * 16, parts)


def _figure(title: str, about: str, height: float, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<figure><figcaption><b>{}</b><br>{}</figcaption><svg viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">{}'
        "</svg></figure>"
    ).format(title, about, WIDTH, height, title, Markup("").join(parts))


def _short(text: str, longest: int = LONGEST_LABEL) -> Markup:
    return escape(text if len(text) <= longest else f"{text[: longest - 1]}\u2026")


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) < 0.001:
        return f"{value:.1e}".replace("e-0", "e-")
    return f"{value:.2g}"


LOSSES, ACCEPTANCE = "Models on held-out sessions", "Acceptance length"
"""Titles of sections with charts."""
SHAPES_SHOWN = 8


def report_charts(report: Mapping[str, Any], speed: Mapping[str, Any], losses: Mapping[str, float]) -> dict[str, list[Markup]]:
    """By the title of the section that they belong to; only those that something was measured for."""
    by_section = {
        LOSSES: [bars("Held-out loss", [Bar(name, loss) for name, loss in losses.items()], "nats per answer token")]
        if losses
        else [],
        IN_A_SERVER: _in_a_server(speed.get("in_server", {})),
        ACCEPTANCE: _acceptance(report),
    }
    return {title: charts for title, charts in by_section.items() if charts}


def _acceptance(report: Mapping[str, Any]) -> list[Markup]:
    """Of the way of sampling that gates speak of: as logged, else the last one that was measured."""
    drafted = [each for each in report.get("acceptance", []) if each["drafter"] != "none"]
    if not drafted:
        return []
    ways = [each["sampling"] for each in drafted]
    way = AS_LOGGED if AS_LOGGED in ways else ways[-1]
    chosen = [each for each in drafted if each["sampling"] == way]
    charts = [
        bars(
            "Acceptance length",
            [
                Bar(f"{each['drafter']}, K {each['num_speculative_tokens']}", each["tau"], each["tau_low"], each["tau_high"])
                for each in chosen
            ],
            f"tokens per forward, {way}",
            2,
        ),
        lines(
            "Acceptance by position",
            {each["drafter"]: list(enumerate(each["accepted_by_position"], 1)) for each in chosen},
            "draft position",
            f"share of forwards that accept it, {way}",
        ),
    ]
    shapes = chosen[-1].get("tau_by", {}).get("prompt_shape", {})
    if len(shapes) > 1:
        most = sorted(shapes.items(), key=lambda each: (-each[1]["prompts"], each[0]))[:SHAPES_SHOWN]
        charts.append(
            bars(
                f"Acceptance length of {chosen[-1]['drafter']} by shape of the prompt",
                [Bar(f"{name} ({of['prompts']})", of["tau"], of["tau_low"], of["tau_high"]) for name, of in most],
                f"tokens per forward, {way}; prompts in brackets",
                2,
                whole_labels=True,
            )
        )
    return charts


def _in_a_server(speed: Mapping[str, Any]) -> list[Markup]:
    forms = {FORMS.get(name, name): form["tokens_per_second"] for name, form in speed.get("forms", {}).items()}
    if not forms:
        return []
    charts = [
        lines(
            "Tokens/s in a real server",
            {name: [(int(each), rate["median"]) for each, rate in rates.items()] for name, rates in forms.items()},
            "requests at a time",
            "tokens/s, median",
        )
    ]
    late = {
        f"{name}, {end}": [(int(each), 1_000 * rate[f"{end}_s"]) for each, rate in rates.items()]
        for name, rates in forms.items()
        for end in ("p50", "p99")
        if all(f"{end}_s" in rate for rate in rates.values())
    }
    if late:
        charts.append(lines("Latency in a real server", late, "requests at a time", "milliseconds of a whole answer"))
    return charts
