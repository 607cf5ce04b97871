"""Files whose records are of several formats: each becomes what it is, wherever in the file it stands."""

import json

import pytest

from resources import staging as staging_module
from resources.ingest import ingest
from resources.lake import Lake
from resources.sources import SourceSettings
from resources.tables import Tables

SAID, ANSWER = [{"role": "user", "content": "hi"}], {"role": "assistant", "content": "hello"}


def pair(number):
    return {"timestamp": 1780300000, "request": {"messages": SAID},
            "response": {"id": f"p{number}", "choices": [{"finish_reason": "stop", "message": ANSWER}]}}


def thumb(number):
    return {"response_id": f"p{number}", "value": "up", "timestamp": 1780300001}


def proxied(number):
    return {"id": f"l{number}", "call_type": "acompletion", "startTime": 1780300000.5, "endTime": 1780300001.5, "status": "success",
            "messages": [*SAID, ANSWER, *SAID], "response": {"id": f"l{number}", "choices": [{"message": ANSWER}]}}


def example(number):
    return {"id": f"m{number}", "timestamp": 1780300000, "messages": [*SAID, ANSWER]}


KINDS = {"openai_pairs": pair, "feedback": thumb, "litellm": proxied, "messages": example}


def read(tmp_path, lines, form="auto"):
    path = tmp_path / "logs/a.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    tables = Tables(Lake.open(tmp_path / "lake"))
    total = ingest(tables, "w", {"g": SourceSettings(uri=str(tmp_path / "logs"), format=form)}).total
    found = {}
    for name in ("interactions", "feedback", "quarantine"):
        opened = tables.open(name)
        found[name] = opened.to_pyarrow_table().to_pylist() if opened else []
    return found, total


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("main", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_a_record_of_another_format_becomes_what_it_is(tmp_path, main, other, together):
    """together: the other one stands among the first records; else behind those that tell the file's format."""
    lines = [KINDS[main](number) for number in range(20)]
    lines.insert(1 if together else 15, KINDS[other](99))
    found, total = read(tmp_path, lines)
    assert found["quarantine"] == [] and total.kept + total.feedback == 21
    expected = {kind: 20 * (kind == main) + (kind == other) for kind in KINDS}
    assert len(found["feedback"]) == expected.pop("feedback")
    kinds = [row["source_format"] for row in found["interactions"]]
    assert {kind: kinds.count(kind) for kind in expected} == expected
    assert all(json.loads(row["completion"])["content"] == "hello" for row in found["interactions"])
    rows = [row["source_row"] for name in ("interactions", "feedback") for row in found[name]]
    assert sorted(rows) == list(range(1, 22))


@pytest.mark.parametrize("together", [True, False])
def test_what_no_format_knows_is_said_so_with_its_keys(tmp_path, together):
    lines = [pair(number) for number in range(20)]
    lines[1 if together else 15] = {"level": "info", "event": "started"}
    found, total = read(tmp_path, lines)
    (bad,) = found["quarantine"]
    assert (bad["error_code"], bad["source_row"]) == ("unknown_format", 2 if together else 16)
    assert "event, level" in bad["message"] and json.loads(bad["raw"])["event"] == "started"
    assert total.kept == 19 and total.read == 20


def test_a_records_own_fault_keeps_its_own_reason(tmp_path):
    broken = {**pair(1), "request": {"model": "m"}}
    found, _ = read(tmp_path, [*map(pair, range(2, 20)), broken, b'{"cut": '])
    assert [(row["source_row"], row["error_code"]) for row in found["quarantine"]] == [(19, "missing_field"), (20, "malformed_json")]


def test_a_named_format_is_held_to_for_every_record(tmp_path):
    found, total = read(tmp_path, [*map(pair, range(10)), thumb(1)], form="openai_pairs")
    assert total.kept == 10 and total.feedback == 0 and [row["source_row"] for row in found["quarantine"]] == [11]


def test_a_file_of_many_kinds_in_many_parts_adds_up(tmp_path, monkeypatch):
    monkeypatch.setattr(staging_module, "PART_BYTES", 500)
    lines = [make(number) for number in range(40) for make in KINDS.values()]
    lines = [*lines[:80], {"odd": 1}, b"\xff", b"[1]", *lines[80:]]
    found, total = read(tmp_path, lines)
    assert (total.kept, total.feedback, total.quarantined) == (120, 40, 3)
    assert sorted(row["error_code"] for row in found["quarantine"]) == ["invalid_utf8", "unknown_format", "wrong_type"]
