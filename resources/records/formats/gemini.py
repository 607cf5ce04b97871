"""Request and response of the Gemini API (generateContent), as a gateway pairs them or Vertex AI logs them.

{request: {contents, systemInstruction, tools, generationConfig, ...}, response: {candidates, usageMetadata, ...}}, in camelCase
or snake_case; around them the keys of `openai_pairs`. A request may also be an SDK's call {model, contents, config}. A streamed
response may be the list of its chunks or their SSE text. A line of Vertex AI's batch output has also status and processed_time.

Each candidate is an interaction. Thoughts become reasoning, functionCall and functionResponse tool calls and messages of role
tool; calls without an id get one. A blocked prompt is a failed request with finish_reason content_filter.
"""

from __future__ import annotations

from model_ops.chat_apis import bodies, is_pair
from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    if not is_pair(record):
        return False
    request, response = bodies(record)
    return "contents" in request and "messages" not in request and "choices" not in response


FORMAT = Format("gemini", recognises)
