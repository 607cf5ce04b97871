"""Per-row facts of some days: what the status rules say, personal data replaced, feedback, MinHash signature.

    report = clean(tables, "math-tutor", [date(2026, 6, 1)], CurationSettings())

Reads `interactions` and `feedback`; replaces those days of `cleaned_interactions` (every row, kept or not) and of the
`decisions` of stage "clean" (one for each row). Nothing here looks at another day's rows, so days can be cleaned in any
order, together or apart, and again, with the same result; what compares rows with each other is `resources.curate`.

Placeholders are numbered by first appearance within the session's day. A conversation that goes on after midnight
keeps its numbers as long as its requests repeat their history, as chat requests do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import groupby
from typing import Any

import duckdb
import pyarrow as pa

from resources.curation import CurationSettings
from resources.minhash import signatures
from resources.pii import Redactor
from resources.pii_scan import might_hold
from resources.sql_files import attach_slice, rows, run, workbench
from resources.tables import SCHEMAS, Tables

ROWS_AT_A_TIME = 200_000
"""Days are cleaned in groups of about this many rows; a larger day is a group of its own."""

MACROS = tuple(
    f"clean/macros/{name}"
    for name in (
        "one_spacing", "message_text", "message_identity", "told_in", "conversation_of", "new_messages", "beginning",
        "shape_of",
    )
)

_REDACTIONS = pa.schema(
    [("interaction_id", pa.string()), ("messages", pa.string()), ("tools", pa.string()), ("completion", pa.string()),
     ("pii", pa.map_(pa.string(), pa.int32()))]
)


@dataclass
class CleanReport:
    """read = kept + the sum of dropped, for every day and in all."""

    read: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    pii: dict[str, int] = field(default_factory=dict)
    """Values replaced by placeholders, by kind."""
    days: dict[date, dict[str, int]] = field(default_factory=dict)
    """For each day: rows, and how many of them each rule took or `kept`."""

    def as_metrics(self) -> dict[str, Any]:
        return {"read": self.read, "kept": self.kept, "dropped": self.dropped, "pii": self.pii}


def clean(tables: Tables, workload: str, days: Sequence[date], settings: CurationSettings) -> CleanReport:
    """Replaces the cleaned rows of `days` and their decisions. Raises RuntimeError should a row's fate go missing."""
    report = CleanReport()
    for group in _groups(tables, workload, sorted(set(days))):
        _clean(tables, workload, group, settings, report)
    if report.read != report.kept + sum(report.dropped.values()):
        raise RuntimeError(f"clean {workload}: {report.read} rows read, but {report.kept} kept and {report.dropped}")
    return report


def stale_days(tables: Tables, workload: str) -> list[date]:
    """Days that have to be cleaned again: rows arrived late for them, changed, or went, or they never were cleaned."""
    with workbench() as connection:
        attach_slice(connection, tables, "interactions", workload)
        attach_slice(connection, tables, "cleaned_interactions", workload)
        return [day for (day,) in run(connection, "clean/stale_days").fetchall()]


def _groups(tables: Tables, workload: str, days: list[date]) -> list[list[date]]:
    with workbench() as connection:
        attach_slice(connection, tables, "interactions", workload, days)
        sizes = dict(run(connection, "clean/rows_by_day").fetchall())
    groups: list[list[date]] = []
    size = 0
    for day in days:
        size += sizes.get(day, 0)
        if not groups or (size > ROWS_AT_A_TIME and groups[-1]):
            groups.append([])
            size = sizes.get(day, 0)
        groups[-1].append(day)
    return groups


def _clean(
    tables: Tables, workload: str, days: list[date], settings: CurationSettings, report: CleanReport
) -> None:
    with workbench() as connection:
        attach_slice(connection, tables, "interactions", workload, days)
        attach_slice(connection, tables, "feedback", workload)
        for macro in MACROS:
            run(connection, macro)
        run(connection, "clean/arrived", parts=1, part=0)
        run(connection, "clean/arrived_as_conversations")
        run(connection, "clean/feedback")
        connection.register("redactions", _redactions(connection, settings.pii == "redact"))
        run(connection, "clean/cleaned")
        run(connection, "clean/cleaned_as_conversations")
        run(connection, "clean/texts")
        connection.register("signed", _signed(connection, settings))
        facts = rows(connection, "clean/facts", **settings.status.model_dump())
        facts = facts.cast(SCHEMAS["cleaned_interactions"])
        connection.register("facts", facts)
        decisions = rows(connection, "clean/decisions")
        connection.register("decisions", decisions)
        counts = run(connection, "clean/counts").fetchall()
        replaced = run(connection, "clean/pii_counts").fetchall()
    tables.replace("cleaned_interactions", facts, workload=workload, dt=days)
    tables.replace("decisions", decisions, workload=workload, stage="clean", dt=days)
    report.read += len(facts)
    for day in days:
        report.days[day] = {"rows": 0}
    for day, rule, count in counts:
        report.days[day]["rows"] += count
        report.days[day][rule] = count
        if rule == "kept":
            report.kept += count
        else:
            report.dropped[rule] = report.dropped.get(rule, 0) + count
    for kind, values in replaced:
        report.pii[kind] = report.pii.get(kind, 0) + values


def _redactions(connection: duckdb.DuckDBPyConnection, redact: bool) -> pa.Table:
    """The rows in which something was replaced, with their new messages, tools and answer."""
    if not redact:
        return _REDACTIONS.empty_table()
    columns = rows(connection, "clean/pii_columns")
    suspects = might_hold(columns["messages"]) | might_hold(columns["tools"]) | might_hold(columns["completion"])
    connection.register("suspects", pa.table({"interaction_id": columns["interaction_id"].filter(pa.array(suspects))}))
    candidates = rows(connection, "clean/pii_candidates").to_pylist()
    changed = []
    for _, session in groupby(candidates, key=lambda row: (row["session_id"], row["dt"])):
        redactor = Redactor()
        for row in session:
            redactor.found.clear()
            new = {
                column: None if row[column] is None else redactor.redact_json(row[column])
                for column in ("messages", "tools", "completion")
            }
            if redactor.found:
                changed.append(
                    {"interaction_id": row["interaction_id"], "pii": list(redactor.found.items()), **new}
                )
    return pa.Table.from_pylist(changed, schema=_REDACTIONS)


def _signed(connection: duckdb.DuckDBPyConnection, settings: CurationSettings) -> pa.Table:
    """The MinHash signature of every row's new text."""
    texts = rows(connection, "clean/near_texts")
    signed = signatures(texts["new_turn"], texts["answer"], settings.near_duplicates)
    return pa.table({"interaction_id": texts["interaction_id"], "signature": signed})

