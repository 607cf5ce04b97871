"""Measures how much an answer repeats itself: `repeats` is the longest run of one pattern of `repeats_of` words (0: of
characters that take more than half of the answer), `patience` how many times as long it may go on. The shares are those of
Gopher's repetition rules (Rae et al. 2021, table A1, as in datatrove) that make sense for chat, over the prose."""

import itertools
import re

import numpy as np
import pyarrow as pa

from resources.curating.alphabet import alphabet
from resources.curating.shingles import TextBuffer, in_groups, plain_buffer, text_buffer, word_hashes

LONGEST_PATTERN = 13
"""Most words of a repeated pattern."""

LONGEST_SIGNS = 32
"""Most bytes of a repeated pattern of characters: a family emoji has 25."""

SHARES = (
    "duplicate_lines", "duplicate_paragraphs", "duplicate_line_characters", "duplicate_paragraph_characters", "top_2gram",
    "top_3gram", "top_4gram", "duplicate_5grams", "duplicate_6grams", "duplicate_7grams", "duplicate_8grams",
    "duplicate_9grams", "duplicate_10grams",
)  # fmt: skip


_NO_LETTERS = re.compile(rb"(?i)\b(?:null|none|nil|nan|true|false)\b")
_LETTERS = re.compile(rb"[A-Za-z\x80-\xff]")
_FENCE = re.compile(rb"^ *```", re.M)


def patience(text: bytes, first: int, last: int) -> int:
    """How many times as long as a sentence the pattern may repeat of which text[first:last] is two repetitions."""
    from resources.curating.quality_kernels import is_code

    unit = _NO_LETTERS.sub(b"0000", text[first:last])
    words = len(re.findall(rb"[A-Za-z\x80-\xff']{2,}", unit))
    start, stop = text.rfind(b"\n", 0, last - 1) + 1, text.find(b"\n", last - 1)
    line = text[start : len(text) if stop < 0 else stop].rstrip()
    signs = re.search(rb'["|\[\]{}<>=;]', unit)
    if len(_FENCE.findall(text, 0, first)) % 2 or (line.startswith((b"    ", b"\t")) and unit.count(b"\n") <= 2):
        return 1 if words >= 6 and not signs and b"\n" not in unit else 32
    if 3 * len(_LETTERS.findall(unit)) < len(unit.strip()):
        array = line.strip()[:1] in b"[{(<|" or line[-1:] in b"]})>|"
        return 32 if (array and line) or re.match(rb"(?s)(?=.*\d).*[,;|&()\[\]{}\t]", unit) else 1
    if b"\n" in unit:
        return 2 if line and is_code(np.frombuffer(line, np.uint8), 0, len(line)) else 1
    return 32 if signs and not re.search(rb'[\s"]', unit) else 2 if signs and words <= 4 else 1


def measures(answers: pa.Array | pa.ChunkedArray, least_words: int = 300, least_repeats: int = 32) -> pa.Table:
    """One row per answer; null counts as empty. `patience` is known from `least_repeats` repetitions."""
    from resources.curating import quality_kernels
    from resources.curating.word_kernels import word_ends

    words = word_hashes(answers)
    repeats, sizes, runs = quality_kernels.longest_repeats(words.values, words.offsets, LONGEST_PATTERN, least_repeats)

    def work(_: int, texts: TextBuffer) -> np.ndarray:
        return quality_kernels.gopher(texts.content, texts.edges, least_words)

    plain = plain_buffer(answers)
    shares = np.concatenate([np.zeros((0, 15)), *in_groups(work, plain)])
    signs = quality_kernels.loops(plain.content, plain.edges, LONGEST_SIGNS)
    patient = np.ones(len(repeats), dtype=np.int32)
    for text in np.flatnonzero((signs > repeats) & (signs >= least_repeats)):
        start, stop = plain.edges[text : text + 2]
        middle = (stop - start) // 2
        patient[text] = patience(plain.content[start:stop].tobytes(), middle, middle + LONGEST_SIGNS)
    sizes, repeats = np.where(signs > repeats, 0, sizes), np.maximum(repeats, signs)
    settled = text_buffer(answers)
    for text, runs_of in itertools.groupby(runs.tolist(), key=lambda run: run[0]):
        start, stop = settled.edges[text : text + 2]
        said = settled.content[start:stop].tobytes()
        judged: list[tuple[int, int, int, int]] = []
        ends = word_ends(settled.content, start, stop, alphabet())
        for _, word, size, count in runs_of:
            if any(size % less == 0 and 2 * abs(word - place) < less * times for place, less, times, _ in judged):
                continue  # the same run, read as a longer pattern
            judged.append((word, size, count, patience(said, int(ends[max(0, word - 2 * size)]), int(ends[word]))))
        _, size, count, times = max(judged, key=lambda run: run[2] / run[3])
        if sizes[text] or count / times > repeats[text] / patient[text]:
            repeats[text], sizes[text], patient[text] = count, size, times
    columns = {
        "repeats": pa.array(repeats),
        "repeats_of": pa.array(sizes),
        "patience": pa.array(patient),
        "answer_words": pa.array(words.lengths),
        "code_share": pa.array(shares[:, 1]),
    }
    for place, name in enumerate(SHARES, start=2):
        columns[name] = pa.array(shares[:, place], from_pandas=True)  # NaN: not measured
    return pa.table(columns)
