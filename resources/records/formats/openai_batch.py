"""OpenAI's batches: request lines {custom_id, method, url, body} and, in other objects, the lines of the output or error
file {id, custom_id, response: {status_code, request_id, body}, error}.

A record is a pair: its place is the response's line, its format openai_pairs. A request or response without its partner waits
in quarantine (`unpaired`) and is read again as soon as its folder gets another object (resources/reading/pairing.py). One
folder per batch or day keeps that cheap.
"""

from __future__ import annotations

from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    if "custom_id" not in record:
        return False
    return {"method", "url", "body"} <= record.keys() or {"id", "response"} <= record.keys()


FORMAT = Format("openai_batch", recognises, fills=(), paired=True, rows_as="openai_pairs")
