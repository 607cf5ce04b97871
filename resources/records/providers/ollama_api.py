"""Ollama's own API (/api/chat, /api/generate) and the older /v1/completions as an OpenAI chat. Fields as in
github.com/ollama/ollama/blob/main/docs/api.md: durations are nanoseconds."""

from typing import Any

from model_ops.chat_apis import finish_reason, mapping, objects

OPTIONS = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
NOT_WHOLE = ("context", "raw", "suffix", "images")


class NotWhole(ValueError):
    """A request without the whole prompt."""


def is_response(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("done"), bool) and bool({"message", "response"} & value.keys())


def chat(request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """A call of Ollama's API. Raises NotWhole for a request that does not hold the whole prompt."""
    asked: dict[str, Any] = {"messages": request.get("messages")}
    if asked["messages"] is None:
        asked = _prompted(request)
    answer = (
        response.get("message")
        if "message" in response
        else {"role": "assistant", "content": response.get("response"), "thinking": response.get("thinking")}
    )
    message = {"role": "assistant", "content": mapping(answer).get("content")}
    if thinking := mapping(answer).get("thinking"):
        message["reasoning_content"] = thinking
    if calls := objects(mapping(answer).get("tool_calls")):
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", **call} for number, call in enumerate(calls)]
    ended = "not_done" if response.get("done") is False else "tool_calls" if calls else response.get("done_reason")
    ended = ended or ("stop" if response.get("done") else None)
    options = {OPTIONS.get(name, name): value for name, value in mapping(request.get("options")).items()}
    latency, first = response.get("total_duration"), response.get("prompt_eval_duration")
    return {
        **asked,
        "choices": [{"message": message, "finish_reason": ended}] if mapping(answer) else [],
        "tools": request.get("tools"),
        "params": {**options, **{k: request[k] for k in ("stream", "format") if k in request}},
        "usage": {"prompt": response.get("prompt_eval_count"), "completion": response.get("eval_count")},
        "model": response.get("model") or request.get("model"),
        "error": response.get("error"),
        "written_ts": response.get("created_at"),
        "latency_ms": latency / 1e6 if isinstance(latency, int) else None,
        "ttft_ms": ((response.get("load_duration") or 0) + first) / 1e6 if isinstance(first, int) else None,
    }


def completion(request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """A call of /v1/completions. Raises NotWhole for a request that does not hold the whole prompt as one text."""
    asked, usage = _prompted(request), mapping(response.get("usage"))
    prompt = asked["prompt"] if request.get("echo") is True else ""
    choices = [
        {
            "index": choice.get("index"),
            "finish_reason": finish_reason(choice.get("finish_reason"), {}),
            "message": {"role": "assistant", "content": str(choice.get("text")).removeprefix(prompt)},
        }
        for choice in objects(response.get("choices"))
    ]
    return {
        **asked,
        "choices": choices,
        "error": response.get("error"),
        "params": {key: value for key, value in request.items() if key not in ("prompt", "model")},
        "request_id": response.get("id"),
        "model": response.get("model") or request.get("model"),
        "usage": {"prompt": usage.get("prompt_tokens"), "completion": usage.get("completion_tokens")},
        "written_ts": response.get("created"),
    }


def _prompted(request: dict[str, Any]) -> dict[str, Any]:
    prompt = request.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or any(request.get(name) for name in NOT_WHOLE):
        raise NotWhole(f"the request does not hold the whole prompt as one text, without {', '.join(NOT_WHOLE)}")
    system = request.get("system")
    messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}] if system else None
    return {"prompt": prompt, "messages": messages}


def joined_chunks(chunks: list[dict[str, Any]]) -> tuple[dict[str, Any], bool]:
    """The response of a stream's chunks, of either API, and whether it is whole."""
    if not is_response(chunks[0]):
        choices: dict[Any, dict[str, Any]] = {}
        for piece in (piece for chunk in chunks for piece in objects(chunk.get("choices"))):
            choice = choices.setdefault(piece.get("index", 0), {"text": "", "index": piece.get("index", 0)})
            choice["text"] += piece.get("text") or ""
            choice["finish_reason"] = piece.get("finish_reason") or choice.get("finish_reason")
        last = {key: value for chunk in chunks for key, value in chunk.items() if value is not None}
        return {**last, "choices": list(choices.values())}, all(choice["finish_reason"] for choice in choices.values())
    answer = {key: value for chunk in chunks for key, value in chunk.items()}
    if "message" in chunks[0]:
        messages = [mapping(chunk.get("message")) for chunk in chunks]
        answer["message"] = {
            "role": "assistant",
            **_texts(messages, "content", "thinking"),
            "tool_calls": [call for each in messages for call in objects(each.get("tool_calls"))],
        }
    else:
        answer |= _texts(chunks, "response", "thinking")
    return answer, answer.get("done") is True


def _texts(pieces: list[dict[str, Any]], *keys: str) -> dict[str, str]:
    return {key: "".join(piece[key] for piece in pieces if isinstance(piece.get(key), str)) for key in keys}
