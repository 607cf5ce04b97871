"""Ids that do not identify a request: content and time do, in any order of arrival."""

import json
import shutil

import pytest
from test_formats import pair, read

from resources.lake import Lake
from resources.reading.ingest import ingest
from resources.reading.ingest_notes import notes_on
from resources.reading.sources import SourceSettings
from resources.tables import Tables


def told(place, request_id, at=0, **more):
    record = pair(request={"model": "m", "messages": [{"role": "user", "content": f"question {place}"}]}, **more)
    record["timestamp"] = 1780300000 + 3600 * at
    record["response"]["id"] = request_id
    record["response"]["choices"][0]["message"]["content"] = f"answer {place}"
    return record


def kept(tables):
    return {row["interaction_id"]: (json.loads(row["completion"])["content"], row["source_uri"][-7:], row["ts"])
            for row in tables.open("interactions").to_pyarrow_table().to_pylist()}


@pytest.mark.parametrize("name", ["chatcmpl-373", "cmpl-7", "0", "None", "00000000-0000-0000-0000-000000000000"])
def test_an_id_that_names_nothing_is_none(tmp_path, name):
    records = [told(0, name), told(1, name, at=1), told(0, name), told(0, name, latency_ms=3)]
    rows, bad, _, report = read(tmp_path, records)
    assert [row["source_row"] for row in rows] == [1, 2] and {row["request_id"] for row in rows} == {name} and not bad
    assert report.total.repeated == 2 and not report.repeated_ids


def test_an_id_that_comes_back_with_many_contents_identifies_none(tmp_path):
    records = [told(place, "chatcmpl-mock-reply", at=place) for place in range(5)]
    records += [told(2, "chatcmpl-mock-reply", at=2, latency_ms=9), told(9, "req_1"), told(8, "req_1", at=1), told(9, "req_1", cost=2)]
    rows, _, _, report = read(tmp_path, records)
    assert [row["source_row"] for row in rows] == [1, 2, 3, 4, 5, 7]
    assert report.loose_ids == {"gateway": (1, 6)} and report.repeated_ids == {"gateway": 1} and report.total.repeated == 3
    notes = "\n".join(notes_on(report))
    assert "gateway: 1 id came back with other contents in 6 records" in notes
    assert "gateway: 1 record left out as repeated_id" in notes


def test_the_order_of_arrival_and_a_second_reading_change_nothing(tmp_path):
    found = []
    for number, order in enumerate([("abc",), ("c", "b", "a")]):
        logs, tables = tmp_path / f"logs{number}", Tables(Lake.open(tmp_path / f"lake{number}"))
        logs.mkdir()
        sources = {"gateway": SourceSettings(uri=str(logs))}
        for names in order:
            for name in names:
                place = "abc".index(name)
                (logs / f"{name}.jsonl").write_text(json.dumps(told(place, "mock-reply", at=place)) + "\n")
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
    records = [{"id": "constant-id", "ask": f"question {place}", "reply": f"answer {place}", "at": 1780300000 + place,
                "thumb": "up" if place == 1 else "down"} for place in range(3)]
    rows, bad, thumbs, _ = read(tmp_path, records, fields={
        "prompt": "ask", "answer": "reply", "id": "id", "time": "at", "feedback": "thumb"})
    values = {row["interaction_id"]: row["value"] for row in thumbs}
    assert not bad and [values[row["interaction_id"]] for row in rows] == [-1, 1, -1]
