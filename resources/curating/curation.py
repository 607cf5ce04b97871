"""The recipe's `curation` settings: which rows are dropped, and why.

    CurationSettings(near_duplicates={"similarity": 0.8})

Defaults apply where the recipe says nothing. `resources.curating.cleaning` reads `pii`, the rules on single rows
(resources/curating/row_rules.py) and the layout of the signatures; `resources.curating.selection` reads the rest.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from model_ops.jobs import Settings
from resources.curating.judge_endpoint import JudgeSettings
from resources.curating.row_rules import FeedbackRules, LanguageRules, LengthRules, RepetitionRules, StatusRules, ToolRules


class NearDuplicates(Settings):
    """Drops near duplicates: MinHash with banding proposes pairs, the Jaccard similarity of their word n-grams decides.

    A pair of similarity s is proposed with probability 1 - (1 - s**rows)**bands (Leskovec, Rajaraman, Ullman, Mining of
    Massive Datasets, 3.4.2): 0.994 at s = 0.7 with the defaults, 0.99999 at 0.8.
    """

    enabled: bool = Field(True, description="false: near duplicates stay")
    similarity: float = Field(0.7, gt=0, le=1, description="Jaccard similarity from which two rows are near duplicates")
    ngram: int = Field(5, ge=1, le=32, description="Words in a shingle")
    bands: int = Field(28, ge=1, le=256, description="Bands of a signature; more bands find more pairs and take more time")
    rows: int = Field(5, ge=1, le=32, description="MinHash values that must agree within a band")

    @property
    def hashes(self) -> int:
        return self.bands * self.rows


class SemanticDuplicates(Settings):
    """Drops rows that mean the same, by cosine similarity of a model's embeddings. Off by default."""

    enabled: bool = Field(False, description="true: drop semantic duplicates; needs `model`")
    model: str | None = Field(
        None, min_length=1, description="Directory of an embedding model in the Hugging Face layout. Left out: none"
    )
    similarity: float = Field(0.95, gt=0, le=1, description="Cosine similarity from which two rows are duplicates")
    max_length: int = Field(512, ge=8, le=2**20, description="Longest row in tokens; a longer one is compared with none")

    @model_validator(mode="after")
    def _named(self):
        if self.enabled and not self.model:
            raise ValueError(
                "enabled is true and model is missing; semantic_duplicates needs `model`, the directory of an embedding model"
            )
        return self


class Decontamination(Settings):
    """Drops rows that contain an item of a suite under `evals`, so that scores on the suite are valid."""

    enabled: bool = Field(True, description="false: rows are not compared with the suites")
    threshold: float = Field(0.5, gt=0, le=1, description="Share of an item's words that a row's n-grams must cover")


class CurationSettings(Settings):
    """Which rows are kept, and in what form."""

    pii: Literal["redact", "keep"] = Field("redact", description="redact: typed placeholders replace personal data")
    pii_engine: Literal["builtin", "presidio"] = Field(
        "builtin",
        description="presidio: also redact what Microsoft Presidio finds (names, places); needs the extra "
        "`presidio` and its model on this machine",
    )
    exact_duplicates: bool = Field(True, description="Keep one of the rows that differ in case and white space only")
    near_duplicates: NearDuplicates = Field(default_factory=NearDuplicates, description="Rows that are nearly the same")
    semantic_duplicates: SemanticDuplicates = Field(
        default_factory=SemanticDuplicates, description="Rows that say the same in other words"
    )
    decontamination: Decontamination = Field(default_factory=Decontamination, description="Rows that hold evaluation items")
    status: StatusRules = Field(default_factory=StatusRules, description="Rules on failed, cut, refused and empty answers")
    tools: ToolRules = Field(default_factory=ToolRules, description="Rules on tool calls")
    language: LanguageRules = Field(default_factory=LanguageRules, description="Rules on the language of answers")
    repetition: RepetitionRules = Field(default_factory=RepetitionRules, description="Rules on answers that repeat themselves")
    length: LengthRules = Field(default_factory=LengthRules, description="Bounds on the length of prompts and answers")
    feedback: FeedbackRules = Field(default_factory=FeedbackRules, description="What feedback decides")
    judge: JudgeSettings | None = Field(
        None, description="Model that scores rows by quality and difficulty. Left out: no row is judged"
    )
    min_quality: float | None = Field(
        None, ge=1, le=10, description="Drop rows with a lower quality score; needs `judge`. Left out: no bound"
    )

    @model_validator(mode="after")
    def _judged_with_care(self):
        if self.min_quality is not None and self.judge is None:
            raise ValueError("min_quality needs scores: name the model that gives them under curation.judge")
        if self.judge is not None and self.pii == "keep":
            raise ValueError("judge sends rows to an endpoint, and with pii: keep they contain personal data; set pii: redact")
        return self

    def as_config(self) -> dict[str, Any]:
        """The settings that decide the result, for a manifest: the judge's address and timeouts are left out."""
        reached = {"base_url", "api_key_env", "max_rows", "concurrency", "timeout_s", "retries", "request"}
        return self.model_dump(mode="json", exclude={"judge": reached})
