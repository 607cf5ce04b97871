"""The recipe's settings for rules on single rows: `curation.status`, `tools`, `language`, `repetition`, `length`, `feedback`.

    CurationSettings(language={"allow": ["en", "de"]}, repetition={"repeats": 64})

`resources.curating.cleaning` applies them in this order; the first rule that a row breaks drops it. The measures are stored in
`cleaned_interactions.quality` and `language` for every row, kept or not: query them before choosing a threshold.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from model_ops.jobs import Settings
from resources.curating.languages import LANGUAGES


class StatusRules(Settings):
    """Drops failed, cut, refused and empty responses. A rule set to false keeps its rows."""

    drop_errors: bool = Field(True, description="Drop rows whose request failed or whose record carries an error")
    drop_cache_hits: bool = Field(True, description="Drop answers served from a cache, which repeat a logged one")
    drop_truncated: bool = Field(
        True, description="Drop answers that are not whole: cut at the token limit, or with a finish_reason that is not known"
    )
    drop_context_elsewhere: bool = Field(
        True,
        description="Drop rows whose prompt the provider completed with text that the log lacks: an earlier response, a "
        "stored prompt, a cache, retrieved files, or prompt tokens far beyond the messages",
    )
    drop_control_text: bool = Field(
        True, description="Drop answers that begin with control text of a model, or have its raw tool calls"
    )
    drop_refused: bool = Field(True, description="Drop rows with a content filter's message or a refusal in place of an answer")
    drop_refused_in_words: bool = Field(
        False,
        description="Drop short answers that begin by saying, in English, that they cannot help; such a refusal may be right",
    )
    drop_empty: bool = Field(
        True, description="Drop rows without a prompt, or without text or a tool call of a known kind in the answer"
    )


class ToolRules(Settings):
    """Drops rows with tool calls that no client could have run."""

    drop_broken: bool = Field(
        True,
        description="Drop rows with a call whose arguments are no JSON object or whose name is no tool of the request, "
        "or with a tool's message that answers no call before it",
    )


class LanguageRules(Settings):
    """Keeps answers by the language of their prose. Answers whose language is unknown (short ones, code) are kept."""

    detect: bool = Field(True, description="Detect the language of every answer (column `language`)")
    allow: list[str] = Field(default_factory=list, description="ISO 639 codes of the languages to keep. Empty: all")
    min_confidence: float = Field(0.5, ge=0, le=1, description="Confidence below which a language counts as unknown")

    @field_validator("allow")
    @classmethod
    def _known(cls, value: list[str]) -> list[str]:
        if unknown := sorted(set(value) - set(LANGUAGES)):
            raise ValueError(f"no detectable language has the code {', '.join(unknown)}; there are {', '.join(LANGUAGES)}")
        return sorted(set(value))

    @model_validator(mode="after")
    def _detected(self):
        if self.allow and not self.detect:
            raise ValueError("allow needs languages to be detected, and detect is false; leave `detect` out")
        return self


class RepetitionRules(Settings):
    """Drops answers that repeat themselves.

    `repeats`: a pattern of 1 to 13 words repeated in a row, the sign of a looping model, or a pattern of characters ("!!!!",
    "hahaha", line ends) that takes more than half of the answer. Lines of code or log may repeat twice as often; numbers,
    tables and what is fenced 32 times, but not sentences in them. The shares are Gopher's (Rae et al. 2021, table A1), for
    answers with at least 300 words of prose; see resources/curating/quality.py.

    Gopher's bounds are for web pages. Its bounds on frequent n-grams (0.20, 0.18, 0.16) suit chats as well; those on lines
    and paragraphs (0.30; 0.20 of characters) and on repeated 5- to 10-grams (0.15 down to 0.10) would drop 14 of 62 long
    messages of good human conversations in OASST (training plans, reports, dialogues) and 28 of 146 articles in Spec-Bench.
    An answer is dropped when half of its text is repeated (sql/curating/rules.sql).
    """

    drop_repeated_patterns: bool = Field(
        True, description="Drop answers that repeat a pattern of 1 to 13 words, or of characters"
    )
    repeats: int = Field(32, ge=2, description="Repetitions in a row from which an answer is dropped")
    drop_repetitive: bool = Field(
        True, description="Drop answers of which half is repeated, or that repeat a few words all the time"
    )


class LengthRules(Settings):
    """Drops rows by the characters of prompt and answer."""

    min_prompt: int | None = Field(
        None, ge=0, description="Fewest characters of all messages but the answer. Left out: no bound"
    )
    max_prompt: int | None = Field(
        2_000_000, ge=1, description="Most characters of all messages but the answer. null: no bound"
    )
    min_answer: int | None = Field(None, ge=0, description="Fewest characters of the answer. Left out: no bound")
    max_answer: int | None = Field(500_000, ge=1, description="Most characters of the answer. null: no bound")

    @model_validator(mode="after")
    def _in_order(self):
        for what in ("prompt", "answer"):
            least, most = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if least is not None and most is not None and least > most:
                raise ValueError(f"min_{what} {least} is above max_{what} {most}: no row could pass")
        return self


class FeedbackRules(Settings):
    """Drops or keeps rows by their feedback."""

    drop_thumbs_down: bool = Field(True, description="Drop rows whose feedback is below zero")
    least: dict[Annotated[str, Field(min_length=1)], Annotated[float, Field(allow_inf_nan=False)]] = Field(
        default_factory=lambda: {"reward": 1.0},
        description="Lowest good value of feedback by its name; a lower value counts "
        "as a thumb down. Feedback of other names counts as it is",
    )
    keep_thumbs_up: bool = Field(
        False, description="Rows with feedback above zero pass the rules on language, repetition, length and refusals in words"
    )
