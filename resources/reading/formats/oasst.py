"""OpenAssistant's message trees: {message_tree_id, prompt: {message_id, text, role, rank, replies: [...]}}, a tree a line.

Each of the assistant's messages is an interaction, with the path that leads to it as the request; deleted messages and
what hangs on them are left out. The tree is the session, the message's place among its siblings the choice. Where people
ranked siblings, feedback named `preference` says 1 of the best and -1 of the last, what lies between in even steps.
"""

from __future__ import annotations

from resources.reading.formats.format import Format


def recognises(record: dict) -> bool:
    return "message_tree_id" in record and isinstance(record.get("prompt"), dict)


FORMAT = Format("oasst", recognises, fills=("interactions", "feedback"))
