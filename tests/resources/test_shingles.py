"""Hashes of words and n-grams against a plain loop; signatures estimate Jaccard similarity without bias."""

import random
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resources import shingles
from resources.minhash import signatures
from resources.shingles import ngrams, word_hashes

TEXTS = st.lists(st.one_of(st.none(), st.text(alphabet="ab_9 .\n-éB", max_size=40)), max_size=12)

PINNED_WORDS = [1422195257157879115, 3529668535366769924, 11897121919936116483]
PINNED_SIGNATURES = [[3039131214, 1144982750], [252571560, 2724399187]]


def words_of(text):
    return re.findall(rb"[A-Za-z0-9_\x80-\xff]+", (text or "").encode())


def pieces(ragged):
    return [ragged.values[a:b].tolist() for a, b in zip(ragged.offsets, ragged.offsets[1:], strict=False)]


@settings(max_examples=150, deadline=None)
@given(texts=TEXTS, size=st.integers(1, 5), chunk=st.sampled_from([1, 16, 1 << 22]))
def test_law_equal_words_equal_hashes_wherever_they_stand(texts, size, chunk):
    """A dictionary of words stands for the hashes: it must be one to one, and n-grams must follow it."""
    whole, shingles.CHUNK_BYTES = shingles.CHUNK_BYTES, chunk
    try:
        found = word_hashes(pa.array(texts, pa.string()))
    finally:
        shingles.CHUNK_BYTES = whole
    expected = [words_of(text) for text in texts]
    assert [len(words) for words in expected] == found.lengths.tolist()
    names = {}
    for words, hashes in zip(expected, pieces(found), strict=True):
        for word, value in zip(words, hashes, strict=True):
            assert names.setdefault(word, value) == value
    assert len(set(names.values())) == len(names)
    runs, known = pieces(ngrams(found, size)), {}
    for words, hashes in zip(expected, runs, strict=True):
        grams = [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]
        for gram, value in zip(grams, hashes, strict=True):
            assert known.setdefault(gram, value) == value
    assert len(set(known.values())) == len(known)


def test_hashes_are_the_same_in_every_version():
    """Signatures are stored: a change of these numbers means that every day must be cleaned again."""
    words = word_hashes(pa.array(["the mill", "wheel"]))
    assert words.values.tolist() == PINNED_WORDS
    assert signatures(ngrams(words, 1), 2).to_pylist() == PINNED_SIGNATURES


def test_slices_and_chunks_of_arrow_arrays():
    texts = pa.array(["zero", "one two", None, "three"])
    assert pieces(word_hashes(texts.slice(1)))[0] == pieces(word_hashes(texts))[1]
    assert pieces(word_hashes(pa.chunked_array([texts, texts])))[5] == pieces(word_hashes(texts))[1]


@pytest.mark.parametrize("shared", [10, 50, 90])
def test_signatures_estimate_jaccard(shared):
    rng = random.Random(shared)
    pool = [f"w{n}" for n in range(4_000)]
    estimates, truths = [], []
    for _ in range(30):
        mine = rng.sample(pool, 200)
        other = mine[: 2 * shared] + rng.sample(pool, 200 - 2 * shared)
        a, b = set(mine), set(other)
        truths.append(len(a & b) / len(a | b))
        one, two = signatures(ngrams(word_hashes(pa.array([" ".join(mine), " ".join(other)])), 1), 128).to_pylist()
        estimates.append(np.mean(np.array(one) == np.array(two)))
    assert abs(np.mean(estimates) - np.mean(truths)) < 0.03


def test_no_shingle_no_signature():
    found = signatures(ngrams(word_hashes(pa.array(["", "a b c", "a b c d e", None])), 5), 8)
    assert [len(one) for one in found.to_pylist()] == [0, 0, 8, 0]
    assert signatures(ngrams(word_hashes(pa.array([], pa.string())), 5), 8).to_pylist() == []
