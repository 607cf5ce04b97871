"""OpenTelemetry spans and the log records with their content, in one object or several, whichever comes first."""

import json
import os

import pytest

from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading import batches as staging
from resources.reading import pairing as span_events
from resources.reading.ingestion import ingest
from resources.sources.sources import SourceSettings
from tests.thorough_cases import thorough_except

TRACE = "5b8efff798038103d269b633813fc60c"


def attributes(**values):
    return [{"key": key.replace("__", "."), "value": any_value(value)} for key, value in values.items()]


def any_value(value):
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": any_value(each)} for key, each in value.items()]}}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(each) for each in value]}}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def span(number, begin=1_780_300_000, **more):
    """A chat span without content, as opentelemetry-instrumentation-openai-v2 writes it."""
    return {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "name": "chat m",
        "kind": 3,
        "startTimeUnixNano": f"{begin}000000000",
        "endTimeUnixNano": f"{begin + 2}000000000",
        "status": {},
        "attributes": attributes(
            gen_ai__operation__name="chat",
            gen_ai__system="openai",
            gen_ai__request__model="m",
            gen_ai__response__model="m-1",
            gen_ai__response__id=f"chatcmpl-{number}",
            gen_ai__usage__input_tokens=7,
            gen_ai__response__finish_reasons=["stop"],
        ),
        **more,
    }


def event(number, name, after=0, body=None, **more):
    """A log record of the older conventions; its time is that of its observation."""
    return {
        "observedTimeUnixNano": f"1780300000{after:09}",
        "eventName": name,
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "attributes": attributes(gen_ai__system="openai"),
        "body": any_value(body or {}),
        **more,
    }


def messages(number, question, answer):
    """The log records of one call, its answer first: exporters do not order them."""
    return [
        event(
            number,
            "gen_ai.choice",
            3,
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}},
        ),
        event(number, "gen_ai.system.message", 1, {"content": "Be brief."}),
        event(number, "gen_ai.user.message", 2, {"content": question}),
    ]


def details(number, question, answer, **more):
    """The event of the newer conventions, with structured messages."""
    return {
        "timeUnixNano": "1780300002000000000",
        "eventName": "gen_ai.client.inference.operation.details",
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "body": {},
        "attributes": attributes(
            gen_ai__operation__name="chat",
            gen_ai__request__model="m",
            gen_ai__input__messages=[{"role": "user", "parts": [{"type": "text", "content": question}]}],
            gen_ai__output__messages=[
                {"role": "assistant", "finish_reason": "stop", "parts": [{"type": "text", "content": answer}]}
            ],
        ),
        **more,
    }


def traces(*spans):
    return {"resourceSpans": [{"resource": {"attributes": attributes(service__name="shop")}, "scopeSpans": [{"spans": spans}]}]}


def logs(*records):
    return {
        "resourceLogs": [{"resource": {"attributes": attributes(service__name="shop")}, "scopeLogs": [{"logRecords": records}]}]
    }


def put(folder, name, *documents, modified=1_780_300_000):
    path = folder / "logs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    os.utime(path, (modified, modified))


def read(folder):
    """Interactions by request id, quarantine, records by rule of what was dropped, and the report."""
    tables = Tables(LakeLayout.open(folder / "lake"))
    report = ingest(tables, "shop", {"otel": SourceSettings(uri=str(folder / "logs"))})
    found = {}
    for name in ("interactions", "quarantine", "decisions"):
        opened = tables.open(name)
        found[name] = opened.to_pyarrow_table().to_pylist() if opened else []
    dropped = {row["rule"]: json.loads(row["detail"])["records"] for row in found["decisions"] if not row["kept"]}
    return {row["request_id"]: row for row in found["interactions"]}, found["quarantine"], dropped, report


def told(row):
    return (
        [(message["role"], message["content"]) for message in json.loads(row["messages"])],
        json.loads(row["completion"])["content"],
    )


def test_message_events_in_another_object_give_the_span_its_content(tmp_path):
    put(tmp_path, "traces/a.jsonl", traces(span(1), span(2)), traces(span(3)))
    put(tmp_path, "events/b.jsonl", logs(*messages(2, "two?", "2"), *messages(1, "one?", "1")))
    rows, bad, dropped, report = read(tmp_path)
    assert set(rows) == {"chatcmpl-1", "chatcmpl-2"} and not bad
    row = rows["chatcmpl-2"]
    assert told(row) == ([("system", "Be brief."), ("user", "two?")], "2")
    assert (row["model"], row["latency_ms"], row["prompt_tokens"], row["finish_reason"]) == ("m-1", 2000, 7, "stop")
    assert row["client"] == "shop" and row["source_uri"].endswith("traces/a.jsonl") and row["source_row"] == 1
    assert row["alias_id"] == f"{TRACE}-{2:016x}"
    assert dropped == {"otlp_call_without_content": 1} and (report.total.read, report.total.rows) == (3, 2)


