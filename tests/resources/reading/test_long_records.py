"""Records of megabytes: read in bounded memory, or quarantined with the reason."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_span_events import span, traces

from resources.reading import batches as staging
from resources.records import extraction
from resources.records.extraction import LINES, in_calls
from tests.resources.records.test_formats import pair, read


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
