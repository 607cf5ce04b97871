"""Traces and engine logs: Langfuse's observations and scores, SGLang's requests, each from a fixture of its own."""

import json

import pytest
from test_example_formats import FIXTURES, fixture, said
from test_formats import read

from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.records.formats import FORMATS, detect


def decided(tmp_path):
    """The decisions of ingest: records by rule."""
    rows = Tables(LakeLayout.open(tmp_path / "lake")).open("decisions").to_pyarrow_table().to_pylist()
    return {row["rule"]: json.loads(row["detail"])["records"] for row in rows if not row["kept"]}


def by_id(rows):
    return {(row["request_id"], row["choice_index"]): row for row in rows}


def test_langfuse_generations_are_interactions_and_other_observations_are_counted(tmp_path):
    rows, bad, _, report = fixture(tmp_path, "langfuse_observations.jsonl")
    found = by_id(rows)
    assert set(found) == {(f"gen-{n}", 0) for n in (1, 2, 3, 4, 5, 6, 9)} | {("gen-5", 1)}
    assert [row["source_row"] for row in bad] == [7, 8] and report.total.skipped == 3 and report.total.read == 13
    assert "neither messages nor a prompt" in bad[0]["message"] and "no input" in bad[1]["message"]
    assert decided(tmp_path) == {"langfuse_span": 2, "langfuse_tool": 1}
    first = found["gen-1", 0]
    assert said(first["messages"]) == [("system", "Be brief."), ("user", "hé")] and first["completion"]["content"] == "yes"
    assert [first[f"{kind}_tokens"] for kind in ("prompt", "completion", "cached", "reasoning")] == [10, 5, 3, 1]
    assert (first["trace_id"], first["session_id"], first["cost"]) == ("trace-1", "sess-1", 0.001)
    assert str(first["ts"]) == "2026-06-01 10:00:00+00:00" and first["params"] == {"temperature": 0.2, "max_tokens": 64}
    assert "ann" not in str(first) and first["user_hash"] and first["workload_name"] == "support"


def test_langfuse_tools_in_the_openai_shape(tmp_path):
    found = by_id(fixture(tmp_path, "langfuse_observations.jsonl")[0])
    call = found["gen-2", 0]["completion"]["tool_calls"][0]["function"]
    assert json.loads(call["arguments"]) == {"city": "Oslo"} and found["gen-2", 0]["tools"][0]["function"]["name"] == "weather"
    flat = found["gen-4", 0]
    assert flat["completion"]["tool_calls"] == [
        {"id": "c9", "type": "function", "function": {"name": "look", "arguments": '{"x":1}'}}
    ]
    assert flat["tools"] == [
        {"type": "function", "function": {"description": "looks", "parameters": {"type": "object"}, "name": "look"}}
    ]
    assert flat["messages"] == [{"role": "user", "content": "call it"}] and flat["finish_reason"] == "tool_calls"


def test_langfuse_latency_in_seconds_or_milliseconds(tmp_path):
    found = by_id(fixture(tmp_path, "langfuse_observations.jsonl")[0])
    assert [(found[f"gen-{n}", 0]["latency_ms"],
            found[f"gen-{n}", 0]["ttft_ms"]) for n in (1, 2, 9)] == [(1500, 250), (1500, 250), (2000, 500)]  # fmt: skip


def test_langfuse_ttft_in_seconds_where_the_first_token_has_no_time(tmp_path):
    line = json.loads((FIXTURES / "langfuse_observations.jsonl").read_text().splitlines()[0])
    del line["completion_start_time"]
    (row,), *_ = read(tmp_path, [line])
    assert row["ttft_ms"] == 250


def test_langfuse_text_choices_errors_and_structured_answers(tmp_path):
    found = by_id(fixture(tmp_path, "langfuse_observations.jsonl")[0])
    assert found["gen-3", 0]["messages"] == [{"role": "user", "content": "plain question"}]
    assert found["gen-3", 0]["completion"]["content"] == "plain answer" and found["gen-3", 0]["user_hash"] is None
    assert [found["gen-5", n]["completion"]["content"] for n in (0, 1)] == ["a", "b"]
    assert found["gen-5", 1]["finish_reason"] == "length"
    failed = found["gen-6", 0]
    assert (failed["status"], failed["error"], failed["completion"]) == ("failure", "rate limited", None)
    assert found["gen-9", 0]["completion"]["content"] == '{"city": "Oslo"}'


