"""What a record leaves out is no damage: arguments of a call, a time. What is there in an unusual form is read."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from test_formats import numbered, pair, read

from model_ops.rendering.server_messages import server_messages
from resources.records.moments import moment_of

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MILLIS = NOON.replace(microsecond=123_000)
EPOCH = int(NOON.timestamp())


def _call(name, **arguments):
    return {"id": f"c_{name}", "type": "function", "function": {"name": name, **arguments}}


def test_a_call_without_arguments_calls_a_tool_without_parameters(tmp_path):
    calls = [
        _call("a"), _call("b", arguments=None), _call("c", arguments=""), _call("d", arguments=" \n"),
        _call("e", arguments={}), _call("f", arguments="null"), _call("g", arguments='{"x": 1}'),
    ]  # fmt: skip
    spoken = {"role": "assistant", "content": None, "tool_calls": calls}
    older = {"role": "assistant", "content": None, "function_call": {"name": "now"}}
    asked = [{"role": "user", "content": 'say "function": {"arguments": "x"}'}, spoken, older,
        {"role": "user", "content": "and?"}]  # fmt: skip
    record = pair(request={"model": "m", "messages": asked})
    record["response"]["choices"][0]["message"] = spoken
    [row], bad, _, _ = read(tmp_path, [record])
    assert not bad
    said = [json.loads(row["messages"])[1], json.loads(row["completion"])]
    assert [[call["function"]["arguments"] for call in each["tool_calls"]] for each in said] == [["{}"] * 6 + ['{"x": 1}']] * 2
    assert json.loads(row["messages"])[2]["function_call"] == {"name": "now", "arguments": "{}"}


def test_blank_arguments_are_none_in_every_way_to_write_a_blank(tmp_path):
    blanks = ["\n", "\t ", " \r\n", "\nnull\n", "\n{}"]
    records = [pair(request={"model": "m", "messages": [{"role": "user", "content": f"case {n}"}]}) for n in range(len(blanks))]
    for blank, record in zip(blanks, records, strict=True):
        call = _call("a", arguments=blank)
        record["response"]["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
    rows, bad, _, _ = read(tmp_path, records)
    calls = [json.loads(row["completion"])["tool_calls"][0]["function"]["arguments"] for row in rows]
    assert not bad and sorted(each.strip() for each in calls) == ["{}"] * len(blanks)


@pytest.mark.parametrize("form", ["object", "text"])
@pytest.mark.parametrize("given", [{}, {"arguments": None}, {"arguments": ""}, {"arguments": "  "}])
def test_a_template_is_given_empty_arguments(form, given):
    [message] = server_messages([{"role": "assistant", "tool_calls": [_call("now", **given)]}], form, False, False)
    assert message["tool_calls"][0]["function"]["arguments"] == ({} if form == "object" else "{}")


TIMES = [("2026-06-01 12:00:00,123", MILLIS),
    ("2026-06-01T12:00:00.123456789Z", MILLIS.replace(microsecond=123_456)), ("2026-06-01T12:00:00z", NOON),
    ("2026-06-01 14:00:00 +0200", NOON),
    ("2026-06-01T14:00:00+02:00[Europe/Rome]", NOON), ("20260601T120000Z", NOON), ("20260601120000", NOON),
    ("2026/06/01 12:00:00.123", MILLIS), ("Mon, 01 Jun 2026 12:00:00 GMT", NOON),
    ("Mon, 1 Jun 2026 05:00:00 -0700 (PDT)", NOON), ("Monday, 01-Jun-26 12:00:00 GMT", NOON),
    ("01/Jun/2026:14:00:00 +0200", NOON), ("[01/Jun/2026:12:00:00 +0000]", NOON), ("Mon Jun  1 12:00:00 2026", NOON),
    ("Mon Jun  1 12:00:00 UTC 2026", NOON), ("01 Jun 2026 12:00:00,123", MILLIS),
    ("Mon Jun 01 2026 14:00:00 GMT+0200 (Central European Summer Time)", NOON), ("Jun 1, 2026, 12:00:00 PM", NOON),
    ({"$date": "2026-06-01T12:00:00Z"}, NOON), ({"$date": EPOCH * 1000}, NOON),
    ({"$date": {"$numberLong": f"{EPOCH}000"}}, NOON), ({"seconds": EPOCH, "nanos": 0}, NOON), (f"/Date({EPOCH}000)/", NOON),
    ([2026, 6, 1, 12, 0, 0, 123_000_000], MILLIS), (EPOCH, NOON), (f"{EPOCH}", NOON), (EPOCH * 10**3, NOON),
    (f"{EPOCH}000000", NOON), (EPOCH * 10**9, NOON), (f"{EPOCH},123", MILLIS),
    ("06/13/2026 12:00:00 PM", NOON + timedelta(days=12)),
    ("13.06.2026 12:00", NOON + timedelta(days=12)),
    ("2026-06-01 12:00:00.123 +0000 UTC m=+0.012", MILLIS), ("2026-06-01 14:00:00 +0200 CEST", NOON),
    ("Jun 1, 2026 @ 12:00:00.123", MILLIS), ("01-JUN-26 12.00.00.123000 PM", MILLIS),
    ("2026-W23-1T12:00:00Z", NOON)]  # fmt: skip


def test_a_time_is_read_in_the_forms_that_loggers_write(tmp_path):
    records = numbered([pair(timestamp=written) for written, _ in TIMES])
    rows, bad, _, _ = read(tmp_path, records)
    found = {row["request_id"]: row["ts"] for row in rows}
    assert not bad and [found[record["response"]["id"]] for record in records] == [meant for _, meant in TIMES]


def timed(written, created):
    record = pair(timestamp=written)
    record["response"]["created"] = created
    return record


def test_no_time_is_the_time_of_another_key_or_the_files_day(tmp_path):
    absent = ["", " ", 0, "0", 0.0, None, "None", "-", "0001-01-01T00:00:00Z", {"$date": 0}, "null"]
    records = [*(timed(each, each) for each in absent), *(timed(each, EPOCH) for each in absent)]
    rows, bad, _, _ = read(tmp_path, numbered(records), name="2026-05-02.jsonl")
    assert not bad and [row["ts"] for row in rows] == [datetime(2026, 5, 2, tzinfo=UTC)] * len(absent) + [NOON] * len(absent)


def test_a_time_of_an_unknown_form_is_shown(tmp_path):
    unknown = ["half past ten", "06/05/2026 12:00:00", "Jun  1 12:00:00", "2026-06-31 12:00:00,5", "12:00:00", "2026-W54-1"]
    records = [*(timed(written, None) for written in unknown), *(timed(written, EPOCH) for written in unknown)]
    rows, bad, _, _ = read(tmp_path, numbered(records))
    assert [each["message"] for each in bad] == [f"the format of the time is not known: {written}" for written in unknown]
    assert [row["ts"] for row in rows] == [NOON] * len(unknown)


def test_a_time_outside_the_century_is_shown(tmp_path):
    record = pair(timestamp="1850-01-01 12:00:00,5")
    record["response"]["created"] = None
    _, [bad], _, _ = read(tmp_path, [record])
    assert bad["message"] == "the time is not one between the years 2000 and 2100: 1850-01-01 12:00:00,5"


def test_feedback_and_providers_have_the_same_reader_of_times(tmp_path):
    feedback = {"response_id": "r1", "value": 1, "timestamp": "", "created_at": "01/Jun/2026:12:00:00 +0000"}
    gemini = {
        "timestamp": "yesterday",
        "ts": "2026-06-01 12:00:00,000",
        "request": {"contents": [{"role": "user", "parts": [{"text": "a"}]}]},
        "response": {"candidates": [{"content": {"role": "model", "parts": [{"text": "b"}]}, "finishReason": "STOP"}]},
    }
    [row], bad, [told], _ = read(tmp_path, [gemini, feedback])
    assert not bad and row["ts"] == told["ts"] == NOON


def test_zones_are_offsets():
    west = moment_of("Mon, 01 Jun 2026 12:00:00 EST")
    assert datetime.fromisoformat(west) == NOON.replace(tzinfo=timezone(timedelta(hours=-5)))
