"""Answers of a teacher at an endpoint as token ids of a student, with the log-probabilities that the endpoint gave.

    told = EndpointTokens.read(dataset / "logprobs.parquet", tokenizer)
    told.exact_of(row, turn, rendered, tokenizer)       # TurnTokens with the endpoint's own tokens, or None
    told.answers["row-7"]                               # (ids [tokens, alternatives], logs), aligned with the answer's tokens

Endpoints name tokens by their bytes (logprobs.parquet of resources/composing/teachers/token_logs.py), so teacher and student
must share a vocabulary. A name counts where one token of the student has these bytes. An alternative that does not count joins
the rest of the vocabulary; an answer's token without any alternative is learnt from its label."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float16, Int32
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from model_ops.jobs import ModelError
from model_ops.rendering.row import Row
from model_ops.rendering.tokens import TurnTokens
from model_ops.rendering.turns import LearntTurn

PADDED = -60_000.0
"""Log-probability of a place without an alternative; its id is that of the first one. float16 holds it."""
COLUMNS = ("row_id", "tokens", "said", "counts", "likely", "logs")
_GIVEN_ID = re.compile(rb"token_id:(\d+)")

Distributions = tuple[Int32[np.ndarray, "tokens alternatives"], Float16[np.ndarray, "tokens alternatives"]]


@dataclass
class EndpointTokens:
    """Token distributions from the log-probabilities of a teacher at an endpoint."""

    rows: dict[str, dict[str, Any]]
    """Rows of logprobs.parquet, by row id."""
    id_of: dict[bytes, int]
    """Token id by its bytes."""
    vocabulary: int
    answers: dict[str, Distributions] = field(default_factory=dict)
    """Distributions of the answers that were read. Of their tokens, log_tokens have a distribution and label_tokens have
    none."""
    log_tokens: int = 0
    label_tokens: int = 0

    @classmethod
    def read(cls, path: Path, tokenizer: PreTrainedTokenizerBase) -> EndpointTokens:
        """Raises ModelError if the file lacks a column, or for a tokenizer whose tokens' bytes are not known."""
        try:
            rows = pq.read_table(path, columns=list(COLUMNS)).to_pylist()
        except (OSError, pa.ArrowInvalid, pa.ArrowKeyError) as error:
            raise ModelError(
                f"{path.parent} has no log-probabilities of its answers: set teacher.logprobs and materialize "
                "teacher_answers again, or set student.teacher to online or cache"
            ) from error
        return cls({row["row_id"]: row for row in rows}, _ids_by_bytes(TokenBytes.of(tokenizer)), len(tokenizer))

    def exact_of(self, row: Row, turn: LearntTurn, tokens: TurnTokens, tokenizer: PreTrainedTokenizerBase) -> TurnTokens | None:
        """The endpoint's tokens of a row's answer after the rendered prompt; None for a row without logprobs."""
        row_tokens = self.rows.get(row.row_id)
        if row_tokens is None:
            return None
        names = [self._id(name) for name in row_tokens["tokens"]]
        said = [names[place] for place in row_tokens["said"]]
        counts = row_tokens["counts"]
        if said and not row_tokens["tokens"][row_tokens["said"][-1]]:  # an end of turn that the server writes as nothing
            said, counts = said[:-1], counts[:-1]
        answer = self._tokens(said, tokens.answer)
        ids, logs = _padded(row_tokens, names, counts, len(answer))
        if not _agree(said, answer):
            logs[:] = PADDED  # the student writes the answer with other tokens
        has_log = (logs > PADDED).any(1)
        self.log_tokens += int(has_log.sum())
        self.label_tokens += int((~has_log).sum())
        self.answers[row.row_id] = ids, logs
        return TurnTokens(tokens.prompt, np.array(answer, np.int32))

    def check(self) -> None:
        """Raises ModelError where most tokens of the answers have no distribution."""
        if self.log_tokens < self.label_tokens or not self.log_tokens:
            raise ModelError(
                f"{self.label_tokens} of {self.log_tokens + self.label_tokens} tokens of the teacher's answers are no tokens "
                "of the student, so their tokenizers differ and log-probabilities cannot be learnt: leave teacher.logprobs and "
                "student.teacher out and set student.label_weight to 1, to learn the teacher's answers instead"
            )

    def _id(self, name: bytes) -> int | None:
        given = _GIVEN_ID.fullmatch(name)
        if given and name not in self.id_of:
            return int(given[1]) if int(given[1]) < self.vocabulary else None
        return self.id_of.get(name)

    @staticmethod
    def _tokens(said: list[int | None], rendered: np.ndarray) -> list[int]:
        """The answer's token ids: as the endpoint has them, with the end of turn; as rendered if one of them is unknown."""
        known = [token for token in said if token is not None]
        if len(known) < len(said) or not said:
            return rendered.tolist()
        end = rendered[-1:].tolist()
        return known if known[-1:] == end else known + end  # OpenAI leaves the end of turn out


