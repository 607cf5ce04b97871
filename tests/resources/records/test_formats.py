"""Log formats: what each record becomes, read through the ingest as in production."""

import gzip
import json
import os
from datetime import UTC, date, datetime
from pathlib import Path

import interaction_rows
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from model_ops.chat_apis.responses_api import chat_of
from model_ops.serving.service import fingerprint
from resources.catalog.build import publish
from resources.catalog.catalog import query
from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest
from resources.records.formats import FORMATS, detect
from resources.sources.sources import SourceError, SourceSettings, days_in, list_objects, objects_after


def pair(**changes):
    record = {
        "timestamp": 1780300000,
        "workload_id": "w",
        "client_id": "c",
        "request": {
            "model": "m",
            "messages": [{"role": "user", "content": "hé"}],
            "temperature": 0.5,
            "user": "u1",
            "metadata": {"session_id": "s1"},
        },
        "response": {
            "id": "r1",
            "created": 1,
            "model": "m-1",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}],
            "usage": {
                "prompt_tokens": 3,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 1},
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
        },
    }
    record.update(changes)
    return record


def _place(row):
    return row["source_row"], row.get("choice_index") or 0, len(row.get("messages") or "")


def read(tmp_path, content, name="log.jsonl", **source):
    """Interactions, quarantine, feedback and report of one file's content."""
    logs = tmp_path / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, bytes):
        content = "\n".join(json.dumps(record) for record in content).encode()
    (logs / name).write_bytes(content)
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    report = ingest(tables, "shop", {"gateway": SourceSettings(uri=str(logs), **source)})
    found = []
    for table in ("interactions", "quarantine", "feedback"):
        opened = tables.open(table)
        rows = opened.to_pyarrow_table().to_pylist() if opened else []
        found.append(sorted(rows, key=_place))
    return *found, report


def read_each(tmp_path, contents, **source):
    """What `read` gives of each content (a record, or bytes) in a file of its own, with one ingest: rows, quarantine, feedback."""
    for number, content in enumerate(contents[1:], 1):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        (tmp_path / f"logs/{number:03}.jsonl").parent.mkdir(exist_ok=True)
        (tmp_path / f"logs/{number:03}.jsonl").write_bytes(content)
    first = contents[0] if isinstance(contents[0], bytes) else [contents[0]]
    *tables, report = read(tmp_path, first, name="000.jsonl", **source)
    names = [f"{number:03}.jsonl" for number in range(len(contents))]
    return [[[row for row in rows if row["source_uri"].endswith(name)] for rows in tables] for name in names], report


def numbered(records):
    """Each with a question and an id of its own, so that many cases are read at once."""
    for number, record in enumerate(records):
        record["request"] = record["request"] | {"messages": [{"role": "user", "content": f"question {number}"}]}
        record["response"] = record["response"] | {"id": f"chatcmpl-{number}x7f"}
    return records


def answering(**said):
    record = pair()
    record["response"] |= said
    return record


def test_answers_of_a_release_name_the_weights_that_served_them(tmp_path):
    """Whatever other servers write into the same fields is no digest."""
    cases = [
        ({"system_fingerprint": fingerprint("3f2a91c0d4e5", "ab" * 32)}, "ab" * 32),
        ({"metadata": {"weight_version": fingerprint("3f2a91c0d4e5", "cd" * 32)}}, "cd" * 32),  # SGLang
        ({"system_fingerprint": "fp_44709d6fcb"}, None),
        ({"system_fingerprint": "vllm-0.32.0-1a2b3c4d"}, None),
        ({"system_fingerprint": f"millrace-3f2a91c0d4e5-{'ab' * 31}"}, None),
        ({"metadata": {"weight_version": "default"}}, None),
    ]
    rows, *_ = read(tmp_path, numbered([answering(**said) for said, _ in cases]))
    found = [(row["served_model_digest"], row["release"]) for row in rows]
    assert found == [(digest, digest and "3f2a91c0d4e5") for _, digest in cases]


