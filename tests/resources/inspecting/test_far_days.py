"""Days that lie far from the others are named in one sentence, and the days of records are found whatever the format."""

import json
from datetime import date

import pytest

from resources.inspecting.overview import day_of_record, far_days

JUNE = date(2026, 6, 1)


@pytest.mark.parametrize(("days", "said"), [
    ({date(2000, 1, 1): 1, JUNE: 900}, "1 record of 2000-01-01 lies more than a year from the others"),
    ({JUNE: 2, date(2099, 1, 1): 1}, "1 record of 2099-01-01 lies more than a year from the others"),
    ({date(2022, 6, 1): 1, JUNE: 1}, "1 record of 2022-06-01 lies more than a year from the others"),
    ({date(1970, 1, day): 1 for day in range(1, 6)} | {JUNE: 900}, "5 records of 1970-01-01, 1970-01-02, 1970-01-03 and 2 other days lie more than a year from the others"),
    ({date(2026, month, 1): 1 for month in range(1, 7)}, ""),
    ({date(2025, 8, 1): 1, JUNE: 3}, ""),
    ({JUNE: 1}, ""),
    ({}, ""),
])  # fmt: skip
def test_days_far_from_the_others(days, said):
    assert far_days(days) == said


@pytest.mark.parametrize("record", [
    {"response": {"created": 1780300800}},
    {"ts": "2026-06-01T08:00:00Z"},
    {"startTime": 1780300800123},
    {"time": "1780300800123456789"},
    {"timestamp": "2026-06-01 08:00:00"},
    {"started_at": 1780300800123456},
])  # fmt: skip
def test_the_day_of_a_record(record):
    assert list(day_of_record(json.dumps(record))) == [JUNE]


def test_a_record_without_a_day():
    assert not list(day_of_record('{"messages": [], "time": "soon", "created": "2026-13-41", "ts": 0}'))
