"""What a recipe can ask of each row by itself: `curation.status`, `tools`, `language`, `repetition`, `length`, `feedback`.

    CurationSettings(language={"allow": ["en", "de"]}, repetition={"repeats": 64})

`resources.curating.clean` applies them, in this order; the first rule that a row breaks is its verdict. The measures they look
at are in `cleaned_interactions.quality` and `language` of every row, kept or not: look before you choose a threshold.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from resources.curating.languages import LANGUAGES


class RuleSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StatusRules(RuleSettings):
    """Responses that teach nothing good. A rule that is off lets its rows through."""

    drop_errors: bool = Field(True, description="the request failed, or its record carries an error")
    drop_cache_hits: bool = Field(True, description="an answer served from a cache repeats one already logged")
    drop_truncated: bool = Field(True, description="the answer stopped at its token limit (finish_reason length)")
    drop_refused: bool = Field(True, description="a content filter or a refusal in place of an answer")
    drop_refused_in_words: bool = Field(
        False, description="a short answer that begins by saying, in English, that it cannot help; a refusal may be right"
    )
    drop_empty: bool = Field(True, description="no prompt, or neither text nor a tool call in the answer")


class ToolRules(RuleSettings):
    """Tool calls that no client could have run."""

    drop_broken: bool = Field(
        True, description="a call's arguments are no JSON object, its name is none of the request's tools, or a tool's "
        "message answers no call before it"
    )


class LanguageRules(RuleSettings):
    """The language of the answer's prose. Answers whose language cannot be told (short, code) are kept."""

    detect: bool = Field(True, description="fill the column `language`")
    allow: list[str] = Field(default_factory=list, description="ISO 639 codes of answers to keep; empty: all")
    min_confidence: float = Field(0.5, ge=0, le=1, description="below it a language counts as not told")

    @field_validator("allow")
    @classmethod
    def _known(cls, value: list[str]) -> list[str]:
        if unknown := sorted(set(value) - set(LANGUAGES)):
            raise ValueError(f"{', '.join(unknown)}: no language that can be told; there are {', '.join(LANGUAGES)}")
        return sorted(set(value))

    @model_validator(mode="after")
    def _detected(self):
        if self.allow and not self.detect:
            raise ValueError("allow needs languages to be detected: leave `detect` on")
        return self


class RepetitionRules(RuleSettings):
    """Answers that go round in circles.

    `repeats`: a pattern of 1 to 13 words said so often in a row, the sign of a model that lost its thread, or a pattern
    of signs ("!!!!", "hahaha", line ends) that takes more than half of the answer. The shares are
    Gopher's (Rae et al. 2021, table A1) for answers of `min_words` words of prose and more; see resources/curating/quality.py.

    Gopher's bounds are for web pages. Its bounds on frequent n-grams (0.20, 0.18, 0.16) hold for chats as well; those on
    lines and paragraphs (0.30; 0.20 of characters) and on 5- to 10-grams that come again (0.15 down to 0.10) would drop 14 of
    62 long messages of people's good conversations in OASST (training plans, reports, dialogues) and 28 of 146 articles in
    Spec-Bench. The defaults take what says half of its text again.
    """

    drop_repeated_patterns: bool = True
    repeats: int = Field(32, ge=2, description="times in a row")
    drop_repetitive: bool = Field(True, description="apply the shares below")
    min_words: int = Field(300, ge=20, description="words of prose from which the shares are measured")
    duplicate_lines: float = Field(0.50, ge=0, le=1, description="Gopher: 0.30")
    duplicate_paragraphs: float = Field(0.50, ge=0, le=1, description="Gopher: 0.30")
    duplicate_line_characters: float = Field(0.50, ge=0, le=1, description="Gopher: 0.20")
    duplicate_paragraph_characters: float = Field(0.50, ge=0, le=1, description="Gopher: 0.20")
    top_2gram: float = Field(0.20, ge=0, le=1, description="share of characters in the most frequent pair of words")
    top_3gram: float = Field(0.18, ge=0, le=1)
    top_4gram: float = Field(0.16, ge=0, le=1)
    duplicate_5grams: float = Field(0.50, ge=0, le=1, description="characters in 5-grams that came before; Gopher: 0.15")
    duplicate_6grams: float = Field(0.50, ge=0, le=1, description="Gopher: 0.14")
    duplicate_7grams: float = Field(0.50, ge=0, le=1, description="Gopher: 0.13")
    duplicate_8grams: float = Field(0.50, ge=0, le=1, description="Gopher: 0.12")
    duplicate_9grams: float = Field(0.50, ge=0, le=1, description="Gopher: 0.11")
    duplicate_10grams: float = Field(0.50, ge=0, le=1, description="Gopher: 0.10")


class LengthRules(RuleSettings):
    """Bounds in characters, and of the answer's share in its prompt's. None: no bound."""

    min_prompt: int | None = Field(None, ge=0, description="characters of all messages but the answer")
    max_prompt: int | None = Field(2_000_000, ge=1)
    min_answer: int | None = Field(None, ge=0)
    max_answer: int | None = Field(500_000, ge=1)
    min_ratio: float | None = Field(None, ge=0, description="answer's characters / prompt's characters")
    max_ratio: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _in_order(self):
        for what in ("prompt", "answer", "ratio"):
            least, most = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if least is not None and most is not None and least > most:
                raise ValueError(f"min_{what} {least} is above max_{what} {most}: no row could pass")
        return self


class FeedbackRules(RuleSettings):
    """What people said decides where it is clear."""

    drop_thumbs_down: bool = Field(True, description="drop rows whose feedback is below zero")
    thumbs_down: Literal["drop", "prefer"] = Field(
        "drop", description="prefer: a dropped answer that a better one to the same prompt stands beside becomes the rejected "
        "half of a preference row"
    )
    keep_thumbs_up: bool = Field(
        False, description="rows with feedback above zero pass the rules on language, repetition, length and refusals in words"
    )