METRICS = {
    "time_to_first_token_ms": 20.5,
    "queue_time_ms": 1.5,
    "mean_itl_ms": 3.0,
    "speculative_decoding": {
        "mean_acceptance_length": 2.5, "acceptance_histogram": [1, 0, 1, 2], "num_spec_steps": 4, "num_draft_tokens": 12,
        "num_accepted_draft_tokens": 8, "num_spec_tokens": 3,
    },
}  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True])
def test_what_vllm_says_of_a_request_is_kept(tmp_path, streamed):
    record = pair(release="3f2a91c0d4e5")
    record["response"]["metrics"] = METRICS
    if streamed:  # the metrics come with the usage, in a chunk without choices
        same = {"id": "r1", "object": "chat.completion.chunk", "model": "m-1"}
        chunks = [
            {**same, "choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}]},
            {**same, "choices": [], "usage": {"completion_tokens": 2}, "metrics": METRICS},
        ]
        record = pair(
            ttft_ms=25.0,
            release="3f2a91c0d4e5",
            response="".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n",
        )
    (row,), bad, _, _ = read(tmp_path, [record])
    assert not bad and (row["drafts"], row["draft_tokens"], row["accepted_tokens"], row["queue_ms"]) == (4, 12, 8, 1.5)
    assert row["ttft_ms"] == (25.0 if streamed else 20.5) and row["release"] == "3f2a91c0d4e5"


def test_a_request_without_drafts_has_none(tmp_path):
    record = pair()
    record["response"]["metrics"] = {**METRICS, "speculative_decoding": None}
    (row,), bad, _, _ = read(tmp_path, [record])
    assert not bad and (row["drafts"], row["accepted_tokens"], row["queue_ms"]) == (None, None, 1.5)


def test_what_the_record_says_of_its_weights_comes_before_the_fingerprint(tmp_path):
    record = pair(served_model_digest="0" * 64)
    record["response"]["system_fingerprint"] = fingerprint("3f2a91c0d4e5", "ab" * 32)
    (row,), _, _, _ = read(tmp_path, [record])
    assert row["served_model_digest"] == "0" * 64


def test_streamed_answers_of_a_release_name_its_weights(tmp_path):
    said = fingerprint("3f2a91c0d4e5", "ab" * 32)
    same = {"id": "r1", "object": "chat.completion.chunk", "model": "m-1", "system_fingerprint": said}
    chunks = [{**same, "choices": [{"index": 0, "delta": {"content": text}}]} for text in ("ye", "s")]
    chunks.append({**same, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    record = pair(response="".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n")
    (row,), bad, _, _ = read(tmp_path, [record])
    assert not bad and row["served_model_digest"] == "ab" * 32


def test_openai_pair_keeps_what_the_log_says(tmp_path, monkeypatch):
    monkeypatch.delenv("MILLRACE_USER_HASH_KEY", raising=False)
    (row,), bad, _, _ = read(tmp_path, [pair(latency_ms=12.5, served_model_digest="abc")])
    assert not bad
    assert row["request_id"] == "r1" and row["session_id"] == "s1" and row["client"] == "c"
    assert row["ts"] == datetime.fromtimestamp(1780300000, UTC) and row["dt"] == date(2026, 6, 1)
    assert json.loads(row["messages"]) == [{"role": "user", "content": "hé"}]
    assert json.loads(row["completion"])["content"] == "yes" and json.loads(row["params"]) == {"temperature": 0.5}
    assert [row[f"{kind}_tokens"] for kind in ("prompt", "completion", "cached", "reasoning")] == [3, 2, 1, 1]
    assert row["latency_ms"] == 12.5 and row["model"] == "m-1" and row["served_model_digest"] == "abc"
    assert row["workload"] == "shop" and row["status"] == "success" and row["source_format"] == "openai_pairs"
    assert "u1" not in str(row) and len(row["user_hash"]) == 64


def test_user_hash_depends_on_the_key_and_only_then_differs(tmp_path, monkeypatch):
    hashes = []
    for key, place in (("", "a"), ("k", "b"), ("k", "c")):
        monkeypatch.setenv("MILLRACE_USER_HASH_KEY", key)
        (tmp_path / place).mkdir()
        (row,), *_ = read(tmp_path / place, [pair()])
        hashes.append(row["user_hash"])
    assert hashes[0] != hashes[1] == hashes[2]


def test_several_choices_are_several_rows(tmp_path):
    record = pair()
    record["response"]["choices"].append(
        {
            "index": 1,
            "finish_reason": "length",
            "token_ids": [4, 5],
            "message": {"role": "assistant", "content": "no", "reasoning": "hm"},
        }
    )
    record["response"]["prompt_token_ids"] = [1, 2, 3]
    rows, _, _, report = read(tmp_path, [record])
    assert [row["choice_index"] for row in rows] == [0, 1] and report.total.read == 2
    assert rows[0]["interaction_id"] != rows[1]["interaction_id"]
    assert rows[1]["completion_token_ids"] == [4, 5] and rows[0]["prompt_token_ids"] == [1, 2, 3]
    assert rows[1]["reasoning"] == "hm" and rows[1]["finish_reason"] == "length"


def test_tool_arguments_become_json_strings_and_the_hash_does_not_tell(tmp_path):
    def call(arguments):
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": arguments}}],
        }
        record = pair()
        record["response"]["choices"][0]["message"] = message
        record["request"]["messages"] += [message, {"role": "tool", "tool_call_id": "t", "content": '"arguments": {'}]
        return record

    first, second = call({"x": {"y": "é"}}), call('{"x":{"y":"é"}}')
    second["response"]["id"] = "r2"
    rows, bad, _, _ = read(tmp_path, [first, second])
    assert not bad and rows[0]["content_sha256"] == rows[1]["content_sha256"]
    for row in rows:
        assert json.loads(json.loads(row["completion"])["tool_calls"][0]["function"]["arguments"]) == {"x": {"y": "é"}}
        assert json.loads(row["messages"])[2]["content"] == '"arguments": {'


def test_a_bad_record_is_quarantined_with_a_reason_and_the_good_one_stays(tmp_path):
    cases = [
        (pair(request="GET /"), "wrong_type", "request is not an object"),
        (pair(request={"model": "m"}), "missing_field", "request.messages"),
        (pair(request={"messages": []}), "wrong_type", "messages"),
        (pair(request={"messages": [{"content": "x"}]}), "wrong_type", "role"),
        (pair(request={"messages": [{"role": "user", "content": 5}]}), "wrong_type", "content"),
        (pair(request={"messages": [{"role": "user", "content": [["x"]]}]}), "wrong_type", "content"),
        (pair(response={"choices": [{"message": {"role": "assistant", "content": {}}}]}), "wrong_type", "content"),
        (pair(response=None), "wrong_type", "response"),
        (pair(response={"choices": []}), "missing_field", "choices"),
        (pair(response={"choices": [{"message": "yes"}]}), "wrong_type", "answer"),
        (pair(response={"choices": [{"text": "yes"}]}), "missing_field", "answer"),
        (pair(timestamp="yesterday"), "wrong_type", "time"),
        (pair(timestamp=12), "wrong_type", "time"),
        ([1, 2], "wrong_type", "no object"),
    ]
    rows, bad, _, report = read(tmp_path, [pair(), *(record for record, *_ in cases)])
    assert len(rows) == 1 and report.total.read == 1 + len(cases)
    assert [(each["source_row"], each["error_code"]) for each in bad] == [(n, code) for n, (_, code, _) in enumerate(cases, 2)]
    for each, (record, _, words) in zip(bad, cases, strict=True):
        assert words in each["message"] and json.loads(each["raw"]) == record


def test_failed_requests_are_rows_with_their_error(tmp_path):
    (row,), bad, _, _ = read(tmp_path, [pair(response={"error": {"message": "overloaded", "code": 503}})])
    assert not bad and row["status"] == "failure" and row["error"] == "overloaded" and row["completion"] is None


def test_times_in_every_unit(tmp_path):
    times = [
        1780300000.25,
        1780300000250,
        "1780300000250000",
        1780300000250000000,
        "2026-06-01T07:46:40.25Z",
        "2026-06-01T09:46:40.25+02:00",
    ]
    rows, *_ = read(tmp_path, numbered([pair(timestamp=written) for written in times]))
    wanted = datetime(2026, 6, 1, 7, 46, 40, 250000, UTC)
    assert [round((row["ts"] - wanted).total_seconds(), 4) for row in rows] == [0] * len(times)


def test_a_record_without_time_belongs_to_the_day_of_its_key(tmp_path):
    record = pair()
    del record["timestamp"], record["response"]["created"], record["response"]["id"]
    (tmp_path / "logs/dt=2025-02-03").mkdir(parents=True)
    (row,), *_ = read(tmp_path, [record, record], name="dt=2025-02-03/a.jsonl")
    assert row["dt"] == date(2025, 2, 3)


def litellm(**changes):
    return {
        "id": "l1",
        "trace_id": "t1",
        "call_type": "acompletion",
        "status": "success",
        "startTime": 1780300000.0,
        "endTime": 1780300001.5,
        "completionStartTime": 1780300000.25,
        "response_time": 1.5,
        "response_cost": 0.01,
        "model": "m",
        "custom_llm_provider": "openai",
        "cache_hit": False,
        "end_user": "u",
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "messages": [{"role": "user", "content": "q"}],
        "model_parameters": {"temperature": 0, "tools": [{"type": "function", "function": {"name": "f"}}]},
        "metadata": {"user_api_key_alias": "app", "spend_logs_metadata": {"workload_id": "chat"}},
        "response": {
            "id": "r1",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}],
        },
        **changes,
    }


@pytest.mark.parametrize("indent", [None, 2])
def test_litellm_one_object_a_file(tmp_path, indent):
    (row,), bad, _, _ = read(
        tmp_path, json.dumps(litellm(), indent=indent).encode(), name="x.json", workloads={"chat": "other"}
    )
    assert not bad and row["source_format"] == "litellm" and row["workload"] == "other"
    assert row["ttft_ms"] == pytest.approx(250, abs=0.01) and row["latency_ms"] == 1500 and row["cost"] == 0.01
    assert json.loads(row["tools"])[0]["function"]["name"] == "f" and json.loads(row["params"]) == {"temperature": 0}
    assert row["session_id"] == "t1" and row["provider"] == "openai" and row["client"] == "app"


def test_litellm_lines_failures_and_prompts_only(tmp_path):
    text = {"id": "r3", "choices": [{"index": 0, "finish_reason": "stop", "text": "and on"}]}
    rows, bad, _, report = read(
        tmp_path,
        [
            litellm(),
            litellm(id="l2", status="failure", error_str="boom", response={}),
            litellm(id="l3", call_type="atext_completion", response=text, messages="plain text"),
            litellm(id="l4", messages=None),
            litellm(id="l5", response=None),
            litellm(id="l6", response="a text"),
            litellm(id="l7", response={"text": "x"}),
            litellm(id="l8", status="failure", error_str="no prompt", messages=None, response=None),
        ],
    )
    assert [row["status"] for row in rows] == ["success", "failure", "success", "success", "failure"]
    assert [row["error"] for row in rows] == [None, "boom", None, None, "no prompt"] and report.total.read == 8
    assert json.loads(rows[2]["messages"]) == [{"role": "user", "content": "plain text"}] and rows[4]["messages"] == "[]"
    assert [json.loads(rows[place]["completion"])["content"] for place in (0, 2, 3)] == ["a", "and on", "a text"]
    assert [(row["source_row"], row["error_code"]) for row in bad] == [
        (4, "missing_field"),
        (5, "missing_field"),
        (7, "missing_field"),
    ]
    assert "log prompts only" in bad[1]["message"]


def test_litellm_calls_that_are_no_chat_and_redacted_ones_are_counted(tmp_path):
    rows, bad, _, report = read(
        tmp_path,
        [
            litellm(),
            litellm(id="l2", call_type="aembedding", messages="embed me", response={"object": "list", "data": []}),
            litellm(id="l3", call_type="image_generation", status="failure", response=None, messages="a cat"),
            litellm(
                id="l4", messages=[{"role": "user", "content": "redacted-by-litellm"}], response={"text": "redacted-by-litellm"}
            ),
        ],
    )
    assert len(rows) == 1 and not bad and report.total.skipped == 3 and report.total.read == 4
    decided = Tables(LakeLayout.open(tmp_path / "lake")).open("decisions").to_pyarrow_table().to_pylist()
    assert {row["rule"] for row in decided} == {"litellm_aembedding", "litellm_image_generation", "placeholder"}


@pytest.mark.parametrize("unit", [1, 1e3, 1e6])
def test_litellm_times_in_any_unit_and_streams(tmp_path, unit):
    times = {name: litellm()[name] * unit for name in ("startTime", "endTime", "completionStartTime")}
    (row,), *_ = read(tmp_path, [litellm(**times, stream=True, response_time=0.25 * unit)])
    assert row["ttft_ms"] == pytest.approx(250, abs=0.01) and row["latency_ms"] == pytest.approx(1500, abs=0.01)


def test_litellm_calls_of_the_responses_api(tmp_path):
    asked = [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "weather?"},
                {"type": "input_image", "image_url": "https://x.test/a.png"},
            ],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"x":1}'},
        {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "7"},
        {"type": "item_reference", "id": "i"},
    ]
    said = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "web_search_call", "id": "w"},
        {"type": "message", "content": [{"type": "output_text", "text": "7 "}, {"type": "output_text", "text": "degrees"}]},
    ]
    usage = {"output_tokens_details": {"reasoning_tokens": 4}, "input_tokens_details": {"cached_tokens": 2}}
    call = {"type": "function_call", "call_id": "c3", "name": "f", "arguments": {"x": 2}}
    parameters = {"instructions": "Be brief.", "tools": [{"type": "function", "name": "f", "parameters": {}}]}
    rows, bad, _, _ = read(
        tmp_path,
        [
            litellm(
                call_type="aresponses",
                messages=asked,
                model_parameters=parameters,
                response={"id": "r1", "object": "response", "output": said, "usage": usage},
            ),
            litellm(call_type="responses", messages="hi", response={"id": "r2", "output": [call]}),
            litellm(call_type="responses", messages="hi", response={"id": "r3", "output": []}),
        ],
    )
    first, second = rows
    talk = json.loads(first["messages"])
    assert [message["role"] for message in talk] == ["system", "user", "assistant", "tool"]
    assert talk[0]["content"] == "Be brief."
    assert talk[1]["content"] == [
        {"type": "text", "text": "weather?"},
        {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
    ]
    assert [each["id"] for each in talk[2]["tool_calls"]] == ["c1", "c2"] and talk[3]["tool_call_id"] == "c1"
    assert json.loads(first["completion"]) == {"role": "assistant", "content": "7 degrees"} and first["reasoning"] == "hm"
    assert (first["finish_reason"], first["reasoning_tokens"], first["cached_tokens"]) == ("stop", 4, 2)
    assert json.loads(first["tools"])[0]["function"]["name"] == "f"
    assert json.loads(first["params"]) == {"context": {"elsewhere": "item_reference", "has_instructions": True}}
    assert json.loads(second["completion"])["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x":2}'}
    assert second["finish_reason"] == "tool_calls" and [row["source_row"] for row in bad] == [3]


def test_pairs_and_batches_of_the_responses_api(tmp_path):
    asked = {
        "model": "m",
        "instructions": "Be brief.",
        "input": "hi",
        "temperature": 1,
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
    }
    said = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1780300000,
        "model": "m-1",
        "status": "incomplete",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}],
        "usage": {
            "input_tokens": 3,
            "output_tokens": 2,
            "input_tokens_details": {"cached_tokens": 1},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }
    rows, bad, _, _ = read(
        tmp_path,
        [
            {"request": asked, "response": said},
            {"request": asked, "response": {**said, "id": "resp_2", "output": []}},
            {"request": {"model": "m"}, "response": {**said, "id": "resp_3"}},
            {"custom_id": "c", "method": "POST", "url": "/v1/responses", "body": asked},
            {"id": "b", "custom_id": "c", "response": {"status_code": 200, "body": {**said, "id": "resp_4"}}, "error": None},
        ],
    )
    assert [row["request_id"] for row in rows] == ["resp_1", "resp_4"] and [row["source_row"] for row in bad] == [2, 3]
    for row in rows:
        assert json.loads(row["messages"]) == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
        assert json.loads(row["completion"]) == {"role": "assistant", "content": "yes"} and row["finish_reason"] == "length"
        assert [row[f"{kind}_tokens"] for kind in ("prompt", "completion", "cached", "reasoning")] == [3, 2, 1, 0]
        assert json.loads(row["tools"])[0]["function"]["name"] == "f"
        assert json.loads(row["params"]) == {"temperature": 1, "context": {"has_instructions": True}}
        assert row["ts"] == datetime.fromtimestamp(1780300000, UTC) and row["status"] == "success"


