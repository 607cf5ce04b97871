"""Fine-tuning examples: {messages, tools | functions}, OpenAI's SFT lines, the usual shape of seeds; and RFT lines.

One interaction for each assistant message whose `weight` is not 0, with what stands before it as the request, like an
agent's trajectory; an answer of weight 0 is context only.

`label` true or false (LLaMA-Factory's KTO lines) is feedback on the last answer, named `preference`: 1 or -1.

A line whose last message is the user's is a prompt for reinforcement learning where it has no answer to learn, or has
keys beside the known ones: its status is `prompt`, and those keys (OpenAI's {{ item.KEY }} of a grader, Bedrock's
reference_answer) are kept in params.item.
"""

from __future__ import annotations

from resources.reading.formats.format import Format


def recognises(record: dict) -> bool:
    return isinstance(record.get("messages"), list) and "call_type" not in record and "request" not in record


FORMAT = Format("messages", recognises, fills=("interactions", "feedback"), turns=True)
