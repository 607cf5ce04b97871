"""Gives a record in which an object has a key twice the last value of each, as the JSON readers of most languages do; DuckDB
takes the first."""

import json

import numpy as np
import pyarrow as pa

from model_ops.chat_apis import json_text
from model_ops.machine import compiled

_DEEPEST, _MOST_KEYS = 256, 1 << 14
"""Nesting and open keys of a record that are looked at; what is beyond counts as told apart."""


def with_last_values(lines: pa.Table) -> pa.Table:
    """The lines, where `raw` holds each key of an object once."""
    raw = lines["raw"].combine_chunks()
    raw = raw.combine_chunks() if isinstance(raw, pa.ChunkedArray) else raw
    if not len(raw):
        return lines
    _, edges, content = raw.buffers()
    offsets = np.frombuffer(edges, np.int64)[raw.offset : raw.offset + len(raw) + 1]
    repeating = np.flatnonzero(_repeat_keys(np.frombuffer(content or b"", np.uint8), offsets))
    if not len(repeating):
        return lines
    texts = dict(
        zip(repeating.tolist(), (_last_values(text) for text in raw.take(pa.array(repeating)).to_pylist()), strict=True)
    )
    mended = pa.array([texts.get(at, text) for at, text in enumerate(raw.to_pylist())], raw.type)
    return lines.set_column(lines.schema.get_field_index("raw"), "raw", mended)


def _last_values(text: str) -> str:
    try:
        return json_text(json.loads(text))
    except (ValueError, RecursionError):
        return text


@compiled
def _repeat_keys(content, edges):
    """Marks the texts in which an object has a key twice. Keys are compared by a hash: a false alarm only costs time."""
    repeats = np.zeros(len(edges) - 1, np.bool_)
    keys, begins = np.empty(_MOST_KEYS, np.uint64), np.empty(_DEEPEST, np.int64)
    for row in range(len(repeats)):
        count, depth, at, stop, wants_key = 0, 0, edges[row], edges[row + 1], False
        while at < stop:
            byte = content[at]
            if byte == 34:  # a quote
                hashed = np.uint64(0xCBF29CE484222325)  # FNV-1a
                at += 1
                if wants_key:
                    while at < stop and content[at] != 34:
                        if content[at] == 92:
                            at += 1
                        if at < stop:
                            hashed = (hashed ^ np.uint64(content[at])) * np.uint64(0x100000001B3)
                        at += 1
                    if count < _MOST_KEYS and depth <= _DEEPEST:
                        for other in range(begins[depth - 1], count):
                            repeats[row] |= keys[other] == hashed
                        keys[count] = hashed
                        count += 1
                    wants_key = False
                else:
                    while at < stop and content[at] != 34:
                        at += 2 if content[at] == 92 else 1
            elif byte == 123 or byte == 91:  # { and [
                depth += 1
                if depth <= _DEEPEST:
                    begins[depth - 1] = count if byte == 123 else -1 - count  # negative: an array
                wants_key = byte == 123
            elif byte == 125 or byte == 93:  # } and ]
                if 0 < depth <= _DEEPEST:
                    count = begins[depth - 1] if begins[depth - 1] >= 0 else -1 - begins[depth - 1]
                depth = max(depth - 1, 0)
                wants_key = False
            elif byte == 44:  # a comma
                wants_key = 0 < depth <= _DEEPEST and begins[depth - 1] >= 0
            at += 1
    return repeats
