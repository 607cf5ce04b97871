"""Two answers to one request, a chosen and a rejected one: OpenAI's DPO lines and similar formats.

{input: {messages, tools}, preferred_output, non_preferred_output} (older: preferred_completion,
non_preferred_completion); ms-swift's {messages, rejected_response | rejected_messages}; TRL's {prompt, chosen, rejected},
also with the prompt inside both; LLaMA-Factory's {instruction | conversations, chosen, rejected}; hh-rlhf's two
transcripts; a prompt with an answer and its correction (resources/records/edits.py).

The answers are choices 0 and 1 of one request; feedback named `preference` is 1 for the chosen one and -1 for the other.
"""

from __future__ import annotations

from resources.records.edits import has_prompt, sides_of
from resources.records.formats.format import Format

PREFERRED = ("preferred_output", "preferred_completion", "chosen")
REJECTED = ("non_preferred_output", "non_preferred_completion", "rejected", "rejected_response", "rejected_messages")
SWIFT = {"rejected_response", "rejected_messages"}


def recognises(record: dict) -> bool:
    if "messages" in record and SWIFT & record.keys():
        return True
    if has_prompt(record) and (edit := sides_of(record)) and all(edit) and "request" not in record:
        return True
    return any(key in record for key in PREFERRED) and any(key in record for key in REJECTED)


FORMAT = Format("preferences", recognises, fills=("interactions", "feedback"))
