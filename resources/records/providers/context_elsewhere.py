"""What a request leaves to its provider: text that the model saw and that the record does not hold, such as {"elsewhere":
"cachedContent"}. DuckDB calls context_of for records in which NEEDLES are found; it never raises. Curation puts an earlier
response before the row's messages if the log has it, and drops the other rows."""

import json
import re
from collections.abc import Iterator
from typing import Any

from model_ops.chat_apis import body, json_text, objects
from resources.records.json_paths import value_at

REQUESTS = ("request",), ("full_request",), ("input", "inputBodyJson"), ("modelInput",), ("model_parameters",), ("input",)
RESPONSES = ("response",), ("full_response",), ("output", "outputBodyJson")
HIDES = {"cachedContent": "cachedContents/", "cached_content": "cachedContents/", "data_sources": r'^\[\{.*"type": ',
    "dataSources": r'^\[\{.*"type": ', "promptVariables": r"^\{[^{]*\{", "preset": "@preset/", "container": "container_|skill",
    "agent_id": '^"ag[:_]', "assistant_id": '^"asst_', "thread_id": "(?!)", "prompt_id": "(?!)",
    "prompt_variables": "(?!)"}  # fmt: skip
"""Keys of a request, or of its options, for a cache, a retrieval, a stored prompt, an agent, a thread or a container of the
provider, and what the provider's own value holds: beside a conversation, any other value is the app's."""
OPTIONS = "config", "extra_body", "extra_query", "chat_template_kwargs"
FILES = "file", "input_file", "image_file", "input_image", "image", "document", "container_upload", "fileData", "file_data"
"""Types of content blocks, or their only keys, for files."""
NAMED_FILE = re.compile(r'"(file_id|file_url|fileUri|file_uri|s3Location)": ["{]')
PICTURE = re.compile(r'"mime_?[tT]ype": "(image|audio|video)/')
ROUTED = re.compile(r'"(model|url|api_base|base_url|provider)": "[^"]*openrouter|"id": "gen-', re.IGNORECASE)
DOCUMENT = "text", "snippet", "content", "contents"
AGENTS = "agent_id", "assistant_id"
ITEMS = "item_reference", "compaction"
RETRIEVALS = "fileSearch", "file_search", "retrieval"
HIDDEN = "encrypted_content", "redacted_thinking", "redactedContent", "thoughtSignature", "thought_signature"
"""Encrypted thoughts, which count as prompt tokens and have no text."""
NEEDLES = "|".join(
    (
        *(rf'{key}\\*"' for key in (*HIDES, *ITEMS, *RETRIEVALS, *HIDDEN, "documents", "citations", "groundingMetadata")),
        r'(previous_response_id|file_id|file_ur[il]|fileUri|s3Location|instructions)\\*"|"audio\\*"\s*:\s*\{',
        r'\{\s*\\*"id\\*"\s*:\s*\\*"[^"\\]*\\*"\s*\}',
        r'"(conversation|prompt|context)\\*"\s*:\s*(\\*"|\{|\[\s*\d)',
        "file_search_call",
        "applied_edits",
        ":prompt/",
        "@preset/",
    )
)


