"""Traces and engine logs: Langfuse's observations and scores, SGLang's requests, each from a fixture of its own."""

import json

import pytest
from test_example_formats import FIXTURES, fixture, said
from test_formats import heard, read, read_each

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
    assert decided(tmp_path.parent / "fixture-langfuse_observations.jsonl") == {"langfuse_span": 2, "langfuse_tool": 1}
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
    assert [(found[f"gen-{n}", 0]["latency_ms"], found[f"gen-{n}", 0]["ttft_ms"]) for n in (1, 2, 9)] == [
        (1500, 250),
        (1500, 250),
        (2000, 500),
    ]


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
    assert decided(tmp_path.parent / "fixture-sglang.jsonl") == {"sglang_received": 2} and report.total.skipped == 2
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


RUN = {"id": "a1b2", "trace_id": "t1", "run_type": "llm", "start_time": "2026-06-01T12:00:00", "name": "ask"}
USER = [{"role": "user", "content": "Why?"}]


def lc(kind, said):
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind], "kwargs": {"content": said}}


RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "model": "gpt-5",
    "status": "completed",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "Because."}]},
    ],
    "usage": {"input_tokens": 7, "output_tokens": 3},
}  # fmt: skip
U, S, A = ("user", "Why?"), ("system", "Be kind."), "Because."


RUNS = [
    ({"messages": USER}, {"output": A}, [U]),
    ({"messages": USER}, A, [U]),
    ({"input": "Why?"}, {"answer": A}, [U]),
    ({"question": "Why?"}, {"output": {"role": "assistant", "content": A}}, [U]),
    ({"question": "Why?", "system_prompt": "Be kind."}, {"response": A}, [S, U]),
    ({"input": "Why?", "history": [["Hi", "Hello"]]}, {"text": A}, [("user", "Hi"), ("assistant", "Hello"), U]),
    (
        {"inputs": {"messages": [[lc("SystemMessage", "Be kind."), lc("HumanMessage", "Why?")]]}},
        {"generations": [[{"text": A, "message": lc("AIMessage", A)}]]},
        [S, U],
    ),
    ({"inputs": {"inputs": {"input": "Why?"}}}, {"outputs": {"output": A}}, [U]),
    ({"messages": [lc("HumanMessage", "Why?")]}, {"output": lc("AIMessage", A)}, [U]),
    ({"input": [lc("HumanMessage", "Why?")]}, {"messages": [lc("HumanMessage", "Why?"), lc("AIMessage", A)]}, [U]),
    ({"input": [{"type": "human", "content": "Why?"}]}, {"generations": [[{"text": A}]]}, [U]),
    ({"prompts": ["Why?"]}, {"generations": [[{"text": A}]]}, [U]),
    ({"prompt": "Why?"}, {"choices": [{"text": A, "finish_reason": "stop"}]}, [U]),
    ({"model": "gpt-5", "input": "Why?", "instructions": "Be kind."}, RESPONSE, [S, U]),
    ({"model": "gpt-5", "input": [{"role": "user", "content": [{"type": "input_text", "text": "Why?"}]}]}, RESPONSE, [U]),
    (json.dumps({"messages": USER}), json.dumps({"output": A}), [U]),  # bulk export
    ({"messages": USER, "temperature": 0.1}, {"content": A}, [U]),
]


def test_a_run_is_read_in_any_form(tmp_path):
    runs = [{**RUN, "inputs": inputs, "outputs": outputs, "id": f"run-{n}"} for n, (inputs, outputs, _) in enumerate(RUNS)]
    contents = [f"{json.dumps(run)}\n{json.dumps({'run': {**run, 'id': run['id'] + '-b'}})}".encode() for run in runs]
    each, report = read_each(tmp_path, contents)
    for (rows, bad, _), run, (*_, asked) in zip(each, runs, RUNS, strict=True):
        assert not bad and [row["request_id"] for row in rows] == [run["id"], f"{run['id']}-b"]
        for row in rows:
            assert [(turn["role"], turn["content"]) for turn in json.loads(row["messages"])] == asked
            answer = json.loads(row["completion"])
            assert (answer["role"], answer["content"], row["finish_reason"] or "stop") == ("assistant", A, "stop")
    assert "gateway" not in report.unread_keys


