"""Bits a byte of held-out answers by the weights that an endpoint serves.

    bits_a_byte("http://127.0.0.1:8000", "house-chat", shared)

Answers of people: GSM8K's test answers, and the agent's in airline conversations of tasks that the house model never saw. The
server reads each prompt with its answer and says the log-probability of every token.
"""

import json
import math
from pathlib import Path
from typing import Any

from benchmarks.house import LONGEST_MESSAGE
from model_ops.completions.served import ServedModel
from model_ops.decoding.prompts import render_prompt
from model_ops.models.model_directory import load_tokenizer
from model_ops.rendering.row import Row

EACH = 24
LONGEST = 1_024
"""Tokens of a prompt with its answer."""


def bits_a_byte(url: str, workload: str, shared: Path) -> float:
    """Over all answers together. Raises ModelError where the endpoint does not say log-probabilities."""
    tokenizer, nats, size = load_tokenizer(shared / "models" / "house"), 0.0, 0
    with ServedModel(url, model=workload, through_proxy=False) as server:
        for messages, answer in [*_math(shared), *_airline(shared)]:
            prompt = render_prompt(tokenizer, Row("held-out", messages))
            ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
            if len(prompt) + len(ids) > LONGEST:
                continue
            nats -= sum(server.log_probabilities([*prompt, *ids])[-len(ids) :])
            size += len(answer.encode())
    return nats / math.log(2) / size


def _math(shared: Path) -> list[tuple[list[dict[str, Any]], str]]:
    lines = (shared / "data" / "gsm8k_test.jsonl").read_text().splitlines()[-EACH:]
    return [([{"role": "user", "content": row["question"]}], row["answer"]) for row in map(json.loads, lines)]


def _airline(shared: Path) -> list[tuple[list[dict[str, Any]], str]]:
    """The agent's first answer in words of each conversation."""
    found = []
    for chat in json.loads((shared / "data" / "tau_airline.json").read_text()):
        if int(chat["task_id"]) % 5 == 4 and len(found) < EACH:
            messages = [{**each, "content": (each["content"] or "")[:LONGEST_MESSAGE]} for each in chat["traj"]]
            at = next((place for place, each in enumerate(messages) if each["role"] == "assistant" and each["content"]), None)
            if at is not None:
                found.append((messages[:at], chat["traj"][at]["content"]))
    return found
