"""Records behind the prefixes of container runtimes, syslog and loggers."""

import json
from datetime import UTC, datetime

import pytest
from test_formats import pair, read

from resources.records.objects.prefixed_lines import _record
from tests.thorough_cases import thorough_except

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def _logged(number):
    record = pair(request={"model": "m", "messages": [{"role": "user", "content": f"q{number} {{"}]})
    record["response"] |= {"id": f"req_{number}", "created": None}
    return {key: value for key, value in record.items() if key != "timestamp"}


PREFIXES = ["2026-06-01T12:00:00.000Z stdout F ", "2026-06-01 12:00:00,000 INFO gateway: ",
    "<14>1 2026-06-01T12:00:00Z host app 7 - - ", "data: ", "INFO [req{id=1}] "]  # fmt: skip
FURTHER = ["2026-06-01T12:00:00Z ", "[2026-06-01 12:00:00] ", "INFO:root:", "Jun  1 12:00:00 host app[7]: ", "[req{id=1}] ",
    "2026-06-01 12:00:00 INFO ctx={} body=", "[INFO] "]  # fmt: skip


@pytest.mark.parametrize("prefix", thorough_except(PREFIXES, [*PREFIXES, *FURTHER]))
def test_records_behind_a_prefix_are_read_and_other_lines_counted(tmp_path, prefix):
    lines = [f"{prefix}Listening on :8000", *(prefix + json.dumps(_logged(number)) for number in range(3)),
        prefix + json.dumps(_logged(4))[:60]]  # fmt: skip
    rows, bad, _, report = read(tmp_path, "\n".join(lines).encode(), name="2026-06-01.log")
    assert [row["request_id"] for row in rows] == ["req_0", "req_1", "req_2"] and [row["source_row"] for row in rows] == [
        2,
        3,
        4,
    ]
    assert report.total.skipped == 1 and [row["error_code"] for row in bad] == ["malformed_json"]
    dated = prefix.startswith(("2026", "[2026"))
    assert {row["ts"] for row in rows} == {NOON if dated else NOON.replace(hour=0)}


def test_pieces_of_a_line_are_joined(tmp_path):
    text = json.dumps(_logged(0))
    lines = [f"2026-06-01T12:00:00.1Z stdout P {text[:40]}", "2026-06-01T12:00:00.1Z stderr F warning",
        f"2026-06-01T12:00:00.2Z stdout P {text[40:90]}",
        f"2026-06-01T12:00:00.3Z stdout F {text[90:]}"]  # fmt: skip
    [row], bad, _, report = read(tmp_path, "\n".join(lines).encode(), name="pod.log")
    assert not bad and (row["request_id"], row["source_row"]) == ("req_0", 1) and report.total.skipped == 1


def test_an_object_inside_a_line_that_breaks_off_is_no_record():
    assert _record('INFO {"request": {"messages": []}') is None and _record('INFO {"a": 1} done') is None
    assert _record('ctx={"a": {"b": 1}} {"c": 2}') == {"c": 2}
    assert _record('a{b}c {"d": "{"}') == {"d": "{"} and _record('{"a": {"b": 1}') is None