values = st.recursive(
    st.none() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "role", "content", "output", "text", "summary"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["input", "instructions", "response"]), values))
def test_no_call_of_the_responses_api_raises_whatever_it_holds(call):
    assert isinstance(json.loads(chat_of(json.dumps(call))), dict)


def test_feedback_values_and_targets(tmp_path):
    _, bad, found, report = read(
        tmp_path,
        [
            {"response_id": "r1", "value": 1, "timestamp": 1780300000, "name": "thumbs", "label": "up"},
            {"session_id": "s", "thumb": "down", "timestamp": "2026-06-02T00:00:00Z", "comment": "no"},
            {"trace_id": "t", "score": 0.25, "timestamp": 1780300000},
            {"trace_id": "t", "label": "off topic"},
            {"response_id": None, "value": 1},
            {"response_id": "r1", "value": None, "comment": "well"},
        ],
    )
    assert [row["value"] for row in found] == [1, -1, 0.25, None] and found[3]["label"] == "off topic"
    assert found[1]["dt"] == date(2026, 6, 2) and found[1]["name"] == "thumbs" and found[1]["comment"] == "no"
    assert [row["error_code"] for row in bad] == ["missing_field"] * 2 and report.total.read == 6


def test_feedback_has_the_time_that_any_usual_name_has_and_langsmith_s_names(tmp_path):
    when = "2026-06-02 10:00:00"
    names = ("when", "At", "Rated at", "vote_time", "submitted_at", "date", "createdAt", "updated")
    langsmith = {"id": "f", "run_id": "r9", "trace_id": "t", "key": "hallucination", "score": 1, "value": None, "comment": None}
    _, bad, found, _ = read(
        tmp_path,
        [
            *({"request_id": "r", "thumb": "up", "extra": 7, name: when} for name in names),
            {"request_id": "r", "thumb": "up", "timestamp": "2026-06-03T00:00:00Z", "when": when},
            {"request_id": "r", "thumb": "up", "at": "home", "day_ts": None},
            {**langsmith, "created_at": when},
            {**langsmith, "run_id": "t", "created_at": when},
            {"request_id": "r", "thumb": None, "when": when},
        ],
    )
    assert not bad
    assert [str(row["ts"])[:19] for row in found[:8]] == [when] * 8 and found[8]["dt"] == date(2026, 6, 3)
    assert [(row["name"], row["request_id"], row["trace_id"], row["value"]) for row in found[10:12]] == [
        ("hallucination", "r9", "t", 1),
        ("hallucination", None, "t", 1),
    ]
    assert (found[12]["name"], found[12]["value"], found[12]["label"]) == ("thumbs", None, "none")


