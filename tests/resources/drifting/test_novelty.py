"""N-grams that the vocabulary never had."""

import numpy as np
import pyarrow as pa

from resources.drifting.session_counts import novelty, vocabulary


def test_new_and_known_n_grams_are_counted_by_text():
    known = vocabulary(pa.array(["the mill grinds the grain", "the river turns the wheel"]), 3)
    new, old = novelty(pa.array(["the mill grinds the flour", "grinds the grain", "two words", "", None]), known, 3)
    assert list(new) == [1, 0, 0, 0, 0] and list(old) == [2, 1, 0, 0, 0]


def test_an_empty_vocabulary_knows_nothing():
    known = vocabulary(pa.array([], pa.string()), 2)
    new, old = novelty(pa.array(["one two three"]), known, 2)
    assert len(known) == 0 and list(new) == [2] and list(old) == [0]
    assert known.dtype == np.uint64
