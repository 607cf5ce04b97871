"""Numbers of the format of bitsandbytes, and the state that it stores beside nf4 codes. Importing it imports no torch."""

from __future__ import annotations

import json

THRESHOLD = 6.0
"""Least size of an activation that LLM.int8() multiplies in 16 bits (arXiv 2208.07339, section 3.2)."""
BLOCK, NESTED_BLOCK = 64, 256
"""Weights that share a scale; scales that share a scale."""
STATE = "weight.quant_state.bitsandbytes__nf4"
"""The tensor that holds what is not a tensor, as bytes of JSON."""
OFFSET_CHARACTERS = 25
"""The longest text of a float: the offset's text is filled up to it with spaces, so that the shape of a weight says how many
bytes its state has."""


def state_of(out_features: int, in_features: int, offset: float | None) -> bytes:
    """The state of a weight, with the keys that bitsandbytes reads. offset: the mean of the blocks' scales; None: they are
    floats."""
    state = {"quant_type": "nf4", "blocksize": BLOCK, "dtype": "bfloat16", "shape": [out_features, in_features]}
    if offset is None:
        return json.dumps(state).encode()
    nested = json.dumps({**state, "nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": offset})
    return nested.encode() + b" " * (OFFSET_CHARACTERS - len(json.dumps(offset)))