def _agree(said: list[int | None], answer: list[int]) -> bool:
    """Whether the known tokens are the answer's, place by place, up to its end of turn."""
    return len(answer) - 1 <= len(said) <= len(answer) and all(
        given in (None, token) for given, token in zip(said, answer, strict=False)
    )


def _padded(row_tokens: dict[str, Any], names: list[int | None], counts: list[int], length: int) -> Distributions:
    """Ids and log-probabilities of the alternatives at each token of an answer of `length` tokens."""
    width = max([*counts, 1])
    ids, logs = np.zeros((length, width), np.int32), np.full((length, width), PADDED, np.float16)
    start = 0
    for place, count in enumerate(counts):
        known = {}
        for at in range(start, start + count):
            token = names[row_tokens["likely"][at]]
            if token is not None:
                known[token] = row_tokens["logs"][at]
        start += count
        if place < length and known:
            ids[place] = next(iter(known))
            ids[place, : len(known)], logs[place, : len(known)] = list(known), list(known.values())
    return ids, logs


def _ids_by_bytes(vocabulary: TokenBytes) -> dict[bytes, int]:
    """bytes -> the only token of these bytes. A raw byte counts where no other token has the byte."""
    by_bytes: dict[bytes, list[int]] = {}
    for token_id in sorted(vocabulary.bytes, key=lambda each: each in vocabulary.byte_tokens):
        same = by_bytes.setdefault(vocabulary.bytes[token_id], [])
        if not same or token_id not in vocabulary.byte_tokens:
            same.append(token_id)
    return {name: ids[0] for name, ids in by_bytes.items() if len(ids) == 1}


_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class TokenBytes:
    """The bytes of every token of a vocabulary. A byte-level BPE writes a space as "Ġ" and other bytes as stand-in letters;
    SentencePiece writes a space as "▁" and single bytes as <0x0A>. Added tokens are their text."""

    bytes: dict[int, bytes]
    """Bytes by token id."""
    byte_tokens: frozenset[int]
    """Ids of tokens that are one raw byte."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> TokenBytes:
        """Raises ModelError for a tokenizer that is neither byte-level nor SentencePiece's kind."""
        if not tokenizer.is_fast:
            raise ModelError("the tokenizer has no tokenizer.json; convert it to the tokenizers format first")
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        spelling = json.dumps([content.get("decoder"), content.get("pre_tokenizer")])
        if '"ByteLevel"' in spelling:
            by_id = _byte_level(tokenizer)
        elif "\\u2581" in spelling:
            by_id = _sentence_piece(tokenizer)
        else:
            raise ModelError(
                "the tokenizer is neither a byte-level BPE nor of SentencePiece's kind, so the bytes of its "
                "tokens are not known; give a model with one of them"
            )
        by_id |= {token_id: token.content.encode() for token_id, token in tokenizer.added_tokens_decoder.items()}
        spelt = {token_id for token, token_id in tokenizer.get_vocab().items() if _BYTE.fullmatch(token)}
        return cls(by_id, frozenset(spelt))


def _byte_level(tokenizer: PreTrainedTokenizerBase) -> dict[int, bytes]:
    of_letter = {letter: byte for byte, letter in bytes_to_unicode().items()}
    return {
        token_id: bytes(of_letter[letter] for letter in token)
        if all(letter in of_letter for letter in token)
        else token.encode()
        for token, token_id in tokenizer.get_vocab().items()
    }


def _sentence_piece(tokenizer: PreTrainedTokenizerBase) -> dict[int, bytes]:
    by_id = {}
    for token, token_id in tokenizer.get_vocab().items():
        byte = _BYTE.fullmatch(token)
        by_id[token_id] = bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
    return by_id
