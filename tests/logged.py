"""A line of a gateway's log: one request with its answer."""

from typing import Any


def pair(number: int, prompt: str, answer: str, **changes: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer}
    return {
        "timestamp": 1780300000 + 3600 * number,
        "workload_id": "w",
        "client_id": "c",
        "request": {"model": "m", "messages": [{"role": "user", "content": prompt}]},
        "response": {
            "id": f"r{number}",
            "object": "chat.completion",
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5},
        },
    } | changes
