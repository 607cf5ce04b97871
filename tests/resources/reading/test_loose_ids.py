"""Ids that do not identify a request: content and time do, in any order of arrival."""

import json
import shutil

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_span_events import span, traces

from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading import batches as staging
from resources.reading.ingestion import ingest, notes_on
from resources.records import extraction
from resources.records.extraction import LINES, in_calls
from resources.sources.sources import SourceSettings
from tests.resources.records.test_formats import pair, read
from tests.thorough_cases import thorough_except

ID = "resp_67ccd2bed1ec8190b14f964abc054267"


def told(place, request_id, at=0, **more):
    record = pair(request={"model": "m", "messages": [{"role": "user", "content": f"question {place}"}]}, **more)
    record["timestamp"] = 1780300000 + 3600 * at
    record["response"]["id"] = request_id
    record["response"]["choices"][0]["message"]["content"] = f"answer {place}"
    return record


def kept(tables):
    return {
        row["interaction_id"]: (json.loads(row["completion"])["content"], row["source_uri"][-7:], row["ts"])
        for row in tables.open("interactions").to_pyarrow_table().to_pylist()
    }


@pytest.mark.parametrize("name", ["chatcmpl-373", "cmpl-7", "0", "None", "00000000-0000-0000-0000-000000000000"])
def test_an_id_that_names_nothing_is_none(tmp_path, name):
    records = [told(0, name), told(1, name, at=1), told(0, name), told(0, name, latency_ms=3)]
    rows, bad, _, report = read(tmp_path, records)
    assert [row["source_row"] for row in rows] == [1, 2] and {row["request_id"] for row in rows} == {name} and not bad
    assert report.total.repeated == 2 and not report.repeated_ids


WEAK = ["1", "17", "string", "test", "id", "cmpl-mock", "chatcmpl-mock-id", "mock-response", "chatcmpl-1700000000", "resp_mock",
    "{{uuid}}", "%REQ(X-REQUEST-ID)%", "${request_id}", "req_1", "example-2b", "resp_67ccd2bed1ec8190",
    "9b2d7e8a-51f3-4c0e-8f2a-6d1c0b9e7a55", "chatcmpl-AbC9xYz2LmN", "1893726401827364001"]  # fmt: skip


def test_two_records_with_a_weak_id_are_two(tmp_path):
    records = [told(f"{name} {place}", name, at=place) for name in WEAK for place in (0, 1)]
    records += [told(f"{name} 0", name, latency_ms=5) for name in WEAK]  # the same once more
    rows, _, _, report = read(tmp_path, records)
    found = [row["request_id"] for row in rows]
    assert [name for name in WEAK if found.count(name) == 1] == WEAK[-4:] and len(found) == 2 * len(WEAK) - 4
    assert report.repeated_ids == {"gateway": 4} and report.total.repeated == len(WEAK) + 4


def test_weak_ids_that_restart_in_a_second_file(tmp_path):
    for name, at in (("a", 0), ("b", 9), ("a", 0)):
        rows, *_ = read(
            tmp_path, [told(f"{name} {place}", str(place), at=at + place) for place in range(3)], name=f"{name}.jsonl"
        )
    assert len(rows) == len({row["interaction_id"] for row in rows}) == 6


def cut(place, request_id, kind):
    """A record of the same request that holds less."""
    record = told(place, request_id)
    if kind == "error":
        record["response"] = {"id": request_id, "error": {"message": "timeout"}}
    elif kind == "error beside it":
        record["error"] = "x"
    else:
        record["response"]["choices"][0] = {"message": {"role": "assistant", "content": ""}, "finish_reason": kind}
    return record


@pytest.mark.parametrize("order", thorough_except(["pw", "wpq"], ["pw", "wpq", "wp", "pqw"]))
def test_the_whole_record_of_an_id_stays(tmp_path, order):
    """In one file (an error beside the answer), and each in its own."""
    kinds, files = ["error", "length", "in_progress", "error beside it"], [[] for _ in order]
    for number, kind in enumerate(kinds):
        name = f"{ID[:-1]}{number}"
        other = cut(number, name, kind)
        lines = {"w": told(number, name, at=3), "p": other, "q": {**other, "timestamp": 1780290000}}
        for place, each in enumerate(order):
            files[0 if kind == "error beside it" else place].append(lines[each])
    for number, records in enumerate(files):
        rows, *_ = read(tmp_path, records, name=f"{number}.jsonl")
    assert sorted(json.loads(row["completion"])["content"] for row in rows) == [
        f"answer {number}" for number in range(len(kinds))
    ]


def test_an_id_that_comes_back_with_many_contents_identifies_none(tmp_path):
    records = [told(place, "chatcmpl-c0ffee7f31aa", at=place) for place in range(5)]
    records += [
        told(2, "chatcmpl-c0ffee7f31aa", at=2, latency_ms=9),
        told(9, "req_7Hq29xLm4cPz"),
        told(8, "req_7Hq29xLm4cPz", at=1),
        told(9, "req_7Hq29xLm4cPz", cost=2),
    ]
    rows, _, _, report = read(tmp_path, records)
    assert [row["source_row"] for row in rows] == [1, 2, 3, 4, 5, 7]
    assert report.loose_ids == {"gateway": (1, 6)} and report.repeated_ids == {"gateway": 1} and report.total.repeated == 3
    notes = "\n".join(notes_on(report))
    assert "gateway: 1 id came back with other contents in 6 records" in notes
    assert "gateway: 1 record left out as repeated_id" in notes