def test_a_text_of_a_run_without_a_place_is_said(tmp_path):
    run = {**RUN, "inputs": {"messages": USER, "context": "The sky is blue."}, "outputs": {"output": A}}
    rows, [bad], _, _ = read(tmp_path, [run])
    assert not rows and "context" in bad["message"]


def test_feedback_stats_are_feedback(tmp_path):
    stats = {
        "user_score": {"n": 2, "avg": 0.5, "comments": ["meh"]},
        "tone": {"n": 1, "avg": None, "values": {"rude": 1}},
        "x": {"n": 0},
    }
    run = {**RUN, "inputs": {"messages": USER}, "outputs": {"output": A}, "feedback_stats": stats}
    chain = {**RUN, "run_type": "chain", "id": "t2", "trace_id": "t2", "feedback_stats": {"thumb": {"n": 1, "avg": 1.0}}}
    call = {**run, "id": "a1b9", "trace_id": "t2", "inputs": {"messages": [*USER, *USER]}, "feedback_stats": json.dumps({})}
    rows, bad, feedback, report = read(tmp_path, [run, {**chain, "inputs": {}, "outputs": {}}, call])
    assert not bad and report.total.skipped == 1
    named = {row["interaction_id"]: row["request_id"] for row in rows}
    assert sorted(
        (row["name"], row["value"], row["label"], row["comment"], named[row["interaction_id"]]) for row in feedback
    ) == [("thumb", 1.0, None, None, "a1b9"), ("tone", None, "rude", None, "a1b2"), ("user_score", 0.5, None, "meh", "a1b2")]


@pytest.mark.parametrize("ids", [{}, {"trace_id": None}, {"trace_id": "t1", "session_id": "project-1"}, {"trace_id": "x"}])
def test_an_export_of_feedback_is_tied_to_its_runs_and_keeps_its_keys(tmp_path, ids):
    runs = [
        RUN | {"id": f"run-{n}", "trace_id": f"t-{n}"} | {"inputs": {"input": "Why?"}, "outputs": {"output": A}}
        for n in range(4)
    ]
    votes = [
        ("run-0", "user_score", 0, None),
        ("run-1", "Hallucination", 1, None),
        ("run-2", "verdict", None, "bad"),
        ("run-3", "n", 1, None),
    ]
    unsaid = {
        "modified_at": "2026-06-02T10:00:00+00:00",
        "comment": None,
        "correction": None,
        "feedback_source": {"type": "api"},
    }
    feedback = [
        {"id": f"f-{n}", "created_at": "2026-06-02T10:00:00+00:00", "run_id": run, "key": key, "score": score, "value": value}
        | unsaid
        | ids
        for n, (run, key, score, value) in enumerate(votes)
    ]
    assert detect(feedback).name == "feedback"
    assert FORMATS["feedback"].recognises({"run_id": "r", "key": "k", "score": 1})
    assert not FORMATS["feedback"].recognises({"run_id": "r", "score": 1})
    rows, bad, found, _ = read(tmp_path, [*runs, *feedback])
    assert not bad and len(rows) == 4
    assert [(row["request_id"], row["name"], row["value"], row["tie"]) for row in found] == [
        (run, key, -1 if value else score, "request") for run, key, score, value in votes
    ]
    assert heard(tmp_path) == {"run-0": -1, "run-1": -1, "run-2": -1, "run-3": 1}


def test_a_correction_in_an_export_of_feedback_is_an_edit(tmp_path):
    score = {"run_id": "a1b2", "key": "user_score", "score": 0, "correction": None}
    correction = score | {"key": "correctness", "correction": {"output": "Because of rain."}}
    _, bad, found, _ = read(tmp_path, [score, *[score | {"key": "n"}] * 40, correction], name="feedback.jsonl")
    assert not bad and {(row["name"], row["comment"]) for row in found} == {
        ("user_score", None),
        ("n", None),
        ("correctness", None),
        ("correction", "Because of rain."),
    }
