"""Log-probabilities that an endpoint gives with an answer: read from a reply, packed for the cache, written for the student.
Each answer has a table of its different tokens, named by their bytes (or vLLM's `token_id:17`); alternatives are places in it.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

UNKNOWN = -9_000
"""OpenAI writes -9999 for a log-probability that it does not tell."""


@dataclass(frozen=True)
class TokenLogs:
    """What an endpoint says about each token of an answer, in the columns of LOGPROBS."""

    tokens: list[bytes]
    said: list[int]
    counts: list[int]
    likely: list[int]
    logs: list[float]

    def packed(self) -> str:
        arrays: list[np.ndarray] = [
            np.array(self.said, np.int32),
            np.array(self.counts, np.int16),
            np.array(self.likely, np.int32),
            np.array(self.logs, np.float16),
        ]
        names = [base64.b64encode(token).decode() for token in self.tokens]
        header = json.dumps([names, [len(array) for array in arrays]]).encode()
        content = len(header).to_bytes(4, "little") + header + b"".join(array.tobytes() for array in arrays)
        return base64.b64encode(zlib.compress(content, 6)).decode()

    @classmethod
    def unpacked(cls, text: str) -> TokenLogs:
        content = zlib.decompress(base64.b64decode(text))
        start = 4 + int.from_bytes(content[:4], "little")
        names, lengths = json.loads(content[4:start])
        columns = []
        for length, kind in zip(lengths, (np.int32, np.int16, np.int32, np.float16), strict=True):
            columns.append(np.frombuffer(content, kind, length, start).tolist())
            start += length * np.dtype(kind).itemsize
        return cls([base64.b64decode(name) for name in names], *columns)

    def as_row(self) -> dict[str, Any]:
        """Columns of LOGPROBS."""
        return {
            "tokens": self.tokens,
            "said": self.said,
            "counts": self.counts,
            "likely": self.likely,
            "logs": np.array(self.logs, np.float16),
        }


def read_token_logs(choice: Any, most: int) -> TokenLogs | None:
    """The log-probabilities in a choice of a chat completion; None where it has none, or none of the API's form. The token that
    was said is among the alternatives, so a position has at most most + 1 of them."""
    try:
        content = choice["logprobs"]["content"]
        places: dict[bytes, int] = {}
        said: list[int] = []
        counts: list[int] = []
        likely: list[int] = []
        logs: list[float] = []
        for each in content:
            alternatives = {_name(each): float(each["logprob"])}
            for other in (each.get("top_logprobs") or [])[:most]:
                alternatives.setdefault(_name(other), float(other["logprob"]))
            if not all(math.isfinite(value) and value <= 1e-3 for value in alternatives.values()):
                return None
            known = {name: min(value, 0.0) for name, value in alternatives.items() if value > UNKNOWN}
            said.append(places.setdefault(_name(each), len(places)))
            counts.append(len(known))
            likely += [places.setdefault(name, len(places)) for name in known]
            logs += known.values()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None
    return TokenLogs(list(places), said, counts, likely, logs) if said else None


def _name(entry: dict[str, Any]) -> bytes:
    """The bytes of a token; `token_id:17` as it is."""
    token, given = entry["token"], entry.get("bytes")
    if given is None or token.startswith("token_id:"):
        return token.encode("utf-8", "surrogatepass")
    return bytes(given)
