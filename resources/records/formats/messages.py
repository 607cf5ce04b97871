"""Fine-tuning examples: {messages, tools | functions}, as in OpenAI's SFT and RFT files; the usual shape of seeds.

One interaction per assistant message whose `weight` is not 0, with the messages before it as the request; an answer with
weight 0 is context only.

A line that ends with a user message is a prompt for reinforcement learning if it has no answer to learn, or has unknown keys:
its status is `prompt`, and those keys (OpenAI's {{ item.KEY }} of a grader, Bedrock's reference_answer) are kept in
params.item.
"""

from __future__ import annotations

from resources.records.formats.format import Format
from resources.records.formats.stored_completions import answered_beside


def recognises(record: dict) -> bool:
    if not isinstance(record.get("messages"), list) or "call_type" in record or "request" in record:
        return False
    return not answered_beside(record)


FORMAT = Format("messages", recognises, turns=True)
