"""Request and response of Anthropic's Messages API, as a gateway pairs them.

{request: {model, max_tokens, system, messages, tools, ...}, response: {type: "message", role, content, stop_reason, usage}};
around them the keys of `openai_pairs`. A streamed response may be the list of its events or their SSE text. Vertex AI's
request-response log (full_request, full_response) holds the same.

Content blocks become OpenAI messages: tool_use a tool call, tool_result a message of role tool, thinking reasoning_content,
images and documents parts. A request that ends with an assistant's message is answered by the rest of that message: both are
the answer. Blocks of tools that the provider runs, and encrypted thoughts, are left out and named in params.left_out. The
session that Claude Code writes into metadata.user_id is the session.
"""

from __future__ import annotations

from model_ops.chat_apis import anthropic_api, bodies, is_pair
from resources.records.formats.format import Format
from resources.records.providers.bedrock_bodies import is_converse


def recognises(record: dict) -> bool:
    if not is_pair(record):
        return False
    request, response = bodies(record)
    if response.get("type") == "message" and response.get("role") == "assistant":
        return True
    if not isinstance(request.get("messages"), list) or "choices" in response or is_converse(request, response):
        return False
    return response.get("type") == "error" or anthropic_api.is_request(request)


FORMAT = Format("anthropic", recognises)
