"""Detects the language of each text, offline: py3langid's byte n-gram model over its prose's first SAMPLE bytes. Fewer than
LEAST_LETTERS letters, or a best language below `least_confidence`, give none. The softmax's temperature grows with the root of
the text's length. Rare languages are excluded: short English texts are sometimes classified as Walloon."""

from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from resources.curating.shingles import TextBuffer, in_groups, plain_buffer

SAMPLE = 300
"""Bytes of prose that are used; more bytes rarely change the result."""

LEAST_LETTERS = 10

_CHOICE = """
af am ar az be bg bn bs ca cs cy da de el en es et eu fa fi fr ga gl gu he hi hr hu hy id is it ja ka kk km kn ko ky lo lt lv
mk ml mn mr ms my ne nl no pa pl ps pt ro ru si sk sl so sq sr sv sw ta te th tl tr uk ur uz vi xh yo zh zu zxx
"""
LANGUAGES = tuple(code for code in _CHOICE.split() if code != "zxx")
"""ISO 639 codes of the languages that are detected."""


class Model(NamedTuple):
    moves: np.ndarray
    """Next state by row * 256 + byte."""
    rows: np.ndarray
    outputs: np.ndarray
    """For each state: the feature that ends there, or -1."""
    weights: np.ndarray
    priors: np.ndarray
    names: tuple[str | None, ...]


def detect(texts: pa.Array | pa.ChunkedArray, least_confidence: float = 0.5) -> tuple[pa.StringArray, np.ndarray]:
    """The language of each text, null where unknown, and the confidence."""
    from resources.curating.language_kernels import classify

    model = _model()

    def work(_: int, part: TextBuffer) -> tuple[np.ndarray, np.ndarray]:
        return classify(part.content, part.edges, SAMPLE, LEAST_LETTERS, *model[:5])

    groups = list(in_groups(work, plain_buffer(texts)))
    best = np.concatenate([np.zeros(0, np.int32), *(kinds for kinds, _ in groups)])
    confidence = np.concatenate([np.zeros(0), *(sure for _, sure in groups)])
    names = pa.array(model.names, pa.string())
    is_sure = (best >= 0) & (confidence >= least_confidence)
    return names.take(pa.array(np.where(is_sure, best, 0), mask=~is_sure)), confidence


@cache
def _model() -> Model:
    """py3langid's model, restricted to LANGUAGES and to `zxx` (numbers, code)."""
    from py3langid.langid import LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file("data/model.npz.xz", norm_probs=True)
    wanted = [place for place, name in enumerate(identifier.nb_classes) if name in _CHOICE.split()]
    names = [identifier.nb_classes[place] for place in wanted]
    return Model(
        np.frombuffer(identifier.tk_nextmove, dtype=f"u{identifier.tk_nextmove.itemsize}"),
        np.asarray(identifier.tk_row, dtype=np.int64),
        np.asarray(identifier.tk_output, dtype=np.int32),
        np.ascontiguousarray(identifier.nb_ptc[:, wanted], dtype=np.float32),
        np.ascontiguousarray(identifier.nb_pc[wanted], dtype=np.float32),
        tuple(None if name == "zxx" else name for name in names),
    )
