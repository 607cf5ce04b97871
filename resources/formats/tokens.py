"""Pre-tokenized rows: {token_ids | input_ids, labels, loss_mask | completion_mask | assistant_masks, attention_mask}.

labels are token_ids with -100 where nothing is learnt, not shifted (Hugging Face's, Nebius' and Together's convention);
without labels the mask decides, without a mask every token is learnt. Padding (attention_mask 0 at the ends) goes.
prompt_token_ids are the leading tokens that are not learnt, completion_token_ids the rest; where something in the rest
is not learnt, params.masked lists its spans, [start, end) within the completion. Such a row holds no text.
"""

from __future__ import annotations

from resources.formats.format import Format


def recognises(record: dict) -> bool:
    return isinstance(record.get("token_ids", record.get("input_ids")), list) and "messages" not in record


FORMAT = Format("tokens", recognises)
