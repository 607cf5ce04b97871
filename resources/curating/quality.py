"""What can be measured of an answer without a model: how often it repeats itself.

    measures(pa.array(["again and again " * 40]))    # a table: repeats, repeats_of, words, code_share, duplicate_lines, ...

`repeats` is the longest run of one pattern of 1 to 13 words said again and again, what a model does that has lost its
thread; `repeats_of` the pattern's words, 0 where it is no words but signs ("!!!!", "hahaha", line ends) that are said
again and again for more than half of the answer. The shares are those of Gopher's repetition rules (Rae et al. 2021, table A1,
as datatrove computes them) that make sense for chat, over the answer's prose: fenced code, lines that look like code,
tables and JSON are left out, since they repeat by nature, and nothing is measured in an answer of fewer than
`least_words` words of prose: a villanelle, a song or a list of ten similar steps repeats itself as well. Shares are
null there.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from resources.curating.shingles import TextBuffer, in_groups, plain_buffer, word_hashes

LONGEST_PATTERN = 13
"""Words of a pattern whose repetition is looked for."""

LONGEST_SIGNS = 32
"""Bytes of a pattern of signs: an emoji of a family takes 25."""

SHARES = (
    "duplicate_lines", "duplicate_paragraphs", "duplicate_line_characters", "duplicate_paragraph_characters",
    "top_2gram", "top_3gram", "top_4gram", "duplicate_5grams", "duplicate_6grams", "duplicate_7grams", "duplicate_8grams",
    "duplicate_9grams", "duplicate_10grams",
)


def measures(answers: pa.Array | pa.ChunkedArray, least_words: int = 300) -> pa.Table:
    """One row for each answer; a null counts as empty."""
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
