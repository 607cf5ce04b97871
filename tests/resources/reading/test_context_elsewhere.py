"""What a request leaves to its provider, by every name, and what only looks like it."""

import json
import re

import pytest

from resources.reading.context_elsewhere import NEEDLES, context_of

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
    (pair(input=[{"type": "item_reference", "id": "msg_1"}]), "item_reference"), (pair(input=[{"id": "msg_1"}]), "item_reference"),
    (pair(input="q", conversation="conv_1"), "conversation"), (pair(input="q", conversation={"id": "conv_1"}), "conversation"),
    (pair(input="q", prompt={"id": "pmpt_1", "variables": {"city": "Oslo"}}), "prompt"),
    (pair({"output": [{"type": "file_search_call", "results": None}]}, input="q"), "file_search"),
    (pair(messages=ASKED, data_sources=[{"type": "azure_search"}]), "data_sources"),
    (pair(messages=ASKED, extra_body={"data_sources": [{}]}), "data_sources"), (pair(messages=ASKED, prompt_id="p"), "prompt_id"),
    (pair(messages=ASKED, preset="mine"), "preset"), ({"request": {"agent_id": "a", "messages": ASKED}, "response": SAID}, "agent_id"),
    (pair(contents=ASKED, cachedContent="cachedContents/a"), "cachedContent"),
    (pair(contents=ASKED, config={"cached_content": "cachedContents/a"}), "cached_content"),
    (pair(contents=ASKED, tools=[{"fileSearch": {"names": ["a"]}}]), "fileSearch"), (pair(prompt="q", context=[1, 2]), "context"),
    (pair(messages=ASKED, container="c"), "container"),
    (pair(messages=[{"role": "user", "content": [{"type": "compaction", "content": "..."}]}]), "compaction"),
    (pair(messages=[{"role": "user", "content": [{"type": "file", "file": {"file_id": "f1"}}]}]), "file_id"),
    (pair({**SAID, "context_management": {"applied_edits": [{"type": "clear"}]}}, messages=ASKED), "context_management"),
    ({"full_request": {"contents": ASKED, "cachedContent": "c"}, "full_response": {}}, "cachedContent"),
    ({"modelId": "arn:aws:bedrock:us-east-1:1:prompt/P1:1", "input": {"inputBodyJson": {"messages": ASKED}}}, "stored prompt"),
    ({"input": {"inputBodyJson": json.dumps({"promptVariables": {"a": {"text": "b"}}})}}, "promptVariables"),
    ({"call_type": "aresponses", "messages": [{"type": "item_reference", "id": "i"}], "model_parameters": {}}, "item_reference"),
    ({"type": "GENERATION", "input": json.dumps({"messages": ASKED, "thread_id": "t"})}, "thread_id"),
])
def test_text_that_only_the_provider_has(record, name):
    assert context(record)["elsewhere"] == name


@pytest.mark.parametrize("record", [
    pair(messages=ASKED), pair(messages=ASKED, conversation="session 7"), {**pair(messages=ASKED), "thread_id": "t"},
    {"messages": ASKED, "conversation": "c", "container": "x"}, pair(prompt="q"), pair(messages=ASKED, agent_id="support"),
    pair(messages=[{"role": "user", "content": 'what is "cachedContent": "x" and "file_id": "f"?'}]),
    pair({**SAID, "context_management": {"applied_edits": []}}, messages=ASKED), pair(messages=ASKED, data_sources=[]),
    pair({"instructions": [{"role": "developer", "content": "Be brief."}]}, input="q", prompt={"id": "pmpt_1"}),
    pair({"output": [{"type": "file_search_call", "results": [{"text": "t"}]}]}, input="q"),
])
def test_a_request_that_holds_its_prompt(record):
    assert "elsewhere" not in context(record)


def test_an_earlier_response_and_what_it_does_not_carry_on():
    assert context(pair({"output": []}, input="q", previous_response_id="resp_1", instructions="Be brief.")) == {
        "previous_response_id": "resp_1", "has_instructions": True}
    assert context(pair(input="q", previous_response_id=None)) == {} and context_of('{"a": ') is None
