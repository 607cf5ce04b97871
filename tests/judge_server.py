"""A judge on the loopback for tests: an OpenAI-compatible endpoint that answers as a test's function says."""

import json
from contextlib import contextmanager

from loopback import loopback


def completion(text):
    return 200, {"object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}


def scores(quality, difficulty):
    return completion(json.dumps({"quality": quality, "difficulty": difficulty}))


@contextmanager
def judge_server(answer):
    """Yields (base_url, requests seen); see loopback."""
    with loopback(answer) as (address, seen):
        yield f"{address}/v1", seen
