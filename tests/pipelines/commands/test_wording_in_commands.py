"""Sentences that hold numbers or may lack a value: singular where there is one, and never the word None."""

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from rich.console import Console

from pipelines.asking.why_text import STAGES, print_history
from pipelines.terminal.printing import print_lineage, print_rows
from resources.catalog.why import STEPS, RecordHistory

UNKNOWN = dict.fromkeys(("name", "version", "rule", "detail", "kept_id"))
BARE = {"interaction_id": "a" * 64, "step": 1, "stage": "", "kept": True, "current": True, **UNKNOWN}


NEVER_NULL = {"dataset row": {"rule": "test"}, "model": {"name": "shop/sft_model"}}


def told(steps, subject):
    console = Console(record=True, width=200)
    rows = pa.Table.from_pylist([{**BARE, **step} for step in steps], schema=STEPS)
    print_history(RecordHistory("abcdef12", "request", rows, {"a" * 64: subject}), "table", console)
    return console.export_text()


@pytest.mark.parametrize("stage", list(STAGES))
@pytest.mark.parametrize(
    "subject",
    [
        {},
        dict.fromkeys(
            (
                "request_id",
                "session_id",
                "ts",
                "workload",
                "source",
                "source_format",
                "model",
                "prompt_tokens",
                "completion_tokens",
            )
        ),
    ],
)
def test_a_story_of_which_little_is_known_says_no_none(stage, subject):
    text = told([{"stage": stage, **NEVER_NULL.get(stage, {})}], subject)
    assert "None" not in text
    assert not [line for line in text.splitlines() if line.rstrip().endswith((":", ",", "says"))], text


def test_a_story_counts_in_the_singular():
    subject = {"prompt_tokens": 1, "completion_tokens": 2, "ts": datetime(2026, 11, 22, tzinfo=UTC)}
    text = told(
        [
            {"stage": "interactions", "rule": "read", "detail": "a.jsonl:1"},
            {"stage": "curate", "rule": "kept", "current": False},
        ],
        subject,
    )
    assert "1 prompt token, 2 answer tokens" in text
    assert "1 step of earlier versions is not shown" in text


def test_rows_and_trees_leave_missing_values_empty():
    console = Console(record=True, width=200)
    print_rows(pa.table({"a": pa.array([None, 1], pa.int64()), "b": pa.array(["x", None])}), "table", console)
    print_lineage(pa.Table.from_pylist([{"depth": 1, "child": "a@1", "parent": "b@2"}]), "table", console)
    assert "None" not in console.export_text()


def test_a_judgement_without_its_model_is_still_a_sentence():
    assert "quality 7 of 10" in told([{"stage": "judge", "name": "quality", "detail": "7 of 10"}], {})
    assert "says big" in told([{"stage": "judge", "name": "quality", "detail": "7 of 10", "version": "big"}], {})


def test_metadata_tables_leave_missing_values_empty():
    from assets.presentation import table

    shown = table([{"gate": "recovery", "measured": None}, {"gate": "acceptance_length", "measured": 1.5}])
    expected = [{"gate": "recovery", "measured": None}, {"gate": "acceptance_length", "measured": 1.5}]
    assert [dict(record.data) for record in shown.records] == expected
    assert [(column.name, column.type) for column in shown.schema.columns] == [("gate", "string"), ("measured", "float")]
    assert [column.type for column in table([{"rows": 3, "passed": True}]).schema.columns] == ["int", "bool"]
    assert table([]).md_str == "(none)"


def test_one_object_that_cannot_be_read_is_said_of_one():
    from resources.inspecting.findings import Inspection
    from resources.inspecting.inspection import _nothing
    from resources.reading.ingestion import IngestReport

    nothing = {name: [] for name in ("days", "workloads", "clients", "models", "quarantined", "feedback")}
    failed = [{"first_object": "logs/a.gz", "problem": "the stream is cut off"}]
    found = Inspection(["logs/"], False, 0, 0, {}, [{"objects": 1}], repeated={}, failed=failed, **nothing)
    one, report = found, IngestReport()
    assert _nothing(replace(found, failed=[]), report) == "1 object under logs/ holds no record at all"
    report.failed_objects.append("logs/a.gz")
    assert _nothing(one, report) == "the one object under logs/ cannot be read; logs/a.gz: the stream is cut off"
    report.failed_objects.append("logs/b.gz")
    assert _nothing(replace(found, formats=[{"objects": 2}]), report).startswith(
        "none of the 2 objects under logs/ can be read"
    )


def test_metadata_numbers_have_five_digits_that_say_something():
    from assets.presentation import numbers

    found = numbers({"speed": 7418.98994, "loss": 4.094491, "lr": 0.000123, "rows": 1234567, "no": None, "nan": float("inf")})
    assert found == {"speed": 7419.0, "loss": 4.0945, "lr": 0.00012, "rows": 1234567, "nan": float("inf")}
