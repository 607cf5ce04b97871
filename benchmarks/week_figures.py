"""What a simulated week came to: requests, acceptance by day, releases, decisions and budget."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from benchmarks.week_kills import Kills
from benchmarks.week_recipe import DEVICE_HOURS_PER_WEEK, REQUESTS_PER_DAY, RUNS_PER_WEEK, Size
from benchmarks.week_traffic import Answer
from model_ops.drafting.acceptance import tau_of
from resources.deciding.decisions import Decisions
from resources.endpoints.endpoint_log import EndpointLog
from resources.lake.lake import LakeLayout
from resources.lake.sql_files import attach_slice, workbench
from resources.lake.tables import Tables


def figures(
    lake: LakeLayout,
    workload: str,
    size: Size,
    start: datetime,
    answers: Mapping[int, Sequence[Answer]],
    kills: Kills,
    approved: Sequence[Mapping[str, Any]],
    quality: Sequence[float],
) -> dict[str, Any]:
    """start: midnight before day 1. quality: bits a byte, before and after the week."""
    decisions = Decisions(lake, workload).all()
    started = [each for each in decisions if each.started]
    log = EndpointLog(lake, workload).entries()
    first = approved[0]["release"]
    everything = [each for day in answers.values() for each in day]
    return {
        "days": size.days,
        "releases": len({entry.release for entry in log if entry.action == "promoted"}),
        "rollbacks": sum(entry.action == "rolled back" for entry in log),
        "failed_requests": sum(bool(each.problem) for each in everything),
        "tau_first": _tau(_usual(answers, range(1, size.shift))),
        "tau_shifted": _tau([each for each in _usual(answers, range(size.shift, size.days + 1)) if each.release == first]),
        "tau_last": _tau(_usual(answers, [size.days])),
        "quality_first": round(quality[0], 4),
        "quality_last": round(quality[1], 4),
        "requests": len(everything),
        "problems": dict(Counter(each.problem for each in everything if each.problem)),
        "kinds": dict(Counter(each.kind for each in everything)),
        "kills": {kind: kills.count(kind) for kind in ("server", "daemon", "worker")},
        "killed": kills.done,
        "approved_in_the_week": [dict(each) for each in approved[1:]],
        "budget": {
            "runs": len(started),
            "runs_allowed": RUNS_PER_WEEK,
            "device_hours": round(sum(each.spent_hours for each in started), 4),
            "device_hours_allowed": DEVICE_HOURS_PER_WEEK,
            "requests_per_day_assumed": REQUESTS_PER_DAY,
        },
        "decisions": [
            {
                "day": _day(each.ts, start),
                "cause": each.cause_text,
                "action": each.action,
                "why": each.why,
                "outcome": each.outcome,
                "cost_s": each.cost_s and round(each.cost_s),
                "gain": each.gain and round(each.gain, 4),
            }
            for each in decisions
        ],
        "endpoint": [
            {"day": _day(entry.at, start), "action": entry.action, "release": entry.release, "who": entry.by} for entry in log
        ],
        "by_day": [_of_day(lake, workload, size, start, day, found) for day, found in sorted(answers.items())],
    }


def _usual(answers: Mapping[int, Sequence[Answer]], days) -> list[Answer]:
    return [each for day in days for each in answers.get(day, ()) if each.kind == "asked" and not each.problem]


def _tau(answers: Sequence[Answer]) -> float | None:
    drafts = sum(each.drafts for each in answers)
    return round(tau_of(drafts, sum(each.accepted for each in answers)), 3) if drafts else None


def _day(moment: datetime, start: datetime) -> int:
    """0 before the week."""
    return (moment - start).days


def _of_day(
    lake: LakeLayout, workload: str, size: Size, start: datetime, day: int, answers: Sequence[Answer]
) -> dict[str, Any]:
    usual = [each for each in answers if each.kind == "asked" and not each.problem]
    return {
        "day": day,
        "traffic": "math" if day < size.shift else "airline, broken" if day == size.broken else "airline",
        "requests": len(answers),
        "failed": sum(bool(each.problem) for each in answers),
        "tau": _tau(usual),
        "slowest_s": round(max(each.seconds for each in answers), 1),
        "releases": dict(Counter(each.release for each in answers if each.release)),
        "alarms": _alarms(lake, workload, start, day),
        "read": usual[0].text[:160] if usual else "",
    }


def _alarms(lake: LakeLayout, workload: str, start: datetime, day: int) -> list[str]:
    """Tests of the table drift that alarmed on the day, by any release's reference."""
    with workbench() as connection:
        attach_slice(connection, Tables(lake), "drift", workload)
        rows = connection.execute("select test, window_days, dt from drift where alarm").fetchall()
    return sorted({f"{test} ({window} d)" for test, window, dt in rows if (dt - start.date()).days == day})
