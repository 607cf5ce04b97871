"""Rows of `cleaned_interactions` for tests of drift: days of sessions with as many turns as a draw says."""

import json
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa

from resources.lake.tables import SCHEMAS

FIRST = date(2026, 6, 1)
WORDS = ("mill", "river", "stone", "grain", "wheel", "flour", "sack", "gear", "bread", "water")


def cleaned(number, day, session, *, prompt="what is a mill for", shape="what#1", **changes):
    """One cleaned row; only what a test names differs from a healthy one."""
    ts = datetime(day.year, day.month, day.day, 12, tzinfo=UTC) + timedelta(seconds=number % 3600)
    row = dict.fromkeys(SCHEMAS["cleaned_interactions"].names)
    return (
        row
        | {
            "workload": "tutor",
            "dt": day,
            "ts": ts,
            "interaction_id": f"i{number}",
            "content_sha256": f"c{number}",
            "session_id": session,
            "source": "gateway",
            "messages": json.dumps([{"role": "user", "content": prompt}]),
            "completion": json.dumps({"role": "assistant", "content": "it is for grain"}),
            "status": "ok",
            "language": "en",
            "prompt_characters": len(prompt),
            "completion_characters": 15,
            "prompt_shape": shape,
        }
        | changes
    )


def days_of_rows(days, rng, *, sessions=40, of=lambda rng: {}, first=FIRST):
    """Rows of `days` days: sessions of 1 to 5 turns on one topic each. of: changes of a session's rows, drawn for each."""
    rows = []
    for day in range(days):
        for session in range(sessions):
            topic = rng.choice(WORDS)
            prompt = f"tell me about the {topic} of the {WORDS[rng.integers(3)]}"
            about = {"prompt": prompt, "shape": f"{topic}#1"} | of(rng)
            for _ in range(rng.integers(1, 6)):
                number = len(rows) + 1_000_000 * (first - FIRST).days
                rows.append(cleaned(number, first + timedelta(day), f"{first}-{day}-{session}", **about))
    return rows


def store(tables, name, rows):
    """Replaces the days of these rows."""
    table = pa.Table.from_pylist(rows, schema=SCHEMAS[name])
    tables.replace(name, table, workload="tutor", dt=sorted({row["dt"] for row in rows}))


def generator(seed=0):
    return np.random.default_rng(seed)
