"""Sentences about an ingest for its log: objects that left no row and why, moved objects, mixed workloads, feedback without
interaction.
"""

from collections.abc import Iterator

from model_ops.jobs import counted
from resources.reading.ingestion import IngestReport, Reason
from resources.reading.ties import TIES
from resources.reading.unread_keys import unread_text

MOST_REASONS = 8


def notes_on(report: IngestReport) -> Iterator[str]:
    """The notes on one ingest; none if there is nothing to report."""
    if report.moved_objects:
        yield moved_note(report.moved_objects)
    if report.failures:
        yield (
            f"{counted(len(report.failed_objects), 'object')} could not be read, and the next run tries again:"
            f"{_listed(list(report.failures.values()))}"
        )
    if report.set_aside:
        count = sum(reason.objects for reason in report.set_aside.values())
        yield f"{counted(count, 'object')} went to quarantine as a whole:{_listed(list(report.set_aside.values()))}"
    if lines := report.total.quarantined - sum(reason.objects for reason in report.set_aside.values()):
        yield (
            f"{counted(lines, 'record')} went to quarantine "
            '(`millrace sql "select source_uri, source_row, message from quarantine"` says why)'
        )
    for source, (ids, records) in sorted(report.loose_ids.items()):
        yield (
            f"{source}: {counted(ids, 'id')} came back with other contents in {counted(records, 'record')}, so content and "
            "time tell these records apart"
        )
    for source, records in sorted(report.repeated_ids.items()):
        yield (
            f"{source}: {counted(records, 'record')} left out as repeated_id: an earlier record with the same id has other "
            "contents (`millrace sql \"from decisions where rule = 'repeated_id'\"`)"
        )
    yield from map(str, report.mixed)
    for source, said in sorted(report.clashes.items()):
        for words, records in sorted(said.items()):
            yield f"{source}: {counted(records, 'record')} with two values of {words} (`fields` can name another path)"
    for source, keys in sorted(report.unread_keys.items()):
        yield f"{source}: {unread_text(keys, report.fields.get(source))}"
    for source, records in sorted(report.without_user.items()):
        yield (
            f"{source}: fields names the user at {report.fields[source]['user']}, and none of {counted(records, 'row')} has "
            "one: `millrace forget --user` cannot find them"
        )
    records = sum(sum(day.values()) for day in report.ties.values())
    if report.total.feedback and not any(tie in TIES or tie == "several" for day in report.ties.values() for tie in day):
        yield (
            f"none of the {records:,} feedback records names an interaction that was read: compare the ids of both with "
            '`millrace sql "select request_id, trace_id, session_id, tie from feedback limit 5"`'
        )


def moved_note(count: int) -> str:
    """The note on moved objects."""
    return f"{counted(count, 'object')} moved since the last run: the tables have the new uri, and nothing is read again"


def _listed(reasons: list[Reason]) -> str:
    left = len(reasons) - MOST_REASONS
    more = (
        [
            f"and {left:,} more reasons (`millrace sql \"select uri, problem from objects where state = 'failed'\"`, "
            '`millrace sql "from quarantine where source_row = 0"`)'
        ]
        if left > 0
        else []
    )
    return "\n  ".join(["", *map(str, reasons[:MOST_REASONS]), *more]) if len(reasons) > 1 else f" {reasons[0]}"
