"""Ollama's API, /v1/completions and LangSmith's runs, from fixtures built from their documentation (ollama docs/api.md,
OpenAI's reference of completions, docs.smith.langchain.com "Run (span) data format")."""

import json

import pytest
from test_example_formats import fixture, jsonl, said
from test_formats import read

from resources.records.field_mapping import FieldMapping
from resources.records.formats import FORMATS
from resources.records.mapped_records import mapped_format
from resources.records.providers.streams import with_joined_events


@pytest.mark.parametrize("name", ["ollama", "completions", "langsmith"])
def test_every_record_of_a_fixture_is_its_formats_and_no_others(name):
    for record in jsonl(f"{name}.jsonl"):
        assert [form.name for form in FORMATS.values() if form.recognises(with_joined_events(record))] == [name]


def test_ollama_chat_generate_and_streams(tmp_path):
    rows, bad, _, _ = fixture(tmp_path, "ollama.jsonl")
    assert not bad and [row["completion"]["content"] for row in rows] == [
        "Because of Rayleigh scattering.", "", "Rayleigh.", "Hello.",
    ]  # fmt: skip
    assert [row["finish_reason"] for row in rows] == ["stop", "tool_calls", "length", "stop"]
    first, called, generated, _ = rows
    assert first["params"] == {"stream": False, "temperature": 0.2, "max_tokens": 64} and first["model"] == "llama3.2"
    assert (first["prompt_tokens"], first["completion_tokens"]) == (26, 282) and 4883 < first["latency_ms"] < 4884
    assert first["ts"].hour == 12 and 343 < first["ttft_ms"] < 344
    assert called["reasoning"] == "I look." and called["tools"][0]["function"]["name"] == "get_current_weather"
    assert json.loads(called["completion"]["tool_calls"][0]["function"]["arguments"]) == {"location": "Paris"}
    assert said(generated["messages"]) == [("system", "Be brief."), ("user", "Why is the sky blue?")]


def test_completions_and_their_templates(tmp_path):
    rows, bad, _, _ = fixture(tmp_path, "completions.jsonl")
    assert not bad and [(row["choice_index"], row["completion"]["content"], row["finish_reason"]) for row in rows] == [
        (0, "This is.", "length"), (1, "A test.", "stop"), (0, "Hello.", "stop")]  # fmt: skip
    assert said(rows[0]["messages"]) == [("user", "Say this is a test")] and rows[0]["params"] == {"max_tokens": 7, "n": 2}
    assert said(rows[2]["messages"]) == [("system", "Be brief."), ("user", "Hi.")] and rows[0]["prompt_tokens"] == 5


def test_runs_of_langsmith(tmp_path):
    rows, bad, _, report = fixture(tmp_path, "langsmith.jsonl")
    assert not bad and report.total.skipped == 1 and [row["request_id"] for row in rows] == ["a1b2", "a1b3", "a1b4"]
    called, answered, wrapped = rows
    assert said(called["messages"]) == [("system", "Be brief."), ("user", "Weather in Paris?")]
    assert called["completion"]["tool_calls"][0]["function"] == {
        "name": "get_current_weather",
        "arguments": '{"location":"Paris"}',
    }
    assert (called["session_id"], called["model"], called["finish_reason"]) == ("thread-7", "gpt-4.1-mini", "tool_calls")
    assert [message["role"] for message in answered["messages"]] == ["user", "assistant", "tool"]
    assert answered["messages"][1]["tool_calls"][0]["id"] == answered["messages"][2]["tool_call_id"] == "call_9"
    assert wrapped["completion"]["content"] == "Hello." and wrapped["completion_tokens"] == 3


@pytest.mark.parametrize(("record", "words"), [
    ({"request": {"prompt": "a", "context": [1, 2]}, "response": {"response": "b", "done": True}}, "the whole prompt"),
    ({"request": {"prompt": ["a", "b"]}, "response": {"object": "text_completion", "choices": [{"text": "c"}]}}, "the whole prompt"),
    ({"request": {"prompt": "def f(", "suffix": "return"}, "response": {"choices": [{"text": "c"}]}}, "the whole prompt"),
    ({"id": "1", "run_type": "llm", "trace_id": "1", "inputs": {"messages": ["a"]}, "outputs": {"text": "b"}}, "langsmith"),
])  # fmt: skip
def test_a_request_that_does_not_hold_the_prompt_is_not_learnt(tmp_path, record, words):
    rows, [bad], _, _ = read(tmp_path, [record])
    assert not rows and words in bad["message"]


def test_an_ollama_stream_that_was_cut_is_a_failed_request(tmp_path):
    chunks = [
        {"model": "m", "created_at": "2026-06-01T12:00:00Z", "message": {"role": "assistant", "content": "Hel"}, "done": False}
    ]
    [row], bad, _, _ = read(tmp_path, [{"request": {"messages": [{"role": "user", "content": "a"}]}, "response": chunks}])
    assert not bad and row["status"] == "failure" and "stream_cut" in row["error"]


def test_an_ollama_answer_that_is_not_done_is_not_whole(tmp_path):
    def told(**more):
        return {
            "request": {"model": "m", "messages": [{"role": "user", "content": str(more)}]},
            "response": {"model": "m", "created_at": "2026-06-01T12:00:00Z", "message": {"role": "assistant", "content": "Op"}, **more},
        }  # fmt: skip

    rows, bad, _, _ = read(
        tmp_path, [told(done=False), told(done=False, done_reason=None), told(done=True), told(done=True, done_reason="length")]
    )
    assert not bad and [row["finish_reason"] for row in rows] == ["not_done", "not_done", "stop", "length"]
    record = told(done=False)
    _, found = mapped_format(
        {"m": record["request"]["messages"], "a": record["response"]}, FieldMapping(request="m", response="a")
    )
    assert found["response"]["choices"][0]["finish_reason"] == "not_done"
