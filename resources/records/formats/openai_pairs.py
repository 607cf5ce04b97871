"""Request and response of the OpenAI chat API, as a gateway pairs them (NVIDIA data-flywheel's log record).

{timestamp, workload_id, client_id, request: {model, messages, tools, ...}, response: {id, choices, usage, ...}}; around
them also session_id, trace_id, request_id, latency_ms, ttft_ms, cost, cache_hit, served_model_digest where a gateway
adds them. A call of the Responses API ({input, instructions}, {output}) is put into messages (`responses_api`).
Several choices are several interactions. vLLM's prompt_token_ids, token_ids and metrics of the request are kept.
"""

from __future__ import annotations

from resources.records.formats import anthropic, bedrock, completions, gemini, ollama
from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    if "request" not in record or "response" not in record:
        return False
    return not any(other.recognises(record) for other in (bedrock, anthropic, gemini, ollama, completions))


FORMAT = Format("openai_pairs", recognises)