def context_of(text: str) -> str | None:
    """{elsewhere: name}, {previous_response_id: id}, has_instructions (the Responses API does not carry them on), hidden."""
    try:
        record = json.loads(text)
        requests = [each for path in REQUESTS if (each := body(value_at(record, path)))]
        responses = [each for path in RESPONSES if (each := body(value_at(record, path)))]
        both = [*requests, *responses]
        facts = {
            "elsewhere": next(_elsewhere(record, requests, responses), None),
            "previous_response_id": next(filter(None, (each.get("previous_response_id") for each in both)), None),
            "has_instructions": any("output" in each for each in responses) and any(each.get("instructions") for each in both),
            "hidden": any(key in text for key in HIDDEN),
        }
        return json_text({key: value for key, value in facts.items() if value}) if any(facts.values()) else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _elsewhere(record: dict[str, Any], requests: list[dict[str, Any]], responses: list[dict[str, Any]]) -> Iterator[str]:
    listed = [
        *(request.get(key) for request in requests for key in ("messages", "input", "contents")),
        record.get("messages"),
        record.get("input"),
    ]
    items = [
        item for each in listed for item in objects(body(f'{{"list": {each}}}').get("list") if isinstance(each, str) else each)
    ]
    is_whole, said = any(item.get("content") or item.get("parts") for item in items), json.dumps(items)
    preset = ["preset"] * bool(ROUTED.search(json.dumps([record, *requests, *responses])))
    for request in requests:
        sure = ["cachedContent", "cached_content"] * ("contents" in request) + preset
        not_there = AGENTS if "model" in request else ()
        for each in (request, *objects([request.get(name) for name in OPTIONS])):
            yield from (
                key
                for key, theirs in HIDES.items()
                if each.get(key)
                and key not in not_there
                and (not is_whole or key in sure or re.search(theirs, json.dumps(each[key]), re.DOTALL))
            )
            yield from ("documents" for text in _texts(each.get("documents")) if json.dumps(text)[1:-1] not in said)
        yield from (key for tool in objects(request.get("tools")) for key in RETRIEVALS if tool.get(key))
        if request.get("prompt") and "messages" not in request and isinstance(request.get("context"), list):
            yield from ["context"] * any(isinstance(token, int) for token in request["context"])  # Ollama's token ids
    for item in items:
        kinds = [
            item.get("type") or ("item_reference" if set(item) == {"id"} else None),
            *(block.get("type") for block in objects(item.get("content"))),
        ]
        yield from (kind for kind in kinds if kind in ITEMS)
        yield from _files(item)
        if (
            item.get("role") == "assistant"
            and body(item.get("audio")).get("id")
            and not (item.get("content") or item["audio"].get("transcript"))
        ):
            yield "audio"
    for each in [*requests, *responses]:
        if "messages" not in each and isinstance(each.get("conversation"), str | dict) and each["conversation"]:
            yield from ["conversation"] * (not is_whole or "conv_" in json.dumps(each["conversation"]))
        # the response has a stored prompt's text as a list of instructions, which chat_of reads
        stored = body(each.get("prompt")).get("id")
        if stored and not any(isinstance(response.get("instructions"), list) for response in responses):
            yield from ["prompt"] * (not is_whole or str(stored).startswith("pmpt_"))
    for named in (each.get(key) for each in (record, *requests) for key in ("modelId", "model")):
        if ":prompt/" in str(named) or "@preset/" in str(named):
            yield "stored prompt"
    for response in responses:
        yield from (
            "file_search"
            for item in objects(response.get("output"))
            if item.get("type") == "file_search_call" and not item.get("results")
        )
        yield from (
            "citations"
            for choice in objects(response.get("choices"))
            if body(body(choice.get("message")).get("context")).get("citations")
        )
        yield from (
            "groundingMetadata"
            for answer in objects(response.get("candidates"))
            if any(body(answer.get("groundingMetadata")).get(key) for key in ("groundingChunks", "webSearchQueries"))
        )
        if body(response.get("context_management")).get("applied_edits"):
            yield "context_management"


def _texts(documents: Any) -> list[str]:
    """The texts of documents that a request gives beside its messages."""
    given = documents if isinstance(documents, list) else []
    texts = [
        value
        for each in objects(given)
        for held in (each, body(each.get("data")))
        for key, value in held.items()
        if key in DOCUMENT and isinstance(value, str)
    ]
    return [*texts, *(each for each in given if isinstance(each, str) and " " in each)]


def _files(item: dict[str, Any]) -> Iterator[str]:
    blocks = [item, *(block for key in ("content", "parts", "output") for block in objects(item.get(key)))]
    blocks += [inner for block in blocks if block.get("type") == "tool_result" for inner in objects(block.get("content"))]
    files = [block for block in blocks if block.get("type") in FILES or any(key in FILES for key in block if block is not item)]
    for text in map(json.dumps, [*files, *objects(item.get("attachments"))]):
        if (named := NAMED_FILE.search(text)) and not (named[1] in ("fileUri", "file_uri") and PICTURE.search(text)):
            yield named[1]