@pytest.mark.parametrize("first", thorough_except(["events/b.jsonl"], ["traces/a.jsonl", "events/b.jsonl"]))
def test_the_order_in_which_the_objects_come_does_not_matter(tmp_path, first):
    files = {
        "traces/a.jsonl": traces(span(1)),
        "events/b.jsonl": logs(*messages(1, "one?", "1")),
        "events/c.jsonl": logs(
            event(1, "gen_ai.choice", 4, {"index": 1, "finish_reason": "length", "message": {"content": "or 2"}})
        ),
    }
    put(tmp_path, first, files.pop(first))
    early, _, dropped, _ = read(tmp_path)
    if first.startswith("traces"):
        assert not early and dropped == {"otlp_call_without_content": 1}
    else:  # log records alone hold a question and an answer
        assert told(early[f"{TRACE}-{1:016x}"]) == ([("system", "Be brief."), ("user", "one?")], "1")
    for name, document in files.items():
        put(tmp_path, name, document)
        rows, bad, dropped, _ = read(tmp_path)
    assert set(rows) == {"chatcmpl-1"} and not bad and not dropped
    choices = Tables(LakeLayout.open(tmp_path / "lake")).open("interactions").to_pyarrow_table().to_pylist()
    assert sorted((row["choice_index"], told(row)[1], row["finish_reason"]) for row in choices) == [
        (0, "1", "stop"),
        (1, "or 2", "length"),
    ]
    again = read(tmp_path)
    assert again[0] == rows and again[3].total.objects == 0


@pytest.mark.parametrize("parts", thorough_except(["one item"], ["one item", "a span and its log records"]))
def test_a_call_that_would_exhaust_the_memory_goes_to_quarantine_alone(tmp_path, parts):
    half = "x " * (5 << 20)
    if parts == "one item":
        sent = [logs(details(1, half + half, "1"), details(2, "two?", "2")), traces(span(2))]
    else:
        sent = [logs(*messages(1, half, half), *messages(2, "two?", "2")), traces(span(1), span(2))]
    put(tmp_path, "a.jsonl", *sent)
    rows, (bad,), dropped, report = read(tmp_path)
    assert set(rows) == {"chatcmpl-2"} and not dropped
    assert bad["error_code"] == "too_long" and "more than 16 MiB" in bad["message"] and len(bad["raw"]) <= 4096
    assert report.total.read == report.total.rows + report.total.quarantined == 2


def test_details_are_joined_with_their_span_and_read_without_it(tmp_path):
    put(tmp_path, "a.jsonl", logs(details(1, "one?", "1"), details(2, "two?", "2")), traces(span(1)))
    rows, bad, dropped, report = read(tmp_path)
    assert not bad and not dropped and (report.total.read, report.total.rows) == (2, 2)
    assert told(rows["chatcmpl-1"]) == ([("user", "one?")], "1") and rows["chatcmpl-1"]["latency_ms"] == 2000
    alone = rows[f"{TRACE}-{2:016x}"]
    assert told(alone) == ([("user", "two?")], "2") and (alone["model"], alone["latency_ms"]) == ("m", None)


def test_tool_calls_and_failures(tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    put(
        tmp_path,
        "a.jsonl",
        traces(span(1), span(2, status={"code": 2, "message": "timed out"})),
        logs(
            event(1, "gen_ai.user.message", 1, {"content": "go"}),
            event(1, "gen_ai.assistant.message", 2, {"tool_calls": [call]}),
            event(1, "gen_ai.tool.message", 3, {"id": "c1", "content": "7"}),
            event(1, "gen_ai.choice", 4, {"index": 0, "finish_reason": "tool_calls", "message": {}, "tool_calls": [call]}),
            event(2, "gen_ai.user.message", 1, {"content": "lost"}),
        ),
    )
    rows, bad, _, _ = read(tmp_path)
    asked = json.loads(rows["chatcmpl-1"]["messages"])
    assert asked[1]["tool_calls"] == [call] and asked[2] == {"role": "tool", "content": "7", "tool_call_id": "c1"}
    assert json.loads(rows["chatcmpl-1"]["completion"])["tool_calls"] == [call] and not bad
    assert (rows["chatcmpl-2"]["status"], rows["chatcmpl-2"]["error"]) == ("failure", "timed out")


def test_log_records_that_say_nothing_give_no_row(tmp_path):
    """Without permission to record content, the log records name roles and tools only."""
    silent = {
        "index": 0,
        "finish_reason": "tool_calls",
        "message": {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]},
    }
    put(
        tmp_path,
        "a.jsonl",
        traces(span(1), span(2)),
        logs(
            event(1, "gen_ai.user.message", 1),
            event(1, "gen_ai.choice", 2, silent),
            event(3, "gen_ai.user.message", 1, {"content": "a question without span and answer"}),
        ),
    )
    rows, bad, dropped, report = read(tmp_path)
    assert not rows and not bad and dropped == {"otlp_call_without_content": 2, "otlp_message_event": 1}
    assert (report.total.read, report.total.skipped) == (3, 3)


