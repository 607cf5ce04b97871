"""MinHash signatures of turns (Broder 1997), stored as banding needs them: one 32-bit hash per band. Number k is the minimum of
the permutation h -> (a_k h + b_k) mod 2**32, a_k odd, over the turn's shingles; two turns have the same number with a
probability equal to their Jaccard similarity. A signature begins with a stamp: hashes of different settings cannot be compared.
A turn without shingles gets an empty signature: such rows match as exact duplicates only.
"""

import hashlib

import numpy as np
import pyarrow as pa
from jaxtyping import UInt32

from resources.curating.alphabet import alphabet
from resources.curating.curation import NearDuplicates
from resources.curating.shingles import TextBuffer, in_groups, text_buffer

_VERSION = 2
"""Version of words, shingles and permutations: a new one gives new hashes."""


def stamp(settings: NearDuplicates) -> int:
    """The first number of every signature made with these settings."""
    settings_text = f"{_VERSION} {settings.ngram} {settings.bands} {settings.rows}".encode()
    return int.from_bytes(hashlib.sha256(settings_text).digest()[:4], "little", signed=True)


def permutations(settings: NearDuplicates) -> tuple[UInt32[np.ndarray, " hashes"], UInt32[np.ndarray, " hashes"]]:
    """Multipliers and summands."""
    generator = np.random.Generator(np.random.PCG64(1997))
    multipliers = generator.integers(0, 1 << 32, settings.hashes, dtype=np.uint32) | np.uint32(1)
    return multipliers, generator.integers(0, 1 << 32, settings.hashes, dtype=np.uint32)


def signatures(
    questions: pa.Array | pa.ChunkedArray, answers: pa.Array | pa.ChunkedArray, settings: NearDuplicates
) -> pa.ListArray:
    """The signature of each turn: the settings' stamp and `settings.bands` hashes; empty without shingles."""
    from resources.curating.word_kernels import sketch

    multipliers, summands = permutations(settings)

    def work(_: int, asked: TextBuffer, said: TextBuffer) -> tuple[np.ndarray, np.ndarray]:
        return sketch(
            asked.content,
            asked.edges,
            said.content,
            said.edges,
            settings.ngram,
            alphabet(),
            multipliers,
            summands,
            settings.bands,
        )

    groups = list(in_groups(work, text_buffer(questions), text_buffer(answers)))
    bands = np.concatenate([np.zeros((0, settings.bands), np.uint32), *(hashes for hashes, _ in groups)])
    filled = np.concatenate([np.zeros(0, bool), *(filled for _, filled in groups)])
    numbers = np.empty((int(filled.sum()), settings.bands + 1), dtype=np.int32)
    numbers[:, 0] = stamp(settings)
    numbers[:, 1:] = bands[filled].view(np.int32)
    offsets = np.concatenate([[0], np.cumsum(np.where(filled, settings.bands + 1, 0))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(numbers.reshape(-1)))
