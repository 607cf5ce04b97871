"""What a request leaves to its provider: text that the model saw and that the record does not hold.

    context_of('{"request": {"input": "And shorter?", "previous_response_id": "resp_1"}, ...}')
    # '{"previous_response_id": "resp_1"}'
    context_of('{"request": {"contents": [...], "cachedContent": "cachedContents/abc"}, ...}')
    # '{"elsewhere": "cachedContent"}'

DuckDB calls it for records in which NEEDLES are found. The result stands in `params.context`: curation puts an earlier response
before the row's messages if the log has it, and drops the other rows. It never raises.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from resources.reading.json_paths import value_at
from resources.reading.json_text import json_text
from resources.reading.providers.blocks import objects
from resources.reading.providers.bodies import body

REQUESTS = ("request",), ("full_request",), ("input", "inputBodyJson"), ("modelInput",), ("model_parameters",), ("input",)
RESPONSES = ("response",), ("full_response",), ("output", "outputBodyJson")
KEYS = ("cachedContent", "cached_content", "data_sources", "dataSources", "promptVariables", "prompt_variables", "prompt_id",
        "preset", "thread_id", "container")
"""Keys of a request, or of its options, for a cache, a retrieval, a stored prompt, a thread or a container of the provider."""
OPTIONS = "config", "extra_body", "extra_query"
AGENTS = "assistant_id", "agent_id"
"""Keys that name an agent of the provider, with instructions of its own, in place of a model."""
ITEMS = "item_reference", "compaction"
RETRIEVALS = "fileSearch", "file_search", "retrieval"
HIDDEN = "encrypted_content", "redacted_thinking", "redactedContent", "thoughtSignature", "thought_signature"
"""Encrypted thoughts, which count as prompt tokens and have no text."""
NEEDLES = "|".join((
    *(rf'{key}\\*"' for key in (*KEYS, *AGENTS, *ITEMS, *RETRIEVALS, *HIDDEN)),
    r'(previous_response_id|file_id|instructions)\\*"|\{\s*\\*"id\\*"\s*:\s*\\*"[^"\\]*\\*"\s*\}',
    r'"(conversation|prompt|context)\\*"\s*:\s*(\\*"|\{|\[\s*\d)', "file_search_call", "applied_edits", ":prompt/", "@preset/"))


def context_of(text: str) -> str | None:
    """{elsewhere: name}, {previous_response_id: id}, has_instructions (the Responses API does not carry them on), hidden."""
    try:
        record = json.loads(text)
        requests = [told for path in REQUESTS if (told := body(value_at(record, path)))]
        responses = [told for path in RESPONSES if (told := body(value_at(record, path)))]
        both = [*requests, *responses]
        found = {
            "elsewhere": next(_elsewhere(record, requests, responses), None),
            "previous_response_id": next(filter(None, (told.get("previous_response_id") for told in both)), None),
            "has_instructions": any("output" in told for told in responses) and any(told.get("instructions") for told in both),
            "hidden": any(key in text for key in HIDDEN),
        }
        return json_text({key: value for key, value in found.items() if value}) if any(found.values()) else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _elsewhere(record: dict[str, Any], requests: list[dict[str, Any]], responses: list[dict[str, Any]]) -> Iterator[str]:
    """Names of what is elsewhere, as the record has them."""
    for request in requests:
        for told in (request, *objects([request.get(name) for name in OPTIONS])):
            yield from (key for key in KEYS if told.get(key))
        yield from (key for key in AGENTS if request.get(key) and "model" not in request)
        yield from (key for tool in objects(request.get("tools")) for key in RETRIEVALS if tool.get(key))
        if isinstance(request.get("context"), list) and all(isinstance(token, int) for token in request["context"]):
            yield from ["context"] * bool(request["context"])  # Ollama's token ids
    for told in [*(request.get("input", request.get("messages")) for request in requests), record.get("messages")]:
        for item in objects(told):
            kinds = [item.get("type") or ("item_reference" if set(item) == {"id"} else None),
                     *(block.get("type") for block in objects(item.get("content")))]
            yield from (kind for kind in kinds if kind in ITEMS)
            if '"file_id": "' in json.dumps(item):
                yield "file_id"
    for told in [*requests, *responses]:
        if "messages" not in told and isinstance(told.get("conversation"), str | dict) and told["conversation"]:
            yield "conversation"
        # the response has a stored prompt's text as a list of instructions, which chat_of reads
        if body(told.get("prompt")).get("id") and not any(isinstance(each.get("instructions"), list) for each in responses):
            yield "prompt"
    for named in (each.get(key) for each in (record, *requests) for key in ("modelId", "model")):
        if ":prompt/" in str(named) or "@preset/" in str(named):
            yield "stored prompt"
    for response in responses:
        yield from ("file_search" for item in objects(response.get("output"))
                    if item.get("type") == "file_search_call" and not item.get("results"))
        if body(response.get("context_management")).get("applied_edits"):
            yield "context_management"
