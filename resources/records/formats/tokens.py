"""Pre-tokenized rows: {token_ids | input_ids, labels, loss_mask | completion_mask | assistant_masks, attention_mask}, or
{prompt | prompt_token_ids, answer | completion | completion_token_ids}, both lists of token ids.

labels are token_ids with -100 for tokens that are not learnt, not shifted (Hugging Face's, Nebius' and Together's convention);
without labels the mask decides; without a mask every token is learnt. Padding (attention_mask 0 at the ends) is removed.
prompt_token_ids are the leading tokens that are not learnt, completion_token_ids the rest; params.masked lists spans
[start, end) of the completion that are not learnt. Such a row has no text.
"""

from __future__ import annotations

from resources.records.formats.format import Format

PROMPTS, ANSWERS = ("prompt_token_ids", "prompt"), ("completion_token_ids", "answer", "completion")


def recognises(record: dict) -> bool:
    if "messages" in record:
        return False
    whole = isinstance(record.get("token_ids", record.get("input_ids")), list)
    return whole or all(any(_ids(record.get(key)) for key in keys) for keys in (PROMPTS, ANSWERS))


def _ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and type(value[0]) is int


FORMAT = Format("tokens", recognises)
