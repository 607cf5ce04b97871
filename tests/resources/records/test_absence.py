"""What a record leaves out is no damage: arguments of a call, a time. What is there in an unusual form is read."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from test_formats import numbered, pair, read

from model_ops.rendering.server_messages import server_messages
from resources.records.moments import moment_of
from resources.records.providers.context_elsewhere import NEEDLES, context_of

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MILLIS = NOON.replace(microsecond=123_000)
EPOCH = int(NOON.timestamp())


def _call(name, **arguments):
    return {"id": f"c_{name}", "type": "function", "function": {"name": name, **arguments}}


def test_a_call_without_arguments_calls_a_tool_without_parameters(tmp_path):
    calls = [
        _call("a"),
        _call("b", arguments=None),
        _call("c", arguments=""),
        _call("d", arguments=" \n"),
        _call("e", arguments={}),
        _call("f", arguments="null"),
        _call("g", arguments='{"x": 1}'),
    ]
    spoken = {"role": "assistant", "content": None, "tool_calls": calls}
    older = {"role": "assistant", "content": None, "function_call": {"name": "now"}}
    asked = [
        {"role": "user", "content": 'say "function": {"arguments": "x"}'},
        spoken,
        older,
        {"role": "user", "content": "and?"},
    ]
    record = pair(request={"model": "m", "messages": asked})
    record["response"]["choices"][0]["message"] = spoken
    [row], bad, _, _ = read(tmp_path, [record])
    assert not bad
    said = [json.loads(row["messages"])[1], json.loads(row["completion"])]
    assert [[call["function"]["arguments"] for call in each["tool_calls"]] for each in said] == [["{}"] * 6 + ['{"x": 1}']] * 2
    assert json.loads(row["messages"])[2]["function_call"] == {"name": "now", "arguments": "{}"}


def test_blank_arguments_are_none_in_every_way_to_write_a_blank(tmp_path):
    blanks = ["\n", "\t ", " \r\n", "\nnull\n", "\n{}"]
    records = [pair(request={"model": "m", "messages": [{"role": "user", "content": f"case {n}"}]}) for n in range(len(blanks))]
    for blank, record in zip(blanks, records, strict=True):
        call = _call("a", arguments=blank)
        record["response"]["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
    rows, bad, _, _ = read(tmp_path, records)
    calls = [json.loads(row["completion"])["tool_calls"][0]["function"]["arguments"] for row in rows]
    assert not bad and sorted(each.strip() for each in calls) == ["{}"] * len(blanks)


@pytest.mark.parametrize("form", ["object", "text"])
@pytest.mark.parametrize("given", [{}, {"arguments": None}, {"arguments": ""}, {"arguments": "  "}])
def test_a_template_is_given_empty_arguments(form, given):
    [message] = server_messages([{"role": "assistant", "tool_calls": [_call("now", **given)]}], form, False, False)
    assert message["tool_calls"][0]["function"]["arguments"] == ({} if form == "object" else "{}")


TIMES = [
    ("2026-06-01 12:00:00,123", MILLIS),
    ("2026-06-01T12:00:00.123456789Z", MILLIS.replace(microsecond=123_456)),
    ("2026-06-01T12:00:00z", NOON),
    ("2026-06-01 14:00:00 +0200", NOON),
    ("2026-06-01T14:00:00+02:00[Europe/Rome]", NOON),
    ("20260601T120000Z", NOON),
    ("20260601120000", NOON),
    ("2026/06/01 12:00:00.123", MILLIS),
    ("Mon, 01 Jun 2026 12:00:00 GMT", NOON),
    ("Mon, 1 Jun 2026 05:00:00 -0700 (PDT)", NOON),
    ("Monday, 01-Jun-26 12:00:00 GMT", NOON),
    ("01/Jun/2026:14:00:00 +0200", NOON),
    ("[01/Jun/2026:12:00:00 +0000]", NOON),
    ("Mon Jun  1 12:00:00 2026", NOON),
    ("Mon Jun  1 12:00:00 UTC 2026", NOON),
    ("01 Jun 2026 12:00:00,123", MILLIS),
    ("Mon Jun 01 2026 14:00:00 GMT+0200 (Central European Summer Time)", NOON),
    ("Jun 1, 2026, 12:00:00 PM", NOON),
    ({"$date": "2026-06-01T12:00:00Z"}, NOON),
    ({"$date": EPOCH * 1000}, NOON),
    ({"$date": {"$numberLong": f"{EPOCH}000"}}, NOON),
    ({"seconds": EPOCH, "nanos": 0}, NOON),
    (f"/Date({EPOCH}000)/", NOON),
    ([2026, 6, 1, 12, 0, 0, 123_000_000], MILLIS),
    (EPOCH, NOON),
    (f"{EPOCH}", NOON),
    (EPOCH * 10**3, NOON),
    (f"{EPOCH}000000", NOON),
    (EPOCH * 10**9, NOON),
    (f"{EPOCH},123", MILLIS),
    ("06/13/2026 12:00:00 PM", NOON + timedelta(days=12)),
    ("13.06.2026 12:00", NOON + timedelta(days=12)),
    ("2026-06-01 12:00:00.123 +0000 UTC m=+0.012", MILLIS),
    ("2026-06-01 14:00:00 +0200 CEST", NOON),
    ("Jun 1, 2026 @ 12:00:00.123", MILLIS),
    ("01-JUN-26 12.00.00.123000 PM", MILLIS),
    ("2026-W23-1T12:00:00Z", NOON),
]


def test_a_time_is_read_in_the_forms_that_loggers_write(tmp_path):
    records = numbered([pair(timestamp=written) for written, _ in TIMES])
    rows, bad, _, _ = read(tmp_path, records)
    found = {row["request_id"]: row["ts"] for row in rows}
    assert not bad and [found[record["response"]["id"]] for record in records] == [meant for _, meant in TIMES]


def timed(written, created):
    record = pair(timestamp=written)
    record["response"]["created"] = created
    return record


def test_no_time_is_the_time_of_another_key_or_the_files_day(tmp_path):
    absent = ["", " ", 0, "0", 0.0, None, "None", "-", "0001-01-01T00:00:00Z", {"$date": 0}, "null"]
    records = [*(timed(each, each) for each in absent), *(timed(each, EPOCH) for each in absent)]
    rows, bad, _, _ = read(tmp_path, numbered(records), name="2026-05-02.jsonl")
    assert not bad and [row["ts"] for row in rows] == [datetime(2026, 5, 2, tzinfo=UTC)] * len(absent) + [NOON] * len(absent)


def test_a_time_of_an_unknown_form_is_shown(tmp_path):
    unknown = ["half past ten", "06/05/2026 12:00:00", "Jun  1 12:00:00", "2026-06-31 12:00:00,5", "12:00:00", "2026-W54-1"]
    records = [*(timed(written, None) for written in unknown), *(timed(written, EPOCH) for written in unknown)]
    rows, bad, _, _ = read(tmp_path, numbered(records))
    assert [each["message"] for each in bad] == [f"the format of the time is not known: {written}" for written in unknown]
    assert [row["ts"] for row in rows] == [NOON] * len(unknown)


def test_a_time_outside_the_century_is_shown(tmp_path):
    record = pair(timestamp="1850-01-01 12:00:00,5")
    record["response"]["created"] = None
    _, [bad], _, _ = read(tmp_path, [record])
    assert bad["message"] == "the time is not one between the years 2000 and 2100: 1850-01-01 12:00:00,5"


def test_feedback_and_providers_have_the_same_reader_of_times(tmp_path):
    feedback = {"response_id": "r1", "value": 1, "timestamp": "", "created_at": "01/Jun/2026:12:00:00 +0000"}
    gemini = {
        "timestamp": "yesterday",
        "ts": "2026-06-01 12:00:00,000",
        "request": {"contents": [{"role": "user", "parts": [{"text": "a"}]}]},
        "response": {"candidates": [{"content": {"role": "model", "parts": [{"text": "b"}]}, "finishReason": "STOP"}]},
    }
    [row], bad, [told], _ = read(tmp_path, [gemini, feedback])
    assert not bad and row["ts"] == told["ts"] == NOON


def test_zones_are_offsets():
    west = moment_of("Mon, 01 Jun 2026 12:00:00 EST")
    assert datetime.fromisoformat(west) == NOON.replace(tzinfo=timezone(timedelta(hours=-5)))


SAID = {"choices": [{"message": {"role": "assistant", "content": "a"}}]}
ASKED = [{"role": "user", "content": "q"}]


def asked_pair(response=None, **request):
    return {"request": {"model": "m", **request}, "response": response or SAID}


def context(record):
    """What is said of a record, as ingest asks: only where a needle is found."""
    text = json.dumps(record)
    found = context_of(text) if re.search(NEEDLES, text) else None
    return json.loads(found) if found else {}


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (asked_pair(input=[{"type": "item_reference", "id": "msg_1"}]), "item_reference"),
        (asked_pair(input=[{"id": "msg_1"}]), "item_reference"),
        (asked_pair(input="q", conversation="conv_1"), "conversation"),
        (asked_pair(input="q", conversation={"id": "conv_1"}), "conversation"),
        (asked_pair(input="q", prompt={"id": "pmpt_1", "variables": {"city": "Oslo"}}), "prompt"),
        (asked_pair({"output": [{"type": "file_search_call", "results": None}]}, input="q"), "file_search"),
        (asked_pair(messages=ASKED, data_sources=[{"type": "azure_search"}]), "data_sources"),
        (asked_pair(messages=ASKED, extra_body={"data_sources": [{"type": "a"}]}), "data_sources"),
        (asked_pair(prompt_id="p"), "prompt_id"),
        (asked_pair(messages=ASKED, preset="@preset/mine"), "preset"),
        (asked_pair({**SAID, "id": "gen-1"}, messages=ASKED, preset="mine"), "preset"),
        ({"request": {"model": "openrouter/a", "preset": "mine", "messages": ASKED}, "response": SAID}, "preset"),
        (asked_pair(preset="mine"), "preset"),
        ({"request": {"agent_id": "ag:1", "messages": ASKED}, "response": SAID}, "agent_id"),
        ({"request": {"agent_id": "mine", "additional_messages": ASKED}, "response": SAID}, "agent_id"),
        (asked_pair(input=ASKED, prompt={"id": "pmpt_1"}), "prompt"),
        (asked_pair(input=ASKED, conversation="conv_1"), "conversation"),
        (asked_pair(messages=ASKED, container={"skills": [{"type": "anthropic", "skill_id": "pptx"}]}), "container"),
        (asked_pair(messages=ASKED, documents=[{"title": "t", "text": "The limit is 90."}]), "documents"),
        (asked_pair(messages=ASKED, chat_template_kwargs={"documents": ["The limit is 90."]}), "documents"),
        (asked_pair(messages=ASKED, documents=[{"id": "1", "data": {"snippet": "The limit is 90."}}]), "documents"),
        (asked_pair(messages=[*ASKED, {"role": "assistant", "audio": {"id": "audio_1"}}]), "audio"),
        (
            asked_pair(
                {"choices": [{"message": {"content": "a", "context": {"citations": [{"content": "t"}]}}}]}, messages=ASKED
            ),
            "citations",
        ),
        (asked_pair({"candidates": [{"groundingMetadata": {"webSearchQueries": ["q"]}}]}, contents=ASKED), "groundingMetadata"),
        (
            asked_pair(
                contents=[{"parts": [{"fileData": {"mimeType": "application/pdf", "fileUri": "https://a"}}, {"text": "q"}]}]
            ),
            "fileUri",
        ),
        (
            asked_pair(
                messages=[
                    {"role": "user", "content": [{"document": {"name": "d", "source": {"s3Location": {"uri": "s3://a"}}}}]}
                ]
            ),
            "s3Location",
        ),
        (asked_pair(input=[{"role": "user", "content": [{"type": "input_file", "file_url": "https://a"}]}]), "file_url"),
        (
            asked_pair(
                messages=[{"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}]}]
            ),
            "file_id",
        ),
        (
            asked_pair(
                messages=[
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "content": [{"type": "image", "source": {"file_id": "f"}}]}],
                    }
                ]
            ),
            "file_id",
        ),
        (asked_pair(messages=[{"role": "user", "content": "q", "attachments": [{"file_id": "f"}]}]), "file_id"),
        (asked_pair(contents=ASKED, cachedContent="cachedContents/a"), "cachedContent"),
        (asked_pair(contents=ASKED, config={"cached_content": "cachedContents/a"}), "cached_content"),
        (asked_pair(contents=ASKED, tools=[{"fileSearch": {"names": ["a"]}}]), "fileSearch"),
        (asked_pair(prompt="q", context=[1, 2]), "context"),
        (asked_pair(messages=ASKED, container="container_1"), "container"),
        (asked_pair(messages=[{"role": "user", "content": [{"type": "compaction", "content": "..."}]}]), "compaction"),
        (asked_pair(messages=[{"role": "user", "content": [{"type": "file", "file": {"file_id": "f1"}}]}]), "file_id"),
        (
            asked_pair({**SAID, "context_management": {"applied_edits": [{"type": "clear"}]}}, messages=ASKED),
            "context_management",
        ),
        ({"full_request": {"contents": ASKED, "cachedContent": "c"}, "full_response": {}}, "cachedContent"),
        (
            {"modelId": "arn:aws:bedrock:us-east-1:1:prompt/P1:1", "input": {"inputBodyJson": {"messages": ASKED}}},
            "stored prompt",
        ),
        ({"input": {"inputBodyJson": json.dumps({"promptVariables": {"a": {"text": "b"}}})}}, "promptVariables"),
        (
            {"call_type": "aresponses", "messages": [{"type": "item_reference", "id": "i"}], "model_parameters": {}},
            "item_reference",
        ),
        ({"type": "GENERATION", "input": json.dumps({"variables": {"a": "b"}, "thread_id": "t"})}, "thread_id"),
    ],
)
def test_text_that_only_the_provider_has(record, name):
    assert context(record)["elsewhere"] == name


@pytest.mark.parametrize(
    "record",
    [
        asked_pair(messages=ASKED),
        asked_pair(messages=ASKED, conversation="session 7"),
        {**asked_pair(messages=ASKED), "thread_id": "t"},
        {"messages": ASKED, "conversation": "c", "container": "x"},
        asked_pair(prompt="q"),
        asked_pair(messages=ASKED, agent_id="support"),
        asked_pair(messages=[{"role": "user", "content": 'what is "cachedContent": "x" and "file_id": "f"?'}]),
        asked_pair({**SAID, "context_management": {"applied_edits": []}}, messages=ASKED),
        asked_pair(messages=ASKED, data_sources=[]),
        asked_pair({"instructions": [{"role": "developer", "content": "Be brief."}]}, input="q", prompt={"id": "pmpt_1"}),
        *(
            asked_pair(messages=ASKED, **{where: keys} if where else keys)
            for where in (None, "extra_body")
            for keys in (
                {"thread_id": "t-17"},
                {"preset": "friendly"},
                {"prompt_id": "tutor-v3"},
                {"container": "api-7f9c"},
                {"context": [12, 48]},
                {"prompt": {"id": "tutor", "version": 3}},
                {"data_sources": ["crm"]},
                {"prompt_variables": {"city": "Oslo"}},
                {"promptVariables": {"city": "Oslo"}},
                {"documents": ["d1"]},
                {"documents": [{"id": "d1"}]},
                {"documents": [{"text": "q"}]},
            )
        ),
        {"request": {"agent_id": "tutor-bot", "messages": ASKED}, "response": SAID},
        asked_pair(contents=[{"role": "user", "parts": [{"text": "q"}]}], thread_id="t"),
        asked_pair(input=ASKED, thread_id="t"),
        {
            "call_type": "acompletion",
            "messages": ASKED,
            "model_parameters": {"extra_body": {"thread_id": "t"}, "prompt_id": "p", "container": "c"},
        },
        {
            "type": "GENERATION",
            "input": {"messages": ASKED, "thread_id": "t"},
            "model_parameters": json.dumps({"thread_id": "t"}),
        },
        {"type": "GENERATION", "input": json.dumps(ASKED), "model_parameters": {"prompt_id": "t", "prompt": {"id": "tutor"}}},
        asked_pair(
            messages=[
                *ASKED,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "read", "input": {"file_id": "f"}}]},
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "content": [{"type": "text", "text": '{"file_id": "f"}'}]}],
                },
            ]
        ),
        asked_pair(
            messages=[
                *ASKED,
                {"role": "assistant", "tool_calls": [{"type": "function", "function": {"arguments": {"file_id": "f"}}}]},
            ]
        ),
        asked_pair(input=[*ASKED, {"type": "function_call", "arguments": {"file_id": "f"}, "name": "file"}]),
        asked_pair(messages=[*ASKED, {"role": "assistant", "content": "a", "audio": {"id": "audio_1"}}]),
        asked_pair({"candidates": [{"groundingMetadata": {"groundingChunks": []}}]}, contents=ASKED),
        asked_pair(contents=[{"parts": [{"fileData": {"mimeType": "image/png", "fileUri": "https://a"}}, {"text": "q"}]}]),
        asked_pair({"output": [{"type": "file_search_call", "results": [{"text": "t"}]}]}, input="q"),
    ],
)
def test_a_request_that_holds_its_prompt(record):
    assert "elsewhere" not in context(record)


def test_an_earlier_response_and_what_it_does_not_carry_on():
    assert context(asked_pair({"output": []}, input="q", previous_response_id="resp_1", instructions="Be brief.")) == {
        "previous_response_id": "resp_1",
        "has_instructions": True,
    }
    assert context(asked_pair(input="q", previous_response_id=None)) == {} and context_of('{"a": ') is None
