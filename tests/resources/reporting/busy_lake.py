"""A lake with 40 days of traffic, three releases, a rollback, drift and serving metrics, written straight into its tables."""

import math
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa

from resources.endpoints.approvals import approve, roll_back
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.tables import SCHEMAS, Tables
from resources.releases.release import ReleaseRef

FIRST, DAYS = date(2026, 6, 1), 40
TESTS = (
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
)
NASTY = "<script>alert('said by a user')</script>"


def fill(lake, make_release, requests=12):
    """Fills the lake; returns the three releases, oldest first."""
    tables = Tables(lake)
    days = [FIRST + timedelta(days=day) for day in range(DAYS)]
    add(
        tables,
        "interactions",
        [
            {
                "dt": day,
                "interaction_id": f"{day}-{each}",
                "ts": datetime(day.year, day.month, day.day, each % 24, tzinfo=UTC),
                "user_hash": f"u{each % 7}",
                "status": "error" if each == 0 and place % 3 == 0 else "success",
                "prompt_tokens": 200 + 10 * each,
                "completion_tokens": 80 + each,
                "messages": NASTY,
                "latency_ms": 400 + 30 * each + 60 * math.sin(place / 4),
                "ttft_ms": 60 + 2 * each,
                "error": NASTY,
            }
            for place, day in enumerate(days)
            for each in range(requests + (4 if day.weekday() < 5 else -4))
        ],
    )
    add(
        tables,
        "feedback",
        [
            {"dt": day, "request_id": str(each), "value": -1.0 if each < 1 + place / 12 else 1.0, "comment": NASTY}
            for place, day in enumerate(days)
            for each in range(8)
        ],
    )
    add(
        tables,
        "judgements",
        [
            {"dt": day, "interaction_id": "i", "name": "quality", "score": 7.5 - place / 60, "answer": NASTY}
            for place, day in enumerate(days)
        ],
    )
    ana, watch = (
        Actor("ana", "MILLRACE_USER", "read 20 answers"),
        Actor("millrace watch", "watch", "acceptance fell below its interval"),
    )
    releases = [make_release(lake, number, recovery=0.991 + number / 1000) for number in (1, 2, 3)]
    endpoint = Endpoint(lake, "tutor")
    for release in releases:
        endpoint.nominate(ReleaseRef.of(release))
        approve(lake, release, ana)
        endpoint.promote(ReleaseRef.of(release), ana)
    roll_back(lake, releases[1], watch)
    add(
        tables,
        "serving_metrics",
        [
            {
                "endpoint": "e",
                "release": releases[min(2, place // 14)].name,
                "window_start": datetime(day.year, day.month, day.day, tzinfo=UTC),
                "window_end": datetime(day.year, day.month, day.day, 1, tzinfo=UTC),
                "drafts": 1000,
                "draft_tokens": 3000,
                "accepted_tokens": 1400 + 15 * place,
                "tokens_per_second": 900.0 + 5 * place,
            }
            for place, day in enumerate(days)
        ],
    )
    add(
        tables,
        "drift",
        [
            {
                "release": releases[1].name,
                "dt": day,
                "window_days": 1,
                "test": test,
                "value": 0.1,
                "p": 10 ** -(1 + (place * 7 + each * 3) % 23 / 8),
                "alarm": test == "novelty" and place > 35,
                "bound": 0.3,
                "ts": datetime(2026, 7, 11, tzinfo=UTC),
            }
            for place, day in enumerate(days)
            for each, test in enumerate(TESTS)
            if place > 8
        ],
    )
    return releases


def add(tables, name, rows):
    tables.append(name, pa.Table.from_pylist([{"workload": "tutor", **row} for row in rows], schema=SCHEMAS[name]))
