"""Writes docs/benchmarks.md, and the table of figures in README.md, from the recorded results.

    python -m benchmarks.page

The text is in page.md.jinja and readme_figures.md.jinja: `{{ ingest.ratio|fixed }}` is `figures.ratio` of results/ingest.json,
and `{{ run("ingest") }}` the command, machine and date of that run.
"""

import json
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks import seed_intervals
from benchmarks.record import RESULTS

PROJECT = Path(__file__).resolve().parents[1]
README, PAGE = PROJECT / "README.md", PROJECT / "docs/benchmarks.md"


def main() -> None:
    PAGE.write_text(page())
    README.write_text(readme(README.read_text()))


def page() -> str:
    return _environment().get_template("page.md.jinja").render()


def readme(text: str) -> str:
    """README's text with the rows of its table of figures as they are recorded."""
    rows = _environment().get_template("readme_figures.md.jinja").render()
    header, _, _ = rows.partition("\n")
    before, table, after = text.partition(header + "\n")
    if not table:
        raise ValueError(f"README.md has no table that begins with {header!r}")
    _, blank, rest = after.partition("\n\n")
    return before + rows.rstrip("\n") + blank + rest


def fixed(x: float, digits: int = 2) -> str:
    """Rounded half up, as people round."""
    return str(Decimal(str(x)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def percent(x: float, digits: int = 1) -> str:
    return fixed(Decimal(str(x)) * 100, digits)


def gain(x: float, digits: int = 1) -> str:
    """Percent with its sign; 0 has none."""
    rounded = Decimal(percent(x, digits))
    return f"{rounded:+}" if rounded else "0"


def about(x: float, digits: int = 3) -> str:
    """Rounded to so many significant digits, with thousands separators."""
    return f"{float(f'{x:.{digits}g}'):,.0f}"


def bounds(values: Sequence[float], digits: int = 2) -> str:
    """The last two values as an interval; a middle may stand before them."""
    return f"[{', '.join(fixed(x, digits) for x in values[-2:])}]"


def percent_bounds(values: Sequence[float], digits: int = 1) -> str:
    return f"[{', '.join(percent(x, digits) for x in values[-2:])}]"


def low_high(figures: dict[str, Any], name: str) -> str:
    return bounds([figures[f"{name}_low"], figures[f"{name}_high"]])


def row(rows: Iterable[dict[str, Any]], **values: Any) -> dict[str, Any]:
    """The only row that has these values."""
    [only] = [each for each in rows if values.items() <= each.items()]
    return only


def largest(losses: dict[str, dict[str, float]], gap: str) -> str:
    return f"{max(each[gap] for each in losses.values()):.0e}".replace("e-0", "e-")


def recorded(is_so: bool, words: object) -> object:
    """Words that are true of the recorded run; an error where they are not."""
    if not is_so:
        raise ValueError(f"the recorded results do not say {words!r}: change the text of the template")
    return words


def machine(cpu: str) -> str:
    """The letter of a machine in the page's list."""
    return "C" if "amx" in cpu else {"AMD EPYC": "A", "Intel(R)": "B" if "avx512_bf16" in cpu else "D"}[cpu[:8]]


def _environment() -> Environment:
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    figures = {name: result["figures"] for name, result in results.items()}

    def place(name: str, part: str | None = None) -> str:
        """Machine and date of a run. part: of a benchmark whose parts are recorded one by one."""
        measured = figures[name]["measured"][part] if part else results[name]
        return f"{machine(results[name]['hardware']['cpu'])}, {measured['date'][:10]}"

    def run(name: str, part: str | None = None) -> str:
        """The last two cells of a row."""
        command = (figures[name]["measured"][part] if part else results[name])["command"]
        return f"`{command}` | {place(name, part)}"

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    environment.filters |= {
        "fixed": fixed,
        "percent": percent,
        "gain": gain,
        "about": about,
        "count": lambda x: f"{x:,}",
        "bounds": bounds,
        "percent_bounds": percent_bounds,
        "low_high": low_high,
        "row": row,
        "largest": largest,
    }
    intervals = {
        "drafter_losses": seed_intervals.losses(figures["drafter_losses"]),
        "drafter_peers": seed_intervals.peers(figures["drafter_peers"]),
    }
    environment.globals |= {**figures, "intervals": intervals, "recorded": recorded, "place": place, "run": run}
    return environment


if __name__ == "__main__":
    main()
