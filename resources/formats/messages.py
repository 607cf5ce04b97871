"""Fine-tuning examples: {messages: [...], tools: [...]}, OpenAI's SFT lines; the usual shape of seeds.

One interaction a record: the last assistant message whose `weight` is not 0 is the completion, what stands before it
the request. Weights of earlier messages are kept in the messages.
"""

from __future__ import annotations

from resources.formats.format import Format


def recognises(record: dict) -> bool:
    return isinstance(record.get("messages"), list) and "call_type" not in record and "request" not in record


FORMAT = Format("messages", recognises)