def test_langfuse_scores_are_feedback_on_an_observation_a_trace_or_a_session(tmp_path):
    _, (bad,), feedback, report = fixture(tmp_path, "langfuse_scores.jsonl")
    found = {row["name"]: row for row in feedback}
    assert found["accuracy"]["request_id"] == "gen-1" and found["accuracy"]["trace_id"] is None
    assert (found["accuracy"]["value"], found["accuracy"]["comment"], found["accuracy"]["source"]) == (0.75, "close", "EVAL")
    assert (found["helpful"]["trace_id"], found["helpful"]["value"]) == ("trace-1", -1)
    assert (found["mood"]["session_id"], found["mood"]["value"], found["mood"]["label"]) == ("sess-1", 1, "positive")
    assert (found["note"]["value"], found["note"]["label"]) == (None, "reads well")
    assert bad["error_code"] == "missing_field" and bad["source_row"] == 5 and report.total.feedback == 4


def test_sglang_finished_requests_with_their_templates_taken_apart(tmp_path):
    rows, _, _, report = fixture(tmp_path, "sglang.jsonl")
    found = {row["request_id"]: row for row in rows}
    assert set(found) == {f"r{n}" for n in (1, 2, 3, 4, 5, 6, 9, 10, 11)} and report.total.read == 13
    assert decided(tmp_path) == {"sglang_received": 2} and report.total.skipped == 2
    first = found["r1"]
    assert said(first["messages"]) == [("system", "Be brief."), ("user", "hé\nthere")]
    assert first["completion"]["content"] == "yes" and first["params"] == {"temperature": 0.6, "max_new_tokens": 32}
    assert first["prompt_token_ids"] == [1, 2, 3] and first["completion_token_ids"] == [4, 5]
    assert (first["prompt_tokens"], first["completion_tokens"], first["cached_tokens"]) == (9, 3, 4)
    assert first["latency_ms"] == 1250 and first["finish_reason"] == "stop"
    assert said(found["r2"]["messages"]) == [("system", "Be brief."), ("user", "hi")]
    assert said(found["r3"]["messages"]) == [("user", "one"), ("assistant", "two"), ("user", "three")]
    assert (found["r4"]["reasoning"], found["r4"]["completion"]["content"]) == ("hm", "yes")
    assert found["r11"]["finish_reason"] == "length"
    assert (found["r10"]["status"], found["r10"]["error"]) == ("failure", "client left")


@pytest.mark.parametrize("rid", ["r5", "r6"])
def test_sglang_text_of_an_unknown_template_stays_one_message(tmp_path, rid):
    found = {row["request_id"]: row for row in fixture(tmp_path, "sglang.jsonl")[0]}
    lines = [json.loads(line) for line in (FIXTURES / "sglang.jsonl").read_text().splitlines()]
    prompt = next(line["obj"]["text"] for line in lines if line["rid"] == rid)
    assert said(found[rid]["messages"]) == [("user", prompt)] and found[rid]["params"]["templated"] is True


def test_sglang_cut_text_is_quarantined_and_bare_tokens_are_kept(tmp_path):
    rows, bad, _, _ = fixture(tmp_path, "sglang.jsonl")
    assert [(row["source_row"], row["error_code"]) for row in bad] == [(8, "truncated_log"), (9, "missing_field")]
    assert all("--log-requests-level 3" in row["message"] for row in bad)
    (row,) = [row for row in rows if row["request_id"] == "r9"]
    assert (row["status"], row["prompt_token_ids"], row["completion_token_ids"]) == ("tokens", [7, 8], [9])


@pytest.mark.parametrize(
    ("name", "form"),
    [("langfuse_observations.jsonl", "langfuse"), ("langfuse_scores.jsonl", "langfuse_scores"), ("sglang.jsonl", "sglang")],
)
def test_each_is_recognised_and_no_other_format_takes_it(name, form):
    for line in (FIXTURES / name).read_text().splitlines():
        assert detect([json.loads(line)]).name == form
    assert form in FORMATS


def test_a_boolean_score_of_langfuse_may_be_a_number_a_boolean_or_its_word(tmp_path):
    score = {"trace_id": "t", "name": "liked", "data_type": "BOOLEAN", "timestamp": "2026-06-01T10:00:00Z"}
    written = [{"value": 0}, {"value": False}, {"string_value": "False"}, {"value": 1.0}, {"value": True}, {"value": None}]
    _, bad, feedback, _ = read(tmp_path, [{"value": None, **score, **value} for value in written])
    assert not bad and [row["value"] for row in feedback] == [-1, -1, -1, 1, 1, None]
