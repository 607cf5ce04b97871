"""Charts of pages as inline SVG: no script, no network, narrow enough for a phone. A page's classes colour them (s0 to s3 for
series, rule, line, whisker). A mark that stands for a value has a <title>, which browsers show as a tooltip. Text is escaped.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TypeVar

from markupsafe import Markup, escape

WIDTH, LEFT, RIGHT, TOP, PLOT = 360, 40, 6, 8, 120
LABELS, ROW, FIGURES = 124, 24, 52
"""Of bars: room for labels and figures, and the height of one."""
LONGEST_LABEL = 18
FEW = 7
"""At most this many days have a label each."""
SERIES = 4
"""Colours that a page has for series: classes s0 to s3; further series are dashed."""
Place = TypeVar("Place", date, float)
"""Of a point along a line."""


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
    room = WIDTH - left - FIGURES
    parts = []
    for place, bar in enumerate(given):
        y = 8 + place * row
        if whole_labels:
            parts.append(Markup('<text x="0" y="{}">{}</text>').format(y + 9, bar.label))
            y += 14
        else:
            parts.append(Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(left - 6, y + 11, _short(bar.label)))
        length = max(0.0, bar.value / most * room)
        parts.append(Markup('<rect class="s0" x="{}" y="{}" width="{:.1f}" height="13"/>').format(left, y, length))
        if bar.low is not None and bar.high is not None:
            ends = left + max(0.0, bar.low) / most * room, y + 6.5, left + bar.high / most * room
            parts.append(Markup('<path class="whisker" d="M{:.1f} {}H{:.1f}"/>').format(*ends))
        x = left + max(length, (bar.high or 0) / most * room) + 5
        parts.append(Markup('<text x="{:.1f}" y="{}">{}</text>').format(x, y + 11, f"{bar.value:z.{digits}f}"))
    return figure(title, unit, 12 + len(given) * row, parts)


def lines(
    title: str, about: str, series: Mapping[str, Sequence[tuple[Place, float]]], digits: int = 3, from_zero: bool = True
) -> Markup:
    """A line for each series, by day or by numbers, which are evenly spaced, as concurrencies double. A place without a value
    has no point. from_zero: whether the axis begins at 0, unless a value is below it."""
    places = sorted({place for points in series.values() for place, _ in points})
    values = [value for points in series.values() for _, value in points] or [0.0]
    low, top = (0.0, nice_top(max(values))) if from_zero and min(values) >= 0 else nice_bounds(min(values), max(values))
    room = WIDTH - LEFT - RIGHT - 16
    at = {place: LEFT + 8 + _share(place, places) * room for place in places}
    parts = _axes(top, [], low)
    parts += _place_labels(places, at)
    for index, (name, points) in enumerate(series.items()):
        drawn = [(at[place], TOP + PLOT - (value - low) / ((top - low) or 1.0) * PLOT, place, value) for place, value in points]
        path = " ".join(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y, _, _) in enumerate(drawn))
        dash = "4 3" if index >= SERIES else "none"
        parts.append(Markup('<path class="line l{}" stroke-dasharray="{}" d="{}"/>').format(index % SERIES, dash, path))
        radius = 2.6 if len(drawn) < 32 else 1.6
        for x, y, place, value in drawn:
            parts.append(_circle(index % SERIES, x, y, radius, f"{name}, {place}: {value:,.{digits}g}"))
    return figure(title, about, TOP + PLOT + 20, parts, list(series) if len(series) > 1 else [])


def columns(title: str, about: str, days: Sequence[date], series: Mapping[str, Sequence[float]]) -> Markup:
    """Stacked columns, one a day: each series has a value for every day."""
    totals = [sum(values) for values in zip(*series.values(), strict=True)]
    top = nice_top(max(totals, default=1.0))
    room = (WIDTH - LEFT - RIGHT) / max(1, len(days))
    wide = max(1.0, min(22.0, room * 0.8))
    few = len(days) <= FEW
    parts = _axes(top, [] if few else days)
    for place, day in enumerate(days):
        if few:
            parts.append(_label(LEFT + room * (place + 0.5), TOP + PLOT + 15, f"{day:%m-%d}"))
        x, bottom = LEFT + room * place + (room - wide) / 2, float(TOP + PLOT)
        for index, (name, values) in enumerate(series.items()):
            tall = values[place] / top * PLOT
            if values[place]:
                bottom -= tall
                parts.append(_rect(f"s{index}", x, bottom, wide, tall, f"{day}: {values[place]:,.0f} {name}"))
    return figure(title, about, TOP + PLOT + 20, parts, list(series) if len(series) > 1 else [])


@dataclass(frozen=True)
class Dot:
    """A measured value of a release: low, high: its 95 % interval, if it is known; served: what servers reported of it."""

    label: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    served: float | None = None


def dots(title: str, about: str, given: Sequence[Dot], names: tuple[str, str]) -> Markup:
    """One place for each release, in order: what its report measured with its interval, and what servers reported."""
    known = [value for dot in given for value in (dot.value, dot.low, dot.high, dot.served) if value is not None]
    low, top = nice_bounds(min(known), max(known))
    step = (WIDTH - LEFT - RIGHT) / len(given)
    parts = _axes(top, [], low)
    for place, dot in enumerate(given):
        x = LEFT + step * (place + 0.5)

        def y(value: float) -> float:
            return TOP + PLOT - (value - low) / (top - low) * PLOT

        if dot.low is not None and dot.high is not None:
            parts.append(Markup('<path class="whisker" d="M{0:.1f} {1:.1f}V{2:.1f}"/>').format(x, y(dot.low), y(dot.high)))
        if dot.value is not None:
            parts.append(_circle(0, x, y(dot.value), 4, f"{dot.label}, {names[0]}: {dot.value:.4g}"))
        if dot.served is not None:
            parts.append(_rect("s1", x + 5, y(dot.served) - 3.5, 7, 7, f"{dot.label}, {names[1]}: {dot.served:.4g}"))
        if len(given) <= 6 or place in (0, len(given) - 1):
            parts.append(_label(x, TOP + PLOT + 15, dot.label))
    return figure(title, about, TOP + PLOT + 20, parts, list(names) if any(dot.served is not None for dot in given) else [])


@dataclass(frozen=True)
class Cell:
    level: int
    """0 (as usual) to 3 (alarm)."""
    said: str
    """The tooltip."""


def grid(title: str, about: str, days: Sequence[date], rows: Mapping[str, Mapping[date, Cell]]) -> Markup:
    """A cell for each row and day; a day that was not compared is empty."""
    left, row = 104, 15
    room = (WIDTH - left - RIGHT) / max(1, len(days))
    parts: list[Markup] = []
    for place, (name, cells) in enumerate(rows.items()):
        y = TOP + place * row
        parts.append(Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(left - 6, y + 10, name))
        for column, day in enumerate(days):
            if (cell := cells.get(day)) is not None:
                x, wide = left + column * room + 0.4, max(1.0, room - 0.8)
                parts.append(_rect(f"h{cell.level}", x, y, wide, row - 2, f"{name}, {day}: {cell.said}"))
    bottom = TOP + len(rows) * row
    parts += _day_labels(days, left, bottom + 12)
    return figure(title, about, bottom + 18, parts)


@dataclass(frozen=True)
class Period:
    """A time in which a release was champion."""

    release: str
    since: datetime
    until: datetime | None
    """End of the period; None while it lasts."""


def periods(title: str, about: str, given: Sequence[Period], now: datetime) -> Markup:
    """Which release served when, on one bar; a release that returned has its colour again."""
    first = min(each.since for each in given)
    whole = max(1.0, (now - first).total_seconds())
    color = {release: place % SERIES for place, release in enumerate(dict.fromkeys(each.release for each in given))}
    parts: list[Markup] = []
    for each in given:
        x = (each.since - first).total_seconds() / whole * (WIDTH - 2)
        wide = max(2.0, ((each.until or now) - each.since).total_seconds() / whole * (WIDTH - 2))
        until = f"{each.until:%Y-%m-%d %H:%M}" if each.until else "now"
        said = f"{each.release}: {each.since:%Y-%m-%d %H:%M} to {until}"
        parts.append(_rect(f"s{color[each.release]}", x + 1, 6, wide, 20, said))
        if wide > 52:
            parts.append(Markup('<text class="on" x="{:.1f}" y="20">{}</text>').format(x + 6, each.release[:6]))
    parts.append(Markup('<text x="1" y="42">{:%Y-%m-%d}</text>').format(first))
    parts.append(Markup('<text x="{}" y="42" text-anchor="end">{:%Y-%m-%d}</text>').format(WIDTH - 1, now))
    return figure(title, about, 48, parts)


def figure(title: str, about: str, height: float, parts: Sequence[Markup], legend: Sequence[str] = ()) -> Markup:
    """A chart with its caption and, for several series, a legend of HTML, which wraps on a phone."""
    keys = Markup("").join(
        Markup('<span><i class="s{}{}"></i>{}</span>').format(index % SERIES, " again" if index >= SERIES else "", name)
        for index, name in enumerate(legend)
    )
    below = Markup('<div class="legend">{}</div>').format(keys) if legend else ""
    return Markup(
        '<figure><figcaption><b>{}</b> <span>{}</span></figcaption><svg viewBox="0 0 {} {:.0f}" role="img" '
        'aria-label="{}">{}</svg>{}</figure>'
    ).format(title, about, WIDTH, height, title, Markup("").join(parts), below)


def _rect(css: str, x: float, y: float, wide: float, tall: float, said: str) -> Markup:
    return Markup(
        '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="1"><title>{}</title></rect>'
    ).format(css, x, y, wide, tall, said)


def _circle(series: int, x: float, y: float, radius: float, said: str) -> Markup:
    return Markup('<circle class="s{}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}</title></circle>').format(
        series, x, y, radius, said
    )


def nice_top(value: float) -> float:
    """The next round number: 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * step for step in (1, 2, 2.5, 5, 10) if unit * step >= value * (1 - 1e-9))


