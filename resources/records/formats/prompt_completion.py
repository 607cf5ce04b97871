"""A prompt and its completion: {prompt, completion | response} or {question, answer}, each a text or a list of messages; or
{question | query, response} of texts, as in OpenOrca and ms-swift.

A list of messages as prompt, without completion, is a prompt for reinforcement learning: its status is `prompt`, and unknown
keys (a reference answer, input for a grader) are kept in params.item.
"""

from __future__ import annotations

from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    if "prompt" in record and not isinstance(record["prompt"], dict):  # an object is a request's body
        return "completion" in record or "response" in record or isinstance(record["prompt"], list)
    if "question" in record and "answer" in record:
        return True
    asked = record.get("question", record.get("query"))
    return isinstance(asked, str) and isinstance(record.get("response"), str) and not {"request", "messages"} & record.keys()


FORMAT = Format("prompt_completion", recognises)
