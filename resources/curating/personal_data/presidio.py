"""Adds Microsoft Presidio's findings to the built-in patterns, which win at the same place: `curation: {pii_engine: presidio}`.
It needs a spaCy model (en_core_web_lg, or that of MILLRACE_PRESIDIO_MODEL), which is not downloaded automatically."""

import os
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path

from resources.curating.personal_data.secret_patterns import Span
from resources.curating.pii_patterns import find_personal_data, without_overlaps

LEAST_SCORE = 0.5
"""Presidio's score, 0 to 1, below which a finding is ignored."""

PIECE = 50_000
"""Characters per call of the model; spaCy refuses more than a million."""

OURS = {"EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD", "IBAN_CODE", "US_SSN", "IP_ADDRESS"}
"""Kinds that are left to the built-in patterns, which are stricter."""

NOT_PERSONAL = {"DATE_TIME", "URL", "NRP"}


class PresidioError(Exception):
    """Presidio or its model is not installed; the message says how to install it."""


def model_name() -> str:
    """The spaCy model to use: a package's name or a directory."""
    return os.environ.get("MILLRACE_PRESIDIO_MODEL", "en_core_web_lg")


@cache
def presidio_finder() -> Callable[[str], tuple[Span, ...]]:
    """A finder that adds Presidio's findings. Raises PresidioError."""
    model = model_name()
    try:
        from presidio_analyzer import AnalyzerEngine
        from presidio_analyzer.nlp_engine import NlpEngineProvider
        from spacy.util import is_package
    except ImportError as error:
        raise PresidioError(
            "curation.pii_engine is presidio, which is not installed: pip install presidio-analyzer, or leave pii_engine out"
        ) from error
    if not (is_package(model) or Path(model).is_dir()):
        raise PresidioError(
            f"curation.pii_engine is presidio, and its language model {model} is not installed: "
            f"python -m spacy download {model}, or name an installed one in MILLRACE_PRESIDIO_MODEL"
        )
    provider = NlpEngineProvider(
        nlp_configuration={"nlp_engine_name": "spacy", "models": [{"lang_code": "en", "model_name": model}]}
    )
    engine = AnalyzerEngine(nlp_engine=provider.create_engine(), supported_languages=["en"])

    def find(text: str) -> tuple[Span, ...]:
        theirs = [
            Span(begin + start, begin + end, kind, piece[start:end])
            for begin, piece in _pieces(text)
            for start, end, kind in analyzed(piece)
        ]
        return without_overlaps([*find_personal_data(text), *theirs])

    @lru_cache(maxsize=1 << 11)
    def analyzed(piece: str) -> tuple[tuple[int, int, str], ...]:
        return tuple(
            (result.start, result.end, result.entity_type)
            for result in engine.analyze(text=piece, language="en", score_threshold=LEAST_SCORE)
            if result.entity_type not in OURS | NOT_PERSONAL
        )

    return find


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    begin = 0
    while begin < len(text):
        end = begin + PIECE
        if end < len(text):
            space = max(text.rfind(" ", begin + PIECE // 2, end), text.rfind("\n", begin + PIECE // 2, end))
            end = space if space >= 0 else end
        yield begin, text[begin:end]
        begin = end
