"""A lake with 40 days of traffic, three releases, a rollback, drift and serving metrics, written straight into its tables."""

import math
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa

from resources.endpoints.approvals import record_approval, roll_back
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.tables import SCHEMAS, Tables
from resources.releases.release import ReleaseRef

FIRST, DAYS = date(2026, 6, 1), 40
TESTS = [
    "prompt_shapes",
    "novelty",
    "language",
    "prompt_length",
    "answer_length",
    "tools",
    "errors",
    "refusals",
    "feedback_given",
    "acceptance",
]
NASTY = "<script>alert('said by a user')</script>"


def fill(lake, make_release, requests=12):
    """Fills the lake; returns the three releases, oldest first."""
    tables = Tables(lake)
    days = [FIRST + timedelta(days=day) for day in range(DAYS)]
    rows = {"interactions": [], "feedback": [], "judgements": []}
    for place, day in enumerate(days):
        for each in range(requests + (4 if day.weekday() < 5 else -4)):
            row = {"dt": day, "interaction_id": f"{day}-{each}", "user_hash": f"u{each % 7}", "messages": NASTY, "error": NASTY}
            row |= {"ts": datetime(day.year, day.month, day.day, each % 24, tzinfo=UTC), "ttft_ms": 60 + 2 * each}
            row |= {"prompt_tokens": 200 + 10 * each, "completion_tokens": 80 + each}
            row["status"] = "error" if each == 0 and place % 3 == 0 else "success"
            row["latency_ms"] = 400 + 30 * each + 60 * math.sin(place / 4)
            rows["interactions"].append(row)
        for each in range(8):
            value = -1.0 if each < 1 + place / 12 else 1.0
            rows["feedback"].append({"dt": day, "request_id": str(each), "value": value, "comment": NASTY})
        judged = {"dt": day, "interaction_id": "i", "name": "quality", "score": 7.5 - place / 60, "answer": NASTY}
        rows["judgements"].append(judged)
    for name, of_table in rows.items():
        add(tables, name, of_table)
    ana = Actor("ana", "MILLRACE_USER", "read 20 answers")
    watch = Actor("millrace watch", "watch", "acceptance fell below its interval")
    releases = [make_release(lake, number, recovery=0.991 + number / 1000) for number in (1, 2, 3)]
    endpoint = Endpoint(lake, "tutor")
    for release in releases:
        endpoint.nominate(ReleaseRef.of(release))
        record_approval(lake, release, ana)
        endpoint.promote(ReleaseRef.of(release), ana)
    roll_back(lake, releases[1], watch)
    windows, drift = [], []
    fixed = {"release": releases[1].name, "window_days": 1, "value": 0.1, "bound": 0.3, "ts": datetime(2026, 7, 11, tzinfo=UTC)}
    for place, day in enumerate(days):
        start, release = datetime(day.year, day.month, day.day, tzinfo=UTC), releases[min(2, place // 14)].name
        row = {"endpoint": "e", "release": release, "window_start": start, "window_end": start + timedelta(hours=1)}
        row |= {"drafts": 1000, "draft_tokens": 3000, "accepted_tokens": 1400 + 15 * place}
        windows.append(row | {"tokens_per_second": 900.0 + 5 * place})
        for each, test in enumerate(TESTS if place > 8 else ()):
            p = 10 ** -(1 + (place * 7 + each * 3) % 23 / 8)
            drift.append({**fixed, "dt": day, "test": test, "p": p, "alarm": test == "novelty" and place > 35})
    add(tables, "serving_metrics", windows)
    add(tables, "drift", drift)
    return releases


def add(tables, name, rows):
    tables.append(name, pa.Table.from_pylist([{"workload": "tutor", **row} for row in rows], schema=SCHEMAS[name]))