def test_messages_respect_weights(tmp_path):
    talk = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2", "weight": 1},
        {"role": "user", "content": "3"},
        {"role": "assistant", "content": "4", "weight": 0},
    ]
    rows, bad, _, _ = read(
        tmp_path,
        [
            {"messages": talk},
            {"messages": talk[:1]},
            {"messages": talk[1:2]},
            {"id": "x", "messages": [*talk[:3], {"role": "assistant", "content": "5"}]},
        ],
    )
    prompt = rows.pop(1)
    assert [json.loads(row["completion"])["content"] for row in rows] == ["2", "2", "5"] and prompt["status"] == "prompt"
    assert len(json.loads(rows[0]["messages"])) == 1 and json.loads(rows[2]["messages"])[1]["weight"] == 1
    assert [row["error_code"] for row in bad] == ["missing_field"] and rows[0]["request_id"] is None
    assert [(row["request_id"], row["trace_id"], row["session_id"][:2]) for row in rows[1:]] == [
        ("x#0", "x", "x:"),
        ("x#1", "x", "x:"),
    ]


def test_trajectories_give_an_interaction_per_answer_and_the_reward(tmp_path):
    talk = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "r", "tool_call_id": "t"},
        {"role": "assistant", "content": "a"},
    ]
    content = json.dumps(
        [
            {"task_id": 7, "trial": 1, "reward": 0.0, "info": {}, "traj": talk},
            {"task_id": 8, "trial": 1, "reward": 1.0, "info": {}, "traj": talk[:2]},
        ],
        indent=1,
    ).encode()
    rows, bad, found, report = read(tmp_path, content, name="runs.json")
    assert [len(json.loads(row["messages"])) for row in rows] == [2, 4]
    assert [row["finish_reason"] for row in rows] == ["tool_calls", "stop"]
    [session] = {row["session_id"] for row in rows}
    assert session.startswith("7/1:") and len(bad) == 1
    assert [(row["session_id"], row["value"], row["name"]) for row in found] == [(session, 0.0, "reward")]
    assert report.total.read == 3 and report.total.attached_feedback == 1


