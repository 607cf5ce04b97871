"""The dashboard of a workload as one HTML file without network: traffic, quality, acceptance, cost, drift, decisions.

The page holds numbers, names of rules and releases, and what people wrote as reasons of their decisions; nothing that a user
said."""

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from model_ops.files import write_text
from model_ops.jobs import counted, duration
from resources.lake import LakeLayout
from resources.records import page_environment
from resources.releases import GateVerdict
from resources.releasing import Bar, Cell, Dot, Period, bars, columns, dots, grid, lines, periods, short_number
from resources.reporting.dashboard_facts import AROUND, Facts, ReleaseRow, facts_of, served_of, summed

TEMPLATES = Path(__file__).with_name("templates")
RULES_SHOWN = 10
GROUPS = ("traffic", "datasets", "models", "drafter", "release", AROUND)
ACCEPTANCE, RECOVERY = "acceptance_length", "recovery"
WEEK = 7
SHORT = 6
"""Characters of a version: enough for every command."""
NONE = "\u2013"
"""In the place of a number that there is not."""


def dashboard_path(lake: LakeLayout, workload: str) -> Path:
    """Where the lake keeps a workload's dashboard, on this machine."""
    return lake.root / "reports" / f"{workload}.html"


def write_dashboard(lake: LakeLayout, workload: str, path: Path, now: datetime | None = None) -> Path:
    """Writes the page atomically and returns its path. Raises OSError where it cannot be written."""
    facts = facts_of(lake, workload, now or datetime.now(UTC))
    environment = page_environment(TEMPLATES)
    environment.filters |= {
        "counted": counted,
        "duration": duration,
        "day": lambda at: f"{at:%Y-%m-%d}",
        "minute": lambda at: f"{at:%Y-%m-%d %H:%M}",
    }
    page = environment.get_template("dashboard.html.j2").render(
        facts=facts,
        lake=lake.place,
        tiles=tiles(facts),
        charts=charts(facts),
        served_of=lambda version: served_of(facts, version),
        newest_first=list(reversed(facts.releases)),
        entries=_decided(facts),
        gates_of=_gates_said,
        groups=[group for group in GROUPS if any(group in run.seconds for run in facts.runs)],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    return path


def tiles(facts: Facts) -> list[dict[str, str]]:
    """The numbers at the top: label, value, what it is made of, and whether somebody should look."""
    week = facts.traffic[-WEEK:]
    requests, failed = summed(week, "requests"), summed(week, "failed")
    champion = _of(facts, facts.aliases.champion)
    moves = [entry for entry in reversed(facts.log) if entry.action in ("promoted", "rolled back", "found")]
    since = next((entry.at for entry in moves if entry.champion == facts.aliases.champion), None)
    compared = len({row["dt"] for row in facts.drift if row["compared"]})
    alarms = sorted({row["dt"] for row in facts.drift if row["alarm"]})
    late = max((row["p95_ms"] for row in week if row["p95_ms"] is not None), default=None)
    slowest = NONE if late is None else f"{late:,.0f} ms" if late < 1_000 else f"{late / 1_000:.3g} s"
    named, accepted = (facts.aliases.champion or "none")[:SHORT], champion.measured(ACCEPTANCE) if champion else None
    days = f"in {counted(len(week), 'day')}" if week else "no traffic yet"
    return [
        _tile("Requests", short_number(requests) if week else NONE, days),
        _tile("Failed", f"{failed / requests:z.1%}", f"{failed:,} of {requests:,}", failed / requests > 0.05)
        if requests
        else _tile("Failed", NONE, days),
        _tile("Latency p95", slowest, "worst day of the week" if late is not None else "not logged"),
        _tile("Champion", named, f"since {since:%Y-%m-%d}" if since else "no release is served"),
        _tile("Acceptance", NONE, "not measured")
        if accepted is None
        else _tile("Acceptance", f"{accepted:.3g}", "tokens a forward, by its report"),
        _newest(facts),
        _tile("Drift", counted(len(alarms), "day"), f"last alarm {alarms[-1]:%d %b}", True)
        if alarms
        else _tile("Drift", "no alarm", f"in {counted(compared, 'day')} compared")
        if compared
        else _tile("Drift", NONE, "no day was compared yet"),
    ]


def charts(facts: Facts) -> dict[str, list[Markup]]:
    """The charts of each section; a section without any says why in the template."""
    days = [row["dt"] for row in facts.traffic]

    def of(name: str) -> list[float]:
        return [row[name] for row in facts.traffic]

    answered = [row["requests"] - row["failed"] for row in facts.traffic]
    traffic = [
        columns("Requests", "a day", days, {"answered": answered, "failed": of("failed")}),
        columns("Tokens", "a day", days, {"prompts": of("prompt_tokens"), "answers": of("answer_tokens")}),
        columns("Users", "a day, hashed", days, {"users": of("users")}),
    ]
    return {
        "traffic": traffic if days else [],
        "drops": _drops(facts),
        "quality": _quality(facts),
        "acceptance": _acceptance(facts),
        "latency": _latency(facts),
        "drift": _drift(facts),
        "cost": _cost(facts),
        "releases": _periods(facts),
    }


def _drops(facts: Facts) -> list[Markup]:
    """Records of the current curated_interactions: kept or not, and by which rule not."""
    records = facts.records
    if records is None:
        return []
    decided = {"kept": records.rows, "dropped": sum(records.dropped.values()), "quarantined": sum(records.quarantined.values())}
    charts_ = [bars("Records", [Bar(name, count) for name, count in decided.items()], records.read_text, 0)]
    left = [Bar(row["stage and rule"], row["records"]) for row in records.as_rows()[:RULES_SHOWN]]
    if left:
        charts_.append(bars("Why they were dropped", left, "records by stage and rule", 0, whole_labels=True))
    return charts_


def _quality(facts: Facts) -> list[Markup]:
    charts_ = []
    if facts.feedback:
        shares = [(row["dt"], row["bad"] / row["rated"]) for row in facts.feedback]
        rated = {"good": [row["rated"] - row["bad"] for row in facts.feedback], "bad": [row["bad"] for row in facts.feedback]}
        charts_.append(lines("Bad feedback", "share of the feedback of a day", {"bad": shares}))
        charts_.append(columns("Feedback", "a day", [row["dt"] for row in facts.feedback], rated))
    if facts.judged:
        points = [(row["dt"], row["points"]) for row in facts.judged]
        charts_.append(lines("Judge", "mean points of 10, by day", {"points": points}, from_zero=False))
    return charts_


def _acceptance(facts: Facts) -> list[Markup]:
    measured = [
        replace(_dot(each, ACCEPTANCE), served=served_of(facts, each.version).get("acceptance_length"))
        for each in facts.releases
    ]
    known = [dot for dot in measured if dot.value is not None or dot.served is not None]
    charts_ = [dots("Acceptance length", "tokens a forward, by release", known, ("report", "served"))] if known else []
    by_day = [(row["dt"], row["acceptance_length"]) for row in facts.served_by_day if row["acceptance_length"] is not None]
    if by_day:
        charts_.append(lines("Served acceptance", "tokens a forward, by day", {"served": by_day}, from_zero=False))
    return charts_


def _latency(facts: Facts) -> list[Markup]:
    def points(column: str, of: list[dict[str, Any]]) -> list[tuple[date, float]]:
        return [(row["dt"], row[column]) for row in of if row[column] is not None]

    ends = (("median", "p50_ms"), ("p95", "p95_ms"))
    series = {name: line for name, column in ends if (line := points(column, facts.traffic))}
    charts_ = [lines("Answer", "ms, as logged", series)] if series else []
    if first := points("ttft_ms", facts.traffic):
        charts_.append(lines("First token", "ms, median", {"first token": first}))
    if speed := points("tokens_per_second", facts.served_by_day):
        charts_.append(lines("Speed", "tokens/s, as servers report", {"tokens/s": speed}))
    return charts_


def _drift(facts: Facts) -> list[Markup]:
    if not facts.drift:
        return []
    days = sorted({row["dt"] for row in facts.drift})
    by_test: dict[str, dict[date, Cell]] = {}
    for row in facts.drift:
        if row["compared"]:
            by_test.setdefault(row["test"], {})[row["dt"]] = Cell(_level(row), _said(row))
    return [grid("Drift", "tests by day; dark is odd, red an alarm", days, by_test)] if by_test else []


def _cost(facts: Facts) -> list[Markup]:
    runs = [run for run in reversed(facts.runs) if run.total_s > 0]
    if not runs:
        return []
    minutes = {group: sum(run.seconds.get(group, 0.0) for run in runs) / 60 for group in GROUPS}
    of_runs = [Bar(f"{run.at:%m-%d %H:%M}", run.total_s / 60) for run in runs[-RULES_SHOWN:]]
    of_groups = [Bar(group, spent) for group, spent in minutes.items() if spent]
    return [
        bars("Time by run", of_runs, "minutes, newest last", 1),
        bars("Time by group", of_groups, "minutes, over the runs that are shown", 1),
    ]


def _periods(facts: Facts) -> list[Markup]:
    served: list[Period] = []
    for entry in facts.log:
        if entry.champion is None or (served and served[-1].release == entry.champion):
            continue
        if served:
            served[-1] = Period(served[-1].release, served[-1].since, entry.at)
        served.append(Period(entry.champion, entry.at, None))
    shown = [periods("What served", "champion by time", served, facts.now)] if served else []
    if measured := [_dot(each, RECOVERY) for each in facts.releases if each.measured(RECOVERY) is not None]:
        shown.append(dots("Recovery", "by release, with its 95 % interval", measured, ("report", "served")))
    return shown


def _decided(facts: Facts) -> list[Any]:
    """Entries of the log that are decisions of people, recipes or the watch, newest first."""
    return [entry for entry in reversed(facts.log) if entry.action != "nominated"][:30]


def _gates_said(release: ReleaseRow) -> str:
    """What the gates say, in a few words."""
    if release.problems:
        return "; ".join(release.problems)
    verdict = GateVerdict.of(list(release.gates.values())).sentence
    return verdict[0].lower() + verdict[1:] if release.gates else "none was set"


def _dot(release: ReleaseRow, gate: str) -> Dot:
    result = release.gates.get(gate)
    return Dot(release.version[:6], *((result.measured, result.low, result.high) if result else ()))


def _of(facts: Facts, version: str | None) -> ReleaseRow | None:
    return next((each for each in facts.releases if each.version == version), None)


def _newest(facts: Facts) -> dict[str, str]:
    """The tile of the release that the endpoint names besides the champion: a candidate, unless it missed a gate."""
    candidate = _of(facts, facts.aliases.candidate)
    if candidate is None:
        return _tile("Candidate", "none", "nothing waits")
    if candidate.problems:
        return _tile("Not offered", candidate.version[:SHORT], f"missed {counted(len(candidate.problems), 'gate')}", True)
    return _tile("Candidate", candidate.version[:SHORT], "waits for a person", True)


def _tile(label: str, value: str, about: str, look: bool = False) -> dict[str, str]:
    return {"label": label, "value": value, "about": about, "look": "look" if look else ""}


def _level(row: dict[str, Any]) -> int:
    """0: as usual; 1: p below 0.05; 2: below 0.001; 3: an alarm."""
    if row["alarm"]:
        return 3
    p = 1.0 if row["p"] is None else row["p"]
    return 2 if p < 0.001 else 1 if p < 0.05 else 0


def _said(row: dict[str, Any]) -> str:
    p = "" if row["p"] is None else f", p {row['p']:.2g}"
    return f"{row['value']:.4g}{p}{', alarm' if row['alarm'] else ''}"