def nice_bounds(least: float, most: float) -> tuple[float, float]:
    """An axis of two round steps that holds both values."""
    step = nice_top(max((most - least) / 2, abs(most) * 1e-3, 1e-9))
    while True:
        low = math.floor(least / step + 1e-9) * step
        if low + 2 * step >= most - 1e-12:
            return low, low + 2 * step
        step = nice_top(step * 1.01)


def short_number(value: float) -> str:
    """A number in at most five characters: 0.25, 12, 1.2k, 3M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.4g}"


def _axes(top: float, days: Sequence[date], low: float = 0.0) -> list[Markup]:
    parts, rule = [], Markup('<path class="rule" d="M{} {:.1f}H{}"/><text x="{}" y="{:.1f}" text-anchor="end">{}</text>')
    for share in (0.0, 0.5, 1.0):
        y = TOP + PLOT - share * PLOT
        parts.append(rule.format(LEFT, y, WIDTH - RIGHT, LEFT - 5, y + 4, short_number(low + share * (top - low))))
    return parts + _day_labels(days, LEFT, TOP + PLOT + 15)


def _day_labels(days: Sequence[date], left: float, y: float) -> list[Markup]:
    """The first and the last day."""
    if not days:
        return []
    if len(days) == 1:
        return [_label((left + WIDTH - RIGHT) / 2, y, days[0])]
    return [
        Markup('<text x="{}" y="{}">{}</text>').format(left, y, days[0]),
        Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(WIDTH - RIGHT, y, days[-1]),
    ]


def _place_labels(places: Sequence[Place], at: Mapping[Place, float]) -> list[Markup]:
    """Of a line: every number, or the first and the last day."""
    days: list[date] = []
    for place in places:
        if isinstance(place, date):
            days.append(place)
    if days:
        return _day_labels(days, LEFT, TOP + PLOT + 15)
    return [_label(at[place], TOP + PLOT + 15, _number(place)) for place in places]


def _number(place: Place) -> str:
    return str(place) if isinstance(place, date) else short_number(place)


def _label(x: float, y: float, text: str | date) -> Markup:
    return Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(x, y, text)


def _share(place: Place, places: Sequence[Place]) -> float:
    """Where a place stands between the first and the last: a day by time, a number by its rank."""
    if isinstance(place, date):
        whole = (places[-1] - places[0]).days
        return (place - places[0]).days / whole if whole else 0.5
    return places.index(place) / (len(places) - 1) if len(places) > 1 else 0.5


def _short(text: str) -> Markup:
    return escape(text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}\u2026")
