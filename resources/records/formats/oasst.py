"""OpenAssistant's message trees: {message_tree_id, prompt: {message_id, text, role, rank, replies: [...]}}, one tree per line.

Each assistant message is an interaction, with the path to it as the request; deleted messages and their replies are left out.
The tree is the session, the message's position among its siblings the choice. Where people ranked siblings, feedback named
`preference` is 1 for the best and -1 for the last, in even steps between.
"""

from __future__ import annotations

from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    return "message_tree_id" in record and isinstance(record.get("prompt"), dict)


FORMAT = Format("oasst", recognises, fills=("interactions", "feedback"))
