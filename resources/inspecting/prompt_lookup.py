"""Measures the acceptance of an n-gram drafter on logged answers, without a model. Prompt lookup proposes what followed the
longest known suffix (4 down to 1 tokens) at its earliest occurrence, as vLLM's `ngram` method and model_ops/drafting/drafts.py
do. Without token ids, pieces of text replace tokens: letters with the space before (8 bytes at most), up to 3 digits, a run of
one other character, 3 bytes of a non-ASCII one. Importing this module loads numba."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Int64, UInt8, UInt64

from model_ops.machine import compiled
from resources.curating import RaggedLists

LONGEST_NGRAM = 4
MOST_LETTERS, MOST_DIGITS, MOST_SIGNS, MOST_FOREIGN = 8, 3, 16, 3
"""Bytes in a piece of each kind."""

_SPACE, _LETTER, _DIGIT, _FOREIGN, _SIGN = range(5)
_KIND = np.full(256, _SIGN, dtype=np.uint8)
_KIND[32] = _SPACE
_KIND[[*range(65, 91), *range(97, 123)]] = _LETTER
_KIND[48:58] = _DIGIT
_KIND[128:] = _FOREIGN


@dataclass(frozen=True)
class LookupReplay:
    """One number per row. The prompt's own forward, which gives the first token of an answer, is not counted."""

    forwards: Int64[np.ndarray, " rows"]
    emitted: Int64[np.ndarray, " rows"]
    """Tokens from the forward passes."""


def pieces_of(texts: pa.Array | pa.ChunkedArray) -> RaggedLists:
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    texts = texts.cast(pa.large_string()).fill_null("")
    edges = np.zeros(1, np.int64)
    content = np.zeros(0, np.uint8)
    if len(texts):
        _, place, data = texts.buffers()
        edges = np.frombuffer(place, np.int64, count=len(texts) + 1, offset=texts.offset * 8)
        content = content if data is None else np.frombuffer(data, np.uint8)
    values = np.empty(int(edges[-1] - edges[0]), np.uint64)
    offsets = np.zeros(len(edges), np.int64)
    count = _pieces(content, edges, _KIND, values, offsets)
    return RaggedLists(values[:count].copy(), offsets)


def replayed(prompts: RaggedLists, answers: RaggedLists, num_speculative_tokens: int) -> LookupReplay:
    if len(prompts.offsets) != len(answers.offsets):
        raise ValueError(f"{len(prompts.offsets) - 1} prompts and {len(answers.offsets) - 1} answers: one for each is needed")
    rows = len(prompts.offsets) - 1
    forwards, emitted = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    longest = int((prompts.lengths + answers.lengths).max()) if rows else 0
    slots = 1 << max(int(2 * LONGEST_NGRAM * longest).bit_length(), 4)
    _replay(
        prompts.values,
        prompts.offsets,
        answers.values,
        answers.offsets,
        num_speculative_tokens,
        forwards,
        emitted,
        np.empty(max(longest, 1), np.uint64),
        np.empty(slots, np.uint64),
        np.empty(slots, np.int32),
    )
    return LookupReplay(forwards, emitted)


@compiled
def _pieces(
    content: UInt8[np.ndarray, " bytes"],
    edges: Int64[np.ndarray, " texts_plus_one"],
    kinds: UInt8[np.ndarray, " 256"],
    values: UInt64[np.ndarray, " most"],
    offsets: Int64[np.ndarray, " texts_plus_one"],
) -> int:
    count = 0
    for text in range(len(edges) - 1):
        place, end = edges[text], edges[text + 1]
        while place < end:
            start = place
            kind = kinds[content[place]]
            if kind == _SPACE and place + 1 < end and kinds[content[place + 1]] == _LETTER:
                place += 1
                kind = _LETTER
            sign = content[place]
            most = MOST_SIGNS
            if kind == _LETTER:
                most = MOST_LETTERS
            elif kind == _DIGIT:
                most = MOST_DIGITS
            elif kind == _FOREIGN:
                most = MOST_FOREIGN
            taken = 0
            while (
                place < end
                and taken < most
                and kinds[content[place]] == kind
                and ((kind != _SIGN and kind != _SPACE) or content[place] == sign)
            ):
                place += 1
                taken += 1
            hashed = np.uint64(0xCBF29CE484222325)
            for index in range(start, place):
                hashed = (hashed ^ np.uint64(content[index])) * np.uint64(0x100000001B3)
            values[count] = hashed
            count += 1
        offsets[text + 1] = count
    return count


@compiled
def _slot(tokens, end, length, keys, ends, mask):
    """The position in the open-addressed table of an n-gram, the `length` tokens before `end`, and its key."""
    key = np.uint64(length) * np.uint64(0xD1B54A32D192ED03)
    for index in range(end - length, end):
        key = (key + tokens[index] + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    key *= np.uint64(0xC4CEB9FE1A85EC53)
    key ^= key >> np.uint64(32)
    slot = np.int64(key & np.uint64(mask))
    while ends[slot] != 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot, key


@compiled
def _replay(prompts, prompt_offsets, answers, answer_offsets, draft, forwards, emitted, tokens, keys, ends):
    for row in range(len(forwards)):
        asked = prompt_offsets[row + 1] - prompt_offsets[row]
        answered = answer_offsets[row + 1] - answer_offsets[row]
        total = asked + answered
        tokens[:asked] = prompts[prompt_offsets[row] : prompt_offsets[row + 1]]
        tokens[asked:total] = answers[answer_offsets[row] : answer_offsets[row + 1]]
        mask = np.int64(16)
        while mask < 2 * LONGEST_NGRAM * total:
            mask *= 2
        mask = min(mask, len(ends)) - 1
        ends[: mask + 1] = 0
        known, size = 0, asked + min(answered, 1)
        while size < total:
            while known < size:  # every n-gram of the known tokens, at its earliest end
                known += 1
                for length in range(1, min(LONGEST_NGRAM, known) + 1):
                    slot, key = _slot(tokens, known, length, keys, ends, mask)
                    if ends[slot] == 0:
                        keys[slot], ends[slot] = key, known
            accepted = 0
            for length in range(min(LONGEST_NGRAM, size), 0, -1):
                slot, _ = _slot(tokens, size, length, keys, ends, mask)
                end = ends[slot]
                if 0 < end < size:
                    most = min(draft, size - end, total - size)
                    while accepted < most and tokens[end + accepted] == tokens[size + accepted]:
                        accepted += 1
                    break
            step = min(accepted + 1, total - size)
            forwards[row] += 1
            emitted[row] += step
            size += step
