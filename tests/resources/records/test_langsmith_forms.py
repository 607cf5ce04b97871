"""LangSmith's runs in the forms that its SDK, its exports and traced functions write."""

import json

import pytest
from test_formats import heard, read

from resources.records.formats import FORMATS, detect

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


@pytest.mark.parametrize(
    ("inputs", "outputs", "asked"),
    [
        ({"messages": USER}, {"output": A}, [U]),
        ({"messages": USER}, A, [U]),
        ({"input": "Why?"}, {"answer": A}, [U]),
        ({"question": "Why?"}, {"output": {"role": "assistant", "content": A}}, [U]),
        ({"question": "Why?", "system_prompt": "Be kind."}, {"response": A}, [S, U]),
        ({"input": "Why?", "history": [["Hi", "Hello"]]}, {"text": A}, [("user", "Hi"), ("assistant", "Hello"), U]),
        ({"inputs": {"messages": [[lc("SystemMessage", "Be kind."), lc("HumanMessage", "Why?")]]}},
         {"generations": [[{"text": A, "message": lc("AIMessage", A)}]]}, [S, U]),
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
    ],
)  # fmt: skip
def test_a_run_is_read_in_any_form(tmp_path, inputs, outputs, asked):
    run = {**RUN, "inputs": inputs, "outputs": outputs}
    rows, bad, _, report = read(tmp_path, [run, {"run": {**run, "id": "a1b3"}}])
    assert not bad and [row["request_id"] for row in rows] == ["a1b2", "a1b3"]
    for row in rows:
        assert [(each["role"], each["content"]) for each in json.loads(row["messages"])] == asked
        answer = json.loads(row["completion"])
        assert (answer["role"], answer["content"], row["finish_reason"] or "stop") == ("assistant", A, "stop")
    assert "gateway" not in report.unread_keys


def test_a_text_of_a_run_without_a_place_is_said(tmp_path):
    run = {**RUN, "inputs": {"messages": USER, "context": "The sky is blue."}, "outputs": {"output": A}}
    rows, [bad], _, _ = read(tmp_path, [run])
    assert not rows and "context" in bad["message"]


def test_feedback_stats_are_feedback(tmp_path):
    stats = {"user_score": {"n": 2, "avg": 0.5, "comments": ["meh"]}, "tone": {"n": 1, "avg": None, "values": {"rude": 1}},
        "x": {"n": 0}}  # fmt: skip
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
    votes = [("run-0", "user_score", 0, None), ("run-1", "Hallucination", 1, None), ("run-2", "verdict", None, "bad"),
        ("run-3", "n", 1, None)]  # fmt: skip
    unsaid = {"modified_at": "2026-06-02T10:00:00+00:00", "comment": None, "correction": None,
        "feedback_source": {"type": "api"}}  # fmt: skip
    feedback = [{"id": f"f-{n}", "created_at": "2026-06-02T10:00:00+00:00", "run_id": run, "key": key, "score": score,
            "value": value} | unsaid | ids for n, (run, key, score, value) in enumerate(votes)]  # fmt: skip
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
    assert not bad and {(row["name"], row["comment"]) for row in found} == {("user_score", None), ("n", None),
        ("correctness", None), ("correction", "Because of rain.")}  # fmt: skip