def test_the_order_of_arrival_and_a_second_reading_change_nothing(tmp_path):
    found = []
    for number, order in enumerate([("abc",), ("c", "b", "a")]):
        logs, tables = tmp_path / f"logs{number}", Tables(LakeLayout.open(tmp_path / f"lake{number}"))
        logs.mkdir()
        sources = {"gateway": SourceSettings(uri=str(logs))}
        for names in order:
            for name in names:
                place = "abc".index(name)
                (logs / f"{name}.jsonl").write_text(json.dumps(told(place, "reply_8fb1c03d77ae", at=place)) + "\n")
            ingest(tables, "shop", sources)
        with (logs / "a.jsonl").open("a") as file:
            file.write("\n")
        ingest(tables, "shop", sources)
        found.append(kept(tables))
        decided = tables.open("decisions")
        assert decided is None or decided.to_pyarrow_table().num_rows == 0
        shutil.rmtree(logs)
    assert all(each == found[0] for each in found) and len(found[0]) == 3


def test_feedback_in_such_a_record_stays_with_it(tmp_path):
    records = [
        {
            "id": "constant-id",
            "ask": f"question {place}",
            "reply": f"answer {place}",
            "at": 1780300000 + place,
            "thumb": "up" if place == 1 else "down",
        }
        for place in range(3)
    ]
    rows, bad, thumbs, _ = read(
        tmp_path, records, fields={"prompt": "ask", "answer": "reply", "id": "id", "time": "at", "feedback": "thumb"}
    )
    values = {row["interaction_id"]: row["value"] for row in thumbs}
    assert not bad and [values[row["interaction_id"]] for row in rows] == [-1, 1, -1]


def long_pair(number, characters):
    return pair(
        request={"messages": [{"role": "user", "content": f"{number} " + "long words " * (characters // 11)}]},
        response={"id": f"c{number}", "choices": [{"message": {"role": "assistant", "content": "ok"}}]},
    )


def test_long_contexts_are_read_in_bounded_memory(tmp_path, monkeypatch):
    """DuckDB would hold a vector of up to 2,048 of them about 20 times."""
    monkeypatch.setattr(staging, "MEMORY_MIB", 320)
    monkeypatch.setattr(extraction, "CALL_BYTES", 3 << 20)
    rows, bad, _, report = read(tmp_path, [long_pair(number, 700_000) for number in range(36)])
    assert not bad and report.total.rows == 36
    assert {len(json.loads(row["messages"])[0]["content"]) > 690_000 for row in rows} == {True}


def test_a_line_of_many_spans_is_read_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "MEMORY_MIB", 120)
    monkeypatch.setattr(extraction, "CALL_BYTES", 3 << 20)
    said = [
        {"key": "gen_ai.completion", "value": {"stringValue": "ok"}},
        {"key": "gen_ai.prompt", "value": {"stringValue": "long words " * 2_000}},
    ]
    call = [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]
    lines = [traces(*[{**span(200 * line + number), "attributes": call + said} for number in range(100)]) for line in range(6)]
    rows, bad, _, _ = read(tmp_path, lines)
    assert not bad and len(rows) == 600


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_record_that_is_too_long_is_quarantined_and_the_rest_is_read(tmp_path, monkeypatch, name):
    monkeypatch.setattr(staging, "LONGEST_BYTES", 2 << 20)
    lines = [long_pair(1, 100), long_pair(2, 3 << 20), long_pair(3, 100)]
    content = json.dumps(lines) if name == "a.json" else "".join(json.dumps(line) + "\n" for line in lines)
    rows, (bad,), _, report = read(tmp_path, content.encode(), name=name)
    assert [row["source_row"] for row in rows] == [1, 3] and report.total.read == 3
    assert (bad["source_row"], bad["error_code"], len(bad["raw"])) == (2, "too_long", 4096)
    assert "3 MiB of text, and at most 2 MiB" in bad["message"]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.booleans())
def test_each_line_is_in_one_call_and_long_ones_are_few(lengths, all_apart):
    lines = pa.table({"object": [0] * len(lengths), "row": range(len(lengths)), "raw": ["x" * length for length in lengths]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extraction, "LONG_LINE_BYTES", 10)
        patch.setattr(extraction, "CALL_BYTES", 50)
        calls = [call.to_pylist() for call in in_calls(lines.cast(LINES), all_apart)]
    assert sorted(line["row"] for call in calls for line in call) == list(range(len(lengths))) and all(calls)
    for call in calls:
        total = sum(len(line["raw"]) for line in call)
        assert len(call) == 1 or total <= 50 or (not all_apart and all(len(line["raw"]) <= 10 for line in call))
