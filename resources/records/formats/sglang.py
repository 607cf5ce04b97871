"""SGLang's request log (--log-requests --log-requests-level 3 --log-requests-format json).

A `request.finished` line has the request and the answer; `request.received`, which it repeats, is counted and skipped. The
prompt is text that a chat template rendered: ChatML, Llama 3 and Mistral are parsed back into messages; any other template
gives one user message and "templated": true in params. Tool calls stay text in the answer. Lower log levels cut or omit the
text: such lines are quarantined. Times are the server's local time, read as UTC.
"""

from __future__ import annotations

from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    return record.get("event") in ("request.received", "request.finished") and "rid" in record and "obj" in record


FORMAT = Format("sglang", recognises)
