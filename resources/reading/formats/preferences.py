"""Two answers to one request, the better and the worse: OpenAI's DPO lines and the dialects around them.

{input: {messages, tools}, preferred_output, non_preferred_output} (older: preferred_completion,
non_preferred_completion); ms-swift's {messages, rejected_response | rejected_messages}; TRL's {prompt, chosen, rejected},
the prompt also inside both; LLaMA-Factory's {instruction | conversations, chosen, rejected}; hh-rlhf's two transcripts.

The two answers are choices 0 and 1 of one request, and feedback named `preference` says 1 of the one, -1 of the other.
"""

from __future__ import annotations

from resources.reading.formats.format import Format

PREFERRED = ("preferred_output", "preferred_completion", "chosen")
REJECTED = ("non_preferred_output", "non_preferred_completion", "rejected", "rejected_response", "rejected_messages")
SWIFT = {"rejected_response", "rejected_messages"}


def recognises(record: dict) -> bool:
    if "messages" in record and SWIFT & record.keys():
        return True
    return any(key in record for key in PREFERRED) and any(key in record for key in REJECTED)


FORMAT = Format("preferences", recognises, fills=("interactions", "feedback"))
