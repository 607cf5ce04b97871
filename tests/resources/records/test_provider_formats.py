"""Anthropic, Gemini and Bedrock: each from a fixture of its own, built from the providers' documented examples.

anthropic.jsonl: docs.claude.com "Streaming messages" (the text and tool use streams), "Tool use", "Extended thinking",
"Vision", "Citations", "Errors"; Vertex AI's "Log requests and responses". anthropic_batch.jsonl: "Batch processing".
gemini.jsonl: ai.google.dev "Function calling" (the disco ball), "Thinking", "Text generation"; the SDK's model_dump().
bedrock.jsonl: docs.aws.amazon.com/bedrock "Call a tool with the Converse API" (top_song), "API_runtime_ConverseStream",
"Monitor model invocation using CloudWatch Logs and Amazon S3", "View the results of a batch inference job", "Inference request
parameters". bedrock_completions.jsonl: "Inference request parameters" of Llama, Titan and Mistral. gemini_batch.jsonl:
ai.google.dev "Batch API"."""

import json

import pytest
from test_example_formats import FIXTURES, fixture, jsonl, said
from test_formats import litellm, pair, read
from test_trace_formats import by_id, decided

from resources.records.formats import FORMATS, detect
from resources.records.providers.streams import with_joined_events

NAMES = ("anthropic", "gemini", "bedrock", "anthropic_batch", "gemini_batch")


