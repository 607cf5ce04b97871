"""SGLang's request log (--log-requests --log-requests-level 3 --log-requests-format json).

A `request.finished` line holds the request and the answer; `request.received`, which it repeats, is counted and passed
over. The prompt is text that a chat template has made: where it is ChatML, Llama 3's or Mistral's it is taken apart into
messages, else it is one user message and params has "templated": true. Tool calls stay text in the answer. Lower levels
cut or leave out the text: such lines are quarantined. Times are the server's local ones, read as UTC.
"""

from __future__ import annotations

from resources.reading.formats.format import Format


def recognises(record: dict) -> bool:
    return record.get("event") in ("request.received", "request.finished") and "rid" in record and "obj" in record


FORMAT = Format("sglang", recognises)
