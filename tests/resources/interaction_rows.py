"""Rows of `interactions` and `feedback` for tests: only what a test names differs from a plain, healthy row."""

import hashlib
import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from resources.curating.curation import FeedbackRules
from resources.curating.row_feedback import attach_row_feedback
from resources.lake.sql_files import attach_slice, workbench
from resources.lake.tables import SCHEMAS

START = datetime(2026, 6, 1, 12, tzinfo=UTC)


def interaction(number, prompt, answer, *, minutes=0, day=0, **changes):
    """One row. `prompt` is a user's text or a list of messages; `answer` a text or a message."""
    ts = START + timedelta(days=day, minutes=minutes)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    completion = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
    row = dict.fromkeys(SCHEMAS["interactions"].names)
    row |= {
        "workload": "tutor",
        "dt": ts.date(),
        "ts": ts,
        "interaction_id": f"i{number}",
        "request_id": f"r{number}",
        "choice_index": 0,
        "source": "gateway",
        "source_format": "openai",
        "source_uri": "log.jsonl",
        "source_row": 0,
        "session_id": f"s{number}",
        "client": "app",
        "model": "m",
        "messages": json.dumps(messages),
        "completion": json.dumps(completion),
        "finish_reason": "stop",
        "cache_hit": False,
        "status": "success",
    }
    row |= changes
    row["content_sha256"] = hashlib.sha256(f"{row['messages']}{row['completion']}".encode()).hexdigest()
    return row


def thumb(value, **about):
    """One feedback record about interaction_id=, request_id=, trace_id= or session_id=."""
    ts = about.pop("ts", START + timedelta(hours=3))
    row = dict.fromkeys(SCHEMAS["feedback"].names)
    row |= {"workload": "tutor", "dt": ts.date(), "ts": ts, "name": "thumbs", "value": float(value)}
    return row | about


def store(tables, name, rows):
    """Replaces the days that `rows` belong to, as an ingest does."""
    table = pa.Table.from_pylist(rows, schema=SCHEMAS[name])
    tables.replace(name, table, workload="tutor", dt=sorted({row["dt"] for row in rows}))


def days_of(rows):
    return sorted({row["dt"] for row in rows})


def read(tables, name):
    """All rows of a table as dicts."""
    return tables.open(name).to_pyarrow_table().to_pylist()


def heard(tables, workload, rules=None):
    """The feedback value of each interaction, as cleaning and curation use it."""
    with workbench() as connection:
        for name in ("interactions", "feedback"):
            attach_slice(connection, tables, name, workload)
        connection.execute("create temp view conversations as select * from interactions")
        attach_row_feedback(connection, rules or FeedbackRules(least={}))
        return dict(connection.execute("select interaction_id, value from row_feedback").fetchall())
