"""Why a model stopped, under OpenAI's names, whatever API, server or library wrote it.

    finish_reason_of("FinishReason.MAX_TOKENS")     # "length"
    finish_reason_of("pause_turn")                  # "pause_turn": not listed, so its answer is not whole

Every format's reasons pass through it once (sql/reading/extraction.sql), and curation drops what is not listed as whole.
"""

import re

SPELLINGS = {
    "stop": """stop end_turn stop_sequence stop_criteria_met 1 finish finished complete completed success eos eos_token eosfound
        end_of_text end_of_turn endoftext stopstringfound word end done normal""",
    "tool_calls": "tool_calls tool_use tool_call toolcalls tool function_call function_calls",
    "length": """length 2 max_tokens max_token max_length max_output_tokens maxpredictedtokensreached contextlengthreached
        token_limit limit model_length model_context_window_exceeded context_length_exceeded max_tokens_reached""",
    "content_filter": """content_filter content_filtered refusal refused safety recitation blocklist prohibited_content spii
        image_safety image_prohibited_content image_recitation model_armor guardrail_intervened sensitive
        error_toxic blocked""",
}
MEANS = {spelling: reason for reason, spellings in SPELLINGS.items() for spelling in spellings.split()}
"""OpenAI's reason by every known spelling, in lower case and with underscores; 1 and 2 are the numbers of Gemini's protobuf."""
WHOLE = [spelling for spelling, reason in MEANS.items() if reason in ("stop", "tool_calls")]
"""Spellings of reasons that leave an answer whole."""
ABSENT = ("", "none", "null")
CUT = "stream_cut: the stream ends without a finish_reason and without [DONE]"
"""The error of such a stream."""


def finish_reason_of(written: str | int | None) -> str | None:
    """OpenAI's reason; a reason that is not listed in lower case; None for none. SGLang's is an object with a type."""
    if isinstance(written, bool) or not isinstance(written, str | int):
        return None
    reason = re.sub(r'^\{"type": ?"(\w+)".*', r"\1", str(written).strip()).rpartition(".")[2].lower()
    reason = reason.replace("-", "_").replace(" ", "_").removeprefix("finish_reason_")
    return None if reason in ABSENT else MEANS.get(reason, reason)
