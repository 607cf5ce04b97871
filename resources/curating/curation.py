"""What a recipe can ask of curation: which rows stay out, and why.

    CurationSettings(near_duplicates={"similarity": 0.8})

Every default is in force when the recipe says nothing. `resources.curating.clean` reads `pii`, the rules on single rows
(resources/curating/row_rules.py) and the shape of the signatures; `resources.curating.curate` reads the rest.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from resources.curating.judge_endpoint import JudgeSettings
from resources.curating.row_rules import FeedbackRules, LanguageRules, LengthRules, RepetitionRules, StatusRules, ToolRules


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NearDuplicates(_Settings):
    """MinHash with banding proposes pairs; the true Jaccard similarity of their word n-grams decides.

    A pair of similarity s is proposed with probability 1 - (1 - s**rows)**bands (Leskovec, Rajaraman, Ullman, Mining of
    Massive Datasets, 3.4.2): 0.994 at s = 0.7 with the defaults, 0.99999 at 0.8.
    """

    enabled: bool = True
    similarity: float = Field(0.7, gt=0, le=1, description="Jaccard similarity from which two rows are one")
    ngram: int = Field(5, ge=1, le=32, description="words in a shingle")
    bands: int = Field(28, ge=1, le=256, description="hashes kept of every row: one a band")
    rows: int = Field(5, ge=1, le=32, description="MinHash values that agree where two rows share a band")

    @property
    def hashes(self) -> int:
        return self.bands * self.rows


class SemanticDuplicates(_Settings):
    """Rows that mean the same in other words: cosine similarity of a model's embeddings. Off unless a model is named."""

    enabled: bool = False
    model: str | None = Field(None, description="directory of an embedding model in the Hugging Face layout")
    similarity: float = Field(0.95, gt=0, le=1, description="cosine from which two rows are one")
    max_length: int = Field(512, ge=8, description="tokens; a longer row is compared with none")

    @model_validator(mode="after")
    def _named(self):
        if self.enabled and not self.model:
            raise ValueError("semantic_duplicates needs `model`: the directory of an embedding model")
        return self


class Decontamination(_Settings):
    """Rows that hold a held-out evaluation item are dropped, so that scores on it mean something."""

    enabled: bool = True
    threshold: float = Field(0.5, gt=0, le=1, description="share of an item's words covered by a row's n-grams")
    ngrams: list[int] = Field(default_factory=lambda: [8, 13], min_length=1, description="sizes in words")

    @model_validator(mode="after")
    def _sizes(self):
        if min(self.ngrams) < 2 or max(self.ngrams) > 64:
            raise ValueError("ngrams must lie between 2 and 64 words")
        self.ngrams = sorted(set(self.ngrams))
        return self


class CurationSettings(_Settings):
    pii: Literal["redact", "keep"] = Field("redact", description="typed placeholders in place of personal data")
    pii_engine: Literal["builtin", "presidio"] = Field(
        "builtin", description="presidio: what Microsoft Presidio finds as well (names, places); needs the extra `presidio` "
        "and its model on this machine"
    )
    exact_duplicates: bool = Field(True, description="one row of those that differ in case and white space only")
    near_duplicates: NearDuplicates = Field(default_factory=NearDuplicates)
    semantic_duplicates: SemanticDuplicates = Field(default_factory=SemanticDuplicates)
    decontamination: Decontamination = Field(default_factory=Decontamination)
    status: StatusRules = Field(default_factory=StatusRules)
    tools: ToolRules = Field(default_factory=ToolRules)
    language: LanguageRules = Field(default_factory=LanguageRules)
    repetition: RepetitionRules = Field(default_factory=RepetitionRules)
    length: LengthRules = Field(default_factory=LengthRules)
    feedback: FeedbackRules = Field(default_factory=FeedbackRules)
    judge: JudgeSettings | None = Field(None, description="a model that scores rows by quality and difficulty")
    min_quality: float | None = Field(None, ge=1, le=10, description="drop rows that the judge scored lower")

    @model_validator(mode="after")
    def _judged_with_care(self):
        if self.min_quality is not None and self.judge is None:
            raise ValueError("min_quality needs scores: name the model that gives them under curation.judge")
        if self.judge is not None and self.pii == "keep":
            raise ValueError("judge shows rows to an endpoint, and pii: keep would show it personal data; take pii: redact")
        return self

    def as_config(self) -> dict[str, Any]:
        """What decides the outcome of curation, for a manifest: not how the judge is reached."""
        reached = {"base_url", "api_key_env", "max_rows", "concurrency", "timeout_s", "retries", "request"}
        return self.model_dump(mode="json", exclude={"judge": reached})
