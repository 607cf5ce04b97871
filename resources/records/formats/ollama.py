"""Request and response of Ollama's own API, as a proxy pairs them.

{request: {model, messages | prompt, options, ...}, response: {model, created_at, message | response, done, eval_count, ...}};
around them the keys of `openai_pairs`. A streamed response may be the list of its chunks or their lines.
"""

from __future__ import annotations

from model_ops.chat_apis import bodies, is_pair
from resources.records.formats.format import Format
from resources.records.providers.ollama_api import is_response


def recognises(record: dict) -> bool:
    return is_pair(record) and is_response(bodies(record)[1])


FORMAT = Format("ollama", recognises)