def test_log_records_that_were_sent_twice_count_once(tmp_path):
    put(tmp_path, "a.jsonl", traces(span(1)), logs(*messages(1, "one?", "1")))
    put(tmp_path, "b.jsonl", traces(span(1)), logs(*messages(1, "one?", "1")))
    rows, bad, dropped, report = read(tmp_path)
    assert told(rows["chatcmpl-1"]) == ([("system", "Be brief."), ("user", "one?")], "1")
    assert not bad and dropped == {"otlp_call_without_content": 1} and (report.total.read, report.total.rows) == (2, 1)


def test_a_joined_record_that_fails_a_check_is_quarantined_once(tmp_path):
    put(
        tmp_path,
        "a.jsonl",
        traces(span(1), span(2)),
        logs(event(1, "gen_ai.user.message", 1, {"content": "q"}), event(2, "gen_ai.user.message", 1, {"content": "q"})),
    )
    rows, bad, _, report = read(tmp_path)
    assert not rows and [row["error_code"] for row in bad] == ["missing_field"] * 2 and report.total.quarantined == 2


def test_spans_that_were_committed_before_their_events_came_are_read_again(tmp_path, monkeypatch):
    """In one run, too: spans alone do not keep a batch open."""
    monkeypatch.setattr(staging, "BATCH_BYTES", 0)
    monkeypatch.setattr(span_events, "PAGE_BYTES", 1_000)
    put(tmp_path, "a-spans.jsonl", *[traces(span(number)) for number in range(1, 4)])
    put(tmp_path, "b-spans.jsonl", traces(span(4)))
    put(tmp_path, "c-events.jsonl", *[logs(*messages(number, f"{number}?", str(number))) for number in range(1, 5)])
    rows, bad, dropped, _ = read(tmp_path)
    assert sorted(told(row)[1] for row in rows.values()) == ["1", "2", "3", "4"] and not bad and not dropped


def test_only_neighbouring_days_are_read_again(tmp_path, monkeypatch):
    put(tmp_path, "dt=2026-06-01/s.jsonl", traces(span(1)))
    put(tmp_path, "dt=2026-06-05/s.jsonl", traces(span(2)))
    read(tmp_path)
    later = {"timeUnixNano": "1780700000000000000"}
    put(tmp_path, "dt=2026-06-06/e.jsonl", logs(details(1, "one?", "1", **later), details(2, "two?", "2", **later)))
    rows, _, _, report = read(tmp_path)
    assert {told(row)[1]: row["latency_ms"] for row in rows.values()} == {"1": None, "2": 2000}
    assert report.total.objects == 3  # the new object, and again with the spans of the day before


def test_a_changed_object_is_read_with_its_partners(tmp_path):
    put(tmp_path, "a.jsonl", traces(span(1)))
    put(tmp_path, "b.jsonl", logs(*messages(1, "one?", "1")))
    put(tmp_path, "c.jsonl", traces(span(9)))
    read(tmp_path)
    put(tmp_path, "b.jsonl", logs(*messages(1, "one?", "uno")), modified=1_780_300_100)
    rows, bad, _, report = read(tmp_path)
    assert told(rows["chatcmpl-1"])[1] == "uno" and not bad and report.total.objects == 2
    (tmp_path / "logs/b.jsonl").unlink()
    rows, *_ = read(tmp_path)
    assert told(rows["chatcmpl-1"])[1] == "uno", "the rows of an object that is gone stay"
    put(tmp_path, "d.jsonl", logs(*messages(9, "nine?", "9")))
    rows, *_, report = read(tmp_path)
    assert set(rows) == {"chatcmpl-1", "chatcmpl-9"} and not report.failed_objects
