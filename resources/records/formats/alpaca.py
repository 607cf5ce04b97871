"""Alpaca examples: {instruction, input, output}, or `context` and `response` (Dolly); also `system` and `history`.

The request is the instruction and, where there is one, the input after a blank line.
"""

from __future__ import annotations

from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    return "instruction" in record and ("output" in record or "response" in record)


FORMAT = Format("alpaca", recognises)