def arguments(message):
    return [(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]


def tokens(row):
    return [row[f"{kind}_tokens"] for kind in ("prompt", "completion", "cached", "reasoning")]


@pytest.mark.parametrize("name", NAMES)
def test_every_record_of_a_fixture_is_its_formats_and_no_others(name):
    for record in jsonl(f"{name}.jsonl"):
        assert [form.name for form in FORMATS.values() if form.recognises(with_joined_events(record))] == [name]


def test_records_of_other_formats_are_not_taken():
    others = [
        path for path in FIXTURES.iterdir() if path.stem.removesuffix("_completions") not in NAMES and path.suffix == ".jsonl"
    ]
    records = [(path.stem, record) for path in others for record in jsonl(path.name)]
    records += [
        ("pairs", pair()),
        ("litellm", litellm()),
        ("failed", pair(response={"error": {"message": "x"}})),
        ("parts", pair(request={"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]})),
    ]
    assert len(records) > 40
    for stem, record in records:
        assert not [name for name in NAMES if FORMATS[name].recognises(record)], (stem, sorted(record))


@pytest.mark.parametrize("first", ["openai_pairs", "anthropic", "gemini", "bedrock"])
def test_a_gateway_that_serves_every_provider_logs_into_one_file(tmp_path, first):
    kinds = {name: [record for record in jsonl(f"{name}.jsonl") if "request" in record][:2] for name in NAMES[:3]}
    kinds["anthropic"].append(next(record for record in jsonl("anthropic.jsonl") if "Overloaded" in json.dumps(record)))
    kinds["openai_pairs"] = [pair(), pair(response={"error": {"message": "overloaded"}})]
    lines = kinds.pop(first)[:1] * 12 + [record for records in kinds.values() for record in records]
    rows, bad, _, report = read(tmp_path, lines)
    assert not bad and report.total.repeated == 11
    found = {row["source_row"]: row["source_format"] for row in rows if row["source_row"] > 12}
    assert list(found.values()) == [name for name, records in kinds.items() for _ in records]


def test_a_named_format_refuses_the_others(tmp_path):
    lines = [*[record for record in jsonl("gemini.jsonl") if "request" in record][:1], pair()]
    rows, bad, _, _ = read(tmp_path, [*jsonl("anthropic.jsonl")[:1], *lines], format="anthropic")
    assert [row["source_format"] for row in rows] == ["anthropic"] and [row["source_row"] for row in bad] == [2, 3]
    assert {row["error_code"] for row in bad} == {"unknown_format"}


def test_anthropic_tools_thoughts_and_results(tmp_path):
    rows, *_ = fixture(tmp_path, "anthropic.jsonl")
    found = {row["request_id"]: row for row in rows}
    first, second = found["msg_01"], found["msg_02"]
    assert said(first["messages"])[0] == ("system", "Be brief.") and first["reasoning"] == "Two places: two calls."
    assert first["completion"]["content"] == "I'll check the current weather in both cities."
    assert arguments(first["completion"]) == [
        ("toolu_01A", "get_weather", {"location": "San Francisco, CA"}),
        ("toolu_01B", "get_weather", {"location": "New York, NY"}),
    ]
    assert "reasoning_content" not in first["completion"] and first["finish_reason"] == "tool_calls"
    assert tokens(first) == [17, 7, 5, 3] and first["latency_ms"] == 812.5 and first["workload_name"] == "w"
    assert [tool["function"]["name"] for tool in first["tools"]] == ["get_weather"]
    assert first["tools"][0]["function"]["parameters"]["required"] == ["location"]
    assert first["params"] == {
        "max_tokens": 1024,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tool_choice": "auto",
        "left_out": ["web_search_20250305"],
    }
    assert first["session_id"] == "550e8400-e29b-41d4-a716-446655440000" and first["user_hash"] and "abc123" not in str(first)
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert second["messages"][2]["reasoning_content"] == first["reasoning"]
    assert {**second["messages"][2], "reasoning_content": None} == {**first["completion"], "reasoning_content": None}
    assert [(each["tool_call_id"], each["content"]) for each in second["messages"][3:5]] == [
        ("toolu_01A", "15 degrees"),
        ("toolu_01B", "20 degrees"),
    ]
    assert second["completion"]["content"] == "New York: 20 degrees." and second["finish_reason"] == "stop"


def test_anthropic_streams_as_text_and_as_events(tmp_path):
    rows, *_ = fixture(tmp_path, "anthropic.jsonl")
    found = {row["request_id"]: row for row in rows}
    text, called, cut = (
        found[name] for name in ("msg_1nZdL29xx5MUA1yADyHTEsnR8uuvGzszyS", "msg_014p7gG3wDgGV9EUtLvnow3U", "msg_cut")
    )
    assert (text["completion"]["content"], text["finish_reason"], tokens(text)[:2]) == ("Hello!", "stop", [25, 15])
    assert called["reasoning"] == "I need the weather." and called["completion"]["content"] == "Okay, let's check."
    assert arguments(called["completion"]) == [("toolu_01T1x", "get_weather", {"location": "San Francisco, CA"})]
    assert called["finish_reason"] == "tool_calls" and called["params"]["tool_choice"] == "required"
    assert cut["status"] == "failure" and cut["error"].startswith("stream_cut") and cut["completion"]["content"] == "Hello"


def test_anthropic_media_prefill_remote_tools_refusals_and_errors(tmp_path):
    rows, bad, _, report = fixture(tmp_path, "anthropic.jsonl")
    found = {row["request_id"]: row for row in rows}
    picture, text, pdf, linked, question = found["msg_06"]["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("sha256:") and picture["image_url"]["url"].endswith(";image/png;70")
    assert text == {"type": "text", "text": "The grass is green."}
    assert pdf["file"] == {"file_data": "https://example.test/a.pdf"}
    assert linked["image_url"]["url"] == "https://example.test/a.jpg" and question["text"] == "What is in them?"
    assert found["msg_06"]["finish_reason"] == "length"
    begun = found["msg_07"]
    assert said(begun["messages"]) == [("user", "Give JSON")] and begun["completion"]["content"] == '{"a": 1'
    assert begun["params"] == {"max_tokens": 64, "temperature": 0.5, "top_k": 5, "stop": ["}"]}
    assert begun["finish_reason"] == "stop"
    searched = found["msg_08"]
    assert searched["completion"] == {"role": "assistant", "content": "None today."} and searched["tools"] is None
    assert searched["params"]["left_out"] == [
        "redacted_thinking",
        "server_tool_use",
        "web_search_tool_result",
        "web_search_20250305",
    ]
    assert (found["msg_09"]["finish_reason"], found["msg_09"]["completion"]["content"]) == ("content_filter", "")
    failed = found["req_011CSHoEeqs5C35K2UUqR7Fy"]
    assert (failed["status"], failed["error"], failed["completion"]) == ("failure", "Overloaded", None)
    assert said(failed["messages"]) == [("user", "busy?")]
    assert [(row["source_row"], row["error_code"]) for row in bad] == [(11, "unknown_block"), (12, "unknown_block")]
    assert all("of the type hologram is not known" in row["message"] for row in bad) and report.total.read == 13
    vertex = found["msg_13"]
    assert said(vertex["messages"]) == [("user", "Vertex?")] and str(vertex["ts"]) == "2026-06-01 08:00:00+00:00"
    assert vertex["alias_id"] == "77"


def test_a_claude_code_user_is_not_the_session(tmp_path):
    record = jsonl("anthropic.jsonl")[0]
    records = [
        {
            **record,
            "request": {**record["request"], "metadata": {"user_id": user}},
            "response": {**record["response"], "id": f"m{place}"},
        }
        for place, user in enumerate(
            (
                "user_abc123_account__session_1",
                "user_abc123_account__session_2",
                "someone",
                json.dumps({"device_id": "d", "account_uuid": "", "session_id": "s"}),
                '{"a": 1}',
            )
        )
    ]
    hashes = [(row["session_id"], row["user_hash"]) for row in read(tmp_path, records)[0]]
    assert [session for session, _ in hashes] == ["1", "2", None, "s", None]
    assert hashes[0][1] == hashes[1][1] and len({user for _, user in hashes}) == 4


def test_anthropic_batches_are_pairs(tmp_path):
    rows, bad, _, report = fixture(tmp_path, "anthropic_batch.jsonl")
    told = {(row["messages"][-1]["content"], row["completion"] and row["completion"]["content"], row["error"]) for row in rows}
    assert told == {
        ("Hi again, friend", "Hello again! It's nice to see you.", None),
        ("Hello, world", None, "max_tokens: required"),
        ("late", None, "expired"),
    }
    assert not bad and report.total.read == 3 and {row["source_format"] for row in rows} == {"anthropic"}
    assert {row["source_row"] for row in rows} == {4, 5, 6}
    (tmp_path / "alone").mkdir()
    lone, bad, _, _ = read(tmp_path / "alone", jsonl("anthropic_batch.jsonl")[2:4])
    assert not lone and [row["error_code"] for row in bad] == ["unpaired", "unpaired"]


def test_gemini_tools_thoughts_and_results(tmp_path):
    rows, *_ = fixture(tmp_path, "gemini.jsonl")
    found = by_id(rows)
    first, second, other = found["g1", 0], found["g2", 0], found["g2", 1]
    assert said(first["messages"]) == [("system", "You are a DJ."), ("user", "Turn this place into a party!")]
    assert first["reasoning"] == "Lights and a ball." and first["completion"]["content"] is None
    calls = arguments(first["completion"])
    assert [(name, given) for _, name, given in calls] == [
        ("dim_lights", {"brightness": 0.5}),
        ("power_disco_ball", {"power": True}),
        ("dim_lights", {"brightness": 0.3}),
    ]
    assert len({each for each, _, _ in calls}) == 3 and first["finish_reason"] == "tool_calls"
    assert [tool["function"].get("parameters", {}).get("type") for tool in first["tools"]] == ["object", "object"]
    assert first["tools"][0]["function"]["parameters"]["properties"] == {"power": {"type": "boolean"}}
    assert first["params"] == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 100,
        "stop": ["x"],
        "tool_choice": "required",
        "thinking": {"includeThoughts": True},
        "left_out": ["googleSearch"],
        "context": {"hidden": True},
    }
    assert tokens(first) == [10, 7, 2, 3] and first["session_id"] == "s1" and first["user_hash"]
    history = second["messages"]
    assert {**history[2], "reasoning_content": None} == {**first["completion"], "reasoning_content": None}
    answered = {message["tool_call_id"]: json.loads(message["content"]) for message in history[3:]}
    by_name = {identity: (name, given) for identity, name, given in arguments(history[2])}
    assert answered[calls[1][0]] == {"status": "Disco ball powered on"}
    assert all(answered[each] == given for each, (name, given) in by_name.items() if name == "dim_lights")
    assert [(row["completion"]["content"], row["finish_reason"]) for row in (second, other)] == [
        ("Let's get this party started!", "stop"),
        ("Party!", "length"),
    ]


def test_gemini_streams_sdk_dumps_media_and_blocks(tmp_path):
    rows, (bad,), _, report = fixture(tmp_path, "gemini.jsonl")
    found = by_id(rows)
    assert (found["g3", 0]["completion"]["content"], found["g3", 0]["reasoning"], tokens(found["g3", 0])[:2]) == (
        "AI works.",
        "hm",
        [4, 5],
    )
    assert found["g4", 0]["completion"]["content"] == "By numbers." and found["g4", 0]["status"] == "success"
    sdk = found["g5", 0]
    assert said(sdk["messages"]) == [("system", "Be brief."), ("user", "Hello")] and sdk["model"] == "gemini-2.5-pro"
    assert sdk["params"] == {
        "temperature": 1.0,
        "max_tokens": 5,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"schema": {"type": "object", "properties": {"a": {"type": "string"}}}},
        },
    }
    assert tokens(sdk) == [2, 3, None, None] and sdk["finish_reason"] == "stop"
    picture, pdf, text = found["g6", 0]["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("sha256:") and pdf["file"] == {"file_data": "gs://b/a.pdf"}
    assert text["text"] == "Caption this." and found["g6", 0]["params"] == {
        "left_out": ["executableCode", "codeExecutionResult"],
        "context": {"elsewhere": "fileUri"},
    }  # the text of the PDF
    by_question = {str(row["messages"][-1]["content"]): row for row in rows}
    blocked, filtered, failed = (by_question[text] for text in ("bad", "worse", "busy?"))
    assert (blocked["status"], blocked["finish_reason"], blocked["completion"]) == ("failure", "content_filter", None)
    assert blocked["error"] == "the prompt was blocked: SAFETY"
    assert (filtered["finish_reason"], filtered["completion"]["content"]) == ("content_filter", "")
    assert (failed["status"], failed["error"]) == ("failure", "The model is overloaded.")
    assert bad["error_code"] == "unknown_block" and "the keys hologram" in bad["message"] and report.total.read == 12
    assert (found["g11", 0]["alias_id"], found["g11", 0]["model"]) == ("78", "gemini-2.0-flash-001")


def test_bedrock_converse_and_its_streams(tmp_path):
    rows, *_ = fixture(tmp_path, "bedrock.jsonl")
    found = {row["request_id"]: row for row in rows}
    first, streamed, logged = found["conv-1"], found["conv-2"], found["req-3"]
    assert first["completion"]["content"] == "Let me look." and first["reasoning"] == "Two stations."
    assert arguments(first["completion"]) == [
        ("tooluse_1", "top_song", {"sign": "WZPZ"}),
        ("tooluse_2", "top_song", {"sign": "WKRP"}),
    ]
    assert tokens(first)[:3] == [37, 9, 5] and first["latency_ms"] == 1275 and first["session_id"] == "s1"
    assert first["user_hash"]
    assert first["params"] == {
        "max_tokens": 100,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop": ["x"],
        "tool_choice": "auto",
    }
    assert first["tools"][0]["function"]["parameters"]["required"] == ["sign"]
    assert streamed["completion"]["content"] == "Let me look." and streamed["reasoning"] == "A station."
    assert arguments(streamed["completion"]) == [("tooluse_3", "top_song", {"sign": "WZPZ"})] and tokens(streamed)[:2] == [
        47,
        20,
    ]
    assert {**logged["messages"][2], "reasoning_content": None} == {**first["completion"], "reasoning_content": None}
    assert json.loads(logged["messages"][3]["content"])["song"] == "Elemental Hotel"
    assert (logged["messages"][4]["tool_call_id"], logged["messages"][4]["content"]) == ("tooluse_2", "Station not found.")
    assert logged["client"] == "RadioApp" and logged["model"] == "vendor.model-v1:0" and "123456789012" not in str(logged)


def test_bedrock_logs_hold_bodies_of_any_api(tmp_path):
    rows, bad, _, report = fixture(tmp_path, "bedrock.jsonl")
    by_row = {row["source_row"]: row for row in rows}
    told = {
        place: (row["messages"][-1]["content"], row["completion"] and row["completion"]["content"], row["finish_reason"])
        for place, row in by_row.items()
        if place in (4, 5, 6, 7, 8, 9, 10)
    }
    assert told == {
        4: ("Summarize the following call transcript: ...", "A call.", "stop"),
        5: ("Hello", "Hello!", "stop"),
        6: ("hi", "hey", "length"),
        7: ("hi", "hello", "stop"),
        8: ("and now?", "c", "stop"),
        9: ("Roses are red, violets are", "blue\n", "stop"),
        10: ("Hello world", None, None),
    }
    assert said(by_row[8]["messages"]) == [("user", "a"), ("assistant", "b"), ("user", "and now?")]
    assert [tokens(by_row[place])[:2] for place in (6, 7, 8, 9)] == [[7, 2], [1, 2], [11, 12], [8, 3]]
    assert by_row[10]["error"] == "bad request" and by_row[11]["error"] == "ThrottlingException"
    assert by_row[11]["status"] == "failure" and by_row[9]["request_id"] is None
    assert by_row[5]["alias_id"] == "req-5" and by_row[6]["params"] == {"max_gen_len": 512, "temperature": 0.5}
    picture, pdf, text = by_row[14]["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("sha256:") and pdf["file"] == {"file_data": "s3://b/a.pdf"}
    assert by_row[14]["finish_reason"] == "content_filter" and text["text"] == "These?"
    assert [(row["source_row"], row["error_code"]) for row in bad] == [(13, "body_in_s3"), (15, "unknown_block")]
    assert "inputBodyS3Path" in bad[0]["message"] and "of the kind hologram" in bad[1]["message"]
    assert decided(tmp_path.parent / "fixture-bedrock.jsonl") == {"bedrock_embedding": 1} and report.total.read == 15


def test_bedrock_logs_of_prompts_and_their_completions_also_in_chunks(tmp_path):
    rows, bad, _, _ = fixture(tmp_path, "bedrock_completions.jsonl")
    found = {int(row["request_id" if row["alias_id"] is None else "alias_id"].rpartition("-")[2]): row for row in rows}
    told = {
        place: (said(row["messages"]), row["completion"]["content"], row["finish_reason"], tokens(row)[:2], row["latency_ms"])
        for place, row in found.items()
    }
    hi = [("user", "hi")]
    assert told == {
        1: (hi, "Hello", "stop", [7, 3], 512),
        2: ([("user", "User: hi\nBot:")], "Good day", "length", [5, 2], 512),
        3: (hi, "Bonjour", "stop", [9, 4], 512),
        4: ([("user", "weather?")], "Let me look.", "tool_calls", [9, 4], 512),
        5: (hi, "Hel", None, [7, 1], None),
        6: (hi, "Salut", "length", [9, 4], None),
        7: (hi, "Hello", "stop", [5, 2], None),
        8: (hi, "Bonjour", "stop", [9, 4], None),
    }
    assert not bad and found[5]["status"] == "failure" and found[5]["error"].startswith("stream_cut")
    assert arguments(found[4]["completion"]) == [("c1", "weather", {"city": "Oslo"})] and found[4]["tools"]
    assert found[2]["params"] == {"maxTokenCount": 10, "temperature": 0} and found[1]["model"] == "meta.llama3-8b-instruct-v1:0"


def test_gemini_batches_are_pairs(tmp_path):
    rows, bad, _, report = fixture(tmp_path, "gemini_batch.jsonl")
    assert [(row["source_row"], row["source_format"], row["request_id"]) for row in rows] == [
        (4, "gemini", "gb2"),
        (5, "gemini", "gb1"),
        (6, "gemini", None),
    ]
    assert [row["completion"] and row["completion"]["content"] for row in rows] == [
        "Tomatoes, mozzarella, basil.",
        "Light becomes sugar.",
        None,
    ]
    assert tokens(rows[1])[:2] == [8, 5] and rows[1]["params"] == {"temperature": 0.7} and not bad
    assert rows[2]["status"] == "failure" and "token count" in rows[2]["error"] and report.total.read == 3
    (tmp_path / "alone").mkdir()
    lone, bad, _, _ = read(tmp_path / "alone", jsonl("gemini_batch.jsonl")[2:4])
    assert not lone and sorted(row["message"] for row in bad) == [
        "no request for the key request-2 in this folder",
        "no response for the key request-3 in this folder",
    ]


def test_a_line_of_vertex_ais_batch_output_has_its_request(tmp_path):
    asked = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    said_back = {"candidates": [{"content": {"role": "model", "parts": [{"text": "hello"}]}, "finishReason": "STOP"}]}
    rows, bad, _, _ = read(
        tmp_path,
        [
            {"status": "", "processed_time": "2026-06-02T08:00:00.000+00:00", "request": asked, "response": said_back},
            {
                "status": "Bad Request: {...}",
                "processed_time": "2026-06-02T08:00:01.000+00:00",
                "request": asked,
                "response": {},
            },
        ],
    )
    assert [(row["status"], str(row["dt"]), row["error"]) for row in rows] == [
        ("success", "2026-06-02", None),
        ("failure", "2026-06-02", "Bad Request: {...}"),
    ] and not bad


@pytest.mark.parametrize(("form", "change", "code", "words"), [
    ("anthropic", {"response": {"type": "message", "role": "assistant"}}, "missing_field", "neither an answer nor an error"),
    ("anthropic", {"response": {"type": "message", "role": "assistant", "content": "text"}}, "missing_field", "neither"),
    ("anthropic", {"request": {"system": "s", "messages": "hi"}}, "missing_field", "no messages"),
    ("gemini", {"response": {}}, "missing_field", "neither an answer nor an error"),
    ("gemini", {"request": {"contents": [{"parts": [{"functionCall": {"name": "f", "partialArgs": []}}]}]}}, "unknown_block", "pieces"),
    ("bedrock", {"response": {}}, "missing_field", "neither an answer nor an error"),
    ("bedrock", {"request": {"modelId": "m", "messages": []}}, "wrong_type", "messages"),
])  # fmt: skip
def test_what_a_record_lacks_is_said(tmp_path, form, change, code, words):
    good = next(record for record in jsonl(f"{form}.jsonl") if isinstance(record.get("response"), dict))
    rows, (bad,), _, report = read(tmp_path, [good, {**good, **change}])
    assert len(rows) == 1 and report.total.read == 2
    assert bad["error_code"] == code and words in bad["message"]


def test_the_first_records_tell_the_format():
    assert [detect(list(map(with_joined_events, jsonl(f"{name}.jsonl")))).name for name in NAMES] == list(NAMES)


def test_litellm_calls_of_other_apis(tmp_path):
    first, second = jsonl("anthropic.jsonl")[:2]
    party = jsonl("gemini.jsonl")[1]
    radio = jsonl("bedrock.jsonl")[2]["input"]["inputBodyJson"]
    answer = {
        "id": "chatcmpl-1",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}],
    }
    parameters = {key: first["request"][key] for key in ("system", "tools", "max_tokens")}

    def passed(number, body, response):
        return litellm(
            id=f"l{number}",
            call_type="pass_through_endpoint",
            model_parameters={},
            response=response,
            messages=[{"role": "user", "content": json.dumps(body)}],
        )

    rows, bad, _, report = read(
        tmp_path,
        [
            litellm(
                id="l1",
                call_type="anthropic_messages",
                messages=second["request"]["messages"],
                model_parameters=parameters,
                response=answer,
            ),
            litellm(
                id="l2",
                call_type="anthropic_messages",
                messages=second["request"]["messages"],
                model_parameters=parameters,
                response=second["response"],
            ),
            litellm(
                id="l3",
                call_type="agenerate_content",
                messages=party["request"]["contents"],
                response={**answer, "id": "c3"},
                model_parameters={"tools": party["request"]["tools"], "system_instruction": "You are a DJ."},
            ),
            passed(4, second["request"], {**answer, "id": "c4"}),
            passed(5, party["request"], party["response"]),
            passed(6, radio, {**answer, "id": "c6"}),
            passed(7, {"urls": ["https://example.test"]}, {"response": "<html>"}),
            passed(
                8,
                {
                    "model": "m",
                    "messages": [{"role": "user", "content": "hi"}],
                    "tools": [{"type": "function", "function": {"name": "f"}}],
                },
                {**answer, "id": "c8"},
            ),
            litellm(
                id="l9",
                call_type="anthropic_messages",
                messages=second["request"]["messages"],
                status="failure",
                error_str="overloaded",
                response={},
                model_parameters=parameters,
            ),
            litellm(
                id="l10",
                call_type="anthropic_messages",
                messages=[{"role": "user", "content": [{"type": "hologram"}]}],
                response=answer,
            ),
        ],
    )
    found = {(row["alias_id"] or row["request_id"], row["choice_index"]): row for row in rows}
    assert set(found) == {(f"l{number}", 0) for number in (1, 2, 3, 4, 5, 6, 8, 9)} | {("l5", 1)}
    roles = ["system", "user", "assistant", "tool", "tool"]
    for (name, _), row in found.items():
        talk = [message["role"] for message in json.loads(row["messages"])]
        assert talk == (
            ["user"]
            if name == "l8"
            else [*roles, "tool"]
            if name in ("l3", "l5")
            else roles
            if name == "l6"
            else [*roles, "user"]
        )
    names = {name: [tool["function"]["name"] for tool in json.loads(row["tools"])] for (name, _), row in found.items()}
    assert names == {
        **{key: ["get_weather"] for key in ("l1", "l2", "l4", "l9")},
        "l6": ["top_song"],
        "l8": ["f"],
        **{key: ["power_disco_ball", "dim_lights"] for key in ("l3", "l5")},
    }
    assert json.loads(found["l2", 0]["completion"])["content"] == "New York: 20 degrees."
    assert found["l2", 0]["request_id"] == "msg_02"
    assert [json.loads(found["l5", place]["completion"])["content"] for place in (0, 1)] == [
        "Let's get this party started!",
        "Party!",
    ]
    assert json.loads(found["l1", 0]["params"])["left_out"] == ["web_search_20250305"]
    assert found["l9", 0]["error"] == "overloaded"
    assert [(row["source_row"], row["error_code"]) for row in bad] == [(10, "unknown_block")]
    assert decided(tmp_path) == {"litellm_pass_through_endpoint": 1} and report.total.read == 11
