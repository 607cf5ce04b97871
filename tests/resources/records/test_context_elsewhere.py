"""What a request leaves to its provider, by every name, and what only looks like it."""

import json
import re

import pytest

from resources.records.providers.context_elsewhere import NEEDLES, context_of

SAID = {"choices": [{"message": {"role": "assistant", "content": "a"}}]}
ASKED = [{"role": "user", "content": "q"}]


def pair(response=None, **request):
    return {"request": {"model": "m", **request}, "response": response or SAID}


def context(record):
    """What is said of a record, as ingest asks: only where a needle is found."""
    text = json.dumps(record)
    found = context_of(text) if re.search(NEEDLES, text) else None
    return json.loads(found) if found else {}


@pytest.mark.parametrize(("record", "name"), [
    (pair(input=[{"type": "item_reference", "id": "msg_1"}]), "item_reference"),
    (pair(input=[{"id": "msg_1"}]), "item_reference"), (pair(input="q", conversation="conv_1"), "conversation"),
    (pair(input="q", conversation={"id": "conv_1"}), "conversation"),
    (pair(input="q", prompt={"id": "pmpt_1", "variables": {"city": "Oslo"}}), "prompt"),
    (pair({"output": [{"type": "file_search_call", "results": None}]}, input="q"), "file_search"),
    (pair(messages=ASKED, data_sources=[{"type": "azure_search"}]), "data_sources"),
    (pair(messages=ASKED, extra_body={"data_sources": [{"type": "a"}]}), "data_sources"), (pair(prompt_id="p"), "prompt_id"),
    (pair(messages=ASKED, preset="@preset/mine"), "preset"),
    (pair({**SAID, "id": "gen-1"}, messages=ASKED, preset="mine"), "preset"),
    ({"request": {"model": "openrouter/a", "preset": "mine", "messages": ASKED}, "response": SAID}, "preset"),
    (pair(preset="mine"), "preset"), ({"request": {"agent_id": "ag:1", "messages": ASKED}, "response": SAID}, "agent_id"),
    ({"request": {"agent_id": "mine", "additional_messages": ASKED}, "response": SAID}, "agent_id"),
    (pair(input=ASKED, prompt={"id": "pmpt_1"}), "prompt"), (pair(input=ASKED, conversation="conv_1"), "conversation"),
    (pair(messages=ASKED, container={"skills": [{"type": "anthropic", "skill_id": "pptx"}]}), "container"),
    (pair(messages=ASKED, documents=[{"title": "t", "text": "The limit is 90."}]), "documents"),
    (pair(messages=ASKED, chat_template_kwargs={"documents": ["The limit is 90."]}), "documents"),
    (pair(messages=ASKED, documents=[{"id": "1", "data": {"snippet": "The limit is 90."}}]), "documents"),
    (pair(messages=[*ASKED, {"role": "assistant", "audio": {"id": "audio_1"}}]), "audio"),
    (pair({"choices": [{"message": {"content": "a", "context": {"citations": [{"content": "t"}]}}}]}, messages=ASKED), "citations"),
    (pair({"candidates": [{"groundingMetadata": {"webSearchQueries": ["q"]}}]}, contents=ASKED), "groundingMetadata"),
    (pair(contents=[{"parts": [{"fileData": {"mimeType": "application/pdf", "fileUri": "https://a"}}, {"text": "q"}]}]), "fileUri"),
    (pair(messages=[{"role": "user", "content": [{"document": {"name": "d", "source": {"s3Location": {"uri": "s3://a"}}}}]}]), "s3Location"),
    (pair(input=[{"role": "user", "content": [{"type": "input_file", "file_url": "https://a"}]}]), "file_url"),
    (pair(messages=[{"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}]}]), "file_id"),
    (pair(messages=[{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image", "source": {"file_id": "f"}}]}]}]), "file_id"),
    (pair(messages=[{"role": "user", "content": "q", "attachments": [{"file_id": "f"}]}]), "file_id"),
    (pair(contents=ASKED, cachedContent="cachedContents/a"), "cachedContent"),
    (pair(contents=ASKED, config={"cached_content": "cachedContents/a"}), "cached_content"),
    (pair(contents=ASKED, tools=[{"fileSearch": {"names": ["a"]}}]), "fileSearch"),
    (pair(prompt="q", context=[1, 2]), "context"), (pair(messages=ASKED, container="container_1"), "container"),
    (pair(messages=[{"role": "user", "content": [{"type": "compaction", "content": "..."}]}]), "compaction"),
    (pair(messages=[{"role": "user", "content": [{"type": "file", "file": {"file_id": "f1"}}]}]), "file_id"),
    (pair({**SAID, "context_management": {"applied_edits": [{"type": "clear"}]}}, messages=ASKED), "context_management"),
    ({"full_request": {"contents": ASKED, "cachedContent": "c"}, "full_response": {}}, "cachedContent"),
    ({"modelId": "arn:aws:bedrock:us-east-1:1:prompt/P1:1", "input": {"inputBodyJson": {"messages": ASKED}}}, "stored prompt"),
    ({"input": {"inputBodyJson": json.dumps({"promptVariables": {"a": {"text": "b"}}})}}, "promptVariables"),
    ({"call_type": "aresponses", "messages": [{"type": "item_reference", "id": "i"}], "model_parameters": {}}, "item_reference"),
    ({"type": "GENERATION", "input": json.dumps({"variables": {"a": "b"}, "thread_id": "t"})}, "thread_id"),
])  # fmt: skip
def test_text_that_only_the_provider_has(record, name):
    assert context(record)["elsewhere"] == name


@pytest.mark.parametrize("record", [
    pair(messages=ASKED),
    pair(messages=ASKED, conversation="session 7"),
    {**pair(messages=ASKED), "thread_id": "t"},
    {"messages": ASKED, "conversation": "c", "container": "x"},
    pair(prompt="q"),
    pair(messages=ASKED, agent_id="support"),
    pair(messages=[{"role": "user", "content": 'what is "cachedContent": "x" and "file_id": "f"?'}]),
    pair({**SAID, "context_management": {"applied_edits": []}}, messages=ASKED),
    pair(messages=ASKED, data_sources=[]),
    pair({"instructions": [{"role": "developer", "content": "Be brief."}]}, input="q", prompt={"id": "pmpt_1"}),
    *(
            pair(messages=ASKED, **{where: keys} if where else keys)
            for where in (None, "extra_body")
            for keys in (
                {"thread_id": "t-17"}, {"preset": "friendly"}, {"prompt_id": "tutor-v3"}, {"container": "api-7f9c"},
                {"context": [12, 48]}, {"prompt": {"id": "tutor", "version": 3}}, {"data_sources": ["crm"]},
                {"prompt_variables": {"city": "Oslo"}}, {"promptVariables": {"city": "Oslo"}}, {"documents": ["d1"]},
                {"documents": [{"id": "d1"}]}, {"documents": [{"text": "q"}]},
            )
        ),
    {"request": {"agent_id": "tutor-bot", "messages": ASKED}, "response": SAID},
    pair(contents=[{"role": "user", "parts": [{"text": "q"}]}], thread_id="t"),
    pair(input=ASKED, thread_id="t"),
    {"call_type": "acompletion", "messages": ASKED, "model_parameters": {"extra_body": {"thread_id": "t"}, "prompt_id": "p", "container": "c"}},
    {"type": "GENERATION", "input": {"messages": ASKED, "thread_id": "t"}, "model_parameters": json.dumps({"thread_id": "t"})},
    {"type": "GENERATION", "input": json.dumps(ASKED), "model_parameters": {"prompt_id": "t", "prompt": {"id": "tutor"}}},
    pair(
            messages=[
                *ASKED,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "read", "input": {"file_id": "f"}}]},
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "content": [{"type": "text", "text": '{"file_id": "f"}'}]}],
                },
            ]
        ),
    pair(messages=[*ASKED, {"role": "assistant", "tool_calls": [{"type": "function", "function": {"arguments": {"file_id": "f"}}}]}]),
    pair(input=[*ASKED, {"type": "function_call", "arguments": {"file_id": "f"}, "name": "file"}]),
    pair(messages=[*ASKED, {"role": "assistant", "content": "a", "audio": {"id": "audio_1"}}]),
    pair({"candidates": [{"groundingMetadata": {"groundingChunks": []}}]}, contents=ASKED),
    pair(contents=[{"parts": [{"fileData": {"mimeType": "image/png", "fileUri": "https://a"}}, {"text": "q"}]}]),
    pair({"output": [{"type": "file_search_call", "results": [{"text": "t"}]}]}, input="q"),
])  # fmt: skip
def test_a_request_that_holds_its_prompt(record):
    assert "elsewhere" not in context(record)


def test_an_earlier_response_and_what_it_does_not_carry_on():
    assert context(pair({"output": []}, input="q", previous_response_id="resp_1", instructions="Be brief.")) == {
        "previous_response_id": "resp_1",
        "has_instructions": True,
    }
    assert context(pair(input="q", previous_response_id=None)) == {} and context_of('{"a": ') is None
