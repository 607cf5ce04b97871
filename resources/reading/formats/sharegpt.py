"""ShareGPT conversations: {id, conversations: [{from, value}], system, tools}, as FastChat and LLaMA-Factory write them.

from is human, user, gpt, assistant, chatgpt, bing, bard, system, tool, observation, function_call and their like; OpenAI's
{role, content} inside `conversations` does as well. One interaction for each answer, with what was said before it as the
request, like an agent's trajectory; an answer of weight 0 is context only.
"""

from __future__ import annotations

from resources.reading.formats.format import Format


def recognises(record: dict) -> bool:
    told = record.get("conversations", record.get("conversation"))
    return isinstance(told, list) and "messages" not in record


FORMAT = Format("sharegpt", recognises, turns=True)
