"""Alerts about drift and about the budget of retraining, from the lake's tables.

    drift_alerts(tables, "math-tutor", release="3f2a")
    budget_alerts(tables, "math-tutor")
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

from resources.alerting.alert import Alert
from resources.deciding.budget import NEVER_ENOUGH, UNKNOWN_COST
from resources.sql_files import attach_slice, rows, workbench
from resources.tables import SCHEMAS, Tables

QUIET = timedelta(days=7)
"""Alarms that are at most this far apart belong to one change, which is sent once."""
BUDGET_KEY = re.compile(r"automation\.decide\.budget\.(\w+)")
DECISIONS = "retraining_decisions"


def drift_alerts(tables: Tables, workload: str, release: str) -> list[Alert]:
    """One alert for each change that began: alarms of days that follow each other are one. release: the served one, "" for
    none.

    A change is named by its first day. Late logs can remove that day's alarm, or make an earlier day alarm: an alert that was
    told by another day of the change, or by a day at most QUIET before it, is the same.
    """
    with workbench() as connection:
        attach_slice(connection, tables, "drift", workload)
        alarms = rows(connection, "alerting/alarms", release=release).to_pylist()
    return [_of_a_change(tables, workload, release, change) for change in _changes(alarms)]


def _changes(alarms: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Alarms in order of their days, parted where no test alarmed for longer than QUIET."""
    change: list[dict[str, Any]] = []
    for row in alarms:
        if change and row["dt"] - change[-1]["dt"] > QUIET:
            yield change
            change = []
        change.append(row)
    if change:
        yield change


def _of_a_change(tables: Tables, workload: str, release: str, change: list[dict[str, Any]]) -> Alert:
    first: date = change[0]["dt"]
    began = [row for row in change if row["dt"] == first]
    tests = ", ".join(dict.fromkeys(row["test"] for row in change))
    said = "; ".join(f"{row['test']} over {row['window_days']} d: {row['value']:.4g}"
                     + (f", alarms from {row['bound']:.4g}" if row["bound"] is not None else "") for row in began)
    than = f"the traffic that release {release} was made for" if release else "the first window of the logs"
    days = ((change[-1]["dt"] - first) + QUIET).days
    return Alert(
        kind="drift", workload=workload, cause=f"{release}/{first}",
        same_causes=[f"{release}/{first - QUIET + timedelta(day)}" for day in range(days + 1)],
        at=min(row["ts"] for row in began),
        title=f"{workload}: drift since {first} ({tests})",
        text=f"The traffic of {first} differs from {than}. {said}.",
        todo=f"Look at the plots of drift_report, or at {tables.lake.root / 'drift' / f'{workload}.html'}. If the traffic has "
             "changed for good, run the recipe again: millrace run RECIPE.",
        facts={"release": release or "none", "first_day": first.isoformat(), "tests": tests, "alarms": len(change)})


def budget_alerts(tables: Tables, workload: str) -> list[Alert]:
    """One alert for each budget and week (ISO) in which it kept a retraining from being run."""
    if DECISIONS not in SCHEMAS:
        return []
    with workbench() as connection:
        attach_slice(connection, tables, DECISIONS, workload)
        held = rows(connection, "alerting/held_by_budget").to_pylist()
    found: dict[str, Alert] = {}
    for row in held:
        said = f"{row['why']} {' '.join(_reasons(row['options']))}"
        for key in dict.fromkeys(BUDGET_KEY.findall(said)):
            year, week, _ = row["ts"].isocalendar()
            standing, todo = _advice(said, key)
            alert = Alert(
                kind="budget", workload=workload, cause=f"{key}/{year}-W{week:02d}", at=row["ts"],
                title=f"{workload}: the budget {key} {standing}",
                text=f"Decision {row['decision_id']} ({row['cause']}) would have retrained on {row['ts']:%Y-%m-%d %H:%M} "
                     f"UTC, and the budget automation.decide.budget.{key} does not allow it.",
                todo=todo,
                facts={"decision": row["decision_id"], "cause": row["cause"], "budget": key, "week": f"{year}-W{week:02d}"})
            found.setdefault(alert.id, alert)
    return list(found.values())


def _advice(said: str, key: str) -> tuple[str, str]:
    """How a budget stands, and what to do about it, by what a decision said of it."""
    name = f"automation.decide.budget.{key}"
    if f"{name} {UNKNOWN_COST}" in said:
        if "set price_per_device_hour" in said:
            return "needs a cost that is unknown", "Set automation.decide.price_per_device_hour in the recipe."
        return ("needs a cost that is unknown",
                "Run it yourself once, which measures what it costs: millrace run RECIPE.")
    raise_it = f"Raise {name} in the recipe, or run it yourself: millrace run RECIPE."
    if f"{name} is 0" in said:
        return "is 0", raise_it
    if f"{NEVER_ENOUGH} ({name})" in said:
        return "is too small", raise_it
    return "is used", f"{raise_it} Or wait: the budget refills evenly, and the decision says when it suffices."


def _reasons(options: str | None) -> list[str]:
    """Why each option was not chosen; none if the column holds something else."""
    try:
        return [str(option["why_not"]) for option in json.loads(options or "[]")]
    except (ValueError, TypeError, KeyError):
        return []
