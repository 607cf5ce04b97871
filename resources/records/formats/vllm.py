"""vLLM's text log (--enable-log-requests, --enable-log-outputs), as records of resources/records/objects/vllm_log.py.

A request and its response are joined by the request's id, in one object or in two of a folder (rotated logs), as in the batch
API. The prompt is text that a chat template rendered, split into messages as for SGLang. Other lines are counted by kind.

--max-log-len cuts texts without a mark. A prompt that does not end as its template ends is cut, and so is every text of the
length of such a prompt, or of the longest length in the object if several texts end exactly there. They go to quarantine.
"""

from __future__ import annotations

from resources.records.formats.format import Format

FORMAT = Format("vllm", lambda record: record.get("vllm") in ("request", "response"), fills=(), paired=True, rows_as="sglang")
