"""ShareGPT conversations: {id, conversations: [{from, value}], system, tools}, as FastChat and LLaMA-Factory write them.

`from` is human, user, gpt, assistant, chatgpt, bing, bard, system, tool, observation, function_call or similar; OpenAI's
{role, content} inside `conversations` works too. One interaction per answer, with the messages before it as the request; an
answer with weight 0 is context only.
"""

from __future__ import annotations

from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    told = record.get("conversations", record.get("conversation"))
    return isinstance(told, list) and "messages" not in record


FORMAT = Format("sharegpt", recognises, turns=True)
