"""Request and response of the older /v1/completions: {request: {prompt, ...}, response: {choices: [{text, ...}]}}.

Around them the keys of `openai_pairs`. A prompt that a chat template rendered is split into messages, as for SGLang; any other
is one message of the user.
"""

from __future__ import annotations

from model_ops.chat_apis import bodies, is_pair, objects
from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    if not is_pair(record):
        return False
    request, response = bodies(record)
    if "prompt" not in request or "messages" in request or "input" in request:
        return False
    return response.get("object") == "text_completion" or any("text" in choice for choice in objects(response.get("choices")))


FORMAT = Format("completions", recognises)