def in_two(compress):
    return lambda content: compress(content[:90]) + compress(content[90:])


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, bytes, in_two(gzip.compress), in_two(zstandard.compress)])
def test_compressions_are_told_by_content(tmp_path, pack):
    content = b"\xef\xbb\xbf" + b"\r\n\r\n".join(json.dumps(pair()).encode() for _ in range(3)) + b"\r\n"
    rows, bad, _, report = read(tmp_path, pack(content), name="a.log")
    assert len(rows) == 1 and not bad and report.total.repeated == 2


def test_a_cut_gzip_gives_its_readable_rows_and_one_quarantine_row(tmp_path):
    lines = []
    for index in range(2000):
        record = pair()
        record["response"]["id"] = f"r{index * 7919 % 99991}"
        lines.append(json.dumps(record).encode())
    packed = gzip.compress(b"\n".join(lines))
    rows, bad, _, report = read(tmp_path, packed[: len(packed) // 2], name="a.jsonl.gz")
    assert 100 < len(rows) < 2000 and len(bad) == 1 and report.total.read == len(rows) + 1
    assert bad[0]["error_code"] == "damaged_file" and bad[0]["source_row"] == 0


def test_a_file_that_is_no_log_is_one_quarantine_row(tmp_path):
    cases = [
        (bytes(range(128, 256)) * 50, "invalid_utf8"),
        (b"ts,prompt\n1,hi\n", "unknown_format"),
        (b'{"a": 1}\n{"a": 2}\n', "unknown_format"),
        (b'{"request": {', "malformed_json"),
        (gzip.compress(b"x" * 999, mtime=0)[:12], "damaged_file"),
        (b"\x28\xb5\x2f\xfd1234", "damaged_file"),
        (json.dumps([pair()])[:-1].encode(), "malformed_json"),
    ]
    each, _ = read_each(tmp_path, [content for content, _ in cases])
    for (rows, (bad,), _), (content, code) in zip(each, cases, strict=True):
        assert bad["error_code"] == code and len(bad["raw"]) <= 4096 and len(rows) == (content[:1] == b"[")


def test_a_declared_format_is_held_to(tmp_path):
    rows, (bad,), _, _ = read(tmp_path, [pair()], format="litellm")
    assert not rows and bad["error_code"] == "unknown_format" and "litellm" in bad["message"]
    with pytest.raises(ValidationError, match="openai_pairs"):
        SourceSettings(uri="x", format="nothing")


def test_contents_in_parts_are_kept_and_endless_nesting_stops_nothing(tmp_path):
    parts = [{"type": "text", "text": "hi"}]
    deep = json.dumps(pair()).replace('"h\\u00e9"', '{"arguments":' * 30_000 + "1" + "}" * 30_000)
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": []}, {"role": "user"}]
    good = json.dumps(pair(request={"messages": messages}))
    rows, (bad,), _, _ = read(tmp_path, f"{good}\n{deep}\n".encode())
    assert json.loads(rows[0]["messages"])[0]["content"] == parts and len(rows) == 1
    assert bad["error_code"] == "wrong_type" and len(bad["raw"]) == 4096


def test_junk_lines_first_do_not_hide_the_good_ones(tmp_path):
    good = json.dumps(pair()).encode()
    content = b'{"request": {"mess\n[1, 2\n\xff\xfe\n   \n' + good + b"\n[]\nnull\n"
    rows, bad, _, report = read(tmp_path, content)
    assert len(rows) == 1 and rows[0]["source_row"] == 5
    assert [row["source_row"] for row in bad] == [1, 2, 3, 6, 7] and report.total.read == 6


def test_detect_asks_the_first_records():
    assert detect([pair()]).name == "openai_pairs" and detect([litellm()]).name == "litellm"
    assert detect([{"messages": []}]).name == "messages" and detect([{"x": 1}]) is None
    assert detect([{"session_id": "s", "value": 1}]).name == "feedback" and len(FORMATS) == len(set(FORMATS.values()))


def test_listing_skips_hidden_files_and_names_an_empty_prefix(tmp_path):
    for name in ("a.jsonl", "b/c.jsonl", ".hidden/x.jsonl", "_tmp/x.jsonl", "b/.c", "b/d.jsonl.tmp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    listed = list_objects("s", SourceSettings(uri=f"file://{tmp_path}"))
    assert [item.uri.removeprefix(f"{tmp_path}/") for item in listed] == ["a.jsonl", "b/c.jsonl"]
    (found,) = list_objects("s", SourceSettings(uri=f"{tmp_path}/*/*.jsonl"))
    assert found.uri == f"{tmp_path}/b/c.jsonl" and found.bytes == 2
    with pytest.raises(SourceError, match=r"source s: there is no file or directory .*/nowhere"):
        list_objects("s", SourceSettings(uri=f"{tmp_path}/nowhere"))
    with pytest.raises(SourceError, match="more than 1"):
        list_objects("s", SourceSettings(uri=str(tmp_path)), limit=1)


def test_linked_folders_are_listed_once_and_circles_end(tmp_path):
    logs, other = tmp_path / "logs", tmp_path / "other"
    for name in (logs / "2026-06-01/a.jsonl", other / "deep/b.jsonl", other / "c.jsonl"):
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text("{}")
    (logs / "latest").symlink_to(logs / "2026-06-01")
    (logs / "more").symlink_to(other)
    (logs / "up").symlink_to(tmp_path)
    (other / "back").symlink_to(logs)
    (other / "deep/round").symlink_to(other)
    (logs / "self").symlink_to(logs / "self")
    (logs / "gone").symlink_to(tmp_path / "nowhere")
    wanted = ["2026-06-01/a.jsonl", "more/c.jsonl", "more/deep/b.jsonl"]
    source = SourceSettings(uri=str(logs))
    listed = [item.uri.removeprefix(f"{logs}/") for item in list_objects("s", source)]
    assert listed == wanted
    for place, name in enumerate(wanted):
        assert [item.uri.removeprefix(f"{logs}/") for item in objects_after("s", source, f"{logs}/{name}")] == wanted[
            place + 1 :
        ]


def test_a_file_name_that_is_no_text_is_named(tmp_path):
    try:
        Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9.jsonl")).write_text("{}")
    except OSError:
        pytest.skip("this filesystem takes UTF-8 names only")
    with pytest.raises(SourceError, match=r"source s: the file name '.*caf.udce9.jsonl' is not UTF-8 .*rename") as told:
        list_objects("s", SourceSettings(uri=str(tmp_path)))
    assert str(told.value).encode()


def test_an_empty_list_is_a_file_of_no_records(tmp_path):
    assert read(tmp_path, b"[]\n")[3].total.read == 0


def test_remote_listing_through_fsspec(tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/dt=2026-06-01/a.jsonl", json.dumps(pair()).encode())
    memory.pipe("/bucket/.x/b.jsonl", b"{}")
    source = SourceSettings(uri="memory://bucket/")
    assert [item.uri for item in list_objects("s", source)] == ["memory:///bucket/dt=2026-06-01/a.jsonl"]
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    assert ingest(tables, "shop", {"s": source}).total.rows == 1
    assert ingest(tables, "shop", {"s": source}).total.read == 0
    with pytest.raises(SourceError, match="nothing"):
        list_objects("s", SourceSettings(uri="nothing://x/y"))


def test_days_in_keys():
    assert days_in("s3://b/export-2026-07-01/dt=2026-06-02/h.gz") == [date(2026, 6, 2)]
    assert days_in("/logs/2026/06/03/x.json") == [date(2026, 6, 3)] == days_in("/a/2026-06-03.jsonl")
    assert days_in("/a/2026-13-45/x") == [] == days_in("/a/12026-06-031")


def test_an_error_that_says_nothing_is_none(tmp_path):
    nothing = [None, "", {}, [], False, 0, {"message": None, "code": ""}, "None"]
    records = [*(pair(error=error) for error in nothing), *(answering(error=error) for error in nothing)]
    rows, bad, _, _ = read(tmp_path, numbered(records))
    assert not bad and [(row["status"], row["error"]) for row in rows] == [("success", None)] * len(records)


def test_an_error_in_any_form_is_a_failure(tmp_path):
    errors = [
        ("boom", "boom"),
        (True, "true"),
        (503, "503"),
        (["a"], '["a"]'),
        ({"code": 1}, '{"code":1}'),
        ({"message": "late", "code": None}, "late"),
    ]
    rows, bad, _, _ = read(tmp_path, numbered([pair(error=error) for error, _ in errors]))
    assert not bad and [(row["status"], row["error"]) for row in rows] == [("failure", words) for _, words in errors]


@pytest.mark.parametrize("form", ["pair", "litellm", "stored"])
def test_choices_that_share_a_number_are_numbered_by_place(tmp_path, form):
    records = []
    for number, numbers in enumerate([(0, 0, 0), (2, 0, 1), (None, None, None), (1, 1, 4)]):
        name = f"chatcmpl-{number}x7f"
        choices = [
            {"index": index, "finish_reason": "stop", "message": {"role": "assistant", "content": f"a{place}"}}
            for place, index in enumerate(numbers)
        ]
        talk, answer = [{"role": "user", "content": f"q{number}"}], {"id": name, "choices": choices}
        if form == "pair":
            records.append(pair(request={"model": "m", "messages": talk}, response=answer))
        elif form == "litellm":
            records.append(litellm(id=name, trace_id=f"t{number}", messages=talk, response=answer))
        else:
            records.append(
                {"id": name, "object": "chat.completion", "created": 1780300000, "messages": talk, "choices": choices}
            )
    rows, bad, _, report = read(tmp_path, records)
    assert not bad and report.total.repeated == 0 and [row["choice_index"] for row in rows] == [0, 1, 2] * len(records)
    for place in range(0, len(rows), 3):
        assert {json.loads(row["completion"])["content"] for row in rows[place : place + 3]} == {"a0", "a1", "a2"}


WHO = {"user": "ann@example.com", "safety_identifier": "ann", "metadata": {"user_id": "ann"}, "prompt_cache_key": "ann",
    "extra_headers": {"Authorization": "Bearer sk-ann"}, "extra_body": {"user": "ann"}, "api_key": "sk-ann",
    "azure_ad_token": "ann", "aws_secret_access_key": "ann", "end_user": "ann", "instructions": "for ann"}  # fmt: skip
HOW = {"temperature": 0.5, "max_tokens": 5, "stop": ["user"], "skip_special_tokens": True, "stop_token_ids": [1]}


def test_parameters_hold_neither_users_nor_secrets_in_any_format(tmp_path):
    span = {
        "traceId": "t",
        "spanId": "s",
        "startTimeUnixNano": "1780300000000000000",
        "attributes": [
            {"key": key, "value": {"stringValue": value}}
            for key, value in {
                "openinference.span.kind": "LLM",
                "llm.invocation_parameters": json.dumps(WHO | HOW),
                "llm.input_messages.0.message.content": "hi",
                "llm.output_messages.0.message.content": "yo",
            }.items()
        ],
    }
    rows, bad, _, _ = read(
        tmp_path,
        [
            pair(request=pair()["request"] | WHO | {key: HOW[key] for key in ("temperature", "max_tokens", "stop")}),
            litellm(model_parameters=WHO | HOW, response=litellm()["response"] | {"id": "l"}),
            {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]},
            {
                "id": "g",
                "trace_id": "t",
                "type": "GENERATION",
                "start_time": "2026-06-01 10:00:00",
                "input": "q",
                "output": "a",
                "model_parameters": json.dumps(WHO | HOW),
            },
            {
                "timestamp": "2026-06-01T10:00:00",
                "event": "request.finished",
                "rid": "x",
                "obj": {"text": "q", "sampling_params": WHO | HOW},
                "out": {"text": "a", "meta_info": {}},
            },
        ],
    )
    assert not bad and len(rows) == 5 and "ann" not in str([row["params"] for row in rows])
    found = [json.loads(row["params"]) for row in rows]
    assert all(each == HOW for each in found[1:4]) and found[4] == HOW | {"templated": True}
    assert found[0] == {key: HOW[key] for key in ("temperature", "max_tokens", "stop")}


def heard(tmp_path, workload="shop"):
    """What cleaning hears of each request: the lowest value, by request id."""
    tables = Tables(LakeLayout.open(tmp_path / "lake"))
    named = {row["interaction_id"]: row["request_id"] for row in tables.open("interactions").to_pyarrow_table().to_pylist()}
    return {named[identity]: value for identity, value in interaction_rows.heard(tables, workload).items()}


def test_feedback_that_names_a_gateways_own_id_finds_its_request(tmp_path):
    rows, *_ = read(
        tmp_path,
        [
            pair(request_id="gw-1", trace_id="t", session_id="s"),
            pair(request_id="gw-2", trace_id="t", response=pair()["response"] | {"id": "r2"}),
            litellm(id="call-3", response=litellm()["response"] | {"id": "r3"}),
            {"request_id": "gw-1", "score": 1},
            {"request_id": "gw-2", "score": -1},
            {"request_id": "call-3", "score": 0.5},
        ],
    )
    assert [row["alias_id"] for row in rows] == ["gw-1", "gw-2", "call-3"]
    assert heard(tmp_path) == {"r1": 1, "r2": -1, "r3": 0.5}


def test_an_evaluation_of_a_span_is_about_that_span_alone(tmp_path):
    def attributes(**values):
        return [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]

    def span(name, **more):
        return {
            "traceId": "t",
            "spanId": name,
            "startTimeUnixNano": "1780300000000000000",
            "attributes": attributes(
                **{"gen_ai.operation.name": "chat", "gen_ai.prompt": "q", "gen_ai.completion": name, **more}
            ),
        }

    def evaluation(value, **ids):
        score = {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": value}}
        return {
            "eventName": "gen_ai.evaluation.result",
            "timeUnixNano": "1780300000000000000",
            "traceId": "t",
            **ids,
            "attributes": [score, *attributes(**{"gen_ai.evaluation.name": "n"})],
        }

    logged = [evaluation(0.25, spanId="a"), evaluation(0.75, spanId="b"), evaluation(0.5, spanId="tool")]
    _, bad, _, report = read(
        tmp_path,
        [
            {
                "resourceSpans": [
                    {"scopeSpans": [{"spans": [span("a"), span("b", **{"gen_ai.response.id": "resp"}), span("c")]}]}
                ]
            },
            {"resourceLogs": [{"scopeLogs": [{"logRecords": logged}]}]},
        ],
    )
    assert not bad and report.total.feedback == 3 and heard(tmp_path) == {"t-a": 0.25, "resp": 0.75}


def test_feedback_finds_its_interaction_in_any_workload_of_the_recipe(tmp_path):
    def answer(name):
        return pair()["response"] | {"id": name}

    _, bad, feedback, report = read(
        tmp_path,
        [
            pair(workload_id="bot"),
            pair(workload_id="x", response=answer("r2")),
            pair(workload_id="help", response=answer("r3")),
            {"response_id": "r1", "value": "up"},
            {"response_id": "r2", "value": "down"},
            {"response_id": "r3", "value": 0.5, "workload_id": "help"},
            {"response_id": "r3", "value": None, "comment": "hm"},
        ],
        workloads={"bot": "B", "help": "H"},
    )
    assert len(bad) == 1 and report.total.feedback == 3 and report.total.read == 7 and report.total.attached_feedback == 0
    assert len(feedback) == 7 and [heard(tmp_path, name) for name in ("shop", "B", "H")] == [{"r2": -1}, {"r1": 1}, {"r3": 0.5}]


@pytest.mark.parametrize(("path", "name"), [
    ("is_wrong", "is_wrong"), ("evals.hallucination.score", "hallucination"), ("stars", "feedback"),
    ("meta.disliked_flag", "feedback"),
])  # fmt: skip
def test_fields_of_feedback_keep_a_name_of_which_more_is_not_better(tmp_path, path, name):
    def holding(value):
        for key in reversed(path.split(".")):
            value = {key: value}
        return value

    values = [True, 1, "yes"]
    logged = [{"q": f"question {n}", "a": f"answer {n}", **holding(value)} for n, value in enumerate(values)]
    _, bad, mapped, _ = read(tmp_path / "mapped", logged, fields={"request": "q", "response": "a", "feedback": path})
    known = [pair() | {"response": pair()["response"] | {"id": f"r{n}"}} | holding(value) for n, value in enumerate(values)]
    _, _, beside, _ = read(tmp_path / "known", known, fields={"feedback": path})
    alone = [{"which": f"r{n}", **holding(value)} for n, value in enumerate(values)]
    _, _, apart, _ = read(tmp_path / "alone", alone, fields={"id": "which", "feedback": path})
    side = -1 if "disliked" in path else 1
    assert not bad
    for found in (mapped, beside, apart):
        assert [(row["name"], row["value"]) for row in found] == [(name, side)] * 3


def test_feedback_of_no_workload_is_one_record_where_it_is_tied(tmp_path):
    lines = [pair(workload_id="bot"), {"response_id": "r1", "value": "up"}, {"response_id": "nobody", "value": "up"}]
    _, _, feedback, _ = read(tmp_path, lines, workloads={"bot": "B", "help": "H"})
    lake = LakeLayout.open(tmp_path / "lake")
    publish(lake)
    shown = query(
        lake, "select request_id, list(workload order by workload) as workloads from feedback group by all"
    ).to_pylist()
    assert len(feedback) == 6
    assert {row["request_id"]: row["workloads"] for row in shown} == {"r1": ["B"], "nobody": ["B", "H", "shop"]}
