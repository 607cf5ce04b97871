"""Measures how much an answer repeats itself, without a model.

    measures(pa.array(["again and again " * 40]))    # a table: repeats, repeats_of, words, code_share, duplicate_lines, ...

`repeats` is the longest run of one pattern of 1 to 13 words, typical of a model that loops; `repeats_of` is the pattern's
number of words, 0 where the pattern is characters ("!!!!", "hahaha", line ends) that take more than half of the answer. The
shares are those of Gopher's repetition rules (Rae et al. 2021, table A1, as in datatrove) that make sense for chat, over the
answer's prose: fenced code, lines that look like code, tables and JSON repeat by nature and are left out. Answers with fewer
than `least_words` words of prose are not measured (their shares are null): a song or a list of ten similar steps repeats too.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from resources.curating.shingles import TextBuffer, in_groups, plain_buffer, word_hashes

LONGEST_PATTERN = 13
"""Most words of a repeated pattern."""

LONGEST_SIGNS = 32
"""Most bytes of a repeated pattern of characters: a family emoji has 25."""

SHARES = (
    "duplicate_lines", "duplicate_paragraphs", "duplicate_line_characters", "duplicate_paragraph_characters",
    "top_2gram", "top_3gram", "top_4gram", "duplicate_5grams", "duplicate_6grams", "duplicate_7grams", "duplicate_8grams",
    "duplicate_9grams", "duplicate_10grams",
)


def measures(answers: pa.Array | pa.ChunkedArray, least_words: int = 300) -> pa.Table:
    """One row per answer; null counts as empty."""
    from resources.curating import quality_kernels

    words = word_hashes(answers)
    repeats, sizes = quality_kernels.longest_repeats(words.values, words.offsets, LONGEST_PATTERN)

    def work(_: int, texts: TextBuffer) -> np.ndarray:
        return quality_kernels.gopher(texts.content, texts.edges, least_words)

    plain = plain_buffer(answers)
    shares = np.concatenate([np.zeros((0, 15)), *in_groups(work, plain)])
    signs = quality_kernels.loops(plain.content, plain.edges, LONGEST_SIGNS)
    sizes, repeats = np.where(signs > repeats, 0, sizes), np.maximum(repeats, signs)
    columns = {
        "repeats": pa.array(repeats), "repeats_of": pa.array(sizes), "answer_words": pa.array(words.lengths),
        "code_share": pa.array(shares[:, 1]),
    }
    for place, name in enumerate(SHARES, start=2):
        columns[name] = pa.array(shares[:, place], from_pandas=True)   # NaN: not measured
    return pa.table(columns)
